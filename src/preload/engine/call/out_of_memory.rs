//! Explains why a request failed: on stderr in a few lines, and in the journal by what the device held.
//!
//! The first line is in the words of Paddle's own message. The others say who has which bytes of the device, and what
//! follows from that. Nothing here changes what the job's call returns.
//!
//! If PyTorch's cache asks and gets nothing, it gives its free segments back and asks again (`Device::malloc` in
//! c10/cuda/CUDACachingAllocator.cpp, wheel 2.12). Its first failure is told in a line, and the second one explained.

use std::time::Duration;

use base::say::warn;

use crate::engine::call::holders;
use crate::engine::call::measure::next_teller;
use crate::engine::pools::patience::LONGEST_WAIT;
use crate::engine::state::failures::{Asked, Due};
use crate::engine::state::measurements::now_ms;
use crate::engine::{Call, Engine};
use crate::next::{self, STREAM_LEGACY, STREAM_PER_THREAD};
use base::api::Api;
use base::cuda::DriverError;
use base::identity::{pid_namespace, thread_id};
use base::layers;
use base::shortage::{Allowance, MemInfo, Parts, Reading, Refusal, Refuser, Shortage};
use base::text::shown;
use base::units::size as in_units;
use journal::format::{Event, FrameworkRequest, LimitSource, ProcessBytes, ShortName, Teller, shares};
use quota::Scope;

/// How long a failure waits for NVML. Whatever NVML says later still gets into the journal.
const PATIENCE: Duration = Duration::from_millis(8);

/// At most so many other processes are named on stderr.
const NAMED: usize = 3;

struct Evidence {
    reading: Reading,
    /// What the next layer shows; 0 in all if it does not tell.
    shown: MemInfo,
    /// Whether NVML's figure of this process belongs to the ledger's: nothing was obtained or given back meanwhile.
    quiet: bool,
    processes: Vec<ProcessBytes>,
}

impl Evidence {
    fn mem_info(&self) -> Option<MemInfo> {
        (self.shown.total > 0).then_some(self.shown)
    }
}

impl Call {
    /// Measures and explains a request that failed for lack of memory. If `by_limit`, a limit refused it: `allowance`
    /// is the limit that is known only to the caller, or else that of the device.
    pub(super) fn explain_out_of_memory(
        &self,
        device: i16,
        requested: u64,
        by_limit: bool,
        allowance: Option<Allowance>,
    ) {
        let (engine, state) = (self.engine, self.engine.state);
        let told = self.is_to_be_told(device, requested);
        let of_tensors = allowance.is_some();
        if told.is_none() && !state.failures.takes_measurement() {
            // The figures of a limit are at hand, and the last refusal may be the one that ends the job.
            if let Some(allowance) = allowance.or_else(|| engine.allowance(device)).filter(|_| by_limit) {
                state.records.note(device, Event::Limit(allowance));
            }
            return;
        }
        let evidence = engine.evidence(device);
        let allowance = allowance.or_else(|| engine.allowance(device));
        let members = engine.members(device);
        let limit = by_limit.then(|| engine.limit_that_refused(device, of_tensors));
        let (refusal, words) = refused(requested, evidence.shown, limit);
        engine.record(device, &evidence, allowance, &members, Some(refusal));
        let Some(Due { count, tries }) = told else { return };
        let caches = caches_tensors() && self.api() != Api::vramshim_torch_alloc;
        // While it captures a graph, PyTorch does not ask again.
        let asks_again = caches && !state.captures.any_open();
        engine.record_framework(device, requested, self.api(), caches.then_some(asks_again));
        let (asked, api, see) = (in_units(requested), self.api().name(), engine.see());
        match (tries, asks_again) {
            (1, true) => {
                warn!(
                    "Out of memory error on GPU {device}: {api} of {asked} failed. PyTorch now gives the free segments \
                     of its cache back and asks again.{see}"
                );
                return;
            }
            (2, false) => {
                warn!(
                    "Out of memory error on GPU {device}: {api} of {asked} was asked again and failed again{}",
                    which(count, tries)
                );
                return;
            }
            _ => {}
        }
        let (quota, reading) = (state.limits.of(device), evidence.reading.that_explains(Some(refusal)));
        let shortage = Shortage {
            requested,
            result: DriverError::OUT_OF_MEMORY.0,
            by_limit,
            refusal: Some(refusal),
            shown: evidence.mem_info().filter(|_| evidence.reading.of_layer),
            layer: next::refusing_layer().and_then(layers::known),
            parts: evidence.mem_info().map(|_| Parts::of(reading)),
            largest_cached: engine.pools.free_inside(device).1,
            allowance,
            of_cache: caches,
            inherited: quota.is_some_and(|quota| state.limits.source(quota) == LimitSource::Layer),
            ..Shortage::default()
        };
        let held = engine.held_at_a_shortage(device, requested);
        let mut text =
            format!("Out of memory error on GPU {device}. Cannot allocate {asked} memory on GPU {device}, {held}");
        text += &which(count, tries);
        text += &self.failed_line(&asked, &format!("GPU {device}"));
        if let Some(equation) = shortage.equation() {
            text += &format!(" {equation}.");
        }
        if shortage.largest_cached > 0 {
            text += &format!(" Largest cached block {}.", in_units(shortage.largest_cached));
        }
        text += &format!("\n    Refused by: {words}.");
        let others = if by_limit { &members } else { &evidence.processes };
        let whose = if by_limit || evidence.reading.process.is_some() {
            "Others"
        } else {
            "Processes there, and NVML does not tell which of them is this one"
        };
        if let Some(named) = named(others) {
            let on_device = ["", " on the device"][usize::from(refusal.by == Refuser::Layer)];
            text += &format!("\n    {whose}{on_device}: {named}");
        }
        text += &format!("\n    Verdict: {}.", shortage.explanation_without_history());
        text += &see;
        warn!("{text}");
    }

    /// The line of a message that says what failed, and where.
    pub(super) fn failed_line(&self, asked: &str, on: &str) -> String {
        let place = self.engine.state.records.place();
        let place = place.map_or(String::new(), |place| format!(" at {place}"));
        let stream = self.stream.get();
        let stream = stream.map_or(String::new(), |stream| format!(", {}", stream_name(stream)));
        format!("\n    Failed: {asked}{place} ({}, {on}{stream}).", self.api().name())
    }

    /// Counts a request that failed. `None` if it is not to be told.
    pub(super) fn is_to_be_told(&self, device: i16, requested: u64) -> Option<Due> {
        let asked = Asked {
            thread: thread_id(),
            api: self.api(),
            bytes: requested,
        };
        let state = self.engine.state;
        let live = state.ledger.readings(device, None).allocated.current;
        state.failures.count(now_ms(), device, asked, live)
    }

    /// Tells a request that failed for another reason than memory: the driver, the device or the host failed.
    pub(super) fn explain_driver_failure(&self, device: i16, requested: u64, problem: DriverError) {
        let (engine, state) = (self.engine, self.engine.state);
        let told = self.is_to_be_told(device, requested);
        if told.is_none() && !state.failures.takes_measurement() {
            return;
        }
        let evidence = engine.evidence(device);
        engine.record(device, &evidence, None, &[], None);
        if told.is_none() {
            return;
        }
        let shortage = Shortage {
            requested,
            result: problem.0,
            ..Shortage::default()
        };
        let (asked, api) = (in_units(requested), self.api().name());
        let (verdict, see) = (shortage.explanation(), engine.see());
        warn!("{api} of {asked} failed on GPU {device}\n    Verdict: {verdict}.{see}");
    }
}

/// Who refused a request of this size, as the journal has it and in words: the library by this limit, if there is one. `shown` is what the next layer shows of the device. CUDA's own
/// results are not negative, so a negative one is a layer's. Otherwise the figures tell.
fn refused(requested: u64, shown: MemInfo, limit: Option<String>) -> (Refusal, String) {
    let (result, driver) = (next::refused_with(), next::driver::information_behind_layer());
    if let Some(words) = limit {
        let (by, result) = (Refuser::Library, None);
        return (Refusal { by, result, driver }, words);
    }
    let of = |by, file: Option<String>| {
        let refusal = Refusal { by, result, driver };
        let mut words = refusal.words(file.as_deref());
        let (free, total) = (in_units(shown.free), in_units(shown.total));
        match (by, refusal.driver) {
            (Refuser::Driver, Some(driver)) if driver != shown => {
                let itself = in_units(driver.free);
                words += &format!(", which has {itself} free (the layer before it shows {free} free of {total})");
            }
            (Refuser::Driver, _) if shown.free >= requested => words += &format!(", although {free} are free"),
            (Refuser::Driver, _) => words += &format!(", which has {free} free"),
            // The layer's book leaves no room, so the driver was not asked.
            (_, Some(driver)) if shown.free < requested => {
                let itself = in_units(driver.free);
                words += &format!(" (its figures leave {free} of {total}; the driver itself has {itself} free)");
            }
            (Refuser::Layer, _) => words += &format!(" (although it shows {free} free)"),
            _ => {}
        }
        (refusal, words)
    };
    let Some(path) = next::refusing_layer() else {
        return match next::layer_in_front().filter(|_| shown.free >= requested) {
            Some(front) => of(Refuser::LayerInFront, Some(front.path.clone())),
            None => of(Refuser::Driver, None),
        };
    };
    let is_of_layer = match driver {
        _ if result.is_some_and(|result| result < 0) => true,
        // The layer passes the driver's figure on, so its own book leaves as much or more.
        Some(driver) if driver.free == shown.free && shown.free < requested => false,
        Some(_) if shown.free < requested => true,
        Some(driver) => driver.free >= requested,
        // Without a figure of the driver itself, the layer does not answer cuMemGetInfo.
        None => shown.free >= requested,
    };
    if is_of_layer {
        of(Refuser::Layer, Some(path))
    } else {
        of(Refuser::Driver, None)
    }
}

/// Which failure it is, unless it is the first one, and how often the request was made.
pub(super) fn which(count: u64, tries: u64) -> String {
    match (count, tries) {
        (1, 1) => String::new(),
        (1, 2) => " (asked twice)".to_owned(),
        (1, tries) => format!(" (asked {tries} times)"),
        (count, 1) => format!(" (failure {count})"),
        (count, 2) => format!(" (failure {count}, asked twice)"),
        (count, tries) => format!(" (failure {count}, asked {tries} times)"),
    }
}

/// A stream in words. The handle is what PyTorch shows as `cuda_stream`.
fn stream_name(handle: usize) -> String {
    match handle {
        0 | STREAM_LEGACY => "the default stream".to_owned(),
        STREAM_PER_THREAD => "the default stream of the thread".to_owned(),
        handle => format!("stream {handle:#x}"),
    }
}

/// Whether PyTorch is loaded, whose cache stands between its tensors and the library.
fn caches_tensors() -> bool {
    String::from_utf8_lossy(&next::software::in_use()).contains("PyTorch")
}

/// The largest other processes of a list, in words.
fn named(processes: &[ProcessBytes]) -> Option<String> {
    let own = std::process::id();
    let others: Vec<&ProcessBytes> = processes.iter().filter(|process| process.pid != own).collect();
    let one = |process: &&ProcessBytes| {
        let bytes = process.bytes.map_or("an unknown number of bytes".to_owned(), in_units);
        format!("{bytes} by {}", process.words())
    };
    let mut text: Vec<String> = others.iter().take(NAMED).map(one).collect();
    if others.len() > NAMED {
        text.push(format!("and {} more", others.len() - NAMED));
    }
    (!text.is_empty()).then(|| text.join(", "))
}

impl Engine {
    /// Where the user learns more; empty without a journal.
    pub(super) fn see(&self) -> String {
        let Some(path) = self.state.records.path() else {
            return String::new();
        };
        match path.parent().filter(|_| path.exists()) {
            Some(folder) => format!("\n    see: vramshim why {}", shown(folder)),
            None => format!(
                "\n    the journal was renamed or removed while the job ran: {}",
                shown(path)
            ),
        }
    }

    /// The limit of the library that refused a request. `of_tensors`: the one that PyTorch set for its tensors did.
    fn limit_that_refused(&self, device: i16, of_tensors: bool) -> String {
        match self.state.limits.of(device) {
            _ if of_tensors => "the limit of torch.cuda.set_per_process_memory_fraction".to_owned(),
            Some(quota) => format!("the limit of this {} ({})", quota.scope.name(), quota.from),
            None => "a limit of the library".to_owned(),
        }
    }

    fn evidence(&'static self, device: i16) -> Evidence {
        let state = self.state;
        let before = state.reserved(device);
        let late = move |processes: &[ProcessBytes]| {
            for &process in processes {
                state.records.note(device, Event::Process(process));
            }
        };
        let processes = holders::ask(self, device, PATIENCE, late).unwrap_or_default();
        if !state.captures.any_open() {
            self.book_what_the_driver_holds(device);
        }
        let shown = state.shown_of(device);
        let readings = state.ledger.readings(device, None);
        let shares = shares(&processes, self.pid);
        Evidence {
            reading: Reading {
                total: shown.total,
                free: shown.free,
                of_layer: next::shows_its_own_memory(),
                in_segments: self.pools.free_inside(device).0,
                live: readings.allocated.current,
                reserved: readings.reserved.current,
                process: shares.map(|(own, _)| own),
                others: shares.map(|(_, others)| others),
                context: 0,
            },
            shown,
            quiet: readings.reserved.current == before,
            processes,
        }
    }

    /// The limit of a device, with what was used when it refused this thread's request, or else is used now.
    fn allowance(&self, device: i16) -> Option<Allowance> {
        let quota = self.state.limits.of(device)?;
        let refused = self.state.limits.refused(device);
        let used = refused.map_or_else(|| quota.used(), |refusal| refusal.used);
        Some(Allowance {
            limit: quota.limit?,
            used,
            own: quota.held().min(used),
            group: quota.scope == Scope::Group,
        })
    }

    /// The other processes whose memory counts towards the limit of a device.
    fn members(&self, device: i16) -> Vec<ProcessBytes> {
        let Some(quota) = self.state.limits.of(device).filter(|quota| quota.scope == Scope::Group) else {
            return Vec::new();
        };
        let here = pid_namespace();
        let holders = quota.holders().into_iter();
        holders
            .map(|holder| (holder.namespace == here, holder))
            .filter(|(is_here, holder)| !(*is_here && holder.pid == self.pid) && holder.held > 0)
            .map(|(is_here, holder)| ProcessBytes {
                pid: if is_here { holder.pid } else { 0 },
                bytes: Some(holder.held),
                told_by: Teller::Account,
                name: if is_here {
                    holders::name_of(holder.pid)
                } else {
                    ShortName::default()
                },
                namespace: holder.namespace as u32,
                ..ProcessBytes::default()
            })
            .collect()
    }

    /// Writes down what was found. Also in a journal that has lost events: a failure is why people read it.
    fn record(
        &self,
        device: i16,
        evidence: &Evidence,
        allowance: Option<Allowance>,
        members: &[ProcessBytes],
        refusal: Option<Refusal>,
    ) {
        self.state.note_host_memory();
        let write = |event: Event| self.state.records.note(device, event);
        write(Event::Measured {
            mem_info: evidence.mem_info(),
            told_by: next_teller(),
            process_bytes: evidence.reading.process.filter(|&bytes| evidence.quiet && bytes > 0),
            reserved: evidence.reading.reserved,
        });
        if let Some(allowance) = allowance {
            write(Event::Limit(allowance));
        }
        // A limit's refusal is in the record of the failure. This one has what the driver told behind a layer.
        if let Some(refusal) = refusal.filter(|refusal| refusal.by != Refuser::Library || refusal.driver.is_some()) {
            write(Event::Refused(refusal));
        }
        for &process in evidence.processes.iter().chain(members) {
            write(Event::Process(process));
        }
    }

    /// Writes down what the framework wanted that asked. `asks_again`: whether PyTorch's cache, which asked, asks again.
    fn record_framework(&self, device: i16, requested: u64, api: Api, asks_again: Option<bool>) {
        let of_tensor = api == Api::vramshim_torch_alloc;
        if of_tensor || asks_again.is_some() {
            let request = FrameworkRequest {
                // What its cache asks for is no tensor's request.
                requested: of_tensor.then_some(requested),
                asks_again: if of_tensor { Some(false) } else { asks_again },
                free: None,
            };
            self.state.records.note(device, Event::FrameworkRequest(request));
        }
    }

    /// What is held of a device of which a request for `requested` bytes got no memory: the rest of a sentence about that request.
    pub(super) fn held_at_a_shortage(&self, device: i16, requested: u64) -> String {
        let readings = self.state.ledger.readings(device, None);
        let (inside, largest) = self.pools.free_inside(device);
        let shown = self.state.shown_of(device);
        let (refusal, words) = refused(requested, shown, None);
        let actual = match refusal.driver {
            Some(driver) if refusal.by == Refuser::Driver => driver,
            _ => shown,
        };
        let available = self.state.limits.within(device, actual).free + inside;
        let mut text = format!(
            "{} memory has been allocated and available memory is only {}. This process has {} reserved",
            in_units(readings.allocated.current),
            in_units(available),
            in_units(readings.reserved.current),
        );
        if inside > 0 {
            text += &format!(
                ", {} of it free, the largest piece {}",
                in_units(inside),
                in_units(largest)
            );
        }
        if !self.state.limits.would_refuse(device, requested) && refusal.by != Refuser::Driver {
            text += &format!("; refused by {words}");
        }
        if inside > 0 && self.pools.has_stuck_work(device) {
            let longest = LONGEST_WAIT.as_secs();
            text += &format!(
                "; the {} cannot be given back or used, because work of the GPU has not ended within {longest} seconds",
                in_units(inside)
            );
        }
        if self.state.captures.any_open() {
            text += "; while a stream capture is open, idle memory is not given back, and some of what was freed since it began \
                     can be used again only after it";
        }
        if let Some(quota) = self.state.limits.of(device)
            && let Some(limit) = quota.limit
        {
            text += &format!(
                "; the limit of its {} is {} ({}), {} of it used",
                quota.scope.name(),
                in_units(limit),
                quota.from,
                in_units(quota.used())
            );
        }
        text
    }
}
