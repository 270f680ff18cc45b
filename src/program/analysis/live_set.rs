//! What was live at a moment: at a time, at the peak, at the last failure for lack of memory, at a mark, at the end.
//!
//! A `Catcher` sees a journal once, for any number of moments, also those that are known only afterwards, such as the peak. A moment that may be the right one is *caught*: from then on, each allocation that was live at it and goes is
//! kept. What is live at the end and was made before the moment, and what was kept, was live at the moment. So the
//! memory that this takes grows with the number of live allocations, and not with the length of the journal.

use std::collections::{BTreeMap, HashMap};

use base::named;
use journal::format::{Event, MarkKind, Record};

use super::budget::Charge;
use super::came::Came;
use super::device_ledger::{DeviceLedger, Live};
use super::job::Observer;
use super::ledger::Ledger;
use super::scene::is_out_of_memory;

/// A moment of a job. A record of exactly this moment has taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Moment {
    /// Nanoseconds since the journal began.
    Time(u64),
    /// When the device's allocated bytes were highest, for the first time. Each device has its own such moment.
    Peak,
    /// The last failure for lack of memory.
    OutOfMemory,
    /// The last mark with this text, which is a number in the file of stacks: a moment, or the begin of a range.
    Mark(u64),
    End,
}

named! {
    /// What live allocations are grouped by.
    pub enum By {
        Stack => "stack",
        Size => "size",
        Api => "api",
        Thread => "thread",
        Stream => "stream",
    }
}

/// What the allocations of one `Holder` have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// `Record.stack`
    Stack(u32),
    /// Requested bytes of each allocation.
    Size(u64),
    Api(u16),
    Thread(u32),
    Stream(u8),
    Graphs,
}

impl Key {
    pub fn for_live(live: &Live, by: By) -> Key {
        match by {
            By::Stack => Key::Stack(live.stack),
            By::Size => Key::Size(live.size),
            By::Api => Key::Api(live.api),
            By::Thread => Key::Thread(live.tid),
            By::Stream => Key::Stream(live.stream),
        }
    }
}

/// Live allocations with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub key: Key,
    /// Allocated bytes: requested bytes and what rounding added.
    pub bytes: u64,
    pub requested: u64,
    pub count: u64,
    /// When the oldest of them was made, in nanoseconds since the journal began.
    pub oldest_ns: u64,
    /// When they came, within the time that was asked for.
    pub came: Came,
}

impl Holder {
    fn add(&mut self, other: &Holder) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.requested = self.requested.saturating_add(other.requested);
        self.count += other.count;
        self.oldest_ns = self.oldest_ns.min(other.oldest_ns);
        self.came = self.came.and(other.came);
    }
}

/// One device, or the host, at a moment.
#[derive(Clone, Debug, Default)]
pub struct DeviceSet {
    pub device: i16,
    /// Nanoseconds since the journal began.
    pub time_ns: u64,
    /// Bytes of the device's ledger. `allocated` is the sum of `live` and `graphs`.
    pub requested: u64,
    pub allocated: u64,
    pub reserved: u64,
    pub free_inside: u64,
    /// Bytes that launched graphs use. No allocation of their own stands for them.
    pub graphs: u64,
    /// The live allocations that count towards the device, in the order of their times.
    pub live: Vec<Live>,
    charge: Charge,
}

/// A job at a moment: the host and each device that it used, in the order of their numbers.
#[derive(Clone, Debug, Default)]
pub struct LiveSet {
    pub devices: Vec<DeviceSet>,
}

impl DeviceSet {
    /// The live allocations by key, most bytes first. The bytes of all holders and `graphs` are `allocated`.
    pub fn holders(&self, by: By) -> Vec<Holder> {
        holders(&self.live, by, (0, self.time_ns))
    }
}

/// Groups allocations, most bytes first. `span`: within which time, from and to, is told when they came.
pub fn holders<'a>(live: impl IntoIterator<Item = &'a Live>, by: By, span: (u64, u64)) -> Vec<Holder> {
    let mut groups: HashMap<Key, Holder> = HashMap::new();
    for live in live {
        let one = Holder {
            key: Key::for_live(live, by),
            bytes: live.allocated,
            requested: live.size,
            count: 1,
            oldest_ns: live.time_ns,
            came: Came::at(live.time_ns, span),
        };
        let known = groups.entry(one.key);
        known.and_modify(|known| known.add(&one)).or_insert(one);
    }
    let mut groups: Vec<Holder> = groups.into_values().collect();
    groups.sort_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.key));
    groups
}

/// Holders that have one name, such as several stacks of one line of code.
pub struct Named {
    pub name: String,
    /// The sum of all, with the key of the first.
    pub sum: Holder,
}

/// Puts holders together that have one name, most bytes first.
pub fn by_name(holders: Vec<Holder>, name: impl Fn(&Holder) -> String) -> Vec<Named> {
    let mut names: HashMap<String, Named> = HashMap::new();
    for holder in holders {
        let name = name(&holder);
        match names.get_mut(&name) {
            Some(named) => named.sum.add(&holder),
            None => drop(names.insert(name.clone(), Named { name, sum: holder })),
        }
    }
    let mut names: Vec<Named> = names.into_values().collect();
    names.sort_by(|one, other| (other.sum.bytes, &one.name).cmp(&(one.sum.bytes, &other.name)));
    names
}

/// What a live allocation costs in a set, in bytes.
const EACH: u64 = size_of::<Live>() as u64;

/// The place of a record among all others: time and slot.
type Place = (u64, u64);

#[derive(Default)]
struct Caught {
    place: Place,
    /// Of what was live then, `live` has what has gone since.
    set: DeviceSet,
}

struct Catch {
    moment: Moment,
    /// Whether the moment came. `Peak` comes for each device by itself.
    came: bool,
    devices: BTreeMap<i16, Caught>,
}

/// Catches moments while a ledger is built from a journal's records. Call `finish` at the end.
pub struct Catcher {
    catches: Vec<Catch>,
    last: Place,
}

impl Catcher {
    pub fn new(moments: &[Moment]) -> Catcher {
        let catch = |&moment| Catch {
            moment,
            came: false,
            devices: BTreeMap::new(),
        };
        Catcher {
            catches: moments.iter().map(catch).collect(),
            last: (0, 0),
        }
    }

    /// What was live at one of the moments. The ledger gives its live allocations away, so that each is there once.
    pub fn take(mut self, moment: Moment, ledger: &mut Ledger) -> Option<LiveSet> {
        self.catches.retain(|catch| catch.moment == moment);
        self.end(ledger);
        let catch = self.catches.pop().filter(|catch| catch.came)?;
        Some(catch.live_set(ledger.take_live()))
    }

    /// What was live at each moment, in the order in which the moments were given.
    pub fn finish(mut self, ledger: &Ledger) -> Vec<Option<LiveSet>> {
        self.end(ledger);
        let all = || ledger.live_unsorted().copied().collect();
        let catches = self.catches.into_iter();
        catches.map(|catch| catch.came.then(|| catch.live_set(all()))).collect()
    }

    /// No record comes any more, so the moments that did not come are now.
    fn end(&mut self, ledger: &Ledger) {
        let last = self.last;
        for catch in &mut self.catches {
            match catch.moment {
                Moment::Time(time_ns) if !catch.came => catch.all(ledger, last, time_ns),
                Moment::End => catch.all(ledger, last, ledger.last_ns),
                _ => {}
            }
        }
    }
}

impl Observer for Catcher {
    #[inline]
    fn before(&mut self, ledger: &Ledger, record: &Record) {
        for catch in &mut self.catches {
            match catch.moment {
                Moment::Time(time_ns) if !catch.came && time_ns < record.time_ns => {
                    catch.all(ledger, self.last, time_ns);
                }
                _ => {}
            }
        }
    }

    #[inline]
    fn after(&mut self, ledger: &Ledger, record: &Record) {
        self.last = (record.time_ns, record.slot);
        let last = self.last;
        for catch in &mut self.catches {
            if let Some(gone) = ledger.gone() {
                catch.keep(gone);
            }
            match (catch.moment, record.event) {
                (Moment::Peak, _) => catch.peak(ledger, ledger.last_device(), last),
                (Moment::OutOfMemory, Event::AllocFailed { result, .. }) if is_out_of_memory(result) => {
                    catch.all(ledger, last, record.time_ns);
                }
                (Moment::Mark(wanted), Event::Mark { text, kind }) if text == wanted && kind != MarkKind::End => {
                    catch.all(ledger, last, record.time_ns);
                }
                _ => {}
            }
        }
    }
}

impl Catch {
    /// The present state of all devices is that of the moment.
    fn all(&mut self, ledger: &Ledger, place: Place, time_ns: u64) {
        self.came = true;
        for (&device, of_device) in &ledger.devices {
            self.devices
                .entry(device)
                .or_default()
                .catch(device, of_device, place, time_ns);
        }
    }

    /// The present state of a device is that of its peak, if it is higher than all before.
    fn peak(&mut self, ledger: &Ledger, device: i16, place: Place) {
        let Some(of_device) = ledger.devices.get(&device) else {
            return;
        };
        let caught = self.devices.entry(device).or_default();
        if of_device.all.allocated.current > caught.set.allocated {
            caught.catch(device, of_device, place, place.0);
            self.came = true;
        }
    }

    fn keep(&mut self, live: &Live) {
        if let Some(caught) = self.devices.get_mut(&live.device)
            && (live.time_ns, live.slot) <= caught.place
        {
            caught.set.live.push(*live);
            caught.set.charge.for_live(caught.set.live.len(), EACH);
        }
    }

    /// `still`: what is live at last.
    fn live_set(self, mut still: Vec<Live>) -> LiveSet {
        let mut devices = self.devices.len();
        let devices = self.devices.into_iter().map(|(device, caught)| {
            devices -= 1;
            // The last device keeps the list itself, which may be long.
            let mut live = if devices == 0 {
                std::mem::take(&mut still)
            } else {
                still.extract_if(.., |live| live.device == device).collect()
            };
            live.retain(|live| live.device == device && (live.time_ns, live.slot) <= caught.place);
            let mut set = caught.set;
            live.append(&mut set.live);
            live.retain(Live::counts);
            live.sort_unstable_by_key(|live| (live.time_ns, live.slot));
            set.charge.for_live(live.len(), EACH);
            DeviceSet { live, ..set }
        });
        LiveSet {
            devices: devices.collect(),
        }
    }
}

impl Caught {
    fn catch(&mut self, device: i16, ledger: &DeviceLedger, place: Place, time_ns: u64) {
        self.place = place;
        self.set = DeviceSet {
            device,
            time_ns,
            requested: ledger.all.requested.current,
            allocated: ledger.all.allocated.current,
            reserved: ledger.all.reserved.current,
            free_inside: ledger.free_bytes(),
            graphs: ledger.graphs(),
            ..DeviceSet::default()
        };
    }
}
