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
/** What is under the pointer: a line, and a box with the figures of that time. */
const hair = make("div", { class: "hair", hidden: true, "aria-hidden": "true" });
const tip = make("div", { class: "tip", hidden: true });
/** What the pointer marks, from and to, while it is down. */
let dragged = null;

/** How the curves and the lines of the chart look. */
const LOOKS = {
    live: { colour: "live", filled: 0.28 },
    snapshots: { colour: "live", dash: [4, 3] },
    reserved: { colour: "reserved" },
    moment: { colour: "text" },
    failure: { colour: "bad", wide: 2, shape: "M-5 0l10 10m0-10l-10 10" },
    peak: { colour: "peak", dash: [4, 3], shape: "M-4 1h8l-4 7z" },
    mark: { colour: "mark", dash: [1, 3] },
};

const draggedRange = () => [Math.min(dragged.from, dragged.to), Math.max(dragged.from, dragged.to)];

/** The highest byte of the chart's scale: the limit or the device, unless that would press the curves flat. */
function scaleOf(device, highest) {
    const room = Number.isFinite(device.room) ? device.room : 0;
    const top = Math.max(highest, 1) * 1.1;
    // The name of the limit stands above its line, where no curve is.
    return room > 0 && room * 1.1 < top * 3 ? Math.max(top, room * 1.1) : top;
}

/** The highest level in a range. */
const highestOf = (device, wide, from = state.from, to = state.to) =>
    Math.max(...["live", "reserved", "used"].map((name) => columns(device[name], from, to, wide).highest));

/** A box of a drawing that shows the times `from` to `to` and levels up to `scale`: `x` and `y` tell where. */
function plane(pen, [left, top, width, height], from, to, scale) {
    const bottom = top + height;
    const x = (time) => left + ((time - from) / (to - from)) * width;
    const y = (bytes) => bottom - (bytes / scale) * height;
    return { pen, left, top, width, height, right: left + width, bottom, from, to, scale, x, y };
}

/** Draws one curve as columns of pixels. Returns its columns. */
function drawCurve({ pen, left, bottom, width, from, to, y }, line, look, thick) {
    const wide = Math.max(1, Math.round(width));
    const shown = columns(line, from, to, wide);
    pen.fillStyle = pen.strokeStyle = colour(look.colour);
    if (look.filled) {
        pen.globalAlpha = look.filled;
        pen.beginPath();
        pen.moveTo(left, bottom);
        shown.high.forEach((bytes, column) => {
            pen.lineTo(left + column, y(bytes));
            pen.lineTo(left + column + 1, y(bytes));
        });
        pen.lineTo(left + wide, bottom);
        pen.fill();
        pen.globalAlpha = 1;
    }
    pen.lineWidth = thick;
    pen.setLineDash(look.dash || []);
    pen.beginPath();
    for (let column = 0; column < wide; column += 1) {
        const x = left + column + 0.5;
        pen[column === 0 ? "moveTo" : "lineTo"](x, y(shown.low[column]));
        pen.lineTo(x, y(shown.high[column]));
    }
    pen.stroke();
    pen.setLineDash([]);
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

/** Writes a text in a colour of the style. `align` says where the text is of its place. */
function write(pen, text, x, y, name, ...align) {
    pen.fillStyle = colour(name);
    [pen.textAlign, pen.textBaseline] = align;
    pen.fillText(text, x, y);
}

/** Lays a colour of the style over what is drawn of some times. */
function shade({ pen, top, height, x }, from, to, name, alpha) {
    pen.fillStyle = colour(name);
    pen.globalAlpha = alpha;
    pen.fillRect(x(from), top, Math.max(1, x(to) - x(from)), height);
    pen.globalAlpha = 1;
}

function drawAxes({ pen, left, right, width, bottom, from, to, scale, x, y }) {
    pen.lineWidth = 1;
    pen.strokeStyle = colour("grid");
    for (const bytes of byteMarks(scale, 5)) {
        const at = Math.round(y(bytes)) + 0.5;
        line(pen, left, at, right, at);
        write(pen, bytes === 0 ? "0" : size(bytes).replace(/\.0+ /, " "), left - 8, at, "muted", "right", "middle");
    }
    const times = timeMarks(from, to, Math.max(2, width / (width < 500 ? 75 : 110)));
    // As many digits as tell one mark from the next.
    const exact = times.length > 1 ? (times[1] - times[0]) * 250 : to - from;
    for (const time of times) {
        line(pen, x(time), bottom, x(time), bottom + 4);
        if (x(time) < left + 20 || x(time) > right - 20) continue;
        write(pen, moment(time, exact), x(time), bottom + 7, "muted", "center", "top");
    }
}

/** A vertical line with a shape at `place` or at its top, and a name above. A name that would cover one in `taken` is left out. */
function drawFlag({ pen, top, right, bottom, from, to, x }, time, name, look, taken = [], place = top) {
    if (time < from || time > to) return;
    const at = Math.round(x(time)) + 0.5;
    pen.strokeStyle = colour(look.colour);
    pen.lineWidth = look.wide || 1;
    line(pen, at, look.shape && place === top ? top + 10 : top, at, bottom, look.dash);
    if (look.shape) {
        const shape = new Path2D();
        shape.addPath(new Path2D(look.shape), new DOMMatrix([1, 0, 0, 1, at, place]));
        [pen.fillStyle, pen.lineWidth] = [pen.strokeStyle, 2];
        pen.fill(shape);
        pen.stroke(shape);
    }
    if (!name) return;
    const wide = pen.measureText(name).width;
    const isLeft = at + wide + 4 <= right;
    const [start, end] = isLeft ? [at, at + wide + 10] : [at - wide - 10, at];
    if (taken.some(([other, last]) => start < last && end > other)) return;
    taken.push([start, end]);
    write(pen, name, at + (isLeft ? 3 : -3), top - 2, look.colour, isLeft ? "left" : "right", "bottom");
}

function dot(pen, x, y, wide) {
    pen.beginPath();
    pen.arc(x, y, wide, 0, 2 * Math.PI);
    pen.fill();
}

/** A dot for each measurement, and a stem for what others had then; between two of them nothing is known. */
function drawMeasurements({ pen, from, to, x, y }, { used, reserved }) {
    used.times.forEach((time, place) => {
        if (time < from || time > to) return;
        const top = y(used.bytes[place]);
        pen.fillStyle = colour("others");
        pen.fillRect(x(time) - 2, top, 4, Math.max(0, y(levelAt(reserved, time)) - top));
        pen.fillStyle = colour("used");
        dot(pen, x(time), top, 3);
    });
}

/** Draws the reserved and the live bytes. Returns the columns of the latter. Dashes join what snapshots showed, dots. */
function drawLevels(view, device, thick) {
    const { pen, from, to, x, y } = view;
    drawCurve(view, device.reserved, LOOKS.reserved, thick);
    pen.save();
    pen.beginPath();
    pen.rect(view.x(Math.max(view.from, device.live_from)), 0, view.left + view.width, view.bottom + 1);
    pen.clip();
    const { times, bytes } = device.live;
    const live = drawCurve(view, device.live, device.snapshots ? LOOKS.snapshots : LOOKS.live, thick);
    const known = [];
    for (let place = countUpTo(times, from - 1); place < times.length && times[place] <= to; place += 1)
        if (times[place + 1] !== times[place]) known.push(place);
    if (device.snapshots && known.length * 8 < view.width)
        for (const place of known) dot(pen, x(times[place]), y(bytes[place]), 2 * thick);
    pen.restore();
    return live;
}

/** The ranges that marks begin and end, above the chart. One without an end reaches to the end of the journal. */
function drawRanges({ pen, from, to, x }) {
    for (const [text, began, ended, depth] of state.process.ranges) {
        const end = ended ?? state.process.until;
        if (end < from || began > to) continue;
        const [left, y] = [x(Math.max(from, began)), TOP + depth * 14];
        const wide = Math.max(1, x(Math.min(to, end)) - left - 1);
        pen.fillStyle = colour("quiet");
        pen.fillRect(left, y, wide, 12);
        if (pen.measureText(text).width < wide - 6) write(pen, text, left + 3, y + 6.5, "text", "left", "middle");
    }
}

/** Marks that lie close to each other share a tick at the top, and say how many they are. */
function drawMarks(view, taken) {
    const clusters = new Map();
    for (const mark of state.process.marks) {
        if (mark.kind !== "mark" || mark.time_ns < view.from || mark.time_ns > view.to) continue;
        const place = Math.floor((view.x(mark.time_ns) - view.left) / 96);
        if (!clusters.has(place)) clusters.set(place, []);
        clusters.get(place).push(mark);
    }
    for (const [first, ...more] of clusters.values()) {
        const text = first.text.slice(0, more.length > 0 ? 9 : 14) + (more.length > 0 ? ` +${count(more.length)}` : "");
        const ticked = more.length > 0 ? { ...view, bottom: view.top + 6 } : view;
        drawFlag(ticked, first.time_ns, text, LOOKS.mark, taken);
    }
}

/** The lines of the limit and of the device's size. */
function drawRoom({ pen, left, right, scale, y }, device) {
    for (const [bytes, name, dash] of [[device.limit, "limit"], [device.total, "device", [2, 3]]]) {
        if (bytes === null || bytes > scale) continue;
        const at = Math.round(y(bytes)) + 0.5;
        pen.strokeStyle = colour("limit");
        line(pen, left, at, right, at, dash);
        const text = `${name} ${size(bytes)}`;
        // No line goes through the name.
        pen.fillStyle = colour("ground");
        pen.fillRect(left + 4, at - 17, pen.measureText(text).width + 8, 15);
        write(pen, text, left + 8, at - 3, "limit", "left", "bottom");
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
    const list = [make("b", {}, inRange(time)), `live ${liveText(device, time)}`, `reserved ${reservedText(device, reserved)}`];
    if (!process.caches && reserved > live && time >= device.live_from) list.push(`cached ${bound(device, time, "at most")}${size(reserved - live)}`);
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
    const isLeft = x < chart.clientWidth / 2;
    tip.replaceChildren(...figuresAt(time, ((to - from) / wide) * 3).map((line) => make("div", {}, line)));
    hair.style.left = `${x}px`;
    tip.style.left = isLeft ? `${x + 12}px` : "";
    tip.style.right = isLeft ? "" : `${chart.clientWidth - x + 12}px`;
}

function hideTip() {
    [tip.hidden, hair.hidden] = [true, true];
}

/** The levels at the moment, in words. */
function levelsAt() {
    const { device, at } = state;
    return `at ${inRange(at)}: live ${liveText(device, at)}, reserved ${reservedText(device, levelAt(device.reserved, at))}`;
}

function drawChart() {
    const { process, device, from, to, at } = state;
    const drawn = drawing(chart);
    if (!drawn || !device) return;
    // Above the chart is a lane for each depth of the job's ranges.
    const top = TOP + Math.max(0, ...process.ranges.map(([, , , depth]) => depth + 1)) * 14;
    const box = [LEFT, top, drawn.width - LEFT - 8, drawn.height - top - BOTTOM];
    const scale = scaleOf(device, highestOf(device, Math.max(1, Math.round(box[2]))));
    const view = plane(drawn.pen, box, from, to, scale);
    drawAxes(view);
    drawMeasurements(view, device);
    const live = drawLevels(view, device, 1.5);
    drawRanges(view);
    // What matters most gets its name first.
    const taken = [];
    const flag = (time, name, look, place) => drawFlag(view, time, name, look, taken, place);
    flag(at, "", LOOKS.moment);
    for (const failure of failuresOf(process).filter((one) => one.device === null || one.device === device.ordinal))
        flag(failure.time_ns, failure.text, LOOKS.failure);
    flag(device.peak_ns, "peak", LOOKS.peak, view.y(device.peak_bytes) - 11);
    drawMarks(view, taken);
    drawRoom(view, device);
    if (dragged && dragged.chart) shade(view, ...draggedRange(), "text", 0.12);
    // What the drawing shows, for tests and for screen readers.
    const columns = Math.max(...live.high);
    Object.assign(chart.dataset, { highest: live.highest, highestAt: live.highestAt, scale, columns });
    const shown = `${rangeText()}, highest ${bound(device)}${size(live.highest)} at ${moment(live.highestAt, to - from)}`;
    const values = { min: from, max: to, now: at, text: `${levelsAt()}. Shown from ${shown}` };
    for (const [name, value] of Object.entries(values)) chart.setAttribute(`aria-value${name}`, String(value));
}

function drawOverview() {
    const { device, process } = state;
    const drawn = drawing(overview);
    if (!drawn || !device) return;
    const { pen } = drawn;
    // That of the chart when it shows all.
    const scale = scaleOf(device, highestOf(device, 1, process.began, process.until));
    overview.dataset.scale = scale;
    const box = [LEFT, 2, drawn.width - LEFT - 8, drawn.height - 4];
    const view = plane(pen, box, process.began, process.until, scale);
    drawLevels(view, device, 1);
    for (const failure of failuresOf(process)) drawFlag(view, failure.time_ns, "", LOOKS.failure);
    const [start, end] = dragged && !dragged.chart ? draggedRange() : [state.from, state.to];
    if (start > view.from) shade(view, view.from, start, "ground", 0.72);
    if (end < view.to) shade(view, end, view.to, "ground", 0.72);
    pen.strokeStyle = colour("text");
    const [left, right] = [view.x(start), view.x(end)];
    pen.strokeRect(left + 0.5, view.top + 0.5, Math.max(2, right - left - 1), view.height - 1);
    write(pen, "all", view.left - 8, view.top + view.height / 2, "muted", "right", "middle");
}

/** The time under the pointer. */
function timeUnder(event) {
    const { left, width } = event.currentTarget.getBoundingClientRect();
    const share = (event.clientX - left - LEFT) / (width - LEFT - 8);
    const { process } = state;
    const [from, to] = event.currentTarget === chart ? [state.from, state.to] : [process.began, process.until];
    return from + Math.min(1, Math.max(0, share)) * (to - from);
}

for (const canvas of [chart, overview]) {
    canvas.addEventListener("pointerdown", (event) => {
        const time = timeUnder(event);
        // Two fingers mark what is between them.
        if (!event.isPrimary) return void (dragged && ([dragged.from, dragged.x] = [time, -Infinity]));
        dragged = { chart: canvas === chart, from: time, to: time, x: event.clientX };
        canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
        if (!dragged) {
            if (canvas === chart) showTip(timeUnder(event));
            return;
        }
        hideTip();
        dragged[event.isPrimary ? "to" : "from"] = timeUnder(event);
        drawChart();
        drawOverview();
    });
    canvas.addEventListener("pointerup", (event) => {
        if (!dragged) return;
        const isTap = Math.abs(event.clientX - dragged.x) < 4;
        if (isTap) selectMoment(dragged.from);
        else selectRange(...draggedRange());
        // A finger that taps reads, as a pointer that rests does.
        if (isTap && canvas === chart && event.pointerType === "touch") showTip(dragged.from);
        dragged = null;
    });
    canvas.addEventListener("pointercancel", () => {
        dragged = null;
        changed();
    });
    canvas.addEventListener("pointerleave", (event) => event.pointerType === "touch" || hideTip());
    canvas.addEventListener("dblclick", back);
}

/** Makes the range `factor` times as long, around `centre`. */
function zoom(factor, centre = state.at) {
    const [before, after] = [centre - state.from, state.to - centre];
    selectRange(centre - before * factor, centre + after * factor);
}

function zoomByWheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.3 : 1 / 1.3, timeUnder(event));
}
chart.addEventListener("wheel", zoomByWheel, { passive: false });

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
        0: showAll,
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    move();
    showTip(state.at);
});
chart.addEventListener("blur", hideTip);
document.addEventListener("pointerdown", (event) => event.target === chart || hideTip());
document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.target.closest("#flame, input, select")) return;
    hideTip();
    if (dragged) dragged = null;
    else back();
    changed();
});

const KEYS =
    (isTouch
        ? "Tap to read and to choose a moment, drag sideways or put two fingers on the chart to zoom; two taps go back."
        : "Point to read, drag to zoom, click to choose a moment; Escape or a double click goes back.") +
    " Keys on the chart: arrows, Home and End move the moment, + and \u2212 zoom, Page Up and Page Down move the range, 0 shows all.";

body("timeline").append(
    make("div", { class: "plot" }, chart, hair, tip),
    overview,
    legendOfChart,
    make("div", { class: "row folded" }, details("keys", isTouch ? "Fingers and keys" : "Pointer and keys", p("hint", KEYS))),
);

/** Whether the panels are of PyTorch's tensors. */
const ofTorch = ({ events }) => events.apis.some((name) => name.startsWith("torch."));

panel("timeline", () => {
    const { device, process } = state;
    if (!device) return;
    drawChart();
    drawOverview();
    const outside = Number.isFinite(device.room) && device.room > scaleOf(device, highestOf(device, 100));
    // The samples are drawn as the chart is.
    const level = (bytes) => ({ times: [0, 0.5], bytes });
    const curveOf = (look, bytes) => (view) => drawCurve(view, level(bytes), look, 1.5);
    const lineOf = (look) => (view) => drawFlag(view, 0.5, "", look);
    const measured = (view) => drawMeasurements(view, { used: { times: [0.5], bytes: [0.7] }, reserved: level([0, 0]) });
    const tensors = ofTorch(process) ? "live (tensors)" : "live";
    const entries = [
        device.snapshots
            ? [curveOf(LOOKS.snapshots, [0.4, 0.8]), `${tensors} at PyTorch's snapshots; between two of them it is not known`]
            : [curveOf(LOOKS.live, [0.4, 0.8]), tensors],
        device.knows_reserved && [curveOf(LOOKS.reserved, [0.4, 0.8]), ofTorch(process) ? "reserved (segments)" : "reserved"],
        device.used.times.length > 0 && [measured, "device in use when measured; the stem is what others have"],
        [lineOf(LOOKS.peak), `peak ${peakText(device)} at ${moment(device.peak_ns)}`],
        process.marks.length > 0 && [lineOf(LOOKS.mark), many(process.marks_in_all, "mark")],
        failuresOf(process).length > 0 && [lineOf(LOOKS.failure), failureWords(process)],
    ].filter((entry) => entry);
    const samples = entries.map(() => make("canvas", { class: "sample", "aria-hidden": "true" }));
    legendOfChart.replaceChildren(
        ...entries.map(([, text], place) => make("li", {}, samples[place], text)),
        outside ? make("li", {}, `limit or device: ${size(device.room)}, above the chart`) : "",
    );
    entries.forEach(([draw], place) => {
        const drawn = drawing(samples[place]);
        if (drawn) draw(plane(drawn.pen, [1, 1, drawn.width - 2, drawn.height - 2], 0, 1, 1));
    });
});

panel("selection", () => {
    const { process, device } = state;
    if (!device) return;
    const showLast = () => {
        selectMoment(process.until);
        selectRange(process.until - 10e9, process.until);
    };
    const jump = (id, name, pressed) => button(name, pressed, { id: `jump-${id}` });
    const to = (one) => (one.time === null ? "" : jump(one.id, one.name, () => jumpTo(one)));
    const [failure, peak, end] = jumps().map(to);
    const buttons = [jump("all", "All", showAll), failure, peak, jump("last", "Last 10 s", showLast), end];
    const focused = document.activeElement?.id;
    byId("selection").replaceChildren(
        make("span", { class: "row" }, ...buttons),
        make("span", { class: "range" }, rangeText()),
        make("span", { class: "cursor" }, levelsAt()),
    );
    if (focused?.startsWith("jump-")) byId(focused)?.focus();
});
