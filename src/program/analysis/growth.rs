//! Which holders grow: whose live bytes rise from mark to mark, or between the lowest moments of equal parts of its time.

use std::collections::BTreeMap;

use journal::format::NoStack;

use super::floors::CALLS_OF_A_FREE;
use super::holdings::{At, Group, Series, Size};

/// Fewer moments tell nothing about growth.
pub const FEWEST_MOMENTS: usize = 4;
/// Of more moments a part is looked at.
pub const MOST_MOMENTS: usize = 64;

/// A group whose live bytes rise.
#[derive(Clone, Debug)]
pub struct Grower {
    pub group: Group,
    /// Live bytes at the first moment that counts, and at the last.
    pub from: u64,
    pub to: u64,
    /// Allocations that are live at the last moment.
    pub count: u64,
    /// Bytes for each step from one moment to the next of all moments.
    pub a_step: f64,
    pub a_second: f64,
}

#[derive(Default)]
pub struct Growers {
    /// What the device has in all, if that grows.
    pub sum: Option<Grower>,
    /// The holders that grow, fastest first.
    pub holders: Vec<Grower>,
    /// Whether the job frees, too, as one does that repeats itself. Without marks nothing grows otherwise, as in `why`.
    pub repeats: bool,
}

/// A moment, and its number among all of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub number: usize,
    pub at: At,
}

/// At most `MOST_MOMENTS` of the moments in the order of time, evenly, with the first and the last.
pub fn thinned(mut moments: Vec<At>) -> Vec<Step> {
    moments.sort_unstable();
    moments.dedup();
    let most = MOST_MOMENTS.min(moments.len());
    let place = |number: usize| number * (moments.len() - 1) / most.saturating_sub(1).max(1);
    let step = |number| Step {
        number,
        at: moments[number],
    };
    (0..most).map(|number| step(place(number))).collect()
}

/// All that a device has, as one group.
const fn sum_of(device: i16) -> Group {
    Group {
        device,
        // None has this number.
        class: u8::MAX,
        api: 0,
        tid: 0,
        stream: 0,
        stack: 0,
        size: Size::Any,
    }
}

/// What a holder is: a stack, or else requests of one API and of nearly one size, of any thread and stream.
fn holder_of(group: &Group) -> Group {
    Group {
        class: 0,
        stack: group.stack,
        api: NoStack::stack(group.stack).map_or(group.api, |_| 0),
        size: match group.size {
            Size::Exactly(bytes) => Size::From(1 << bytes.max(1).ilog2()),
            size => size,
        },
        ..sum_of(group.device)
    }
}

/// What grows on a device. The first quarter of the moments does not count, because a job gathers its parameters and its
/// optimiser's state there. A holder grows if it has more at the end than at the beginning of the rest, and gives back at
/// most a tenth of what it takes between them.
pub fn growers(series: &[Series], steps: &[Step], device: i16) -> Growers {
    let first = steps.len() / 4;
    let counted = &steps[first..];
    let (Some(begin), Some(end)) = (counted.first(), counted.last()) else {
        return Growers::default();
    };
    if steps.len() < FEWEST_MOMENTS || end.at <= begin.at {
        return Growers::default();
    }
    let mut holders: BTreeMap<Group, Vec<&Series>> = BTreeMap::new();
    for series in series.iter().filter(|series| series.group.device == device) {
        for group in [sum_of(device), holder_of(&series.group)] {
            holders.entry(group).or_default().push(series);
        }
    }
    let (mut growers, mut repeats) = (Vec::new(), false);
    for (group, list) in holders {
        // Live bytes, live allocations, and allocations so far.
        let at = |moment| {
            list.iter().fold((0u64, 0, 0), |(bytes, count, ever), series| {
                let held = series.at(moment);
                (
                    bytes.saturating_add(held.bytes),
                    count + held.count,
                    ever + held.ever_count,
                )
            })
        };
        let values: Vec<(u64, u64, u64)> = (first..steps.len()).map(at).collect();
        let steps = values.windows(2).map(|pair| pair[1].0 as i128 - pair[0].0 as i128);
        let (up, down) = steps.fold((0, 0), |(up, down), step| (up + step.max(0), down - step.min(0)));
        let rises = values.windows(2).filter(|pair| pair[1].0 > pair[0].0).count();
        let ((from, first_live, first_ever), (to, count, ever)) = (values[0], values[values.len() - 1]);
        if group == sum_of(device) {
            let made = ever.saturating_sub(first_ever);
            let freed = (first_live + made).saturating_sub(count);
            repeats = freed > 0 && freed * CALLS_OF_A_FREE >= made + freed;
        }
        if to <= from || down * 10 > up || rises < 2 {
            continue;
        }
        let rose = (to - from) as f64;
        growers.push(Grower {
            group,
            from,
            to,
            count,
            a_step: rose / (end.number - begin.number) as f64,
            a_second: rose / ((end.at.time_ns - begin.at.time_ns).max(1) as f64 / 1e9),
        });
    }
    let sum = growers
        .iter()
        .position(|grower: &Grower| grower.group == sum_of(device));
    let sum = sum.map(|place| growers.remove(place));
    growers.sort_by(|one, other| other.a_second.total_cmp(&one.a_second));
    Growers {
        sum,
        holders: growers,
        repeats,
    }
}
