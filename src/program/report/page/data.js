// The data of the page: lists of differences become lists of numbers, and levels are looked up.

const report = JSON.parse(byId("data").textContent);

/** The numbers whose differences are given. */
function numbers(differences) {
    const list = new Float64Array(differences.length);
    let sum = 0;
    for (let place = 0; place < list.length; place += 1) list[place] = sum += differences[place];
    return list;
}

function curve(steps) {
    return { times: numbers(steps.times_ns), bytes: numbers(steps.bytes) };
}

/** The number of entries of a sorted list that are at most `value`. */
function countUpTo(list, value) {
    let low = 0;
    let high = list.length;
    while (low < high) {
        const middle = (low + high) >> 1;
        if (list[middle] <= value) low = middle + 1;
        else high = middle;
    }
    return low;
}

/** The level of a curve at a time; 0 before the first point. */
function levelAt(line, time) {
    const known = countUpTo(line.times, time);
    return known === 0 ? 0 : line.bytes[known - 1];
}

/** "at least" or another `word` before a size, except where it is exact: between two of PyTorch's snapshots more may be live. */
const bound = (device, time = null, word = "at least") =>
    (device?.snapshots ? !device.snapshots.has(time) : time === null && device?.at_least) ? `${word} ` : "";

/** What was live at a time, in words: before PyTorch's first snapshot nothing tells what is used inside its cache. */
const liveText = (device, time) =>
    time < device.live_from ? "not known" : bound(device, time) + size(levelAt(device.live, time));
const peakText = (device) => bound(device) + size(device.peak_bytes);
/** What was obtained from the driver; an imported log does not tell. */
const reservedText = (device, bytes) => (device.knows_reserved ? size(bytes) : "not known");

/**
 * What a drawing of `width` columns shows of a curve: the lowest and the highest level in each column. A column without
 * a point has the level before it. `highest` is the highest level of all, at the time `highestAt`.
 */
function columns(line, from, to, width) {
    const low = new Float64Array(width);
    const high = new Float64Array(width);
    let place = countUpTo(line.times, from);
    let level = place === 0 ? 0 : line.bytes[place - 1];
    let highest = level;
    let highestAt = from;
    const wide = (to - from) / width;
    for (let column = 0; column < width; column += 1) {
        let least = level;
        let most = level;
        const end = column + 1 === width ? to : from + wide * (column + 1);
        for (; place < line.times.length && line.times[place] <= end; place += 1) {
            level = line.bytes[place];
            if (level < least) least = level;
            if (level > most) most = level;
            if (level > highest) {
                highest = level;
                highestAt = line.times[place];
            }
        }
        low[column] = least;
        high[column] = most;
    }
    return { low, high, highest, highestAt };
}

const frames = report.frames.map(([file, line, name]) => ({
    file: report.texts[file],
    line,
    name: report.texts[name],
}));
const stacks = report.stacks.map((list) => list.map((place) => frames[place]));

const fileName = (path) => path.slice(path.lastIndexOf("/") + 1);

/** A frame in a few words. */
function frameText(frame) {
    if (!frame) return "(no code of the job)";
    return frame.line > 0 ? `${fileName(frame.file)}:${frame.line} ${frame.name}` : frame.name;
}

const frameInFull = (frame, file = frame.file) =>
    frame.line > 0 ? `${file}:${frame.line} in ${frame.name}` : `${frame.name} (${file})`;

/** The end of a long path, which tells the file. */
const pathEnd = (path) =>
    path.replace(/^.*\/(?=(site|dist)-packages\/)/, "").replace(/^.{24,}(?=(\/[^/]+){3}$)/, "\u2026");

/** The frames of a stack, innermost first. */
const frameList = (stack) =>
    make("ol", { class: "frames" }, ...stacks[stack].map((frame) => make("li", { title: frameInFull(frame) }, ...parted(frameInFull(frame, pathEnd(frame.file))))));

/** Why there are no stacks, and what would record them. */
const noStacks = (trust) => [...Object.keys(trust.no_stack_bytes), trust.no_stack_remedy].filter((text) => text).join("; ");

/** What a group of allocations is called if it has no stack. */
function kindText(group) {
    if (group.rest) return "smaller groups together";
    const what = group.api || "several functions";
    if (group.size === null) return what;
    return `${what} of ${group.at_least ? "at least " : ""}${size(group.size)}`;
}

/** A stack in a few words: the job's own line, and the callers that tell it from other stacks. */
const stackText = (number) => report.names[number].map((place) => frameText(stacks[number][place])).join(" < ") || frameText();

/** The job's own line of a group: what `vramshim why` groups by. */
const lineText = ({ stack, ...group }) =>
    stack === null ? kindText(group) : frameText(stacks[stack][report.names[stack][0]]);

const groupText = (group) => (group.stack === null ? kindText(group) : stackText(group.stack));

/** Decodes the lists of a process, once. */
function decode(process) {
    if (process.decoded) return process;
    process.decoded = true;
    const { holdings, first_snapshot_ns: first } = process;
    holdings.moments = numbers(holdings.moments_ns);
    for (const device of process.devices) {
        device.live = curve(device.live);
        device.knows_reserved = device.reserved !== null;
        device.reserved = device.knows_reserved ? curve(device.reserved) : { times: [], bytes: [] };
        device.used = curve(device.used);
        device.room = Math.min(device.limit ?? Infinity, device.total ?? Infinity);
        const isTensors = first !== null && device.ordinal >= 0;
        device.live_from = isTensors ? first : 0;
        // Memory was in use before an imported trace begins.
        device.at_least = process.peaks_are_at_least;
        // The moments that snapshots show exactly; null if nothing of the device is by snapshots.
        const exact = holdings.named.filter((one) => one.exact && (one.device ?? device.ordinal) === device.ordinal);
        device.snapshots = isTensors ? new Set(exact.map((one) => holdings.moments[one.moment])) : null;
    }
    for (const group of holdings.groups) {
        for (const key of ["moments", "bytes", "count", "ever_bytes", "oldest_us"])
            group[key] = numbers(group[key]);
        group.text = groupText(group);
    }
    const events = process.events;
    for (const key of ["number", "times_ns", "tid", "bytes", "address"]) events[key] = numbers(events[key]);
    process.began = process.trust.first_ns;
    process.until = Math.max(process.duration_ns, process.trust.last_ns, process.began + 1);
    return process;
}

/** A group at a moment. */
function heldAt(group, number) {
    const place = countUpTo(group.moments, number) - 1;
    const at = (column) => column[place] ?? 0;
    const oldest = at(group.oldest_us) * 1000;
    return { bytes: at(group.bytes), count: at(group.count), everBytes: at(group.ever_bytes), oldest };
}

/** The processes of each run, the newest run first. */
const runs = [];
for (const process of report.processes) (runs[process.run] ||= []).push(process);

/** The process of a run that began first. */
const firstOf = (run) => run.reduce((one, other) => (other.started_unix_ns < one.started_unix_ns ? other : one));
// How long after that one a process began, by the clocks of their hosts, in nanoseconds. Each journal counts from its own start.
for (const run of runs) {
    const began = firstOf(run).started_unix_ns;
    for (const process of run) process.late = process.started_unix_ns - began;
}

/** When a run began and what it ran; runs are told apart by it. */
function runText(run) {
    const first = firstOf(run);
    const command = first.command.length > 60 ? `${first.command.slice(0, 60)}…` : first.command;
    return `${first.started.replace("T", " ").replace("Z", " UTC")}, ${command || first.title}`;
}

const rankText = (process) => (process.rank === null ? `pid ${process.pid}` : `rank ${process.rank}`);
const deviceText = (device) => (device.ordinal < 0 ? "host memory" : `device ${device.ordinal}`);
