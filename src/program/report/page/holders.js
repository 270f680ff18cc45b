// Panels 5 and 8: who holds memory at the moment, and what grows.

const shown = { by: "what", all: new Set() };

/** What groups can be put together by. */
const BY = {
    what: ["stack or size", (group) => (group.stack === null ? kindText(group) : `#${group.stack}`)],
    line: ["line of code", (group) => groupText(group)],
    api: ["function", (group) => group.api || "(several)"],
    thread: [
        "thread",
        (group) => (group.rest ? "smaller groups together" : group.tid === 0 ? "(several)" : `thread ${group.tid}`),
    ],
    stream: ["stream", (group) => (group.rest ? "smaller groups together" : streamText(group.stream))],
    class: ["class", (group) => group.class || "smaller groups together"],
};

function streamText(stream) {
    if (stream === 0) return "no stream";
    if (stream === 1) return "default stream";
    return stream === 255 ? "a later stream" : `stream ${stream}`;
}

/** Puts groups together by what the reader chose. `figure` gives the numbers of a group that are added. */
function together(groups, figure) {
    const list = new Map();
    for (const group of groups) {
        const key = BY[shown.by][1](group);
        const figures = figure(group);
        const known = list.get(key);
        if (!known) list.set(key, { key, groups: [group], figures: { ...figures } });
        else {
            known.groups.push(group);
            for (const name of Object.keys(figures)) {
                if (name === "oldest")
                    known.figures.oldest = Math.min(known.figures.oldest || Infinity, figures.oldest || Infinity);
                else known.figures[name] += figures[name];
            }
        }
    }
    return [...list.values()];
}

/** The name of an entry: the line of the job, and the whole stack behind it. */
function entryName(entry, panelName, by = "what") {
    const [group] = entry.groups;
    if (by !== "what" && by !== "line") return entry.key;
    if (group.stack === null) {
        const more = [
            group.class,
            group.rest ? "" : streamText(group.stream),
            group.tid ? `thread ${group.tid}` : "",
        ];
        return make("span", {}, entry.key, make("span", { class: "more" }, more.filter((text) => text).join(", ")));
    }
    const more = p("more", `${group.api}, ${group.class}, ${streamText(group.stream)}`);
    return details(`${panelName}-${group.stack}`, stackText(group.stack), frameList(group.stack), more);
}

/** A part of a bar behind a figure. */
function gauge(share) {
    const inside = make("span", { class: "inside live" });
    inside.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
    return make("span", { class: "gauge", "aria-hidden": "true" }, inside);
}

function moreButton(panelName, rows, most) {
    if (rows.length <= most) return "";
    const isAll = shown.all.has(panelName);
    return button(isAll ? `Show ${most}` : `Show all ${count(rows.length)}`, () => {
        if (isAll) shown.all.delete(panelName);
        else shown.all.add(panelName);
        changed();
    });
}

const first = (panelName, rows, most) => (shown.all.has(panelName) ? rows : rows.slice(0, most));

panel("holders", () => {
    const { device, process } = state;
    const number = momentNumber();
    const start = momentNumber(state.from);
    const groups = shownGroups();
    const names = Object.entries(BY).map(([key, [name]]) => [key, name]);
    const choices = make("div", { class: "row choices" }, choice("By", names, shown, "by"));
    const rows = together(groups, (group) => {
        const held = heldAt(group, number);
        return {
            bytes: held.bytes,
            count: held.count,
            oldest: held.count > 0 ? held.oldest : 0,
            grown: held.bytes - heldAt(group, start).bytes,
        };
    })
        .filter((row) => row.figures.bytes > 0)
        .sort((one, other) => other.figures.bytes - one.figures.bytes);
    const all = rows.reduce((sum, row) => sum + row.figures.bytes, 0);
    const at = number < 0 ? 0 : process.holdings.moments[number];
    const live = device ? levelAt(device.live, at) : 0;
    const age = (oldest) => (oldest > 0 && Number.isFinite(oldest) ? duration(at - oldest) : "-");
    const list = table(
        "Holders, most bytes first",
        [
            figure("bytes", (row) => size(row.figures.bytes)),
            figure("share", ({ figures: { bytes } }) => make("span", {}, gauge(bytes / all), percent(bytes / all))),
            column(BY[shown.by][0], (row) => entryName(row, "holders", shown.by)),
            figure("count", (row) => count(row.figures.count)),
            figure("oldest", (row) => age(row.figures.oldest)),
            figure("in the range", (row) => signed(row.figures.grown)),
        ],
        first("holders", rows, 12),
        { class: "wide-third" },
    );
    const differs = Math.abs(live - all) >= 1 && state.exact === null;
    const difference = differs ? ` The ledger has ${size(live)} live then.` : "";
    body("holders").replaceChildren(
        p("asof", `${device ? deviceTitle(device) : ""} ${asOf()}: ${size(all)} live.${difference}`),
        choices,
        rows.length > 0 ? list : p("none", "Nothing was live then."),
        p("row", moreButton("holders", rows, 12)),
        process.trust.stack_bytes === 0
            ? p("hint", `No stacks, so holders are sizes: ${noStacks(process.trust)}.`)
            : "",
        ...tensorTables(process, device),
    );
});

/** PyTorch's tensors, whose bytes lie in the segments that the journal has. */
function tensorTables(process, device) {
    const list = process.tensors.filter((tensors) => !device || tensors.device === device.ordinal);
    return list.map((tensors) => {
        const title = `PyTorch's tensors at their ${tensors.when}, ${moment(tensors.time_ns)}: ${size(tensors.bytes)} in ${count(tensors.tensors)}`;
        const name = (stack) => {
            if (stack === null) return "no Python stack (such as a thread of autograd)";
            return details(`tensor-${tensors.when}-${stack}`, stackText(stack), frameList(stack));
        };
        return details(
            `tensors-${tensors.when}`,
            title,
            table(
                title,
                [
                    figure("bytes", ([bytes]) => size(bytes)),
                    figure("share", ([bytes]) => percent(bytes / tensors.bytes)),
                    column("line of code", ([, , stack]) => name(stack)),
                    figure("tensors", ([, number]) => count(number)),
                ],
                tensors.holders.slice(0, 20),
            ),
            p("more", `in segments of ${size(tensors.segments)}; other code had ${size(tensors.others)}`),
        );
    });
}

/** The slope of a group in the range, in bytes a second, if it rises more often than it falls; else null. */
function slope(group, from, to) {
    const { moments } = state.process.holdings;
    const start = Math.max(0, countUpTo(moments, from) - 1);
    const end = countUpTo(moments, to) - 1;
    if (end - start < 4) return null;
    let [n, sumTime, sumBytes, squares, products, ups, downs] = [0, 0, 0, 0, 0, 0, 0];
    let before = null;
    for (let place = start; place <= end; place += 1) {
        const time = (moments[place] - from) / 1e9;
        const { bytes } = heldAt(group, place);
        n += 1;
        sumTime += time;
        sumBytes += bytes;
        squares += time * time;
        products += time * bytes;
        if (before !== null && bytes > before) ups += 1;
        if (before !== null && bytes < before) downs += 1;
        before = bytes;
    }
    const spread = n * squares - sumTime * sumTime;
    const rate = spread > 0 ? (n * products - sumTime * sumBytes) / spread : 0;
    const grown = heldAt(group, end).bytes - heldAt(group, start).bytes;
    // Half of the rise at least must be there in the middle of the range, so that one step is no growth.
    const middle = heldAt(group, (start + end) >> 1).bytes - heldAt(group, start).bytes;
    const isSteady = ups >= 3 && ups >= 3 * downs && middle > grown * 0.2 && middle < grown * 0.8;
    return rate > 0 && grown > 0 && isSteady ? { rate, grown, ups } : null;
}

panel("growth", () => {
    const { device, process, from, to, at } = state;
    const rows = shownGroups()
        .filter((group) => !group.rest)
        .map((group) => ({ entry: { groups: [group], key: group.text }, ...slope(group, from, to) }));
    const growing = rows.filter((row) => row.rate > 0).sort((one, other) => other.rate - one.rate);
    const seconds = (to - from) / 1e9;
    const steps = process.marks.filter((mark) => mark.kind !== "end" && mark.time_ns >= from && mark.time_ns <= to);
    const names = new Set(steps.map((mark) => mark.text.replace(/\d+/g, "#")));
    const room = device && Number.isFinite(device.room) ? device.room - levelAt(device.reserved, at) : null;
    const all = growing.reduce((sum, row) => sum + row.rate, 0);
    const untilFull = (rate) =>
        room === null || rate <= 0 ? "-" : room <= 0 ? "at the limit" : duration((room / rate) * 1e9);
    const perStep = steps.length >= 3 && names.size <= 2 ? seconds / steps.length : null;
    const list = table(
        "Groups whose live bytes rise, steepest first",
        [
            figure("a second", (row) => signed(row.rate)),
            ...(perStep ? [figure("a mark", (row) => signed(row.rate * perStep))] : []),
            figure("in the range", (row) => signed(row.grown)),
            column("stack or size", (row) => entryName(row.entry, "growth")),
            figure("to the limit", (row) => untilFull(row.rate)),
        ],
        first("growth", growing, 12),
        { class: perStep ? "wide-fourth" : "wide-third" },
    );
    body("growth").replaceChildren(
        p(
            "asof",
            growing.length > 0
                ? `From ${rangeText()} ${many(growing.length, "group")} rose steadily, by ${size(all)} a second together${process.ended_by_failure ? "" : `; at that rate the limit is ${untilFull(all)} away`}.`
                : `From ${rangeText()} no group rose steadily.`,
        ),
        growing.length > 0 ? list : "",
        process.caches
            ? p(
                  "hint",
                  `These are segments of ${process.caches}'s own cache. vramshim inspect --growth shows tensors${process.tensors.length > 0 ? "" : ", if the job ran with --torch record"}.`,
              )
            : "",
        p("row", moreButton("growth", growing, 12)),
    );
});
