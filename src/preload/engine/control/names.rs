//! Figures by name, such as `device.0.allocated` (`vramshim_stat`).
//!
//! Totals are read without waiting for anybody, so they may be asked for in a signal handler. Nothing here asks the next
//! layer.

use super::Limit;
use crate::engine::Engine;
use crate::engine::state::State;
use crate::engine::state::host::resident_bytes;
use crate::engine::state::totals::Readings;
use base::api::Class;
use base::cuda::{HOST_DEVICE, MAX_DEVICES};

/// How often a total is asked for again that another thread is about to change.
const TRIES: u32 = 1000;

/// What a name says after the device.
#[derive(Clone, Copy)]
enum Figure {
    /// A total of the device, or of a class on it.
    Total(fn(&Readings) -> u64),
    /// Of the pools' free memory: all bytes and the largest block.
    Free(fn((u64, u64)) -> u64),
    Limit(fn(&Limit) -> u64),
    /// What is counted beside the totals: requests that the guard refused, and surges.
    Count(fn(&State, i16) -> u64),
    /// What the process holds of the host's memory.
    OfHost(fn(&State) -> u64),
}

const FIGURES: [(&str, Figure); 20] = [
    ("requested", Figure::Total(|total| total.requested.current)),
    ("requested_peak", Figure::Total(|total| total.requested.peak)),
    ("allocated", Figure::Total(|total| total.allocated.current)),
    ("allocated_peak", Figure::Total(|total| total.allocated.peak)),
    ("reserved", Figure::Total(|total| total.reserved.current)),
    ("reserved_peak", Figure::Total(|total| total.reserved.peak)),
    ("live", Figure::Total(|total| total.live.current)),
    ("live_peak", Figure::Total(|total| total.live.peak)),
    ("failures", Figure::Total(|total| total.failures)),
    (
        "guard_refusals",
        Figure::Count(|state, device| state.guards.refused(device)),
    ),
    ("surges", Figure::Count(|state, device| state.surges.count(device))),
    ("resident", Figure::OfHost(|_| resident_bytes().unwrap_or(0))),
    (
        "pinned",
        Figure::OfHost(|state| state.ledger.readings(HOST_DEVICE, None).allocated.current),
    ),
    ("free_inside", Figure::Free(|(bytes, _)| bytes)),
    ("largest_free_block", Figure::Free(|(_, largest)| largest)),
    ("limit", Figure::Limit(|limit| limit.limit)),
    ("limit_used", Figure::Limit(|limit| limit.used)),
    ("limit_available", Figure::Limit(|limit| limit.available)),
    ("context", Figure::Limit(|limit| limit.context)),
    ("limit_is_of_group", Figure::Limit(|limit| limit.group)),
];

/// Figures of the process.
const OF_PROCESS: [&str; 2] = ["pid", "events_lost"];

/// A name that was read.
enum Name {
    Process(usize),
    Device {
        device: i16,
        class: Option<Class>,
        figure: Figure,
    },
}

/// Reads a name; `None` if there is no such figure. Allocates nothing.
fn parse(name: &str) -> Option<Name> {
    if let Some(index) = OF_PROCESS.iter().position(|own| *own == name) {
        return Some(Name::Process(index));
    }
    let (device, rest) = match name.split_once('.')? {
        ("host", rest) => (HOST_DEVICE, rest),
        ("device", rest) => {
            let (number, rest) = rest.split_once('.')?;
            let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
            let is_canonical = is_number && (number == "0" || !number.starts_with('0'));
            let number: i16 = number.parse().ok().filter(|_| is_canonical)?;
            (number < MAX_DEVICES as i16).then_some((number, rest))?
        }
        _ => return None,
    };
    let (class, figure) = match rest.strip_prefix("class.") {
        Some(rest) => {
            let (class, figure) = rest.split_once('.')?;
            let class = Class::ALL.iter().find(|one| one.name() == class).copied()?;
            (Some(class), figure)
        }
        None => (None, rest),
    };
    let (_, figure) = FIGURES.iter().find(|(own, _)| *own == figure)?;
    let is_there = match figure {
        Figure::Total(_) => true,
        Figure::Count(_) => class.is_none(),
        Figure::OfHost(_) => class.is_none() && device == HOST_DEVICE,
        Figure::Free(_) | Figure::Limit(_) => class.is_none() && device != HOST_DEVICE,
    };
    is_there.then_some(Name::Device {
        device,
        class,
        figure: *figure,
    })
}

/// The figure of this name; without an engine what it is before the first call. The error is an errno: `ENOENT` if there is
/// no such figure, `EAGAIN` if a thread held it all the time.
pub fn stat(engine: Option<&'static Engine>, name: &str) -> Result<u64, i32> {
    let name = parse(name).ok_or(libc::ENOENT)?;
    match (name, engine) {
        (Name::Process(0), _) => Ok(u64::from(std::process::id())),
        (Name::Process(_), engine) => Ok(engine.map_or(0, |engine| engine.state.records.lost())),
        (Name::Device { figure, .. }, None) => Ok(match figure {
            Figure::Limit(read) => read(&Limit::default()),
            Figure::Total(_) | Figure::Free(_) | Figure::Count(_) | Figure::OfHost(_) => 0,
        }),
        (Name::Device { device, class, figure }, Some(engine)) => engine.figure(device, class, figure),
    }
}

impl Engine {
    fn figure(&'static self, device: i16, class: Option<Class>, figure: Figure) -> Result<u64, i32> {
        match figure {
            Figure::Total(read) => {
                let tries = (0..TRIES).find_map(|_| {
                    let readings = self.state.ledger.device(device).try_read(class);
                    if readings.is_none() {
                        // SAFETY: the call takes nothing.
                        unsafe { libc::sched_yield() };
                    }
                    readings
                });
                tries.map(|readings| read(&readings)).ok_or(libc::EAGAIN)
            }
            Figure::Count(read) => Ok(read(self.state, device)),
            Figure::OfHost(read) => Ok(read(self.state)),
            Figure::Free(read) => Ok(read(self.pools.free_inside(device))),
            Figure::Limit(read) => Ok(read(&self.limit(i32::from(device)).unwrap_or_default())),
        }
    }
}

/// The names of all figures of the devices that the job has used, of the host, and of each class that was used there. Before
/// the engine starts, those of the process.
pub fn stat_names(engine: Option<&'static Engine>) -> Vec<String> {
    let mut names: Vec<String> = OF_PROCESS.iter().map(|&name| name.to_owned()).collect();
    let Some(state) = engine.map(|engine| engine.state) else {
        return names;
    };
    for device in std::iter::once(HOST_DEVICE).chain(state.measurements.used_devices()) {
        let of_device = match device {
            HOST_DEVICE => "host".to_owned(),
            number => format!("device.{number}"),
        };
        let used = Class::ALL
            .iter()
            .filter(|&&class| state.ledger.readings(device, Some(class)).was_used());
        let of_classes = used.map(|class| format!("{of_device}.class.{}", class.name()));
        for beginning in std::iter::once(of_device.clone()).chain(of_classes) {
            let full = FIGURES.iter().map(|(figure, _)| format!("{beginning}.{figure}"));
            names.extend(full.filter(|name| parse(name).is_some()));
        }
    }
    names
}
