// Begins: chooses what to show first, and reacts to the window and to the choices at the head of the page.

/** What the system prefers, unless the reader has chosen. */
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = null;

function showTheme(theme = chosenTheme || (prefersDark.matches ? "dark" : "light")) {
    const other = theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    byId("theme").textContent = upperFirst(other);
    byId("theme").setAttribute("aria-label", `Use ${other} colours`);
    changed();
}

byId("theme").addEventListener("click", () => {
    chosenTheme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    showTheme();
});
prefersDark.addEventListener("change", () => showTheme());

// Paper is light, and a canvas keeps the colours that it was drawn with.
window.addEventListener("beforeprint", () => {
    showTheme("light");
    drawAll();
});
window.addEventListener("afterprint", () => showTheme());

let widthDrawn = 0;
new ResizeObserver(() => {
    if (document.body.clientWidth !== widthDrawn) changed();
    widthDrawn = document.body.clientWidth;
}).observe(document.body);

/** The choices of process and device. */
panel("title", () => {
    const { process, device } = state;
    document.title = `GPU memory of ${process.title}`;
    byId("title").textContent = process.title;
    byId("subtitle").textContent =
        `${rankText(process)} on ${process.host}, ${process.strategy}, recorded from ${process.started}`;
    const option = (one) => {
        const ended = one.ended_by_failure ? `, ${failureWords(one)}` : "";
        const value = report.processes.indexOf(one);
        return make("option", { value, selected: one === process }, `${one.rank === null ? one.pid : rankText(one)} ${one.title.replace(/^(.{30}).+/s, "$1\u2026")}${ended}`);
    };
    const groups = runs.map((run) => make("optgroup", { label: runText(run) }, ...run.map(option)));
    byId("process").replaceChildren(...(runs.length > 1 ? groups : report.processes.map(option)));
    byId("process-label").hidden = report.processes.length < 2;
    const devices = process.devices.map((one, place) =>
        make("option", { value: place, selected: one === device }, deviceText(one)),
    );
    byId("device").replaceChildren(...devices);
    byId("device-label").hidden = process.devices.length < 2;
});
byId("process").addEventListener("change", (event) => selectProcess(report.processes[Number(event.target.value)]));
byId("device").addEventListener("change", (event) =>
    selectProcess(state.process, state.process.devices[Number(event.target.value)]),
);

if (report.unread.length > 0)
    problem(`${many(report.unread.length, "journal")} could not be read; see “Devices and ranks”.`);
showTheme();
selectProcess(report.processes[0]);
drawAll();
