// Begins: chooses what to show first, and reacts to the window and to the choices at the head of the page.

const THEMES = ["auto", "light", "dark"];

function themeNow() {
    const chosen = document.documentElement.dataset.theme;
    if (chosen) return chosen;
    return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function setTheme(theme) {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    byId("theme").textContent = themeNow() === "dark" ? "Light" : "Dark";
    byId("theme").setAttribute("aria-label", `Use ${themeNow() === "dark" ? "light" : "dark"} colours`);
    changed();
}

/** The theme that was chosen before. A browser may keep nothing for files. */
function keptTheme() {
    try {
        const kept = localStorage.getItem("vramshim-theme");
        return THEMES.includes(kept) && kept !== "auto" ? kept : "";
    } catch {
        return "";
    }
}

byId("theme").addEventListener("click", () => {
    const next = themeNow() === "dark" ? "light" : "dark";
    setTheme(next);
    try {
        localStorage.setItem("vramshim-theme", next);
    } catch {
        // The choice then holds for this visit only.
    }
});
byId("print").addEventListener("click", () => window.print());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    setTheme(document.documentElement.dataset.theme || ""),
);

// Paper is light, and a canvas keeps the colours that it was drawn with.
let themeBeforePrint = null;
window.addEventListener("beforeprint", () => {
    themeBeforePrint = document.documentElement.dataset.theme || "";
    setTheme("light");
    drawAll();
});
window.addEventListener("afterprint", () => setTheme(themeBeforePrint));

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
        `${rankText(process)} on ${process.host}, ${process.strategy}, started ${process.started}`;
    const option = (one) =>
        make(
            "option",
            { value: report.processes.indexOf(one), selected: one === process },
            `${rankText(one)}${one.ended_by_failure ? `, ${failureWords(one)}` : ""}`,
        );
    const options =
        runs.length > 1
            ? runs.map((run) => make("optgroup", { label: runText(run) }, ...run.map(option)))
            : report.processes.map(option);
    byId("process").replaceChildren(...options);
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
setTheme(keptTheme());
selectProcess(report.processes[0]);
drawAll();
