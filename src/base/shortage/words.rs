//! The words for a failed request: the device's bytes as a sum, and the verdict as a sentence or two.

use super::{MemInfo, Refuser, Shortage, Verdict};
use crate::cuda::DriverError;
use crate::text::events_were;
use crate::units::size;

impl Shortage {
    /// The device's bytes as a sum, such as `Device 79.2 = this process 58.3 (live 51.8 + cached 6.1 + context 0.4)
    /// + others 18.9 + free 2.0 (GiB)`. The printed figures sum as well.
    pub fn equation(&self) -> Option<String> {
        let parts = self.parts?;
        let (unit, unit_bytes) = match parts.total {
            0x1_0000_0000.. => ("GiB", 1i128 << 30),
            _ => ("MiB", 1 << 20),
        };
        // In hundredths of the unit. What rounding takes from one part, a later one gets.
        let rounded = |bytes: i128| (bytes * 100 + unit_bytes / 2).div_euclid(unit_bytes);
        let mut sum = 0;
        let mut next = |bytes: i128| {
            sum += bytes;
            rounded(sum) - rounded(sum - bytes)
        };
        let text = |figure: i128| format!("{:.2}", figure as f64 / 100.0);
        let [live, cached, context] = [parts.live, parts.cached, parts.context].map(|bytes| next(bytes.into()));
        let others = parts.others.map(|others| next(others.into()));
        let unknown = next(parts.unknown.into());
        let free = next(parts.free.into());
        let own = live + cached + context;
        // What is used inside the framework's cache is not known, so neither is what is free in it.
        let held = if self.of_cache { "held" } else { "live" };
        let mut of_process = format!("{held} {}", text(live));
        if !self.of_cache || cached > 0 {
            of_process += &format!(" + cached {}", text(cached));
        }
        if !parts.lacks_context() {
            of_process += &format!(" + context {}", text(context));
        }
        let mut rest = others.map_or(String::new(), |others| format!(" + others {}", text(others)));
        if parts.unknown != 0 {
            let sign = if unknown < 0 { '-' } else { '+' };
            rest += &format!(" {sign} {} {}", parts.unknown_words(), text(unknown.abs()));
        }
        let all = text(own + others.unwrap_or(0) + unknown + free);
        let (own, free) = (text(own), text(free));
        let whole = if parts.of_layer { "Layer's book" } else { "Device" };
        Some(format!(
            "{whole} {all} = this process {own} ({of_process}){rest} + free {free} ({unit})"
        ))
    }

    /// The variable with the bound of the guard.
    pub fn guard_variable(&self) -> &'static str {
        if self.by_host_guard {
            "VRAMSHIM_HOST_GUARD"
        } else {
            "VRAMSHIM_MAX_REQUEST"
        }
    }

    /// What to add if a guard refused the request.
    fn unasked(&self) -> &'static str {
        match self.guard {
            Some(_) if self.by_host_guard => ". The host guard refused it",
            Some(_) => ". The library's guard refused it, so the driver was not asked",
            None => "",
        }
    }

    /// The verdict as a sentence or two, with the bytes that would help.
    pub fn explanation(&self) -> String {
        let (verdict, parts) = (self.verdict(), self.known().unwrap_or_default());
        let words = verdict.words();
        let figures = [
            self.requested,
            parts.live,
            parts.total,
            parts.free,
            parts.cached,
            self.largest_cached,
        ];
        let [asked, live, total, free, cached, block] = figures.map(size);
        let short = self.short_of().map(size);
        let why = match verdict {
            Verdict::NoneFailed => return words.to_owned(),
            Verdict::NotEnoughEvidence if self.lost_before > 0 => format!(
                "{} lost or damaged, most likely before the failure, so it is not known what the process held",
                events_were(self.lost_before)
            ),
            Verdict::NotEnoughEvidence if self.parts.is_none() && self.told.is_some() => format!(
                "the device had {free} free at the failure, as PyTorch told, and {asked} were asked for. PyTorch's segments had \
                 {live} live and {cached} free; the size of the device, and what others held of it, is not known"
            ),
            Verdict::NotEnoughEvidence if self.parts.is_none() => {
                "the device's memory could not be measured at the failure".to_owned()
            }
            Verdict::NotEnoughEvidence => format!(
                "{} are used outside this process's ledger, and it is not known by whom",
                size(parts.unknown.unsigned_abs())
            ),
            Verdict::LargerThanDevice => {
                /// A request that is so much larger than the device was hardly meant.
                const ABSURD: u64 = 8;
                let is_absurd = self.requested / ABSURD >= self.total();
                let hint = if is_absurd {
                    ". Check the length that this size was computed from"
                } else {
                    ""
                };
                let (total, unasked) = (size(self.total()), self.unasked());
                let is_whole = self.requested <= self.total();
                let beside = ["", ", so nothing else fits beside it"][usize::from(is_whole)];
                format!("{asked} were asked for, and the device has {total} in all{beside}{hint}{unasked}")
            }
            Verdict::Guard => {
                let bound = self.guard.map_or_else(String::new, |guard| size(guard.bytes));
                let (variable, unasked) = (self.guard_variable(), self.unasked());
                format!("{asked} were asked for, and {variable} is {bound}{unasked}")
            }
            Verdict::LiveSet => format!(
                "{live} of {total} are {}, and the {asked} asked for are {} more than is left",
                if self.live_has_cache { "live or cached" } else { "live" },
                short.unwrap_or_default()
            ),
            Verdict::Growth => {
                let grown = size(self.grown);
                format!("at least {grown} of the {live} that are live came bit by bit. Without them this request fits")
            }
            Verdict::Layer => self.of_layer(),
            Verdict::Unusable if short.is_none() => format!(
                "the device has {free} free, but the driver found no place for {asked}. Most likely what is free is in \
                 pieces (fragmentation)"
            ),
            Verdict::Unusable if short.is_some() && self.private > 0 => format!(
                "{cached} lie free in the cache, {} of it in private pools (of CUDA graphs or a MemPool), which serve their \
                 own requests alone and go back when their graphs or pools end",
                size(self.private)
            ),
            Verdict::Unusable if self.largest_cached >= self.requested => {
                let why = match self.one_stream {
                    true => "earlier work may still use it",
                    false => "work of another stream may still use it",
                };
                format!("a free block of {block} lies in the cache, but {why}, or it belongs to another pool")
            }
            Verdict::Unusable => {
                let largest = match self.largest_cached >= parts.cached {
                    true => "in one block, which is too short".to_owned(),
                    false => format!("the largest block {block}"),
                };
                let back = match self.unused {
                    None => String::new(),
                    Some(0) => ". A live block lies in each of its segments, so none of them can go back".to_owned(),
                    Some(unused) => {
                        let suffice = match self.short_of().is_some_and(|short| unused < short) {
                            true => ": too little for this request",
                            false if self.of_cache => " and may suffice: what the framework asked for is not known",
                            false if unused >= self.requested => " and suffice",
                            false => " and suffice together with what is free",
                        };
                        let unused = size(unused);
                        format!(". {unused} of it lie in segments without a live block, which can go back{suffice}")
                    }
                };
                format!("{cached} lie free in the cache, {largest}{back}")
            }
            Verdict::OtherProcesses => {
                let (others, behind) = (size(parts.others.unwrap_or(0)), self.behind_layer());
                return format!("{words}. Without the {others} that others hold this request fits{behind}");
            }
            Verdict::Limit | Verdict::GroupLimit => self.limited(),
            Verdict::Driver => return self.of_driver(words),
        };
        format!("{words}: {why}{}", self.behind_layer())
    }

    /// What to add if the device, and not the layer before it, had no memory for the request.
    fn behind_layer(&self) -> String {
        let by_driver = self.refusal.is_some_and(|refusal| refusal.by == Refuser::Driver);
        let is_full = self.device_is_full() && self.requested <= self.total();
        self.shown
            .filter(|_| by_driver && is_full)
            .map_or_else(String::new, |MemInfo { total, free }| {
                let [free, total, layer] = [size(free), size(total), self.layer_words()];
                format!(". The device is full behind {layer}, which shows {free} free of {total}")
            })
    }

    /// The layer, with the variable of its limit if both are known.
    pub fn layer_words(&self) -> String {
        match self.layer {
            None => "the layer".to_owned(),
            Some(layer) if layer.variable.is_empty() => format!("the layer ({})", layer.project),
            Some(layer) => format!("the layer ({}, {})", layer.project, layer.variable),
        }
    }

    fn of_driver(&self, words: &str) -> String {
        let (asked, result) = (size(self.requested), self.result);
        let why = match DriverError(result) {
            _ if self.of_host => format!("{words}: the host gave no {asked} of its own memory"),
            problem if problem.is_fault() => format!(
                "a fault of earlier work, most likely of the job's own kernel: CUDA result {result}, which each call \
                 answers after a fault"
            ),
            _ => format!("{words} (CUDA result {result})"),
        };
        format!("{why}. Device memory is not the reason")
    }

    /// As `explanation`, of one who does not know how live memory came: whether it grew steadily, which is a leak, or
    /// was there at once. `vramshim why` knows that from the journal.
    pub fn explanation_without_history(&self) -> String {
        if self.verdict() != Verdict::LiveSet {
            return self.explanation();
        }
        let parts = self.parts.unwrap_or_default();
        let short = self.short_of().unwrap_or(0);
        let [own, total, live, asked, short] = [parts.own(), parts.total, parts.live, self.requested, short].map(size);
        let (of_it, tells) = match self.of_cache {
            true => (
                String::new(),
                "how much of it tensors used inside PyTorch's cache, if that is known",
            ),
            false => (format!(", {live} of it live"), "whether it grew steadily (a leak)"),
        };
        format!(
            "this process holds {own} of {total}{of_it}, and the {asked} asked for are {short} more than is left. \
             `vramshim why` says {tells}"
        )
    }

    fn of_layer(&self) -> String {
        let (asked, layer) = (size(self.requested), self.layer_words());
        let Some(parts) = self.parts else {
            return format!("{layer} refused {asked}, and its own figures are not known");
        };
        let [free, total, live] = [parts.free, parts.total, parts.live].map(size);
        let text = match self.short_of().map(size) {
            None => format!("{layer} refused {asked} although {free} of {total} are free by its own figures"),
            Some(short) => {
                let (unknown, what) = (size(parts.unknown.unsigned_abs()), parts.unknown_words());
                let others = match parts.unknown {
                    0 => String::new(),
                    _ => format!(", {unknown} are {what}"),
                };
                let held = if self.of_cache { "held by" } else { "live in" };
                format!(
                    "{layer} has {free} of {total} left by its figures, {live} are {held} this process{others}, and the \
                     {asked} asked for are {short} more than is left"
                )
            }
        };
        match self.refusal.and_then(|refusal| refusal.driver) {
            Some(driver) => {
                let [free, total] = [driver.free, driver.total].map(size);
                let more = ", so a larger limit alone does not help";
                let more = if self.device_is_full() { more } else { "" };
                format!("{text}. The driver itself has {free} free of {total}{more}")
            }
            None => text,
        }
    }

    /// Whether the driver itself has less than was asked for behind a layer.
    pub fn device_is_full(&self) -> bool {
        let driver = self.refusal.and_then(|refusal| refusal.driver);
        driver.is_some_and(|driver| driver.free < self.requested)
    }

    /// Whether a larger limit of the library needs a larger one of a layer, too.
    pub fn needs_larger_layer(&self) -> bool {
        self.shown
            .is_some_and(|shown| !self.inherited && shown.free < self.requested)
    }

    fn limited(&self) -> String {
        let Some(allowance) = self.allowance else {
            return "it refused the request, and the driver was not asked. How much was missing is not known"
                .to_owned();
        };
        let [asked, room, limit] = [self.requested, allowance.room(), allowance.limit].map(size);
        if allowance.limit == 0 {
            return "the process gets no memory of the device. VRAMSHIM_STRICT asks for that if the account of its limit cannot \
                    be used; the job's first messages say why it cannot"
                .to_owned();
        }
        let more = allowance.missing(self.requested);
        let members = match allowance.of_members() {
            _ if !allowance.group => String::new(),
            0 => ", and no other member of the group holds any".to_owned(),
            members => format!(", and other members of the group hold {}", size(members)),
        };
        let help = match self.parts {
            // The figures are of a moment after the refusal.
            _ if more == 0 => format!(
                ". That is enough for {asked}, so memory was given back between the refusal and this measurement; how \
                 much was missing at the refusal is not known"
            ),
            _ if self.requested > allowance.limit => format!("; the request alone, {asked}, is more"),
            Some(parts) if self.short_of().is_some() => {
                let (free, whose) = (size(parts.free), parts.whose());
                format!("; a larger limit does not help, because the {whose} has only {free} free")
            }
            Some(_) if self.needs_larger_layer() => {
                format!(". With {} more, also of the layer, this request fits", size(more))
            }
            Some(_) => format!(". With {} more this request fits", size(more)),
            None => String::new(),
        };
        let taken = (self.inherited).then(|| format!(", a limit that the library took from {}", self.layer_words()));
        format!("{room} of {limit} are left{}{members}{help}", taken.unwrap_or_default())
    }
}
