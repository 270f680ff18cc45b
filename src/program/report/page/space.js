// Panel 8: the segments at the failure, if free memory inside them would have sufficed.

panel("space", () => {
    const { space, verdict } = state.process;
    byId("space").hidden = verdict.name !== "cached_but_unusable" || !space;
    if (byId("space").hidden) return;
    const widest = Math.max(...space.segments.map((segment) => segment.bytes), space.requested);
    const row = (segment) => {
        const bar = make("span", { class: "segment" });
        bar.style.width = `${Math.max(0.3, (segment.bytes / widest) * 100)}%`;
        for (const [offset, length] of segment.free) {
            const gap = make("span", {
                class: length === space.largest_free ? "gap largest" : "gap",
                title: `free: ${size(length)}`,
            });
            gap.style.left = `${(offset / segment.bytes) * 100}%`;
            gap.style.width = `${Math.max(0.15, (length / segment.bytes) * 100)}%`;
            bar.append(gap);
        }
        return bar;
    };
    const request = make("span", { class: "segment request" });
    request.style.width = `${(space.requested / widest) * 100}%`;
    // Segments with the same content share a row.
    const equal = new Map();
    for (const segment of space.segments) {
        const content = JSON.stringify([segment.bytes, segment.free]);
        if (!equal.has(content)) equal.set(content, { ...segment, count: 0 });
        equal.get(content).count += 1;
    }
    const freeOf = ({ count, bytes, live }) => count * (bytes - live);
    const each = ({ count }, bytes) => (count > 1 ? `${count} \u00d7 ` : "") + size(bytes);
    const rows = shown.all.has("space")
        ? [...equal.values()]
        : [...equal.values()].sort((one, other) => freeOf(other) - freeOf(one)).slice(0, 24);
    // The first row is that of the request.
    const columns = [
        column("address", (one) => (one ? `0x${one.address.toString(16)}${one.count > 1 ? ", \u2026" : ""}` : "")),
        figure("size", (one) => (one ? each(one, one.bytes) : `asked: ${size(space.requested)}`)),
        figure("free", (one) => (one ? each(one, one.bytes - one.live) : "")),
        column("", (one) => (one ? row(one) : request)),
    ];
    body("space").replaceChildren(
        p(
            "asof",
            `Device ${space.device} at the failure, ${moment(space.time_ns)}: ${size(space.free)} were free inside segments, the largest piece ${size(space.largest_free)}; ${size(space.requested)} were asked for.`,
        ),
        make(
            "ul",
            { class: "legend" },
            key("live", "live"),
            key("free", "free"),
            key("peak", "the largest free piece"),
            key("request", "the request, to the same scale"),
        ),
        table("Segments, most free bytes first", columns, [null, ...rows], { class: "segments" }),
        p(
            "row",
            moreButton("space", [...equal.keys()], 24),
            space.left_out > 0 ? `${many(space.left_out, "smaller segment")} left out` : "",
        ),
    );
});
