// What the reader looks at: a process, a device, a range of time and a moment in it. Every panel shows this state.

const state = {
    process: decode(report.processes[0]),
    device: null,
    from: 0,
    to: 1,
    /** The moment. */
    at: 0,
    /** The number of the moment in the process's list, if a button chose exactly this one. */
    exact: null,
};

/** Ranges that were shown before this one. */
let past = [];

const panels = [];
let waiting = false;

/** Adds a function that draws a panel. */
function panel(name, draw) {
    panels.push({ name, draw });
}

/** Draws all panels before the next picture. */
function changed() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(drawAll);
}

function drawAll() {
    waiting = false;
    for (const { name, draw } of panels) {
        try {
            draw();
            // Tests read what a panel was drawn for.
            byId(name).dataset.shows = `${state.process.pid} ${state.from} ${state.to} ${state.at}`;
        } catch (error) {
            console.error(error);
            problem(`The panel "${name}" cannot be drawn: ${error.message}`);
        }
    }
}

function problem(text) {
    const line = byId("problem");
    line.textContent = text;
    line.hidden = false;
}

/** Chooses a range. The moment stays in it. */
function selectRange(from, to, isNew = true) {
    const { began, until } = state.process;
    const least = Math.max(1000, (until - began) / 1e7);
    from = Math.max(began, Math.min(from, until - least));
    to = Math.min(until, Math.max(to, from + least));
    if (isNew && (from !== state.from || to !== state.to)) past.push([state.from, state.to]);
    [state.from, state.to] = [from, to];
    if (state.at < from || state.at > to) selectMoment(Math.min(Math.max(state.at, from), to));
    changed();
}

/** Shows the range that was shown before, or all. */
const back = () => selectRange(...(past.pop() || [state.process.began, state.process.until]), false);

const showAll = () => selectRange(state.process.began, state.process.until);

function selectMoment(at, exact = null) {
    state.at = Math.min(Math.max(at, state.process.began), state.process.until);
    state.exact = exact;
    changed();
}

/** The device of which the process held most. */
const largestDevice = (process) =>
    process.devices.filter((one) => one.ordinal >= 0).sort((one, other) => other.peak_bytes - one.peak_bytes)[0];

/** What ended a process that `ended_by_failure` says something about. */
const failureWords = (process) => (process.verdict.name === "driver_failure" ? "a call failed" : "out of memory");

function selectProcess(process, device = null) {
    const same = state.process === process;
    state.process = decode(process);
    const devices = process.devices;
    const failed = devices.find((one) => one.ordinal === process.verdict.device);
    state.device = device || failed || largestDevice(process) || devices[0] || null;
    if (!same || state.to === 1) {
        past = [];
        const { window: grew, time_ns } = process.verdict;
        [state.from, state.to] = [process.began, process.until];
        // What the verdict names, with the failure in sight: not what came after a failure that ended the job.
        const [from, to] = [grew?.from_ns ?? process.began, Math.max(grew?.to_ns ?? 0, time_ns ?? 0)];
        if (to > 0 && process.ended_by_failure) selectRange(from, to + (to - from) / 20, false);
        const start = jumps().find((jump) => jump.time !== null);
        if (start) selectMoment(start.time, start.exact);
    }
    changed();
}

/** The named moment of this kind; the last, if there are several. */
function namedMoment(kind, device = state.device) {
    const isHere = (named) => named.device === null || !device || named.device === device.ordinal;
    return state.process.holdings.named.findLast((named) => named.kind === kind && isHere(named)) ?? null;
}

/** Where the buttons lead: name, time, and the number of the moment. A time of null means that there is none. */
function jumps() {
    const { process } = state;
    const jump = (kind, name) => {
        const named = namedMoment(kind);
        const time = named ? process.holdings.moments[named.moment] : null;
        return { id: kind, name, time, exact: named?.moment ?? null };
    };
    return [jump("failure", "Out of memory"), jump("peak", "Peak"), jump("end", "End")];
}

/** Goes to a moment and shows what is around it. */
function jumpTo(jump) {
    const before = Math.min(10e9, (state.process.until - state.process.began) * 0.2);
    selectRange(jump.time - before, jump.time + before / 4);
    selectMoment(jump.time, jump.exact);
}

/** The number of the moment to look at: the chosen one, or the last before the cursor. */
function momentNumber(at = state.at) {
    const { moments } = state.process.holdings;
    if (at === state.at && state.exact !== null) return state.exact;
    return countUpTo(moments, at) - 1;
}

/** The groups of the device. */
const shownGroups = ({ process, device } = state) =>
    process.holdings.groups.filter((group) => !device || group.device === device.ordinal);

/** A time, as exact as a short range needs it; else in the same text as everywhere. */
const inRange = (time) => moment(time, state.to - state.from < 4e8 ? state.to - state.from : 0);
const rangeText = () => `${inRange(state.from)} to ${inRange(state.to)}`;

/** What the figures of a panel are figures of. */
function asOf() {
    const { moments } = state.process.holdings;
    const number = momentNumber();
    if (number < 0) return "before the first event";
    const named = state.process.holdings.named.find((one) => one.moment === state.exact);
    const at = inRange(moments[number]);
    return named ? `at ${at} (${named.text})` : `at ${at}`;
}
