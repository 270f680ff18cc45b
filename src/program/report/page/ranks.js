// Panel 9: a small chart of each device of each process, all on one scale of bytes and of time.

function everyDevice() {
    return report.processes.flatMap((process) =>
        decode(process)
            .devices.filter((device) => device.ordinal >= 0)
            .map((device) => ({ process, device })),
    );
}

const small = new Map();

/** The canvas of a device. It stays when the panel is drawn again. */
function canvasOf(process, device) {
    const key = `${report.processes.indexOf(process)}-${device.ordinal}`;
    if (!small.has(key)) small.set(key, make("canvas", { class: "small", "aria-hidden": "true" }));
    return small.get(key);
}

function drawSmall({ process, device }, scale, length) {
    const drawn = drawing(canvasOf(process, device));
    if (!drawn) return;
    const { pen, width, height } = drawn;
    const box = { left: 0, top: 2, width, height: height - 3 };
    const to = process.began + length;
    drawLevels(pen, device, box, process.began, to, scale, 1);
    if (process.until < to) {
        const x = ((process.until - process.began) / length) * width;
        pen.fillStyle = colour("ground");
        pen.fillRect(x, 0, width - x, height);
    }
    for (const failure of process.failures)
        drawFlag(pen, box, process.began, to, failure.time_ns, "", { line: colour("bad"), wide: 2 });
    if (state.from === state.process.began && state.to === state.process.until) return;
    const x = (time) => ((time - process.began) / length) * width;
    pen.fillStyle = colour("text");
    pen.globalAlpha = 0.12;
    pen.fillRect(x(state.from), 0, Math.max(1, x(state.to) - x(state.from)), height);
    pen.globalAlpha = 1;
}

const deviceTable = (list) =>
    table(
        "Devices of all processes",
        [
            column("run", ({ process }) => process.started.replace("T", " ").replace("Z", "")),
            column("process", ({ process: one }) => `${rankText(one)} (pid ${one.pid} on ${one.host})`),
            column("device", ({ device }) => deviceTitle(device)),
            figure("peak live", ({ device }) => size(device.peak_bytes)),
            figure("at", ({ device }) => moment(device.peak_ns)),
            figure("peak reserved", ({ device }) => size(device.peak_reserved)),
            figure("utilisation", ({ device }) => percent(device.utilisation ?? NaN)),
            figure("live at the end", ({ device }) => size(device.live_at_end)),
            figure("allocations", ({ device }) => count(device.allocations)),
            figure("out of memory", ({ device }) => count(device.failures)),
            column("ended", ({ process }) => process.ended),
        ],
        list,
    );

panel("ranks", () => {
    const list = everyDevice();
    byId("ranks").hidden = list.length < 2 && report.unread.length === 0;
    const scale = Math.max(1, ...list.map(({ device }) => Math.max(device.peak_bytes, device.peak_reserved))) * 1.05;
    const length = Math.max(...report.processes.map((process) => process.until - process.began));
    const cards = list.map(({ process, device }) => {
        const failed = process.ended_by_failure ? failureWords(process) : "";
        const text = `${rankText(process)}, ${deviceText(device)}`;
        const here = size(levelAt(device.live, process.began + state.at - state.process.began));
        const peaks = `peak ${size(device.peak_bytes)} live, ${size(device.peak_reserved)} reserved`;
        const figures = `${peaks}${failed && `, ${failed}`}; ${here} live at the moment`;
        const card = button("", () => selectProcess(process, device), {
            class: "card",
            "aria-pressed": String(process === state.process && device === state.device),
            "aria-label": `${runs.length > 1 ? `${runText(runs[process.run])}: ` : ""}${text}: ${figures}`,
        });
        card.replaceChildren(
            make("span", { class: "name" }, text, failed && make("b", { class: "badly" }, ` ${failed}`)),
            canvasOf(process, device),
            make("span", { class: "more" }, `peak ${size(device.peak_bytes)}, now ${here}`),
        );
        return make("li", {}, card);
    });
    const because = report.first_because ? ` The first process is first because ${report.first_because}.` : "";
    const inRuns = runs.length > 1 ? ` of ${many(runs.length, "run")}, the newest first` : "";
    const without = report.processes.length - new Set(list.map(({ process }) => process)).size;
    const unused = without > 0 ? `, of which ${count(without)} used no device` : "";
    const title = `${many(report.processes.length, "process", "processes")}${inRuns}${unused}, all on one scale: ${size(scale / 1.05)} and ${duration(length)}. Times count from the start of each journal.${because}`;
    body("ranks").replaceChildren(
        p("asof", list.length > 0 ? title : "No process used a device."),
        ...(runs.length > 1
            ? runs.flatMap((run, number) => [
                  make("h3", { class: "run" }, number === 0 ? `Newest run: ${runText(run)}` : `Run of ${runText(run)}`),
                  make("ul", { class: "cards" }, ...cards.filter((_, place) => list[place].process.run === number)),
              ])
            : [make("ul", { class: "cards" }, ...cards)]),
        list.length > 0 ? details("rank-table", "These charts as a table", deviceTable(list)) : "",
        ...report.unread.map((text) => p("notice", `Not in this report: ${text}`)),
    );
    list.forEach((one) => drawSmall(one, scale, length));
});
