//! Collects the requests of a trace of any format. Matches each free with its allocation, and counts the live bytes.

use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `id` names the allocation. `size` is in bytes. `stream` is the stream that uses the memory; `None` if the trace
    /// names no stream.
    Allocate { id: u64, size: u64, stream: Option<u64> },
    /// `stream` is the only stream whose work used the memory; `None` if several streams may have used it.
    Free { id: u64, stream: Option<u64> },
}

/// The kind of a trace, and what the trace says about the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A journal, which has the requests that reached the library, the job's strategy, and its environment (name,
    /// value).
    Journal {
        strategy: String,
        environment: Vec<(String, String)>,
    },
    /// RMM's log, which has the requests of a program to its allocator.
    Log,
    /// PyTorch's snapshot, which has the requests of a program to PyTorch's allocator. `expandable`: expandable
    /// segments were on.
    Snapshot { expandable: bool },
}

/// Collects requests. An allocation is found by its address until it is freed.
#[derive(Default)]
pub(super) struct Gathering {
    pub(super) requests: Vec<Request>,
    /// Live allocations by address: id, size and stream.
    live: HashMap<u64, (u64, u64, Option<u64>)>,
    next: u64,
    /// The live bytes. `u128`, because the sizes in a file may be arbitrarily large.
    bytes: u128,
    pub(super) peak: u128,
    pub(super) unmatched: u64,
    pub(super) notes: Vec<String>,
}

impl Gathering {
    pub(super) fn allocate(&mut self, address: u64, size: u64, stream: Option<u64>) {
        if self.live.contains_key(&address) {
            // The free of the earlier allocation is missing from the trace.
            self.unmatched += 1;
            self.free_used_alone(address);
        }
        self.next += 1;
        self.live.insert(address, (self.next, size, stream));
        // A request for 0 bytes takes no memory, so neither the request nor its free is played.
        if size > 0 {
            self.requests.push(Request::Allocate {
                id: self.next,
                size,
                stream,
            });
        }
        self.bytes += u128::from(size);
        self.peak = self.peak.max(self.bytes);
    }

    /// Frees a block that only the stream of its allocation has used.
    pub(super) fn free_used_alone(&mut self, address: u64) {
        let stream = self.live.get(&address).and_then(|&(_, _, stream)| stream);
        self.free(address, stream);
    }

    pub(super) fn free(&mut self, address: u64, stream: Option<u64>) {
        match self.live.remove(&address) {
            Some((_, 0, _)) => {}
            Some((id, size, _)) => {
                self.requests.push(Request::Free { id, stream });
                self.bytes -= u128::from(size);
            }
            None => self.unmatched += 1,
        }
    }
}

/// The device whose requests are played: `wanted`, or else the device with the largest value of `most`. A note names
/// the other devices.
pub(super) fn choose_device<T>(
    what: &str,
    devices: &BTreeMap<i16, T>,
    wanted: Option<i16>,
    most: impl Fn(&T) -> u128,
    gathering: &mut Gathering,
) -> Result<i16, String> {
    let listed = |devices: &mut dyn Iterator<Item = &i16>| {
        let numbers: Vec<String> = devices.map(i16::to_string).collect();
        numbers.join(", ")
    };
    let absent = |device| {
        format!(
            "the {what} tells of no device {device}: there is {}",
            listed(&mut devices.keys())
        )
    };
    let chosen = match wanted {
        Some(device) if !devices.contains_key(&device) => return Err(absent(device)),
        Some(device) => device,
        None => devices
            .iter()
            .max_by_key(|(_, value)| most(value))
            .map_or(0, |(&device, _)| device),
    };
    if devices.len() > 1 {
        gathering.notes.push(format!(
            "this is device {chosen} alone; the {what} also tells of {}: choose with --device",
            listed(&mut devices.keys().filter(|&&other| other != chosen))
        ));
    }
    Ok(chosen)
}
