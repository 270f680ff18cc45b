// Panel 12: the events of the range. Only the rows in sight are in the page.

const LINE = isTouch ? 45 : 26;
const listed = { search: "", kind: "", rows: [], current: 0 };
const eventCount = make("p", { class: "asof" });

/** What the table has of an event, by its place in the list. */
const EVENT_COLUMNS = [
    figure("time", (events, place) => moment(events.times_ns[place], 1e6)),
    column("event", (events, place) => events.kinds[events.kind[place]]),
    column("function", (events, place) => events.apis[events.api[place]]),
    figure("bytes", (events, place) => (events.bytes[place] > 0 ? size(events.bytes[place]) : "")),
    column("address", (events, place) => (events.address[place] > 0 ? "0x" + events.address[place].toString(16) : "")),
    figure("device", (events, place) => (events.device[place] < 0 ? "host" : String(events.device[place]))),
    figure("thread", (events, place) => String(events.tid[place])),
    column("where, and what else", (events, place) => {
        const stack = events.stack[place];
        return [stack > 0 ? stackText(stack - 1) : "", events.notes[place]].filter((text) => text).join("; ");
    }),
];
const eventCells = (events, place) => EVENT_COLUMNS.map((column) => column.cell(events, place));

const eventBox = table("Events of the range", EVENT_COLUMNS, [], { class: "events" });
eventBox.classList.add("events-box");
const eventBody = eventBox.querySelector("tbody");
const [above, below] = [0, 0].map(() => make("tr", { "aria-hidden": "true" }, make("td", { colspan: "8" })));
const search = make("input", {
    type: "search",
    placeholder: "function, address, size, line of code",
    input: (event) => {
        listed.search = event.target.value.toLowerCase();
        changed();
    },
});
const kindChoice = make("span");
const eventChoices = make("div", { class: "row choices" }, make("label", {}, "Search ", search), kindChoice);
body("events").append(eventCount, eventChoices, eventBox);
eventBox.addEventListener("scroll", () => drawRows());

/** Whether an event has the text that is searched for. A number of bytes finds exactly this size. */
function matches(events, place) {
    if (listed.kind !== "" && String(events.kind[place]) !== listed.kind) return false;
    if (listed.search === "" || String(events.bytes[place]) === listed.search) return true;
    return eventCells(events, place).some((cell) => cell.toLowerCase().includes(listed.search));
}

function eventRow(events, place, number) {
    const [time, ...cells] = eventCells(events, place);
    const isFailure = events.kinds[events.kind[place]].startsWith("failed");
    // One row is in the order of the Tab key; arrows lead from row to row.
    const tabindex = number === listed.current ? "0" : "-1";
    const toTime = button(time, () => selectMoment(events.times_ns[place]), { class: "link", tabindex });
    const inside = [toTime, ...cells].map((cell, place) => {
        const { number: isNumber } = EVENT_COLUMNS[place];
        return make("td", { class: isNumber ? "number" : null, title: place === 7 ? cell : null }, cell);
    });
    return make("tr", { class: isFailure ? "badly" : null, "aria-rowindex": number + 2 }, ...inside);
}

/** Puts the rows in sight into the table. */
function drawRows() {
    const { events } = state.process;
    const from = Math.max(0, Math.floor(eventBox.scrollTop / LINE) - 10);
    const to = Math.min(listed.rows.length, from + Math.ceil(eventBox.clientHeight / LINE) + 30);
    above.firstChild.style.height = `${from * LINE}px`;
    below.firstChild.style.height = `${(listed.rows.length - to) * LINE}px`;
    const rows = listed.rows.slice(from, to).map((place, number) => eventRow(events, place, from + number));
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
    const last = top - eventBox.clientHeight + 3 * LINE;
    if (last > eventBox.scrollTop) eventBox.scrollTop = last;
    drawRows();
});

panel("events", () => {
    const { events } = state.process;
    const start = countUpTo(events.times_ns, state.from - 1);
    const end = countUpTo(events.times_ns, state.to);
    listed.rows = [];
    for (let place = start; place < end; place += 1) if (matches(events, place)) listed.rows.push(place);
    const kinds = [...new Set(events.kind)].sort((one, other) => one - other);
    const choices = [["", "all"], ...kinds.map((kind) => [String(kind), events.kinds[kind]])];
    kindChoice.replaceChildren(choice("Kind", choices, listed, "kind"));
    const all = many(events.in_all, "event");
    const which =
        events.number.length >= events.in_all
            ? `all ${all}`
            : `${count(events.number.length)} of ${all}: those around the peak, the last failure and the end, failures, marks, and the largest allocations`;
    eventCount.textContent = `${many(listed.rows.length, "event")} in the range. The report has ${which}.`;
    eventBox.firstChild.setAttribute("aria-rowcount", String(listed.rows.length + 1));
    eventBox.style.height = `${Math.max(1, Math.min(listed.rows.length, 16)) * LINE + 34}px`;
    eventBox.scrollTop = 0;
    listed.current = 0;
    drawRows();
});
