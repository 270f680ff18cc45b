// Panel 12: the events of the range. Only the rows in sight are in the page.

const LINE = 26;
const listed = { search: "", kind: "", rows: [], current: 0 };
const eventCount = make("p", { class: "asof" });
const eventChoices = make("div", { class: "row choices" });
const eventBody = make("tbody");
const above = make("tr", { "aria-hidden": "true" }, make("td", { colspan: "8" }));
const below = make("tr", { "aria-hidden": "true" }, make("td", { colspan: "8" }));
const TITLES = [
    ["time", true],
    ["event", false],
    ["function", false],
    ["bytes", true],
    ["address", false],
    ["device", true],
    ["thread", true],
    ["where, and what else", false],
];
const eventTitles = TITLES.map(([title, number]) => make("th", { scope: "col", class: number ? "number" : null }, title));
const eventsLabel = "Events of the range";
const eventBox = make(
    "div",
    { class: "scroll events-box", tabindex: "0", role: "region", "aria-label": eventsLabel },
    make(
        "table",
        { class: "events" },
        make("caption", { class: "unseen" }, eventsLabel),
        make("thead", {}, make("tr", {}, ...eventTitles)),
        eventBody,
    ),
);
const search = make("input", {
    type: "search",
    placeholder: "function, address, size, line of code",
    input: (event) => {
        listed.search = event.target.value.toLowerCase();
        changed();
    },
});

const kindChoice = make("span");
eventChoices.append(make("label", {}, "Search ", search), kindChoice);
body("events").append(eventCount, eventChoices, eventBox);
eventBox.addEventListener("scroll", () => drawRows());

/** The cells of an event. */
function eventCells(events, place) {
    const stack = events.stack[place];
    const note = [stack > 0 ? stackText(stack - 1) : "", events.notes[place] || ""]
        .filter((text) => text)
        .join("; ");
    const device = events.device[place];
    return [
        moment(events.times_ns[place], 1e6),
        events.kinds[events.kind[place]],
        events.apis[events.api[place]],
        events.bytes[place] > 0 ? size(events.bytes[place]) : "",
        events.address[place] > 0 ? "0x" + events.address[place].toString(16) : "",
        device < 0 ? "host" : String(device),
        String(events.tid[place]),
        note,
    ];
}

/** Whether an event has the text that is searched for. A number of bytes finds exactly this size. */
function matches(events, place) {
    if (listed.kind !== "" && String(events.kind[place]) !== listed.kind) return false;
    if (listed.search === "") return true;
    return (
        String(events.bytes[place]) === listed.search ||
        eventCells(events, place).some((cell) => cell.toLowerCase().includes(listed.search))
    );
}

function eventRow(events, place, number) {
    const cells = eventCells(events, place);
    const isFailure = events.kinds[events.kind[place]].startsWith("failed");
    // One row is in the order of the Tab key; arrows lead from row to row.
    const tabindex = number === listed.current ? "0" : "-1";
    const row = make("tr", { class: isFailure ? "badly" : null, "aria-rowindex": number + 2 });
    const time = button(cells[0], () => selectMoment(events.times_ns[place]), { class: "link", tabindex });
    cells.forEach((cell, column) => {
        const inside = column === 0 ? time : cell;
        row.append(
            make("td", { class: TITLES[column][1] ? "number" : null, title: column === 7 ? cell : null }, inside),
        );
    });
    return row;
}

/** Puts the rows in sight into the table. */
function drawRows() {
    const { events } = state.process;
    const from = Math.max(0, Math.floor(eventBox.scrollTop / LINE) - 10);
    const to = Math.min(listed.rows.length, from + Math.ceil(eventBox.clientHeight / LINE) + 30);
    above.firstChild.style.height = `${from * LINE}px`;
    below.firstChild.style.height = `${(listed.rows.length - to) * LINE}px`;
    const rows = [];
    for (let number = from; number < to; number += 1) rows.push(eventRow(events, listed.rows[number], number));
    const hasFocus = eventBody.contains(document.activeElement);
    eventBody.replaceChildren(above, ...rows, below);
    if (hasFocus) rows[listed.current - from]?.querySelector("button").focus({ preventScroll: true });
}

eventBox.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12 }[event.key];
    if (!step || !eventBody.contains(document.activeElement)) return;
    event.preventDefault();
    listed.current = Math.min(Math.max(listed.current + step, 0), listed.rows.length - 1);
    const top = listed.current * LINE;
    if (top < eventBox.scrollTop) eventBox.scrollTop = top;
    if (top > eventBox.scrollTop + eventBox.clientHeight - 3 * LINE)
        eventBox.scrollTop = top - eventBox.clientHeight + 3 * LINE;
    drawRows();
});

panel("events", () => {
    const { events } = state.process;
    const { from, to } = state;
    const start = countUpTo(events.times_ns, from - 1);
    const end = countUpTo(events.times_ns, to);
    listed.rows = [];
    for (let place = start; place < end; place += 1) if (matches(events, place)) listed.rows.push(place);
    const kinds = [...new Set(events.kind)].sort((one, other) => one - other);
    const choices = [["", "all"], ...kinds.map((kind) => [String(kind), events.kinds[kind]])];
    kindChoice.replaceChildren(choice("Kind", choices, listed, "kind"));
    const isAll = events.number.length >= events.in_all;
    const which = isAll
        ? `all ${many(events.in_all, "event")}`
        : `${count(events.number.length)} of ${many(events.in_all, "event")}: those around the peak, the last failure and the end, failures, marks, and the largest allocations`;
    eventCount.textContent = `${many(listed.rows.length, "event")} in the range. The report has ${which}.`;
    eventBox.firstChild.setAttribute("aria-rowcount", String(listed.rows.length + 1));
    const rows = Math.max(1, Math.min(listed.rows.length, 16));
    eventBox.style.height = `${rows * LINE + 34}px`;
    eventBox.scrollTop = 0;
    listed.current = 0;
    drawRows();
});
