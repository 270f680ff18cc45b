//! Why a request for device memory failed: what the device held, in parts that sum to the device, and the verdict that
//! follows from these figures. The library says it at the failure, and the program says the same from the journal.

mod words;

use crate::cuda::DriverError;
use crate::layers::Layer;
use crate::named;

named! {
    /// The cause of a failed request, or that none failed.
    pub enum Verdict {
        NoneFailed => "none_failed", "no request failed for lack of memory";
        NotEnoughEvidence => "not_enough_evidence", "not enough evidence";
        LargerThanDevice => "larger_than_device", "larger than the device";
        LiveSet => "live_set", "the job's own live memory is too much";
        /// What the process holds live has grown all the time; without the growth the request fits.
        Growth => "growth", "live memory that grew all the time, as with a leak";
        /// Free memory would suffice, but it cannot be used for this request: it is in pieces, or work may still use
        /// it.
        Unusable => "cached_but_unusable", "free memory that cannot be used";
        /// Without the memory of other processes the request fits.
        OtherProcesses => "other_processes", "another process";
        Limit => "limit", "the limit";
        /// The limit of the group refused the request, whichever member holds the memory.
        GroupLimit => "group_limit", "the limit of the group";
        /// The driver or the host failed for another reason than memory of the device.
        Driver => "driver_failure", "a failure of the driver or the host";
        /// The request alone is larger than `VRAMSHIM_MAX_REQUEST`.
        Guard => "guard", "larger than a single request may be";
        /// A layer refused the request. Neither growth nor others nor free memory in the cache is the reason.
        Layer => "layer_limit", "the limit of a layer";
    }
}

/// How many times as much as is free in the cache may be live, so that the free memory is why a request failed.
const MOST_LIVE_BESIDE_CACHE: u64 = 16;

/// What was read of a device at a failure, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    pub total: u64,
    pub free: u64,
    /// A layer told these two: they are its book, and not the device.
    pub of_layer: bool,
    /// Allocated and reserved bytes of the ledger, and those that are free in the policies' segments.
    pub live: u64,
    pub reserved: u64,
    pub in_segments: u64,
    /// What NVML says that this process holds, and what it says that all other processes hold.
    pub process: Option<u64>,
    pub others: Option<u64>,
    /// What the driver is known to hold at least for the contexts of this process, for want of NVML's figure.
    pub context: u64,
}

impl Reading {
    /// With the driver's own figures in place of a layer's, unless the layer itself refused the request.
    pub fn that_explains(mut self, refusal: Option<Refusal>) -> Reading {
        let of_device = refusal.filter(|refusal| refusal.by != Refuser::Layer);
        if let Some(driver) = of_device.and_then(|refusal| refusal.driver) {
            (self.total, self.free, self.of_layer) = (driver.total, driver.free, false);
        }
        self
    }
}

/// The bytes of a device, or of a layer's book, at a failure, by who has them. The parts sum to `total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    pub total: u64,
    /// The figures are a layer's.
    pub of_layer: bool,
    /// Allocations of the job.
    pub live: u64,
    /// Obtained from the next layer, but no allocation.
    pub cached: u64,
    /// What the driver holds for this process besides: contexts, loaded code, rounding.
    pub context: u64,
    /// `None` if it is not known; the bytes are then part of `unknown`.
    pub others: Option<u64>,
    /// Used, but by nobody who is known. Negative if more bytes are known than used.
    pub unknown: i64,
    pub free: u64,
}

impl Parts {
    /// NVML's figures are of the device, and the driver's pools are on no book of a layer: neither is in a sum of its figures.
    pub fn of(mut reading: Reading) -> Parts {
        let used = reading.total.saturating_sub(reading.free);
        let mut cached = reading.reserved.saturating_sub(reading.live);
        if reading.of_layer {
            cached = cached.min(reading.in_segments);
            (reading.process, reading.others, reading.context) = (None, None, 0);
        }
        let own = reading.live.saturating_add(cached);
        let context = match reading.process {
            Some(process) => process.saturating_sub(own),
            None => reading.context.min(used.saturating_sub(own)),
        };
        let known = i128::from(own) + i128::from(context) + i128::from(reading.others.unwrap_or(0));
        let unknown = i128::from(used) - known;
        Parts {
            total: reading.total,
            of_layer: reading.of_layer,
            live: reading.live,
            cached,
            context,
            others: reading.others,
            unknown: i64::try_from(unknown).unwrap_or(if unknown > 0 { i64::MAX } else { i64::MIN }),
            free: reading.total - used,
        }
    }

    /// Whether it is not known what the driver holds for this process: NVML did not tell it, and it was not measured
    /// before. The bytes are then part of `unknown`.
    pub fn lacks_context(&self) -> bool {
        self.others.is_none() && self.context == 0
    }

    pub fn whose(&self) -> &'static str {
        if self.of_layer { "layer" } else { "device" }
    }

    pub fn unknown_words(&self) -> &'static str {
        match self.others {
            _ if self.unknown < 0 && self.of_layer => "not counted by the layer",
            _ if self.unknown < 0 => "not counted by the driver",
            Some(_) => "unknown",
            None if self.lacks_context() => "context, others or unknown",
            None => "others or unknown",
        }
    }

    /// What this process has of the device.
    pub fn own(&self) -> u64 {
        self.live.saturating_add(self.cached).saturating_add(self.context)
    }
}

/// A limit at a failure, in bytes. In a group the other members go on, so their bytes can be of a moment later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    pub limit: u64,
    /// Bytes of all processes that count towards the limit, and those of this process.
    pub used: u64,
    pub own: u64,
    pub group: bool,
}

impl Allowance {
    pub fn room(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Bytes by which the limit is too small for a request. The members may hold more than the limit already.
    pub fn missing(&self, requested: u64) -> u64 {
        self.used.saturating_add(requested).saturating_sub(self.limit)
    }

    pub fn of_members(&self) -> u64 {
        self.used.saturating_sub(self.own)
    }
}

/// The guard that refused a request, because it alone was larger than `bytes`. The next layer was not asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The memory of the device if `of_device`, else `VRAMSHIM_MAX_REQUEST`, or `VRAMSHIM_HOST_GUARD` for calls such as
    /// malloc.
    pub bytes: u64,
    pub of_device: bool,
}

/// An answer to `cuMemGetInfo`, or what a limit leaves of it, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// 0 if nobody answered. More in a record and in a `Shortage`.
    pub total: u64,
    pub free: u64,
}

named! {
    /// Who can refuse a request besides the library, with the name in JSON.
    pub enum Refuser {
        Driver = 0 => "driver",
        /// A layer between the library and the driver.
        Layer = 1 => "layer",
        /// A layer in front of the library, through which the library itself requests tensors.
        LayerInFront = 2 => "layer_in_front",
        /// The library, by a limit. The next layer was not asked.
        Library = 3 => "library",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub by: Refuser,
    /// The refuser's own result, which need not be the one that the job got. `None` if it is not known.
    pub result: Option<i32>,
    /// What the driver itself tells behind a layer. `None` without a layer, or if the driver could not be asked.
    pub driver: Option<MemInfo>,
}

impl Refusal {
    /// Who it was in words; `file` is that of the layer.
    pub fn words(&self, file: Option<&str>) -> String {
        let file = file.unwrap_or("a file that is not known");
        let who = match self.by {
            Refuser::Driver => "the driver itself".to_owned(),
            Refuser::Layer => format!("{file}, a layer before the driver"),
            Refuser::LayerInFront => format!("{file}, a layer in front of the library"),
            Refuser::Library => "the library".to_owned(),
        };
        match self.result {
            // What everybody answers for out of memory tells nothing.
            None => who,
            Some(result) if result == DriverError::OUT_OF_MEMORY.0 => who,
            Some(result) => format!("{who}, with its own result {result}"),
        }
    }

    fn is_of_layer(&self) -> bool {
        matches!(self.by, Refuser::Layer | Refuser::LayerInFront)
    }
}

/// A failed request, and what is known of the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    pub requested: u64,
    /// The CUDA result.
    pub result: i32,
    pub of_host: bool,
    /// The library's limit refused the request.
    pub by_limit: bool,
    pub guard: Option<Guard>,
    /// That guard is the host guard, which guards calls such as malloc.
    pub by_host_guard: bool,
    /// Who refused the request; `None` if that is not known.
    pub refusal: Option<Refusal>,
    /// What a layer before the driver shows, by its book, and the layer if it is known; `None` without a layer.
    pub shown: Option<MemInfo>,
    pub layer: Option<Layer>,
    /// The bytes of the device; 0 if they are not known.
    pub total: u64,
    pub parts: Option<Parts>,
    /// Of a device that was not measured, what the framework told: the free bytes, and how much of its cache was live and free.
    /// The other parts, and the sum, are not known.
    pub told: Option<Parts>,
    /// The largest free block inside reserved memory.
    pub largest_cached: u64,
    /// Those of the cached bytes that a framework keeps in private pools; 0 if none are known.
    pub private: u64,
    /// Those of the cached bytes that lie in segments without a live block; `None` if that is not known.
    pub unused: Option<u64>,
    pub allowance: Option<Allowance>,
    /// The limit is the layer's, which the library keeps too.
    pub inherited: bool,
    /// The limit is that of a group by the settings of the process. `allowance` knows it better.
    pub of_group: bool,
    /// All allocations are known to be of one stream.
    pub one_stream: bool,
    /// What the framework itself asked for is not known, only what its cache asked for.
    pub of_cache: bool,
    /// What is called live has a framework's cache in it, of which nothing is known.
    pub live_has_cache: bool,
    /// By how many bytes the live memory has grown steadily; 0 if it did not, or if that is not known.
    pub grown: u64,
    /// How many events were lost or damaged since a moment before the failure. With some, `parts` is `None`.
    pub lost_before: u64,
}

impl Shortage {
    /// What is used inside a framework's cache is not known, though the ledger has tensors.
    pub fn count_cache_as_live(&mut self) {
        if let Some(parts) = &mut self.parts {
            parts.live = parts.live.saturating_add(std::mem::take(&mut parts.cached));
        }
        (self.largest_cached, self.private, self.unused, self.grown) = (0, 0, None, 0);
    }

    pub fn verdict(&self) -> Verdict {
        match self.guard {
            Some(guard) if guard.of_device => return Verdict::LargerThanDevice,
            Some(_) => return Verdict::Guard,
            None => {}
        }
        if self.result != DriverError::OUT_OF_MEMORY.0 || self.of_host {
            return Verdict::Driver;
        }
        match self.by_limit {
            true if self.is_of_group() => return Verdict::GroupLimit,
            true => return Verdict::Limit,
            false => {}
        }
        let of_layer = self.refusal.is_some_and(|refusal| refusal.is_of_layer());
        let knows_total = !of_layer || self.refusal.is_some_and(|refusal| refusal.driver.is_some());
        let total = self.total();
        if knows_total && total > 0 && self.requested > total {
            return Verdict::LargerThanDevice;
        }
        let or_layer = |verdict| if of_layer { Verdict::Layer } else { verdict };
        let Some(parts) = self.known() else {
            return or_layer(Verdict::NotEnoughEvidence);
        };
        let Some(short) = self.short_of() else {
            // A framework's cache may ask for more than the framework wanted.
            return or_layer(self.parts.map_or(Verdict::NotEnoughEvidence, |_| Verdict::Unusable));
        };
        // Beside much more live memory a little free memory only says which request was the first to fail.
        let is_cause = parts.cached >= parts.live / MOST_LIVE_BESIDE_CACHE;
        let causes = [
            (self.grown, Verdict::Growth),
            (parts.others.unwrap_or(0), Verdict::OtherProcesses),
            (if is_cause { parts.cached } else { 0 }, Verdict::Unusable),
        ];
        // The largest of the causes without which the request fits. Of equal ones the last counts.
        let largest = causes.into_iter().filter(|&(bytes, _)| bytes >= short);
        match largest.max_by_key(|&(bytes, _)| bytes) {
            Some((_, verdict)) => verdict,
            None if self.parts.is_none() => or_layer(Verdict::NotEnoughEvidence),
            None if u64::try_from(parts.unknown).is_ok_and(|unknown| unknown >= short) => {
                or_layer(Verdict::NotEnoughEvidence)
            }
            // It would not fit if the process held nothing.
            None if short >= parts.live.saturating_add(parts.cached) => or_layer(Verdict::LargerThanDevice),
            None => or_layer(Verdict::LiveSet),
        }
    }

    /// The parts that are known: all of them, or what the framework told.
    pub fn known(&self) -> Option<Parts> {
        self.parts.or(self.told)
    }

    pub fn is_of_group(&self) -> bool {
        self.allowance.map_or(self.of_group, |allowance| allowance.group)
    }

    /// The bytes of the device. What a layer shows as such is only its limit.
    fn total(&self) -> u64 {
        let of_driver = self.refusal.and_then(|refusal| refusal.driver);
        match (self.guard, of_driver) {
            (Some(guard), _) if guard.of_device => guard.bytes,
            (_, Some(of_driver)) => of_driver.total,
            _ => self.parts.map_or(self.total, |parts| parts.total),
        }
    }

    /// How many bytes the device lacked; `None` if it had as many free as were asked for.
    pub fn short_of(&self) -> Option<u64> {
        /// The driver obtains memory in pages of this size, so less may be of no use.
        const PAGE: u64 = 2 << 20;
        let free = self.known()?.free;
        let needs = self.requested.checked_next_multiple_of(PAGE).unwrap_or(self.requested);
        needs.checked_sub(free).filter(|&short| short > 0)
    }
}

#[cfg(test)]
mod tests;
