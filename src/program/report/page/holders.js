// Panels 5, 6 and 10: who holds memory at the moment, what changed since a baseline, and what grows.

// Who names another run wants to compare with it.
const shown = { by: "line", baseline: report.against ? "against" : "range", all: new Set() };

/** What groups can be put together by. */
const BY = {
    line: ["line or size", lineText],
    what: ["stack or size", (group) => (group.stack === null ? kindText(group) : `#${group.stack}`)],
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
function together(groups, figure, by = shown.by) {
    const list = new Map();
    for (const group of groups) {
        const key = BY[by][1](group);
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
    const ofLine = by === "line" && new Set(entry.groups.map((one) => one.stack)).size;
    const which = ofLine > 1 ? `one of ${count(ofLine)} stacks of this line: ` : "";
    const more = p("more", `${which}${group.api}, ${group.class}, ${streamText(group.stream)}`);
    const text = by === "line" ? entry.key : stackText(group.stack);
    return details(`${panelName}-${group.stack}`, text, frameList(group.stack), more);
}

/** A part of a bar behind a figure. */
function gauge(share, kind = "live") {
    const inside = make("span", { class: `inside ${kind}` });
    inside.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
    return make("span", { class: "gauge", "aria-hidden": "true" }, inside);
}

/** A button that shows all rows of a panel, or the first of them again. */
function moreButton(panelName, rows, most) {
    if (rows.length <= most) return "";
    const isAll = shown.all.has(panelName);
    return button(isAll ? `Show ${most}` : `Show all ${count(rows.length)}`, () => {
        shown.all[isAll ? "delete" : "add"](panelName);
        changed();
    });
}

/** The rows of a panel: a table of the first, and a button that shows all. */
function tableOf(panelName, caption, columns, rows) {
    const first = shown.all.has(panelName) ? rows : rows.slice(0, 12);
    const list = table(caption, columns, first, { class: "wide-third" });
    return [list, p("row", moreButton(panelName, rows, 12))];
}

panel("holders", () => {
    const { device, process } = state;
    const number = momentNumber();
    const start = momentNumber(state.from);
    const groups = shownGroups();
    const names = Object.entries(BY).map(([key, [name]]) => [key, name]);
    const choices = make("div", { class: "row choices" }, choice("By", names, shown, "by"));
    const rows = together(groups, (group) => {
        const held = heldAt(group, number);
        return { ...held, grown: held.bytes - heldAt(group, start).bytes };
    })
        .filter((row) => row.figures.bytes > 0)
        .sort((one, other) => other.figures.bytes - one.figures.bytes);
    const all = rows.reduce((sum, row) => sum + row.figures.bytes, 0);
    const at = number < 0 ? 0 : process.holdings.moments[number];
    const live = device ? levelAt(device.live, at) : 0;
    // The first snapshot with a tensor is later than the tensor.
    const atLeast = bound(device, null, "\u2265");
    const age = (oldest) => (oldest > 0 && Number.isFinite(oldest) ? atLeast + duration(at - oldest) : "-");
    const list = tableOf(
        "holders",
        "Holders, most bytes first",
        [
            figure("bytes", (row) => size(row.figures.bytes)),
            figure("share", ({ figures: { bytes } }) => make("span", {}, gauge(bytes / all), percent(bytes / all))),
            column(BY[shown.by][0], (row) => entryName(row, "holders", shown.by)),
            figure("count", (row) => count(row.figures.count)),
            figure("oldest", (row) => age(row.figures.oldest)),
            figure("in the range", (row) => signed(row.figures.grown)),
        ],
        rows,
    );
    const differs = Math.abs(live - all) >= 1 && state.exact === null;
    const difference = differs ? ` The ledger has ${liveText(device, at)} live then.` : "";
    const without = process.trust.stack_bytes === 0;
    body("holders").replaceChildren(
        p("asof", `${device ? deviceTitle(device) : ""} ${asOf()}: ${bound(device, at)}${size(all)} live.${difference}`),
        choices,
        ...(rows.length > 0 ? list : [p("none", "Nothing was live then.")]),
        without ? p("hint", `No stacks, so holders are sizes: ${noStacks(process.trust)}.`) : "",
    );
});

/** The moments to compare with: value and text. */
function baselines() {
    const { named, moments } = state.process.holdings;
    const ofDevice = (one) => !["failure", "peak"].includes(one.kind) || one.device === state.device?.ordinal;
    const isMark = (one) => one.kind === "mark";
    const places = named.filter(ofDevice);
    // Peak, failures and end come first: a job may have many marks.
    const others = [...places.filter((one) => !isMark(one)), ...places.filter(isMark)];
    const list = [
        [momentNumber(state.from), "range", "the start of the range"],
        ...others.map((one) => [one.moment, String(one.moment), `${one.text}, ${moment(moments[one.moment])}`]),
    ];
    const wasLive = ([number]) => number < momentNumber() && shownGroups().some((group) => heldAt(group, number).bytes > 0);
    const choices = list.filter(wasLive).map(([, value, text]) => [value, text]);
    if (report.against) choices.push(["against", `the peak of the other run (${report.against.title})`]);
    return choices;
}

/** What each key held at the baseline. */
function baselineGroups() {
    if (shown.baseline !== "against") {
        const number = shown.baseline === "range" ? momentNumber(state.from) : Number(shown.baseline);
        return together(shownGroups(), (group) => heldAt(group, number), "what");
    }
    const other = decode(report.against);
    const device = other.devices.find((one) => one.ordinal === state.device?.ordinal);
    const peak = other.holdings.named.find(
        (one) => one.kind === "peak" && (!device || one.device === device.ordinal),
    );
    const groups = other.holdings.groups.filter((group) => !device || group.device === device.ordinal);
    return together(groups, (group) => heldAt(group, peak ? peak.moment : other.holdings.moments.length - 1), "what");
}

panel("changes", () => {
    const number = momentNumber();
    const choices = baselines();
    byId("changes").hidden = choices.length === 0;
    if (byId("changes").hidden) return;
    const chosen = choices.find(([value]) => value === shown.baseline) || choices[0];
    shown.baseline = chosen[0];
    const rows = new Map();
    for (const entry of together(shownGroups(), (group) => heldAt(group, number), "what")) {
        rows.set(entry.key, { entry, now: entry.figures, before: { bytes: 0, count: 0 } });
    }
    for (const entry of baselineGroups()) {
        const row = rows.get(entry.key) || { entry, now: { bytes: 0, count: 0 } };
        row.before = entry.figures;
        rows.set(entry.key, row);
    }
    const list = [...rows.values()]
        .map((row) => ({ ...row, bytes: row.now.bytes - row.before.bytes, count: row.now.count - row.before.count }))
        .filter((row) => row.bytes !== 0);
    list.sort((one, other) => Math.abs(other.bytes) - Math.abs(one.bytes));
    const sum = list.reduce((all, row) => all + row.bytes, 0);
    const most = list.length > 0 ? Math.abs(list[0].bytes) : 1;
    const rowsShown = tableOf(
        "changes",
        "Changes, largest first",
        [
            figure("change", ({ bytes }) => make("b", { class: bytes > 0 ? "more-bytes" : "less-bytes" }, signed(bytes))),
            column("", (row) => gauge(Math.abs(row.bytes) / most, row.bytes > 0 ? "live" : "cached")),
            column("stack or size", (row) => entryName(row.entry, "changes")),
            figure("count", (row) => (row.count > 0 ? "+" : "") + count(row.count)),
        ],
        list,
    );
    // Where a reader has no other choice, there is nothing to say.
    byId("changes").hidden = list.length === 0 && choices.length === 1;
    const result = list.length === 0 ? "nothing changed" : `${signed(sum)} in all`;
    body("changes").replaceChildren(
        p("asof", `${asOf()}, compared with ${chosen[1]}: ${result}.`),
        make("div", { class: "row choices" }, choice("Compare with", choices, shown, "baseline")),
        ...(list.length === 0 ? [p("none", "Each group holds what it held then.")] : rowsShown),
    );
});

/** By how much a group rises in the range, and how fast in bytes a second, if it rises steadily. */
function rise(group, from, to) {
    const { moments } = state.process.holdings;
    const [start, end] = [Math.max(0, countUpTo(moments, from) - 1), countUpTo(moments, to) - 1];
    if (end - start < 4) return {};
    const levels = [];
    for (let place = start; place <= end; place += 1) levels.push(heldAt(group, place).bytes);
    const steps = levels.slice(1).map((bytes, place) => bytes - levels[place]);
    const [ups, downs] = [1, -1].map((sign) => steps.filter((step) => Math.sign(step) === sign).length);
    const grown = levels.at(-1) - levels[0];
    // A fifth of the rise at least must be there in the middle of the range, and a fifth follow, so that one step is no growth.
    const middle = levels[(levels.length - 1) >> 1] - levels[0];
    const isSteady = ups >= 3 && ups >= 3 * downs && middle > grown * 0.2 && middle < grown * 0.8;
    return isSteady && grown > 0 ? { grown, rate: grown / ((moments[end] - moments[start]) / 1e9) } : {};
}

/** The groups that rise in a range, the steepest first. */
function growers(from, to) {
    const groups = shownGroups().filter((group) => !group.rest);
    const rows = groups.map((group) => ({ entry: { groups: [group], key: group.text }, ...rise(group, from, to) }));
    return rows.filter((row) => row.rate > 0).sort((one, other) => other.rate - one.rate);
}

panel("growth", () => {
    const { device, process, from, to, at } = state;
    const growing = growers(from, to);
    byId("growth").hidden = growing.length === 0;
    const room = device && process.trust.running && Number.isFinite(device.room) ? device.room - levelAt(device.reserved, at) : null;
    const all = growing.reduce((sum, row) => sum + row.rate, 0);
    const pace = room === null ? "" : `; at that rate the limit is ${duration((Math.max(0, room) / all) * 1e9)} away`;
    const rose = `${many(growing.length, "group")} rose steadily, by ${size(all)} a second together${pace}`;
    const columns = [
        figure("a second", (row) => signed(row.rate)),
        figure("in the range", (row) => signed(row.grown)),
        column("stack or size", (row) => entryName(row.entry, "growth")),
    ];
    body("growth").replaceChildren(
        p("asof", `From ${rangeText()} ${growing.length > 0 ? rose : "no group rose steadily"}.`),
        ...(growing.length > 0 ? tableOf("growth", "Groups whose live bytes rise, steepest first", columns, growing) : []),
    );
});
