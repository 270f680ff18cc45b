// The live page of `vramshim serve`: panels 2 to 5 at the newest moment, and how old they are.

if (report.live) {
    const { made_ms, every_ms } = report.live;
    const line = byId("age");
    const links = make(
        "span",
        {},
        " ",
        make("a", { href: `../report/${location.pathname.split("/").pop()}` }, "Full report"),
        " ",
        make("a", { href: "../" }, "All processes"),
    );
    /** How old the page was when the server last said so, and when that was by the clock of this browser. */
    let known = { age: 0, at: performance.now() };
    let refused = "";
    let wasStale = false;

    /** Says how old the figures are. Figures that nobody renews are marked. */
    const tell = () => {
        const age = known.age + performance.now() - known.at;
        const { running } = state.process.trust;
        const isStale = running && (refused !== "" || age > 3 * every_ms);
        const seconds = Math.round(age / 1000);
        const old = `these figures are ${seconds < 1 ? "less than a second" : duration(seconds * 1e9)} old`;
        const words = running
            ? isStale
                ? `Stale: ${old}${refused && `; ${refused}`}.`
                : `Live: ${old}.`
            : `The process has ended: ${state.process.ended}. These are its last figures.`;
        line.replaceChildren(words, links);
        line.classList.toggle("stale", isStale);
        line.hidden = false;
        if (isStale && !wasStale) say(words);
        wasStale = isStale;
    };

    const place = `vramshim-live ${location.pathname}`;
    /** What the reader has chosen. The next page begins with it. */
    const keep = () => {
        const { process, device, from, to, at } = state;
        const isWhole = from === process.began && to === process.until;
        const chosen = {
            device: device ? device.ordinal : null,
            range: isWhole ? null : [from, to],
            at: at < process.until && state.exact === null ? at : null,
        };
        try {
            sessionStorage.setItem(place, JSON.stringify(chosen));
        } catch {
            // The next page then begins at the end.
        }
    };
    const kept = () => {
        try {
            return JSON.parse(sessionStorage.getItem(place)) || {};
        } catch {
            return {};
        }
    };

    const look = async () => {
        if (!state.process.trust.running) return;
        try {
            const answer = await fetch(location.pathname, { method: "HEAD", cache: "no-store" });
            if (answer.ok) {
                refused = "";
                known = { age: Number(answer.headers.get("age")) * 1000, at: performance.now() };
                if (Number(answer.headers.get("x-vramshim-made")) !== made_ms) {
                    keep();
                    location.reload();
                    return;
                }
            } else refused = `vramshim serve answers with status ${answer.status}`;
        } catch {
            refused = "vramshim serve does not answer";
        }
        tell();
    };

    document.body.classList.add("is-live");
    const chosen = kept();
    const device = state.process.devices.find((one) => one.ordinal === chosen.device);
    if (device) selectProcess(state.process, device);
    if (Array.isArray(chosen.range)) selectRange(...chosen.range);
    const end = jumps().find((jump) => jump.id === "end");
    if (typeof chosen.at === "number") selectMoment(chosen.at);
    else selectMoment(end.time ?? state.process.until, end.exact);
    drawAll();
    tell();
    look();
    setInterval(tell, 1000);
    setInterval(look, Math.max(1000, every_ms));
}
