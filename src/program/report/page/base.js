// Elements, numbers in words, and scales. All text of the job reaches the page through `text` nodes.

/** Whether the reader points with a finger. */
const isTouch = matchMedia("(pointer: coarse)").matches;

/** Makes an element. `attributes` are set as attributes; functions are listeners. */
function make(name, attributes = {}, ...children) {
    const isDrawing = ["svg", "g", "rect", "text", "title", "line", "path"].includes(name);
    const element = isDrawing
        ? document.createElementNS("http://www.w3.org/2000/svg", name)
        : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
        if (typeof value === "function") element.addEventListener(key, value);
        else if (value === true) element.setAttribute(key, "");
        else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
    return element;
}

/** A paragraph in a class of the style. */
const p = (kind, ...children) => make("p", { class: kind }, ...children);

const byId = (id) => document.getElementById(id);
const body = (panel) => byId(panel).querySelector(".body");

/** A text whose long words break at their signs. */
const parted = (text) => text.split(/(\S{8}[^\s:_/]*[:_/])/).flatMap((part) => [part, make("wbr")]);

/** A size with a binary unit, as the program prints it. */
function size(bytes) {
    if (bytes < 0) return "\u2212" + size(-bytes);
    if (bytes < 1024) return `${Math.round(bytes)} B`;
    let value = bytes / 1024;
    let unit = 0;
    const units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    while (value >= 1023.95 && unit + 1 < units.length) {
        value /= 1024;
        unit += 1;
    }
    return `${value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
}

const signed = (bytes) => (bytes > 0 ? "+" : "") + size(bytes);
const count = (number) => number.toLocaleString("en-US");
const many = (number, one, several = one + "s") => `${count(number)} ${number === 1 ? one : several}`;
const percent = (share) => (Number.isFinite(share) ? `${(share * 100).toFixed(1)} %` : "-");

/** A duration with three or four digits. */
function duration(ns) {
    if (ns < 0) return "\u2212" + duration(-ns);
    const seconds = ns / 1e9;
    if (ns < 1000) return `${Math.round(ns)} ns`;
    if (ns < 1e6) return `${digits(ns / 1e3)} \u00b5s`;
    if (ns < 1e9) return `${digits(ns / 1e6)} ms`;
    if (seconds < 60) return `${digits(seconds)} s`;
    const whole = Math.floor(seconds);
    if (seconds < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
    if (seconds < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole / 60) % 60)} min`;
    return `${Math.floor(whole / 86400)} d ${Math.floor((whole / 3600) % 24)} h`;
}

const digits = (value) => value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0);

/** A moment of the run, exact to a part of `range`. */
function moment(ns, range = 0) {
    const seconds = ns / 1e9;
    const decimals = range > 0 ? Math.min(9, Math.max(0, Math.ceil(-Math.log10(range / 1e9 / 500)))) : 3;
    if (seconds < 1 && (range > 0 ? range < 1e9 : ns > 0))
        return `${(ns / 1e6).toFixed(range > 0 ? Math.max(0, decimals - 3) : 1)} ms`;
    if (seconds < 120) return `${seconds.toFixed(decimals)} s`;
    const hours = Math.floor(seconds / 3600);
    const minutes = Math.floor(seconds / 60) % 60;
    const rest = (seconds % 60)
        .toFixed(Math.min(decimals, 3))
        .padStart(decimals > 0 ? Math.min(decimals, 3) + 3 : 2, "0");
    return hours > 0 ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
}

/** Marks for an axis of times from `from` to `to`. */
function timeMarks(from, to, most) {
    const rough = (to - from) / Math.max(most, 1);
    const seconds = [10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400];
    const decimal = [1, 2, 5].map((part) => part * 10 ** Math.floor(Math.log10(Math.max(rough, 1))));
    const steps = [...decimal, 10 * decimal[0]].filter((step) => step < 10e9).concat(seconds.map((one) => one * 1e9));
    const step = steps.find((step) => step >= rough) || 86400e9 * Math.ceil(rough / 86400e9);
    return marksFrom(Math.ceil(from / step) * step, step, to);
}

function marksFrom(first, step, last) {
    const marks = [];
    for (let at = first; at <= last && marks.length < 100; at += step) marks.push(at);
    return marks;
}

/** Marks for an axis of bytes from 0 to `highest`. */
function byteMarks(highest, most) {
    const step = 2 ** Math.max(0, Math.ceil(Math.log2(Math.max(highest, 1) / most)));
    return marksFrom(0, step, highest);
}

/** Makes `canvas` as sharp as the screen. Returns its context, width and height in CSS pixels; null if it is not shown. */
function drawing(canvas) {
    const { clientWidth: width, clientHeight: height } = canvas;
    if (width === 0 || height === 0) return null;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    return { pen, width, height };
}

/** The value of a colour of the style. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const column = (title, cell) => ({ title, cell });
const figure = (title, cell) => ({ title, cell, number: true });

/** A table. Columns: title, `number` for right alignment, and the cell of a row as text or element. */
function table(caption, columns, rows, attributes = {}) {
    const kind = (column) => (column.number ? "number" : null);
    const head = columns.map((column) => make("th", { scope: "col", class: kind(column) }, column.title));
    const cells = (row) => columns.map((column) => make("td", { class: kind(column) }, column.cell(row)));
    const inside = make(
        "table",
        attributes,
        make("caption", { class: "unseen" }, caption),
        make("thead", {}, make("tr", {}, ...head)),
        make("tbody", {}, ...rows.map((row) => make("tr", {}, ...cells(row)))),
    );
    return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, inside);
}

/** A list of names and values. */
function pairs(kind, list) {
    const pair = ([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value));
    return make("dl", { class: kind }, ...list.map(pair));
}

/** An entry of a bar's legend. */
const key = (kind, ...children) =>
    make("li", {}, make("span", { class: `key ${kind}`, "aria-hidden": "true" }), ...children);

/** A list of choices. `choices` are pairs of value and text. */
function choose(label, choices, chosen, changed) {
    const options = choices.map(([value, text]) => make("option", { value, selected: value === chosen }, text));
    const change = (event) => changed(event.target.value);
    return make("label", {}, label + " ", make("select", { change }, ...options));
}

/** A list of choices for `object[key]`, which every panel may show. */
const choice = (label, choices, object, key) =>
    choose(label, choices, object[key], (value) => {
        object[key] = value;
        changed();
    });

const button = (text, pressed, attributes = {}) =>
    make("button", { type: "button", click: pressed, ...attributes }, text);

/** A part that opens, and keeps its state when the panel is drawn again. */
const opened = new Set();
function details(key, title, ...children) {
    const element = make("details", { open: opened.has(key) }, make("summary", {}, title), ...children);
    element.addEventListener("toggle", () => (element.open ? opened.add(key) : opened.delete(key)));
    return element;
}

/** Says something to users of a screen reader. */
function say(text) {
    byId("spoken").textContent = text;
}

/** Copies a text. Returns whether that worked. */
async function copy(text) {
    try {
        await navigator.clipboard.writeText(text);
        return true;
    } catch {
        const area = make("textarea", { class: "unseen" });
        area.value = text;
        document.body.append(area);
        area.select();
        const done = document.execCommand("copy");
        area.remove();
        return done;
    }
}

/** A button that copies a text. */
function copyButton(name, text) {
    return button(name, async (event) => {
        const pressed = event.currentTarget;
        const done = await copy(text());
        pressed.textContent = done ? "Copied" : "Could not copy: select the text";
        say(pressed.textContent);
        setTimeout(() => (pressed.textContent = name), 2000);
    });
}
