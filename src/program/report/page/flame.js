// Panel 7: a flame graph of live, temporary or never freed bytes. Each bar is a frame; its width is its bytes.

const ROW = isTouch ? 45 : 21;
const flame = { kind: "live", inverted: false, path: [], focus: "" };

/** What a bar can stand for. */
const KINDS = {
    live: ["live at the moment", (group, { number }) => heldAt(group, number).bytes],
    // What came and went in the range: at most what was allocated in it, and at most what was freed in it.
    temporary: [
        "temporary: came and went in the range",
        (group, { start, end }) => {
            const [before, after] = [heldAt(group, start), heldAt(group, end)];
            const allocated = after.everBytes - before.everBytes;
            return Math.max(0, Math.min(allocated, allocated - (after.bytes - before.bytes)));
        },
    ],
    leaked: ["never freed", (group, { last }) => heldAt(group, last).bytes],
};

/** The names of the bars of a group, from the root on. */
function levels(group) {
    if (group.stack !== null) {
        const names = stacks[group.stack].map((frame) => ({ key: frameInFull(frame), text: frameText(frame) }));
        return flame.inverted ? names : names.reverse();
    }
    if (group.rest) return [{ key: "rest", text: "smaller groups together" }];
    const names = [group.class, group.api || "several functions", streamText(group.stream), kindText(group)].map(
        (text) => ({ key: text, text }),
    );
    return flame.inverted ? names.reverse() : names;
}

function tree(at) {
    const root = { key: "", text: "all", bytes: 0, children: new Map() };
    for (const group of shownGroups()) {
        const bytes = KINDS[flame.kind][1](group, at);
        if (bytes <= 0) continue;
        root.bytes += bytes;
        let node = root;
        for (const { key, text } of levels(group)) {
            if (!node.children.has(key)) node.children.set(key, { key, text, bytes: 0, children: new Map() });
            node = node.children.get(key);
            node.bytes += bytes;
        }
    }
    return root;
}

/** A colour for a name: the same name has the same colour. */
function hue(name) {
    let sum = 7;
    for (let place = 0; place < name.length; place += 1) sum = (sum * 31 + name.charCodeAt(place)) % 997;
    return 12 + (sum % 44);
}

const picture = make("svg", { class: "flame", role: "tree", "aria-label": "Flame graph" });
const flameText = make("p", { class: "asof" });
const flameChoices = make("div", { class: "row choices" });
const flamePath = make("p", { class: "row path" });
const flameBox = make("div", { class: "scroll flame-box" }, picture);
body("flame").append(flameText, flameChoices, flamePath, flameBox);

function zoomFlame(path) {
    flame.path = path;
    flame.focus = path.join("\u0000");
    changed();
}

/** Places the bars that are at least two pixels wide. */
function place(root, width) {
    const bars = [];
    const visit = (node, left, wide, depth, path) => {
        bars.push({ node, left, wide, depth, path });
        let from = left;
        const children = [...node.children.values()].sort((one, other) => other.bytes - one.bytes);
        for (const child of children) {
            const part = (child.bytes / node.bytes) * wide;
            if (part >= 2 && depth < 70) visit(child, from, part, depth + 1, [...path, child.key]);
            from += part;
        }
    };
    visit(root, 0, width, 0, flame.path);
    return bars;
}

panel("flame", () => {
    const at = {
        number: momentNumber(),
        start: momentNumber(state.from),
        end: momentNumber(state.to),
        last: state.process.holdings.moments.length - 1,
    };
    const whole = tree(at);
    byId("flame").hidden = state.process.trust.stack_bytes === 0;
    let root = whole;
    const known = flame.path.filter((key) => {
        const child = root.children.get(key);
        root = child || root;
        return child;
    });
    flame.path = known;
    const when = {
        live: asOf(),
        temporary: rangeText(),
        leaked: state.process.trust.running ? "so far" : "at the end of the journal",
    }[flame.kind];
    const atLeast = flame.kind === "temporary" ? "" : bound(state.device, flame.kind === "live" ? state.process.holdings.moments[at.number] : null);
    const sentences = [`${atLeast}${size(whole.bytes)} ${KINDS[flame.kind][0]}, ${when}.`];
    if (flame.kind === "temporary")
        sentences.push("At most so much: a group that freed older memory as well looks larger.");
    if (flame.kind === "temporary" && state.device?.snapshots)
        sentences.push("What came and went between two of PyTorch's snapshots is not in it.");
    if (flame.kind === "leaked" && state.process.ended.startsWith("without"))
        sentences.push("The process did not end by itself, so it could free nothing.");
    flameText.textContent = sentences.join(" ");
    const kinds = Object.entries(KINDS).map(([key, [name]]) => [key, name]);
    const anew = (changes) => {
        Object.assign(flame, changes);
        zoomFlame([]);
    };
    flameChoices.replaceChildren(
        choose("Bytes", kinds, flame.kind, (kind) => anew({ kind })),
        button("Inverted", () => anew({ inverted: !flame.inverted }), {
            "aria-pressed": String(flame.inverted),
            id: "flame-inverted",
        }),
    );
    const crumbs = ["all", ...known].map((key, depth) =>
        button(key.slice(0, 60), () => zoomFlame(known.slice(0, depth)), { class: "link" }),
    );
    flamePath.replaceChildren(...(known.length > 0 ? [...crumbs, `${size(root.bytes)}, ${percent(root.bytes / whole.bytes)}`] : []));
    drawFlame(root, whole);
});

function drawFlame(root, whole) {
    const width = Math.max(300, picture.parentElement.clientWidth - 2);
    const bars = place(root, width).slice(0, 3000);
    const deepest = bars.reduce((most, bar) => Math.max(most, bar.depth), 0);
    picture.setAttribute("width", String(width));
    picture.setAttribute("height", String((deepest + 1) * ROW + 2));
    const hasFocus = picture.contains(document.activeElement);
    const focused = bars.find((bar) => bar.path.join("\u0000") === flame.focus) || bars[0];
    const drawn = bars.map((bar) => drawBar(bar, bar === focused, whole));
    picture.replaceChildren(...drawn);
    if (hasFocus) drawn[bars.indexOf(focused)].focus();
}

function drawBar(bar, isFocused, whole) {
    const { node, left, wide, depth, path } = bar;
    const bytes = `${size(node.bytes)}, ${percent(node.bytes / whole.bytes)}`;
    const y = depth * ROW;
    const letters = Math.floor((wide - 8) / 6.7);
    const text =
        node.text.length <= letters ? node.text : letters > 3 ? node.text.slice(0, letters - 1) + "\u2026" : "";
    const shape = make("rect", { x: left + 0.5, y: y + 0.5, width: Math.max(1, wide - 1), height: ROW - 1, rx: 2 });
    shape.style.fill = depth === 0 ? "var(--quiet)" : `hsl(${hue(node.key)} var(--flame))`;
    return make(
        "g",
        {
            role: "treeitem",
            tabindex: isFocused ? "0" : "-1",
            "aria-level": depth + 1,
            "aria-label": `${node.text}: ${bytes}`,
            "data-path": path.join("\u0000"),
            click: () => zoomFlame(path.length === flame.path.length ? path.slice(0, -1) : path),
        },
        make("title", {}, `${node.key || node.text}\n${bytes}`),
        shape,
        text ? make("text", { x: left + 5, y: y + ROW / 2 + 4.5 }, text) : "",
    );
}

picture.addEventListener("keydown", (event) => {
    const bars = [...picture.querySelectorAll("g")];
    const now = bars.indexOf(document.activeElement);
    if (now < 0) return;
    const pathOf = (bar) => bar.dataset.path.split("\u0000").filter((key) => key);
    const level = (bar) => Number(bar.getAttribute("aria-level"));
    const before = bars.slice(0, now).reverse();
    const target = {
        ArrowRight: () => bars.slice(now + 1).find((bar) => level(bar) <= level(bars[now])),
        ArrowLeft: () => before.find((bar) => level(bar) === level(bars[now])),
        ArrowDown: () => (bars[now + 1] && level(bars[now + 1]) > level(bars[now]) ? bars[now + 1] : null),
        ArrowUp: () => before.find((bar) => level(bar) < level(bars[now])),
    }[event.key];
    if (target) {
        event.preventDefault();
        const next = target();
        if (!next) return;
        bars[now].setAttribute("tabindex", "-1");
        next.setAttribute("tabindex", "0");
        flame.focus = next.dataset.path;
        next.focus();
    } else if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        zoomFlame(pathOf(bars[now]));
    } else if (event.key === "Escape") {
        zoomFlame([]);
    }
});
