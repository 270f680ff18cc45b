//! Requests as they are gathered from a trace, whatever its format: each free is matched with its allocation, and the
//! live bytes are counted.

use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `id` names the allocation until it is freed. `size` is bytes. `stream` is the one that it is used on, where the
    /// request names it.
    Allocate { id: u64, size: u64, stream: Option<u64> },
    /// `stream` is the one whose work may have used it, where no other can have.
    Free { id: u64, stream: Option<u64> },
}

/// What a trace was read from, and what that tells about the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// What reached the driver, under this strategy of ours with what the environment set (name, value).
    Journal {
        strategy: String,
        environment: Vec<(String, String)>,
    },
    /// RMM's log: what a program asked of its allocator.
    Log,
    /// What a program asked of PyTorch's allocator.
    Snapshot { expandable: bool },
}

/// Gathers requests by address, and what is live.
#[derive(Default)]
pub(super) struct Gathering {
    pub(super) requests: Vec<Request>,
    /// By address: id, size and stream.
    live: HashMap<u64, (u64, u64, Option<u64>)>,
    next: u64,
    /// Wider than any sum of what a file can claim.
    bytes: u128,
    pub(super) peak: u128,
    pub(super) unmatched: u64,
    pub(super) notes: Vec<String>,
}

impl Gathering {
    pub(super) fn allocate(&mut self, address: u64, size: u64, stream: Option<u64>) {
        if self.live.contains_key(&address) {
            // Its free is missing: nothing can be in the same place twice.
            self.unmatched += 1;
            self.free_used_alone(address);
        }
        self.next += 1;
        self.live.insert(address, (self.next, size, stream));
        // Nothing is no memory: every allocator answers it without one, and its free is then one of nothing.
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

    /// Of a block that only the stream has used that it was allocated for.
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

/// The device whose requests are played: the one that was asked for, or the one with the most. What it leaves out is
/// noted.
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
