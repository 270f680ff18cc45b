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

/** Other forms of the same data. */
const EXPORTS = [
    ["torch-snapshot", "for PyTorch's memory viewer (pytorch.org/memory_viz)"],
    ["perfetto", "for Perfetto's viewer"],
    ["collapsed", "stacks for flame graphs, such as speedscope's"],
    ["parquet", "tables for DuckDB and pandas"],
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
    const { from, to } = state;
    const commands = [
        [`vramshim inspect ${path}`, "the same figures in the terminal"],
        [`vramshim inspect ${path} --json`, "every figure as JSON"],
        [`vramshim report ${path} --json`, "the data of this page"],
        [`vramshim why ${path}`, "the verdict in full, and what to do next"],
        [`vramshim replay ${path}`, "what other strategies would have reserved"],
        ...EXPORTS.map(([format, text]) => [`vramshim export ${path} --to ${format}`, text]),
    ];
    const command = ([text, gives]) => {
        const more = make("span", { class: "more" }, gives);
        return make("li", {}, make("code", {}, text), " ", copyButton("Copy", () => text), more);
    };
    body("about").replaceChildren(
        pairs("facts list", facts),
        details(
            "environment",
            `Settings and environment (${count(process.environment.length)}); values of secrets are left out`,
            process.environment.length === 0
                ? p("none", "The journal has none.")
                : table(
                      "Environment",
                      [
                          column("variable", ([name]) => make("code", {}, name)),
                          column("value", ([, value]) => make("code", {}, value)),
                      ],
                      process.environment,
                  ),
        ),
        details("terms", "What the terms mean", pairs("terms", TERMS)),
        details("commands", "Commands that give more", make("ul", { class: "commands" }, ...commands.map(command))),
        p("more", `The chosen range is ${Math.round(from)} ns to ${Math.round(to)} ns after the start of the journal.`),
    );
});
