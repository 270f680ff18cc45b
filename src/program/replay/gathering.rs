//! Collects the requests of a trace of any format. Matches each free with its allocation, and counts the live bytes.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;

use foldhash::fast::RandomState;

use super::requests::{Action, Doubts, FIRST_PRIVATE, LastUse, Request, Trace, Way};
use crate::analysis::tensor_records::DEFAULT_POOL;

/// Collects requests. An allocation is found by its address until it is freed.
#[derive(Default)]
pub(super) struct Gathering {
    pub(super) trace: Trace,
    /// The numbers of the streams of PyTorch's private pools, by pool and stream.
    private: HashMap<((u64, u64), u64), u64>,
    /// The stream of the latest tensor outside private pools.
    stream: Option<u64>,
    live: HashMap<u64, Live, RandomState>,
    next: u64,
    /// The time of what is gathered now, and the time of the first request.
    now_ns: u64,
    first_ns: Option<u64>,
    /// The live bytes. `u128`, because the sizes in a file may be arbitrarily large.
    bytes: u128,
    peak: u128,
    /// Bytes of all requests.
    pub(super) asked: u128,
    /// The latest request that failed, if the job got no memory since.
    failed: Option<Failed>,
    /// A request failed, so PyTorch gave its cache back by itself.
    has_failed: bool,
}

struct Live {
    id: u64,
    size: u64,
    way: Way,
}

struct Failed {
    /// How many requests were gathered before it.
    index: usize,
    request: Request,
    size: u64,
    /// The live bytes together with its size.
    wanted: u128,
}

/// If a trace has no times, this much time is between two requests.
const ASSUMED_STEP_NS: u64 = 10_000;

impl Gathering {
    pub(super) fn take(&mut self, device: Gathering) {
        let ours = std::mem::take(&mut self.trace);
        *self = device;
        (self.trace.notes, self.trace.torch) = (ours.notes, ours.torch);
        let has_private = self.trace.doubts.has_private;
        self.trace.doubts = Doubts {
            has_private,
            ..ours.doubts
        };
    }

    /// How a tensor was asked for: on this stream, from this pool of PyTorch. Pools other than `DEFAULT_POOL` are private.
    pub(super) fn tensor(&mut self, stream: Option<u64>, pool: (u64, u64)) -> Way {
        if pool == DEFAULT_POOL {
            self.stream = stream;
            return Way::Tensor(stream);
        }
        self.trace.doubts.has_private = true;
        let next = FIRST_PRIVATE + self.private.len() as u64;
        Way::Tensor(Some(*self.private.entry((pool, stream.unwrap_or(0))).or_insert(next)))
    }

    /// What follows happened at this time of the trace. A trace of several threads may be out of order by a little; the
    /// time then stands still.
    pub(super) fn at(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    fn request(&mut self, id: u64, action: Action) -> Request {
        let first_ns = *self.first_ns.get_or_insert(self.now_ns);
        let at_ns = self.now_ns - first_ns;
        Request { id, at_ns, action }
    }

    fn add(&mut self, id: u64, action: Action) {
        let request = self.request(id, action);
        self.trace.requests.push(request);
    }

    pub(super) fn allocate(&mut self, address: u64, size: u64, way: Way) {
        // The job went on after the failure: PyTorch gives cached memory back and asks again, others try a smaller
        // size.
        self.failed = None;
        if self.live.contains_key(&address) {
            // The free of the earlier allocation is missing from the trace.
            self.trace.unmatched += 1;
            self.free_used_alone(address);
        }
        self.next += 1;
        let id = self.next;
        self.live.insert(address, Live { id, size, way });
        // A request for 0 bytes takes no memory, so neither the request nor its free is played.
        if size > 0 {
            self.add(id, Action::Allocate { size, way });
        }
        self.asked += u128::from(size);
        self.bytes += u128::from(size);
        self.peak = self.peak.max(self.bytes);
    }

    /// The job asked for memory and got none. A failure whose stream is not told counts as one of the latest stream.
    pub(super) fn fail(&mut self, size: u64, way: Way) {
        let way = if way == Way::Tensor(None) {
            Way::Tensor(self.stream)
        } else {
            way
        };
        self.has_failed = true;
        if size > 0 {
            self.next += 1;
            self.failed = Some(Failed {
                index: self.trace.requests.len(),
                request: self.request(self.next, Action::Allocate { size, way }),
                size,
                wanted: self.bytes + u128::from(size),
            });
        }
    }

    /// Adds the request that ended the job: the last that failed, if the job got no memory after it. What the job freed
    /// after the failure was still live when it asked.
    fn add_fatal_request(&mut self) {
        let Some(failed) = self.failed.take() else {
            return;
        };
        self.trace.requests.insert(failed.index, failed.request);
        self.peak = self.peak.max(failed.wanted);
        self.trace.fatal = Some(failed.size);
        self.trace.notes.push(format!(
            "the job's last request, for {}, failed: it is played too. The job would have gone on, so each figure is at least what \
             a strategy needs",
            base::units::size(failed.size)
        ));
    }

    /// PyTorch gave a segment back: the job told it to, if no request fails. Several segments are one order.
    pub(super) fn empty_cache(&mut self) {
        if !matches!(
            self.trace.requests.last(),
            Some(Request {
                action: Action::EmptyCache,
                ..
            }) | None
        ) {
            self.add(0, Action::EmptyCache);
        }
    }

    /// Frees a block that only the stream of its allocation has used.
    pub(super) fn free_used_alone(&mut self, address: u64) {
        self.free(address, Way::used_alone);
    }

    /// Frees a block. `last_use` gets to know how the job asked for the block.
    pub(super) fn free(&mut self, address: u64, last_use: impl Fn(Way) -> LastUse) {
        match self.live.remove(&address) {
            Some(Live { size: 0, .. }) => {}
            Some(Live { id, size, way }) => {
                self.add(id, Action::Free(last_use(way)));
                self.bytes -= u128::from(size);
            }
            None => self.trace.unmatched += 1,
        }
    }

    pub(super) fn end(mut self) -> Trace {
        self.add_fatal_request();
        let mut trace = self.trace;
        if self.has_failed {
            trace.requests.retain(|request| request.action != Action::EmptyCache);
        }
        let duration_ns = trace.requests.last().map_or(0, |request| request.at_ns);
        if duration_ns == 0 {
            for (request, number) in trace.requests.iter_mut().zip(0..) {
                request.at_ns = number * ASSUMED_STEP_NS;
            }
        }
        trace.duration_ns = (duration_ns > 0).then_some(duration_ns);
        trace.peak_live = u64::try_from(self.peak).unwrap_or(u64::MAX);
        trace
    }
}

/// Why a trace is not played, in words.
#[derive(Debug)]
pub struct Unplayed {
    /// The trace is in order, but `--device` does not fit it.
    pub of_device: bool,
    pub problem: String,
}

impl<P: Display> From<P> for Unplayed {
    fn from(problem: P) -> Unplayed {
        Unplayed {
            of_device: false,
            problem: problem.to_string(),
        }
    }
}

/// The device whose requests are played: `wanted`, or else the device with the largest value of `most`. A note names
/// the other devices.
pub(super) fn choose_device<T>(
    what: &'static str,
    devices: &BTreeMap<i16, T>,
    wanted: Option<i16>,
    most: impl Fn(&T) -> u128,
    gathering: &mut Gathering,
) -> Result<i16, Unplayed> {
    let listed = |but: Option<i16>| {
        let others = devices.keys().filter(|&&device| Some(device) != but);
        others.map(i16::to_string).collect::<Vec<_>>().join(", ")
    };
    let most_used = || devices.iter().max_by_key(|(_, value)| most(value));
    let chosen = wanted.unwrap_or_else(|| most_used().map_or(0, |(&device, _)| device));
    if wanted.is_some() && !devices.contains_key(&chosen) {
        let known = listed(None);
        return Err(Unplayed {
            of_device: true,
            problem: format!("the {what} tells of no device {chosen}: there is {known}"),
        });
    }
    if devices.len() > 1 {
        gathering.trace.notes.push(format!(
            "this is device {chosen} alone; the {what} also tells of {}: choose with --device",
            listed(Some(chosen))
        ));
    }
    Ok(chosen)
}
