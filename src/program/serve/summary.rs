//! What a page says of a process: what it holds of each device, its failures, and the verdict on the last of them.

use std::path::Path;

use base::cuda::HOST_DEVICE;
use base::units::size;
use journal::reader::Journal;

use super::figures::{Cause, Counts, positive};
use super::process::Process;

/// What a process holds of one device, or held when it ended, in bytes.
pub struct Holding {
    pub device: i16,
    pub live: u64,
    pub reserved: u64,
    /// The most that was live.
    pub peak: u64,
    /// The limit of the process, if that is less than the device has.
    pub limit: Option<u64>,
    /// Memory of the device; 0 if it is not known.
    pub total: u64,
}

pub struct Summary {
    pub holdings: Vec<Holding>,
    pub failures: u64,
    /// Why the last request that failed did so; `None` if none failed.
    pub last_cause: Option<Cause>,
}

impl Summary {
    /// Reads a whole journal, if it is not longer than `room` bytes, which its length is taken from.
    pub fn read(path: &Path, room: &mut u64) -> Option<Summary> {
        let journal = Journal::open(path).ok()?;
        *room = room.checked_sub(journal.size())?;
        let mut process = Process::new(&journal, "");
        let (mut buffer, mut counts) = (Vec::new(), Counts::default());
        while process.read(&journal, &mut buffer, &mut counts).ok()?.behind {}
        Some(Summary::of(&process))
    }

    pub fn of(process: &Process) -> Summary {
        let holdings = process.figures.devices.iter().map(|(&device, figures)| {
            let levels = figures.levels(device);
            let known = process.device(device);
            let total = known.map_or(0, |device| device.total_memory);
            let limit = known.and_then(|device| device.limit);
            Holding {
                device,
                live: positive(levels.allocated),
                reserved: positive(levels.reserved),
                peak: figures.peak,
                limit: limit.filter(|&limit| total == 0 || limit < total),
                total,
            }
        });
        let failures = process.figures.devices.values();
        Summary {
            holdings: holdings.collect(),
            failures: failures
                .map(|figures| figures.counts.failures.iter().sum::<u64>())
                .sum(),
            last_cause: process.figures.last_cause(),
        }
    }

    /// What the process holds of devices, without the host.
    pub fn of_devices(&self) -> impl Iterator<Item = &Holding> {
        self.holdings.iter().filter(|holding| holding.device != HOST_DEVICE)
    }

    /// The peaks of all devices together, as `inspect` compares the ranks of a job.
    pub fn peak(&self) -> u64 {
        self.of_devices()
            .map(|holding| holding.peak)
            .fold(0, u64::saturating_add)
    }

    /// The verdict on the last failure in words.
    pub fn verdict(&self) -> Option<&'static str> {
        let cause = self.last_cause?;
        Some(cause.map_or("the call itself was wrong", |verdict| verdict.words()))
    }
}

impl Holding {
    /// What is held, in a few words.
    pub fn words(&self) -> String {
        let (live, reserved) = (size(self.live), size(self.reserved));
        let room = match (self.limit, self.total) {
            (Some(limit), _) => format!(" of the limit of {}", size(limit)),
            (None, 0) => String::new(),
            (None, total) => format!(" of the device's {}", size(total)),
        };
        match self.device {
            HOST_DEVICE => format!("pinned {live}"),
            number => format!("device {number}: live {live}, reserved {reserved}{room}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holding_says_of_what_it_is_a_part() {
        let holding = |limit, total| {
            Holding {
                device: 1,
                live: 512 << 10,
                reserved: 2 << 20,
                peak: 0,
                limit,
                total,
            }
            .words()
        };
        let held = "device 1: live 512.0 KiB, reserved 2.00 MiB";
        assert_eq!(holding(None, 24 << 30), format!("{held} of the device's 24.0 GiB"));
        assert_eq!(
            holding(Some(8 << 30), 24 << 30),
            format!("{held} of the limit of 8.00 GiB")
        );
        assert_eq!(holding(None, 0), held);
    }
}
