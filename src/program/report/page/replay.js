// Panel 11: what each strategy would have needed for the recorded requests of a device.

panel("replay", () => {
    const { replay } = state.process;
    byId("replay").hidden = !replay || replay.strategies.every((one) => one.not_known !== null);
    if (byId("replay").hidden) return;
    const bytes = (text) => (replay.at_least ? `at least ${text}` : text);
    const fits = ({ not_known, failed }) => {
        if (not_known !== null) return `not known: ${not_known}`;
        if (failed > 0) return `no: ${many(failed, "request")} failed`;
        return replay.at_least ? "what was recorded" : "yes";
    };
    const known = (one, text) => (one.not_known === null ? text(one) : "-");
    body("replay").replaceChildren(
        p(
            "asof",
            `The recorded requests of device ${replay.device}, played again on a device of ${size(replay.device_memory)} that nobody else uses; the most that they held or asked for at a time is ${size(replay.peak_live)}. passthrough is the driver alone.`,
        ),
        table(
            "Strategies",
            [
                column("strategy", (one) => make("code", {}, one.name)),
                column("fits", fits),
                figure("peak reserved", (one) => known(one, () => bytes(size(one.peak_reserved)))),
                figure("time in driver calls", (one) => known(one, () => duration(one.driver_ns))),
            ],
            replay.strategies,
        ),
    );
});
