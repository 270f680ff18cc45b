/** The verdict in a word or two, and whether it is bad. */
const TAGS = {
    not_enough_evidence: "Not enough evidence",
    larger_than_device: "Too large",
    live_set: "Too much live",
    growth: "Leak",
    cached_but_unusable: "Fragmented",
    other_processes: "Other process",
    limit: "Limit",
    group_limit: "Limit of the group",
    driver_failure: "Driver failure",
    guard: "Too large a request",
    layer_limit: "Limit of a layer",
};

/** What is known of the effect of a step. */
function effectText({ effect, gains }) {
    const bytes = gains?.at_most ?? gains?.at_least ?? gains;
    const gain = bytes === null ? "gain not known" : `gains ${gains.at_most ? "at most " : ""}${size(bytes)}`;
    return { replayed: " (tried in a replay)", not_tried: ` (not tried; ${gain})` }[effect] || "";
}
const stepText = (step) => step.what + effectText(step);

// Panels 1 to 3: the verdict, the ledger as a bar, and how complete the journal is.

const upperFirst = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Who held most of the device that the verdict is about: at the failure, or else at the peak. Empty if nobody held any. */
function largestHolder(process) {
    const { holdings, verdict } = process;
    const ordinal = verdict.device ?? largestDevice(process)?.ordinal;
    const moment = namedMoment("failure", { ordinal }) || namedMoment("peak", { ordinal });
    if (!moment || ordinal === undefined) return "";
    const groups = holdings.groups.filter((group) => group.device === ordinal && !group.rest);
    const held = together(groups, (group) => heldAt(group, moment.moment), "line");
    const all = held.reduce((sum, one) => sum + one.figures.bytes, 0);
    const [most] = held.sort((one, other) => other.figures.bytes - one.figures.bytes);
    if (!most || most.figures.bytes === 0) return "";
    const when = moment.kind === "failure" ? "at the failure" : "at the peak";
    const { bytes, count: number } = most.figures;
    const atLeast = bound(process.devices.find((one) => one.ordinal === ordinal), holdings.moments[moment.moment]);
    return `${atLeast}${size(bytes)}, ${percent(bytes / all)} of what is live ${when}: ${count(number)} × ${most.key}`;
}

function ticket(process) {
    const { verdict } = process;
    const lines = [
        `${process.title} (${rankText(process)} on ${process.host}, ${process.started}, ended: ${process.ended})`,
        verdict.sentence,
        verdict.explanation && `Verdict: ${verdict.explanation}`,
        partsText(verdict.parts, verdict.total),
        largestHolder(process) && `Largest holder in this process: ${largestHolder(process)}`,
        ...verdict.next.map((step) => `Next: ${stepText(step)}`),
    ];
    if (verdict.stack !== null) lines.push(...stacks[verdict.stack].map((frame) => `  ${frameInFull(frame)}`));
    lines.push(
        `Journal: ${process.path}`,
        `Software: ${process.software.map(([name, version]) => `${name} ${version}`).join(", ")}`,
    );
    return lines.filter((line) => line).join("\n") + "\n";
}

panel("verdict", () => {
    const { process } = state;
    const { verdict } = process;
    const failed = verdict.name !== "none_failed";
    const device = process.devices.find((one) => one.ordinal === verdict.device) || state.device;
    const room = device && Number.isFinite(device.room) ? device.room : null;
    const facts = [];
    if (device) {
        facts.push(
            ["Peak, live", `${peakText(device)} at ${moment(device.peak_ns)}`],
            ["Peak, reserved", device.knows_reserved ? `${size(device.peak_reserved)} at ${moment(device.peak_reserved_ns)}` : "not known"],
        );
        // After a failure this would seem to say what was left, but contexts and other processes are not in it.
        if (room !== null && !failed) {
            const left = room - device.peak_reserved;
            const what = device.limit !== null && device.limit <= (device.total ?? Infinity) ? "limit" : "device";
            facts.push([
                `Peak, reserved, below the ${what}`,
                left >= 0 ? `${size(left)} of ${size(room)}` : `${size(-left)} above ${size(room)}`,
            ]);
        }
    }
    facts.push(["Ended", `${process.ended}, after ${duration(process.duration_ns)}`]);
    const rest = runs[process.run].filter((one) => one !== process);
    if (rest.length > 0) {
        const peaks = rest.map((one) => Math.max(0, ...one.devices.map((device) => device.peak_bytes)));
        const atLeast = rest.flatMap((one) => decode(one).devices.map((device) => bound(device))).find((text) => text) ?? "";
        const failing = rest.filter((one) => one.failures_in_all > 0).length;
        const range = [...new Set([Math.min, Math.max].map((end) => size(end(...peaks))))].join(" to ");
        const several = failing > 0 ? `${count(failing)} ran out of memory` : "none ran out of memory";
        const failures = rest.length > 1 ? several : `it ${failing > 0 ? "ran" : "did not run"} out of memory`;
        facts.push([rest.length > 1 ? `The other ${count(rest.length)} processes` : "The other process", `peak ${atLeast}${range} live, ${failures}`]);
    }
    const holder = largestHolder(process);
    const { from_ns, to_ns } = verdict.window ?? { from_ns: process.began, to_ns: process.until };
    const [steepest] = failed ? [] : growers(from_ns, to_ns);
    const rose =
        steepest &&
        `${size(steepest.grown)} from ${moment(from_ns)} to ${moment(to_ns)}, ${size(steepest.rate)} a second: ${steepest.entry.key}`;
    const died = verdict.lived ? ["Recovered", false] : [TAGS[verdict.name] || verdict.words, true];
    const [title, isBad] = failed ? died : process.end_title;
    const grew = !failed && verdict.window !== null;
    byId("verdict-title").textContent = grew ? `${title}, but grew` : title;
    byId("verdict").classList.toggle("grew", grew);
    byId("verdict").classList.toggle("bad", isBad);
    const [next, ...later] = verdict.next;
    const steps = later.map((step) => make("li", {}, ...parted(stepText(step))));
    body("verdict").replaceChildren(
        // The cause comes first: a reader may have time for one line.
        p("sentence", ...parted(verdict.explanation ? upperFirst(verdict.explanation) : verdict.sentence)),
        next ? p("next", make("strong", {}, "Next: "), ...parted(next.what), make("em", {}, effectText(next))) : "",
        holder ? p("holder", make("strong", {}, "Largest holder in this process: "), holder) : "",
        steepest ? p("holder", make("strong", {}, "Rose steadily: "), rose) : "",
        verdict.explanation ? p("explanation", ...parted(verdict.sentence)) : "",
        make("ul", { class: "line facts" }, ...facts.map(([name, value]) => make("li", {}, `${name}: ${value}`))),
        make(
            "div",
            { class: "row folded" },
            later.length > 0 ? details("later", `Other steps (${later.length})`, make("ul", {}, ...steps)) : "",
            process.failures.length > 1 ? failureList(process) : "",
            verdict.stack === null || stacks[verdict.stack].length === 0 ? "" : details("request", "Stack of the request", frameList(verdict.stack)),
            copyButton("Copy for a ticket", () => ticket(process)),
        ),
    );
});

function failureList(process) {
    const shown = process.failures.slice(-20).reverse();
    const item = ({ time_ns, api, requested, tries, went_on }, place) => {
        const asked = tries > 1 ? `, asked ${count(tries)} times` : "";
        const followed = `the job went on: ${many(went_on, "allocation")} followed`;
        const until = place > 0 ? "before the next one" : "after it";
        const after = went_on > 0 ? followed : `nothing was allocated ${until}`;
        const text = `${moment(time_ns)}: ${api} of ${size(requested)}${asked}; ${after}`;
        const jump = () => jumpTo({ time: time_ns, exact: exactMoment(time_ns) });
        return make("li", {}, button(text, jump, { class: "link" }));
    };
    const more = process.failures_in_all - shown.length;
    const rest = more > 0 ? make("li", {}, many(more, "more failure")) : "";
    const list = make("ul", { class: "failures" }, ...shown.map(item), rest);
    return details("failures", `All failures for lack of memory (${count(process.failures_in_all)})`, list);
}

/** The number of the moment with a name at this time. */
function exactMoment(time) {
    const { moments, named } = state.process.holdings;
    return named.find((one) => moments[one.moment] === time)?.moment ?? null;
}

const partsText = (parts, total) =>
    parts.length > 0 &&
    `Device ${size(total)} = ${parts.map((part) => `${part.name} ${size(part.bytes)}`).join(" + ")}`;

/** The parts of the device's memory at the cursor, and where the figures are from. */
function partsAt(process, device, at) {
    const { verdict } = process;
    if (verdict.parts.length > 0 && verdict.device === device.ordinal && verdict.time_ns === at) {
        return { parts: verdict.parts, from: "measured at the failure" };
    }
    const live = levelAt(device.live, at);
    const reserved = Math.max(levelAt(device.reserved, at), live);
    const parts = [{ name: "live", bytes: live }, { name: "cached", bytes: reserved - live }].slice(0, device.knows_reserved ? 2 : 1);
    if (process.caches || at < device.live_from) parts.splice(0, 2, { name: "live or cached", bytes: reserved });
    const measured = countUpTo(device.used.times, at);
    let from = `from the journal; the device was not measured${device.knows_reserved ? "" : ", and what was obtained for it is not known"}`;
    let outside = 0;
    if (measured > 0) {
        const time = device.used.times[measured - 1];
        outside = Math.max(0, device.used.bytes[measured - 1] - levelAt(device.reserved, time));
        parts.push({ name: "context, other processes, unknown", bytes: outside });
        from = `live and reserved from the journal; the rest as measured at ${inRange(time)}`;
    }
    if (device.total !== null)
        parts.push({ name: measured > 0 ? "free" : "not known or free", bytes: device.total - reserved - outside });
    return { parts, from };
}

panel("ledger", () => {
    const { process, device, at } = state;
    if (!device) return body("ledger").replaceChildren(p("none", "The process used no device."));
    const { parts, from } = partsAt(process, device, at);
    const sum = parts.reduce((sum, part) => sum + part.bytes, 0);
    const total = parts.reduce((sum, part) => sum + Math.max(0, part.bytes), 0) || 1;
    const BOUNDS = { live: "at least", cached: "at most" };
    const textOf = ({ name, bytes }) => (BOUNDS[name] ? bound(device, at, BOUNDS[name]) : "") + size(bytes);
    const label = parts.map((part) => `${part.name} ${textOf(part)}`).join(", ");
    const bar = make("div", { class: "bar", role: "img", "aria-label": label });
    const colours = {
        live: "live",
        "live or cached": "live",
        cached: "cached",
        context: "context",
        "other process": "others",
        free: "free",
        "not known or free": "free",
    };
    const legend = [];
    for (const part of parts) {
        const kind = colours[part.name] || "unknown";
        const piece = make("span", { class: `part ${kind}`, title: `${part.name}: ${textOf(part)}` });
        piece.style.flexGrow = String(Math.max(0, part.bytes) / total);
        if (part.bytes > 0) bar.append(piece);
        const note = part.note ? ` (${part.note})` : "";
        legend.push(key(kind, `${part.name} `, make("b", {}, textOf(part)), note));
    }
    legend.push(
        make("li", {}, "sum ", make("b", {}, size(sum))),
        make("li", { class: "asof" }, `${deviceTitle(device)}, at ${inRange(at)}: ${from}`),
    );
    const owner = process.caches;
    const hint = `Live or cached are the segments of ${owner}'s cache. What is free inside them only ${owner} knows: run --torch record shows its tensors.`;
    body("ledger").replaceChildren(bar, make("ul", { class: "legend" }, ...legend), owner ? p("hint", hint) : "");
});

const deviceTitle = (device) => deviceText(device) + (device.name && device.ordinal >= 0 ? ` (${device.name})` : "");

panel("trust", () => {
    const { process } = state;
    const { trust } = process;
    const with_ = trust.stack_bytes;
    const without = Object.values(trust.no_stack_bytes).reduce((sum, bytes) => sum + bytes, 0);
    const bad = trust.lost > 0 || trust.damaged > 0 || trust.damaged_header.length > 0;
    const from = trust.lost_from_ns === null ? "" : `, the first at ${moment(trust.lost_from_ns)}`;
    const bySnapshots = process.first_snapshot_ns !== null;
    const damage = [many(trust.damaged, "record") + " left out", ...trust.damaged_header];
    const items = [
        `${bad || bySnapshots ? "" : "Complete: "}${many(trust.events, "event")} from ${moment(trust.first_ns)} to ${moment(trust.last_ns)}`,
        bad || !bySnapshots ? null : "no event of the driver was lost",
        bySnapshots ? "tensors that came and went between two of PyTorch's snapshots are not in the journal" : null,
        trust.lost > 0
            ? `${many(trust.lost, "event")} lost${from} (${trust.lost_because}); figures are incomplete`
            : trust.damaged_header.includes("lost events")
              ? "how many events were lost is not known (damaged)"
              : null,
        trust.damaged > 0 || trust.damaged_header.length > 0 ? `the file is damaged: ${damage.join(", ")}` : null,
        trust.unfinished > 0 ? `${many(trust.unfinished, "event")} unfinished when the process ended` : null,
        trust.anomalies > 0 ? `${many(trust.anomalies, "event")} contradict earlier ones` : null,
        trust.unknown_frees > 0
            ? `${many(trust.unknown_frees, "free")} of memory that was allocated without the library`
            : null,
        with_ > 0 ? `stacks for ${percent(with_ / (with_ + without))} of the allocated bytes` : null,
        ...Object.entries(trust.no_stack_bytes).map(([why, bytes]) => with_ > 0 && `no stack for ${percent(bytes / (with_ + without))}: ${why}`),
        with_ === 0 && without > 0 ? `no stacks: ${noStacks(trust)}` : null,
        trust.running ? "the process still ran when this was made" : null,
    ];
    // What is complete is one line at the end; what is not comes before the figures that it makes doubtful.
    byId(bad ? "timeline" : "about").before(byId("trust"));
    byId("trust-title").classList.toggle("unseen", !bad);
    byId("trust").classList.toggle("bad", bad);
    const lines = items.filter((item) => item).map((item) => make("li", {}, item));
    body("trust").replaceChildren(make("ul", { class: "line" }, ...lines));
});
