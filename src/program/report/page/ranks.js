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

/** What a device had live at a time of its process, in words. */
function liveThen({ process, device }, time) {
    if (time < 0) return "its journal begins later";
    return time > process.until ? "its journal ended before" : `${liveText(device, time)} at the moment`;
}

function drawSmall({ process, device }, scale, length) {
    const drawn = drawing(canvasOf(process, device));
    if (!drawn) return;
    const from = -process.late;
    const to = from + length;
    const view = plane(drawn.pen, [0, 2, drawn.width - 6, drawn.height - 3], from, to, scale);
    drawLevels(view, device, 1);
    if (from < process.began) shade(view, from, process.began, "ground", 1);
    if (process.until < to) shade(view, process.until, to, "ground", 1);
    for (const failure of process.failures) drawFlag(view, failure.time_ns, "", LOOKS.failure);
}

panel("ranks", () => {
    const list = everyDevice();
    byId("ranks").hidden = list.length < 2 && report.unread.length === 0;
    const scale = Math.max(1, ...list.map(({ device }) => Math.max(device.peak_bytes, device.peak_reserved))) * 1.05;
    const length = Math.max(...report.processes.map((process) => process.late + process.until));
    const now = state.at + state.process.late;
    const cards = list.map(({ process, device }) => {
        const failed = process.ended_by_failure ? failureWords(process) : "";
        const text = `${rankText(process)}, ${deviceText(device)}`;
        const here = liveThen({ process, device }, now - process.late);
        const peak = peakText(device);
        const figures = `peak ${peak} live, ${reservedText(device, device.peak_reserved)} reserved${failed && `, ${failed}`}; live: ${here}`;
        const card = button("", () => selectProcess(process, device), {
            class: "card",
            "aria-pressed": String(process === state.process && device === state.device),
            "aria-label": `${runs.length > 1 ? `${runText(runs[process.run])}: ` : ""}${text}: ${figures}`,
        });
        card.replaceChildren(
            make("span", { class: "name" }, text, failed && make("b", { class: "badly" }, ` ${failed}`)),
            canvasOf(process, device),
            make("span", { class: "more" }, `peak ${peak}; ${here}`),
        );
        return make("li", {}, card);
    });
    const cardsOf = (run) => make("ul", { class: "cards" }, ...cards.filter((_, place) => list[place].process.run === run));
    const title = (run, number) => make("h3", { class: "run" }, (number > 0 ? "Run of " : "Newest run: ") + runText(run));
    const all = runs.flatMap((run, number) => [runs.length > 1 ? title(run, number) : "", cardsOf(number)]);
    const because = report.first_because ? ` The first process is first because ${report.first_because}.` : "";
    const inRuns = runs.length > 1 ? ` of ${many(runs.length, "run")}, the newest first` : "";
    const without = report.processes.length - new Set(list.map(({ process }) => process)).size;
    const unused = without > 0 ? `, of which ${count(without)} used no device` : "";
    const scales = `${size(scale / 1.05)} and ${duration(length)}`;
    const summary = `${many(report.processes.length, "process", "processes")}${inRuns}${unused}, all on one scale: ${scales}. Times count from the first start of a run, by the clocks of the hosts.${because}`;
    body("ranks").replaceChildren(
        p("asof", list.length > 0 ? summary : "No process used a device."),
        ...all,
        ...report.unread.map((text) => p("notice", `Not in this report: ${text}`)),
    );
    list.forEach((one) => drawSmall(one, scale, length));
});
