// Panel 13: the process and its settings, what the terms mean, and the commands that give more.

const TERMS = [
    ["live", "bytes of allocations that the job has and has not freed, after rounding (the terminal's “allocated”)"],
    ["requested", "what the job asked for, before rounding"],
    ["reserved", "bytes that were obtained from the driver: live, and what a strategy keeps free for later requests"],
    ["cached", "free inside reserved: reserved less live; other processes cannot use it"],
    ["peak", "the first moment at which the live bytes of the device are highest; the same in every panel"],
    ["context", "what the driver holds for the process besides its allocations: contexts, loaded code, rounding"],
    ["other process", "what NVML says that it holds of the device"],
    ["unknown", "bytes in use that nobody is known to hold"],
    ["limit", "what VRAMSHIM_MEMORY_LIMIT or run --limit allows the process"],
    [
        "group",
        "allocations with the same stack, function, thread, stream and class; without a stack, of the same size",
    ],
    ["temporary", "allocated and freed inside the chosen range"],
    ["never freed", "live when the journal ends"],
    ["utilisation", "peak live divided by peak reserved"],
    ["mark", "a name that the job gave to a moment or a range of its own"],
    ["stream", "streams have numbers in the order of their first calls"],
];

/** Commands that give more: before the path of the journal, after it, and what they give. */
const COMMANDS = [
    ["inspect", "", "the same figures in the terminal"],
    ["inspect", " --json", "every figure as JSON"],
    ["report", " --json", "the data of this page"],
    ["why", "", "the verdict in full, and what to do next"],
    ["replay", "", "what other strategies would have reserved"],
    ["export", " --to torch-snapshot", "for PyTorch's memory viewer (pytorch.org/memory_viz)"],
    ["export", " --to perfetto", "for Perfetto's viewer"],
    ["export", " --to collapsed", "stacks for flame graphs, such as speedscope's"],
    ["export", " --to parquet", "tables for DuckDB and pandas"],
];

panel("about", () => {
    const { process } = state;
    const what = ({ name, total, limit, uuid }) => {
        const sizes = [total === null ? "" : size(total), limit === null ? "" : `limit ${size(limit)}`];
        return [name, ...sizes, uuid].filter((text) => text).join(", ");
    };
    const facts = [
        ["Job", process.title],
        ["Command", process.command],
        ["Process", `${process.pid} on ${process.host}${process.rank === null ? "" : `, rank ${process.rank}`}`],
        ["Started", process.started],
        ["Ended", `${process.ended}, after ${duration(process.duration_ns)}`],
        ["Strategy", process.strategy],
        ["Software", process.software.map(([name, version]) => `${name} ${version}`).join(", ") || "not recorded"],
        ["Journal", process.path],
        ...process.devices.filter((device) => device.ordinal >= 0).map((device) => [deviceText(device), what(device)]),
        ...process.host_memory.map((text) => ["Host memory", text]),
        ["Report", `made by vramshim ${report.made_by}, format ${report.format}`],
    ];
    // A quoted path, as a shell reads it.
    const path = `'${process.path.replace(/'/g, "'\\''")}'`;
    const command = ([name, options, gives]) => {
        const text = `vramshim ${name} ${path}${options}`;
        const more = make("span", { class: "more" }, gives);
        return make("li", {}, make("code", {}, text), " ", copyButton("Copy", () => text), more);
    };
    const variables = [
        column("variable", ([name]) => make("code", {}, name)),
        column("value", ([, value]) => make("code", {}, value)),
    ];
    body("about").replaceChildren(
        pairs("facts list", facts),
        details(
            "environment",
            `Settings and environment (${count(process.environment.length)}); values of secrets are left out`,
            process.environment.length === 0
                ? p("none", "The journal has none.")
                : table("Environment", variables, process.environment),
        ),
        details("terms", "What the terms mean", pairs("terms", TERMS)),
        details("commands", "Commands that give more", make("ul", { class: "commands" }, ...COMMANDS.map(command))),
    );
});
