// Panel 4: live and reserved bytes over time, with a brush that chooses the range of all panels.

const LEFT = 74;
const BOTTOM = 24;
const TOP = 18;

const chart = make("canvas", {
    class: "chart",
    tabindex: "0",
    role: "slider",
    "aria-orientation": "horizontal",
    "aria-label": "Moment",
});
const overview = make("canvas", { class: "overview", "aria-hidden": "true" });
const legendOfChart = make("ul", { class: "legend" });
const tableOfChart = make("div");
/** What is under the pointer: a line, and a box with the figures of that time. */
const hair = make("div", { class: "hair", hidden: true, "aria-hidden": "true" });
const tip = make("div", { class: "tip", hidden: true });
/** What the pointer marks, from and to, while it is down. */
let dragged = null;

/** The highest byte of the chart's scale: the limit or the device, unless that would press the curves flat. */
function scaleOf(device, highest) {
    const room = Number.isFinite(device.room) ? device.room : 0;
    const top = Math.max(highest, 1) * 1.1;
    // The name of the limit stands above its line, where no curve is.
    return room > 0 && room * 1.1 < top * 3 ? Math.max(top, room * 1.1) : top;
}

/** The highest level in the range. */
const highestOf = (device, wide) =>
    Math.max(...["live", "reserved", "used"].map((name) => columns(device[name], state.from, state.to, wide).highest));

/** Draws one curve as columns of pixels. Returns its columns. */
function drawCurve(pen, line, box, from, to, scale, look) {
    const wide = Math.max(1, Math.round(box.width));
    const shown = columns(line, from, to, wide);
    const y = (bytes) => box.top + box.height - (bytes / scale) * box.height;
    if (look.fill) {
        pen.fillStyle = look.fill;
        pen.globalAlpha = 0.28;
        pen.beginPath();
        pen.moveTo(box.left, box.top + box.height);
        for (let column = 0; column < wide; column += 1) {
            pen.lineTo(box.left + column, y(shown.high[column]));
            pen.lineTo(box.left + column + 1, y(shown.high[column]));
        }
        pen.lineTo(box.left + wide, box.top + box.height);
        pen.fill();
        pen.globalAlpha = 1;
    }
    pen.strokeStyle = look.line;
    pen.lineWidth = look.wide;
    pen.beginPath();
    for (let column = 0; column < wide; column += 1) {
        const x = box.left + column + 0.5;
        pen[column === 0 ? "moveTo" : "lineTo"](x, y(shown.low[column]));
        pen.lineTo(x, y(shown.high[column]));
    }
    pen.stroke();
    return shown;
}

function line(pen, left, top, right, bottom, dash = []) {
    pen.setLineDash(dash);
    pen.beginPath();
    pen.moveTo(left, top);
    pen.lineTo(right, bottom);
    pen.stroke();
    pen.setLineDash([]);
}

function drawAxes(pen, box, from, to, scale) {
    pen.lineWidth = 1;
    pen.fillStyle = colour("muted");
    pen.strokeStyle = colour("grid");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const bytes of byteMarks(scale, 5)) {
        const y = Math.round(box.top + box.height - (bytes / scale) * box.height) + 0.5;
        line(pen, box.left, y, box.left + box.width, y);
        pen.fillText(bytes === 0 ? "0" : size(bytes).replace(/\.0+ /, " "), box.left - 8, y);
    }
    pen.textAlign = "center";
    pen.textBaseline = "top";
    const times = timeMarks(from, to, Math.max(2, box.width / (box.width < 500 ? 75 : 110)));
    // As many digits as tell one mark from the next.
    const exact = times.length > 1 ? (times[1] - times[0]) * 250 : to - from;
    for (const time of times) {
        const x = box.left + ((time - from) / (to - from)) * box.width;
        line(pen, x, box.top + box.height, x, box.top + box.height + 4);
        if (x < box.left + 20 || x > box.left + box.width - 20) continue;
        pen.fillText(moment(time, exact), x, box.top + box.height + 7);
    }
}

/** A vertical line with a name at its top. A name that would cover one in `taken` is left out. */
function drawFlag(pen, box, from, to, time, name, look, taken = []) {
    if (time < from || time > to) return;
    const x = Math.round(box.left + ((time - from) / (to - from)) * box.width) + 0.5;
    pen.strokeStyle = look.line;
    pen.fillStyle = look.line;
    pen.lineWidth = look.wide || 1;
    line(pen, x, box.top, x, box.top + box.height, look.dash);
    if (!name) return;
    const wide = pen.measureText(name).width;
    pen.textBaseline = "bottom";
    pen.textAlign = x + wide + 4 > box.left + box.width ? "right" : "left";
    const [start, end] = pen.textAlign === "left" ? [x, x + wide + 10] : [x - wide - 10, x];
    if (taken.some(([other, last]) => start < last && end > other)) return;
    taken.push([start, end]);
    pen.fillText(name, x + (pen.textAlign === "left" ? 3 : -3), box.top - 2);
}

/** A dot for each measurement; between two of them nothing is known. */
function drawMeasurements(pen, used, box, from, to, scale) {
    pen.fillStyle = colour("used");
    used.times.forEach((time, place) => {
        if (time < from || time > to) return;
        const x = box.left + ((time - from) / (to - from)) * box.width;
        const y = box.top + box.height - (used.bytes[place] / scale) * box.height;
        pen.beginPath();
        pen.arc(x, y, 3, 0, 2 * Math.PI);
        pen.fill();
    });
}

/** Draws the reserved and the live bytes. Returns the columns of the latter. */
function drawLevels(pen, device, box, from, to, scale, wide) {
    drawCurve(pen, device.reserved, box, from, to, scale, { line: colour("reserved"), wide });
    return drawCurve(pen, device.live, box, from, to, scale, { line: colour("live"), fill: colour("live"), wide });
}

/** The chart's own box, below a lane for each depth of the job's ranges. */
function boxOf(drawn) {
    const top = TOP + Math.max(0, ...state.process.ranges.map(([, , , depth]) => depth + 1)) * 14;
    return { left: LEFT, top, width: drawn.width - LEFT - 8, height: drawn.height - top - BOTTOM };
}

/** The ranges that marks begin and end. One without an end reaches to the end of the journal. */
function drawRanges(pen, box, from, to) {
    const x = (time) => box.left + ((Math.min(to, Math.max(from, time)) - from) / (to - from)) * box.width;
    for (const [text, began, ended, depth] of state.process.ranges) {
        const end = ended ?? state.process.until;
        if (end < from || began > to) continue;
        const [left, y] = [x(began), TOP + depth * 14];
        const wide = Math.max(1, x(end) - left - 1);
        pen.fillStyle = colour("quiet");
        pen.fillRect(left, y, wide, 12);
        pen.fillStyle = colour("text");
        [pen.textAlign, pen.textBaseline] = ["left", "middle"];
        if (pen.measureText(text).width < wide - 6) pen.fillText(text, left + 3, y + 6.5);
    }
}

/** Marks that lie close to each other share a tick at the top, and say how many they are. */
function drawMarks(pen, box, from, to, taken) {
    const wide = 96;
    const clusters = new Map();
    for (const mark of state.process.marks) {
        if (mark.kind !== "instant" || mark.time_ns < from || mark.time_ns > to) continue;
        const place = Math.floor((((mark.time_ns - from) / (to - from)) * box.width) / wide);
        if (!clusters.has(place)) clusters.set(place, []);
        clusters.get(place).push(mark);
    }
    for (const [first, ...more] of clusters.values()) {
        const text = first.text.slice(0, more.length > 0 ? 9 : 14) + (more.length > 0 ? ` +${count(more.length)}` : "");
        const ticked = more.length > 0 ? { ...box, height: 6 } : box;
        drawFlag(pen, ticked, from, to, first.time_ns, text, { line: colour("mark"), dash: [1, 3] }, taken);
    }
}

/** Failures with a line in the charts: those for lack of memory, and the one that the verdict is about. */
function failuresOf(process) {
    const { verdict, failures } = process;
    const list = failures.map((one) => ({ ...one, text: "out of memory" }));
    if (verdict.time_ns !== null && !failures.some((one) => one.time_ns === verdict.time_ns))
        list.push({ time_ns: verdict.time_ns, device: verdict.device, text: failureWords(process) });
    return list;
}

/** The figures of a time, for the box under the pointer: what was live, and what was allocated within `near`. */
function figuresAt(time, near) {
    const { device, process } = state;
    const { events, marks } = process;
    const [live, reserved] = [levelAt(device.live, time), levelAt(device.reserved, time)];
    const list = [make("b", {}, inRange(time)), `live ${size(live)}`, `reserved ${size(reserved)}`];
    if (!process.caches && reserved > live) list.push(`cached ${size(reserved - live)}`);
    const measured = countUpTo(device.used.times, time);
    if (measured > 0)
        list.push(`device in use ${size(device.used.bytes[measured - 1])}, measured at ${inRange(device.used.times[measured - 1])}`);
    const here = [];
    const end = countUpTo(events.times_ns, time + near);
    for (let place = countUpTo(events.times_ns, time - near - 1); place < end; place += 1)
        if (events.kinds[events.kind[place]] === "allocated" && events.device[place] === device.ordinal) here.push(place);
    here.sort((one, other) => events.bytes[other] - events.bytes[one]);
    const names = (place) =>
        `${size(events.bytes[place])} ${events.stack[place] > 0 ? stackText(events.stack[place] - 1) : events.apis[events.api[place]]}`;
    const listing = events.number.length < events.in_all ? "listed " : "";
    if (here.length > 0) list.push(`${many(here.length, `${listing}allocation`)} here, largest first:`, ...here.slice(0, 3).map(names));
    const close = marks.filter((mark) => Math.abs(mark.time_ns - time) <= near);
    if (close.length > 0)
        list.push(`${many(close.length, "mark")}: ${close.slice(0, 3).map((mark) => mark.text.slice(0, 40)).join(", ")}`);
    return list;
}

function showTip(time) {
    const { from, to, device } = state;
    [tip.hidden, hair.hidden] = [!device, !device];
    if (!device) return;
    const wide = chart.clientWidth - LEFT - 8;
    const x = LEFT + ((time - from) / (to - from)) * wide;
    tip.replaceChildren(...figuresAt(time, ((to - from) / wide) * 3).map((line) => make("div", {}, line)));
    hair.style.left = `${x}px`;
    tip.style.left = x < chart.clientWidth / 2 ? `${x + 12}px` : "";
    tip.style.right = x < chart.clientWidth / 2 ? "" : `${chart.clientWidth - x + 12}px`;
}

function hideTip() {
    [tip.hidden, hair.hidden] = [true, true];
}

/** The levels at the moment, in words. */
function levelsAt() {
    const { device, at } = state;
    const [live, reserved] = [device.live, device.reserved].map((curve) => size(levelAt(curve, at)));
    return `at ${inRange(at)}: live ${live}, reserved ${reserved}`;
}

function drawChart() {
    const { process, device, from, to, at } = state;
    const drawn = drawing(chart);
    if (!drawn || !device) return;
    const { pen } = drawn;
    const box = boxOf(drawn);
    const wide = Math.max(1, Math.round(box.width));
    const scale = scaleOf(device, highestOf(device, wide));
    drawAxes(pen, box, from, to, scale);
    drawMeasurements(pen, device.used, box, from, to, scale);
    const live = drawLevels(pen, device, box, from, to, scale, 1.5);
    drawRanges(pen, box, from, to);
    // What matters most gets its name first.
    const taken = [];
    const flag = (time, name, look) => drawFlag(pen, box, from, to, time, name, look, taken);
    flag(at, "", { line: colour("text"), wide: 1 });
    for (const failure of failuresOf(process).filter((one) => one.device === null || one.device === device.ordinal))
        flag(failure.time_ns, failure.text, { line: colour("bad"), wide: 2 });
    flag(device.peak_ns, "peak", { line: colour("peak"), dash: [4, 3] });
    drawMarks(pen, box, from, to, taken);
    for (const [bytes, name] of [
        [device.limit, "limit"],
        [device.total, "device"],
    ]) {
        if (bytes === null || bytes > scale) continue;
        const y = Math.round(box.top + box.height - (bytes / scale) * box.height) + 0.5;
        pen.strokeStyle = colour("limit");
        line(pen, box.left, y, box.left + box.width, y, name === "limit" ? [] : [2, 3]);
        const text = `${name} ${size(bytes)}`;
        const wide = pen.measureText(text).width;
        // No line goes through the name.
        pen.fillStyle = colour("ground");
        pen.fillRect(box.left + 4, y - 17, wide + 8, 15);
        pen.fillStyle = colour("limit");
        [pen.textAlign, pen.textBaseline] = ["left", "bottom"];
        pen.fillText(text, box.left + 8, y - 3);
    }
    if (dragged && dragged.chart) {
        const [start, end] = [Math.min(dragged.from, dragged.to), Math.max(dragged.from, dragged.to)];
        const x = (time) => box.left + ((time - from) / (to - from)) * box.width;
        pen.fillStyle = colour("text");
        pen.globalAlpha = 0.12;
        pen.fillRect(x(start), box.top, x(end) - x(start), box.height);
        pen.globalAlpha = 1;
    }
    // What the drawing shows, for tests and for screen readers.
    chart.dataset.highest = String(live.highest);
    chart.dataset.highestAt = String(live.highestAt);
    chart.dataset.scale = String(scale);
    chart.dataset.columns = String(Math.max(...live.high));
    chart.setAttribute("aria-valuemin", String(from));
    chart.setAttribute("aria-valuemax", String(to));
    chart.setAttribute("aria-valuenow", String(at));
    chart.setAttribute(
        "aria-valuetext",
        `${levelsAt()}. ` +
            `Shown from ${rangeText()}, highest ${size(live.highest)} at ${moment(live.highestAt, to - from)}`,
    );
}

function drawOverview() {
    const { device, from, to, process } = state;
    const drawn = drawing(overview);
    if (!drawn || !device) return;
    const { pen } = drawn;
    const box = { left: LEFT, top: 2, width: drawn.width - LEFT - 8, height: drawn.height - 4 };
    const { began, until } = process;
    const scale = Math.max(device.peak_bytes, device.peak_reserved, 1) * 1.05;
    drawLevels(pen, device, box, began, until, scale, 1);
    for (const failure of failuresOf(process))
        drawFlag(pen, box, began, until, failure.time_ns, "", { line: colour("bad"), wide: 2 });
    const x = (time) => box.left + ((time - began) / (until - began)) * box.width;
    const [start, end] =
        dragged && !dragged.chart
            ? [Math.min(dragged.from, dragged.to), Math.max(dragged.from, dragged.to)]
            : [from, to];
    pen.fillStyle = colour("ground");
    pen.globalAlpha = 0.72;
    pen.fillRect(box.left, box.top, x(start) - box.left, box.height);
    pen.fillRect(x(end), box.top, box.left + box.width - x(end), box.height);
    pen.globalAlpha = 1;
    pen.strokeStyle = colour("text");
    pen.strokeRect(x(start) + 0.5, box.top + 0.5, Math.max(2, x(end) - x(start) - 1), box.height - 1);
    pen.fillStyle = colour("muted");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    pen.fillText("all", box.left - 8, box.top + box.height / 2);
}

/** The time under the pointer. */
function timeUnder(event) {
    const rectangle = event.currentTarget.getBoundingClientRect();
    const share = (event.clientX - rectangle.left - LEFT) / (rectangle.width - LEFT - 8);
    const [from, to] =
        event.currentTarget === chart ? [state.from, state.to] : [state.process.began, state.process.until];
    return from + Math.min(1, Math.max(0, share)) * (to - from);
}

for (const canvas of [chart, overview]) {
    canvas.addEventListener("pointerdown", (event) => {
        const time = timeUnder(event);
        dragged = { chart: canvas === chart, from: time, to: time, x: event.clientX };
        canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
        if (!dragged) {
            if (canvas === chart) showTip(timeUnder(event));
            return;
        }
        hideTip();
        dragged.to = timeUnder(event);
        drawChart();
        drawOverview();
    });
    canvas.addEventListener("pointerup", (event) => {
        if (!dragged) return;
        const { from, to, x } = dragged;
        dragged = null;
        if (Math.abs(event.clientX - x) < 4) selectMoment(from);
        else selectRange(Math.min(from, to), Math.max(from, to));
        changed();
    });
    canvas.addEventListener("pointercancel", () => {
        dragged = null;
        changed();
    });
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("dblclick", back);
}

/** Makes the range `factor` times as long, around `centre`. */
function zoom(factor, centre = state.at) {
    const [before, after] = [centre - state.from, state.to - centre];
    selectRange(centre - before * factor, centre + after * factor);
}

chart.addEventListener(
    "wheel",
    (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        zoom(event.deltaY > 0 ? 1.3 : 1 / 1.3, timeUnder(event));
    },
    { passive: false },
);

chart.addEventListener("keydown", (event) => {
    const length = state.to - state.from;
    const step = (length / 100) * (event.shiftKey ? 10 : 1);
    const moves = {
        ArrowLeft: () => selectMoment(Math.max(state.from, state.at - step)),
        ArrowRight: () => selectMoment(Math.min(state.to, state.at + step)),
        PageUp: () => selectRange(state.from - length / 2, state.to - length / 2),
        PageDown: () => selectRange(state.from + length / 2, state.to + length / 2),
        Home: () => selectMoment(state.from),
        End: () => selectMoment(state.to),
        "+": () => zoom(0.5),
        "-": () => zoom(2),
        0: () => selectRange(state.process.began, state.process.until),
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    move();
    showTip(state.at);
});
chart.addEventListener("blur", hideTip);
document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.target.closest("#flame, input, select")) return;
    hideTip();
    if (dragged) dragged = null;
    else back();
    changed();
});

const KEYS =
    "Point to read, drag to zoom, click to choose a moment; Escape or a double click goes back. Keys on the chart: arrows, Home and End move the moment, + and \u2212 zoom, Page Up and Page Down move the range, 0 shows all.";

body("timeline").append(
    make("div", { class: "plot" }, chart, hair, tip),
    overview,
    legendOfChart,
    make("div", { class: "row folded" }, tableOfChart, details("keys", "Pointer and keys", p("hint", KEYS))),
);

/** The chart as a table: the levels at equal distances, and at named moments. */
function levelTable() {
    const { device, process, from, to } = state;
    const rows = [];
    for (let step = 0; step <= 20; step += 1) rows.push([from + ((to - from) * step) / 20, ""]);
    for (const named of process.holdings.named) rows.push([process.holdings.moments[named.moment], named.text]);
    const seen = rows
        .filter(([time]) => time >= from && time <= to)
        .sort(([one], [other]) => one - other)
        .slice(0, 200);
    return table(
        "Levels in the range",
        [
            figure("time", ([time]) => moment(time, to - from)),
            figure("live", ([time]) => size(levelAt(device.live, time))),
            figure("reserved", ([time]) => size(levelAt(device.reserved, time))),
            figure("device in use, last measured", ([time]) =>
                countUpTo(device.used.times, time) > 0 ? size(levelAt(device.used, time)) : "-",
            ),
            column("moment", ([, text]) => text),
        ],
        seen,
    );
}

/** Whether the panels are of PyTorch's tensors. */
const ofTorch = ({ events }) => events.apis.some((name) => name.startsWith("torch."));

panel("timeline", () => {
    const { device, process, from, to } = state;
    if (!device) return;
    drawChart();
    drawOverview();
    const outside = Number.isFinite(device.room) && device.room > scaleOf(device, highestOf(device, 100));
    legendOfChart.replaceChildren(
        key("live", ofTorch(process) ? "live (tensors)" : "live"),
        key("reserved", ofTorch(process) ? "reserved (segments)" : "reserved"),
        device.used.times.length > 0 ? key("used", "device in use by all processes, when measured") : "",
        Number.isFinite(device.room)
            ? key("limit", outside ? `limit or device: ${size(device.room)}, above the chart` : "limit, device")
            : "",
        key("peak", `peak ${size(device.peak_bytes)} at ${moment(device.peak_ns)}`),
        process.marks.length > 0 ? key("mark", `${many(process.marks_in_all, "mark")}`) : "",
        failuresOf(process).length > 0 ? key("bad", failureWords(process)) : "",
    );
    tableOfChart.replaceChildren(details("levels", "This chart as a table", levelTable()));
});

panel("selection", () => {
    const { process, device, from, to, at } = state;
    if (!device) return;
    const jump = (one) =>
        one.time === null ? "" : button(one.name, () => jumpTo(one), { id: `jump-${one.id}` });
    const [failure, peak, end] = jumps();
    const toLast = () => {
        selectMoment(process.until);
        selectRange(process.until - 10e9, process.until);
    };
    const last = button("Last 10 s", toLast, { id: "jump-last" });
    const all = button("All", () => selectRange(process.began, process.until), { id: "jump-all" });
    const focused = document.activeElement && document.activeElement.id;
    byId("selection").replaceChildren(
        make("span", { class: "row" }, all, jump(failure), jump(peak), last, jump(end)),
        make("span", { class: "range" }, rangeText()),
        make("span", { class: "cursor" }, levelsAt()),
    );
    if (focused && focused.startsWith("jump-")) byId(focused)?.focus();
});
