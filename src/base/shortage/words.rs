//! The words for a failed request: the device's bytes as a sum, and the verdict as a sentence or two.

use super::{Shortage, Verdict};
use crate::cuda::DriverError;
use crate::text::events_were;
use crate::units::{Scale, size};

impl Shortage {
    /// The device's bytes as a sum, such as `Device 79.2 = this process 58.3 (live 51.8 + cached 6.1 + context 0.4)
    /// + others 18.9 + free 2.0 (GiB)`. The printed figures sum as well.
    pub fn equation(&self) -> Option<String> {
        let parts = self.parts?;
        let scale = Scale::of(parts.total);
        let mut figures = scale.parts();
        let mut next = |bytes: i128| figures.next(bytes);
        let (live, cached, context) = (
            next(parts.live.into()),
            next(parts.cached.into()),
            next(parts.context.into()),
        );
        let others = parts.others.map(|others| next(others.into()));
        let unknown = next(parts.unknown.into());
        let free = next(parts.free.into());
        let own = live + cached + context;
        let others_text = others.map_or(String::new(), |others| format!(" + others {}", scale.text(others)));
        let context_text = match parts.lacks_context() {
            true => String::new(),
            false => format!(" + context {}", scale.text(context)),
        };
        let unknown_text = match (parts.unknown, others) {
            (0, _) => String::new(),
            (_, Some(_)) => format!(" + unknown {}", scale.text(unknown)),
            (_, None) if parts.lacks_context() => format!(" + context, others or unknown {}", scale.text(unknown)),
            (_, None) => format!(" + others or unknown {}", scale.text(unknown)),
        };
        Some(format!(
            "Device {} = this process {} (live {} + cached {}{context_text}){others_text}{unknown_text} + free {} ({})",
            scale.text(own + others.unwrap_or(0) + unknown + free),
            scale.text(own),
            scale.text(live),
            scale.text(cached),
            scale.text(free),
            scale.unit(),
        ))
    }

    /// The variable with the bound of the guard.
    pub fn guard_variable(&self) -> &'static str {
        match self.by_host_guard {
            true => "VRAMSHIM_HOST_GUARD",
            false => "VRAMSHIM_MAX_REQUEST",
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
        let verdict = self.verdict();
        let parts = self.parts.unwrap_or_default();
        let short = self.short_of().unwrap_or(0);
        let asked = size(self.requested);
        let words = verdict.words();
        match verdict {
            Verdict::NoneFailed => words.to_owned(),
            Verdict::NotEnoughEvidence if self.lost_before > 0 => format!(
                "{words}: {} lost or damaged, most likely before the failure, so it is not known what the process \
                 held",
                events_were(self.lost_before)
            ),
            Verdict::NotEnoughEvidence if self.parts.is_none() => {
                format!("{words}: the device's memory could not be measured at the failure")
            }
            Verdict::NotEnoughEvidence => format!(
                "{words}: {} are used outside this process's ledger, and it is not known by whom. Without them this fits",
                size(parts.unknown.unsigned_abs())
            ),
            Verdict::LargerThanDevice => {
                /// A request that is so much larger than the device was hardly meant.
                const ABSURD: u64 = 8;
                let hint = match self.requested / ABSURD >= self.total() {
                    true => ". Check the length that this size was computed from",
                    false => "",
                };
                format!(
                    "{words}: {asked} were asked for, and the device has {} in all{hint}{}",
                    size(self.total()),
                    self.unasked()
                )
            }
            Verdict::Guard => format!(
                "{words}: {asked} were asked for, and {} is {}{}",
                self.guard_variable(),
                self.guard.map_or_else(String::new, |guard| size(guard.bytes)),
                self.unasked()
            ),
            Verdict::LiveSet => format!(
                "{words}: {} of {} are live, and the {asked} asked for are {} more than is left",
                size(parts.live),
                size(parts.total),
                size(short)
            ),
            Verdict::Growth => format!(
                "{words}: at least {} of the {} that are live came bit by bit. Without them this fits",
                size(self.grown),
                size(parts.live)
            ),
            Verdict::Layer => self.of_layer(words),
            Verdict::Unusable if short == 0 => format!(
                "{words}: the device has {} free, but the driver found no place for {asked}. Most likely what is free is \
                 in pieces (fragmentation)",
                size(parts.free)
            ),
            Verdict::Unusable if self.largest_cached >= self.requested => format!(
                "{words}: a free block of {} lies in the cache, but work of another stream may still use it, or it \
                 belongs to another pool",
                size(self.largest_cached)
            ),
            Verdict::Unusable if self.largest_cached >= parts.cached => format!(
                "{words}: {} lie free in the cache, in one block, which is too short. Given back, {}. Memory \
                 goes back only in the pieces that it came in, so most likely a part of this piece is live",
                size(parts.cached),
                self.with_what_is_free()
            ),
            Verdict::Unusable => format!(
                "{words}: {} lie free in the cache, the largest block {}. {}iven back, {}",
                size(parts.cached),
                size(self.largest_cached),
                match parts.cached >= self.requested {
                    true => "In one piece, or g",
                    false => "G",
                },
                self.with_what_is_free()
            ),
            Verdict::OtherProcesses => {
                format!("{words}. Without its {} this fits", size(parts.others.unwrap_or(0)))
            }
            Verdict::Limit | Verdict::GroupLimit => self.limited(words),
            Verdict::Driver if self.of_host => {
                format!("{words}: the host gave no {asked} of its own memory. Device memory is not the reason")
            }
            Verdict::Driver if DriverError(self.result).is_fault() => format!(
                "a fault of earlier work, most likely of the job's own kernel: CUDA result {}, which each call answers \
                 after a fault. Device memory is not the reason",
                self.result
            ),
            Verdict::Driver => format!("{words} (CUDA result {}). Device memory is not the reason", self.result),
        }
    }

    /// As `explanation`, of one who does not know how live memory came: whether it grew steadily, which is a leak, or
    /// was there at once. `vramshim why` knows that from the journal.
    pub fn explanation_without_history(&self) -> String {
        let explanation = self.explanation();
        let parts = self.parts.unwrap_or_default();
        match self.verdict() {
            Verdict::LiveSet => format!(
                "this process holds {} of {}, {} of it live, and the {} asked for are {} more than is left. \
                 `vramshim why` says whether it grew steadily (a leak)",
                size(parts.own()),
                size(parts.total),
                size(parts.live),
                size(self.requested),
                size(self.short_of().unwrap_or(0))
            ),
            _ => explanation,
        }
    }

    /// That the cached bytes suffice once the device has them back, if need be with what it has free.
    fn with_what_is_free(&self) -> String {
        let parts = self.parts.unwrap_or_default();
        match parts.cached >= self.requested {
            true => "they suffice".to_owned(),
            false => format!(
                "they suffice together with the {} that the device has free",
                size(parts.free)
            ),
        }
    }

    fn of_layer(&self, words: &str) -> String {
        let driver = self.refusal.and_then(|refusal| refusal.driver);
        let asked = size(self.requested);
        let Some(parts) = self.parts else {
            return format!("{words}: the layer refused {asked}, and its own figures are not known");
        };
        let itself = driver.map_or(String::new(), |driver| {
            format!(
                ". The driver itself has {} free of {}",
                size(driver.free),
                size(driver.total)
            )
        });
        match self.short_of() {
            None => format!(
                "{words}: the layer refused {asked} although {} of {} are free by its own figures{itself}",
                size(parts.free),
                size(parts.total)
            ),
            Some(short) => format!(
                "{words}: {} of {} are left by the layer's figures, {} are live in this process, and the {asked} asked for are {} \
                 more than is left{itself}",
                size(parts.free),
                size(parts.total),
                size(parts.live),
                size(short)
            ),
        }
    }

    fn limited(&self, words: &str) -> String {
        let Some(allowance) = self.allowance else {
            return format!(
                "{words}: it refused the request, and the driver was not asked. How much was missing is not known"
            );
        };
        let more = self.requested.saturating_sub(allowance.room());
        let members = match allowance.of_members() {
            _ if !allowance.group => String::new(),
            0 => ", and no other member of the group holds any".to_owned(),
            members => format!(", and other members of the group hold {}", size(members)),
        };
        let help = match self.parts {
            // The figures are of a moment after the refusal.
            _ if more == 0 => format!(
                ". That is enough for {}, so memory was given back between the refusal and this measurement; how much was \
                 missing at the refusal is not known",
                size(self.requested)
            ),
            _ if self.requested > allowance.limit => format!("; the request alone, {}, is more", size(self.requested)),
            Some(parts) if self.short_of().is_some() => {
                format!(
                    "; a larger limit does not help, because the device has only {} free",
                    size(parts.free)
                )
            }
            Some(_) => format!(". With {} more this fits", size(more)),
            None => String::new(),
        };
        format!(
            "{words}: {} of {} are left{members}{help}",
            size(allowance.room()),
            size(allowance.limit)
        )
    }
}
