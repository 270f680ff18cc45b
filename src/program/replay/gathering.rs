//! The requests of a trace, collected from any format. Each free is matched with its allocation, and the live bytes are
//! counted.

use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `id` names the allocation until it is freed. `size` is in bytes. `stream` is the stream that the memory is used
    /// on, if the trace names it.
    Allocate { id: u64, size: u64, stream: Option<u64> },
    /// `stream` is the only stream whose work may have used the memory; `None` if that is not known.
    Free { id: u64, stream: Option<u64> },
}

/// The kind of trace, and what the trace tells about the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A journal: the requests that reached the driver, the strategy in force, and the environment (name, value).
    Journal {
        strategy: String,
        environment: Vec<(String, String)>,
    },
    /// RMM's log: the requests of a program to its allocator.
    Log,
    /// PyTorch's snapshot: the requests of a program to PyTorch's allocator.
    Snapshot { expandable: bool },
}

/// Collects requests. Allocations are known by address while they are live.
#[derive(Default)]
pub(super) struct Gathering {
    pub(super) requests: Vec<Request>,
    /// Live allocations by address: id, size and stream.
    live: HashMap<u64, (u64, u64, Option<u64>)>,
    next: u64,
    /// `u128`, because a file may claim any sizes.
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
        // A request for 0 bytes needs no memory from any allocator, and neither does its free.
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

    /// Frees a block that was used only on the stream it was allocated for.
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

/// The device whose requests are played: `wanted`, or the device with the most. A note names the devices that are left
/// out.
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
