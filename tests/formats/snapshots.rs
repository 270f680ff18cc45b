//! What a snapshot must satisfy: blocks tile their segments, and the trace can be played backwards as MemoryViz does.

use std::collections::{BTreeMap, BTreeSet};

use crate::formats::pickled::{Value, read};

/// Made-up addresses, of memory that has no entries in the trace, begin here.
const MADE_UP: u64 = 1 << 52;

/// The sums over the segments of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub reserved: u64,
    pub allocated: u64,
    pub requested: u64,
}

pub struct Checked {
    pub page: Value,
    pub sums: BTreeMap<u64, Sums>,
    /// How often each action occurs.
    pub actions: BTreeMap<String, u64>,
    /// Device, address, size and requested bytes of the live blocks.
    pub live: BTreeSet<(u64, u64, u64, u64)>,
}

/// Segments of one device while the trace is played backwards.
#[derive(Default)]
struct Segments(BTreeMap<u64, u64>);

impl Segments {
    fn holds(&self, address: u64) -> bool {
        self.holds_all(address, 1)
    }

    fn holds_all(&self, address: u64, size: u64) -> bool {
        let before = self.0.range(..=address).next_back();
        before.is_some_and(|(start, length)| address + size <= start + length)
    }

    fn map(&mut self, mut address: u64, mut size: u64) {
        if let Some((&before, &length)) = self.0.range(..address).next_back()
            && before + length == address
        {
            self.0.remove(&before);
            (address, size) = (before, size + length);
        }
        if let Some(after) = self.0.remove(&(address + size)) {
            size += after;
        }
        self.0.insert(address, size);
    }

    fn unmap(&mut self, address: u64, size: u64) {
        let around = self
            .0
            .range(..=address)
            .next_back()
            .map(|(&start, &length)| (start, start + length));
        let (start, end) = around.unwrap_or_else(|| panic!("no segment at {address:#x}"));
        assert!(
            address + size <= end,
            "the segment at {start:#x} ends inside what was mapped"
        );
        self.0.remove(&start);
        if start < address {
            self.0.insert(start, address - start);
        }
        if address + size < end {
            self.0.insert(address + size, end - address - size);
        }
    }
}

pub fn check(pickle: &[u8]) -> Checked {
    let page = read(pickle);
    assert_eq!(
        page.keys(),
        [
            "allocator_settings",
            "device_traces",
            "external_annotations",
            "segments"
        ]
    );
    let mut checked = Checked {
        page: page.clone(),
        sums: BTreeMap::new(),
        actions: BTreeMap::new(),
        live: BTreeSet::new(),
    };
    for segment in page.at("segments").list() {
        let (device, address) = (segment.at("device").integer(), segment.at("address").integer());
        let size = segment.at("total_size").integer();
        let mut own = Sums {
            reserved: size,
            ..Sums::default()
        };
        let expandable = segment.at("is_expandable") == Value::Boolean(true);
        assert_eq!(segment.at("stream").integer(), u64::from(expandable));
        let mut at = address;
        for block in segment.at("blocks").list() {
            assert_eq!(block.at("address").integer(), at, "blocks tile their segment");
            let size = block.at("size").integer();
            let requested = block.at("requested_size").integer();
            assert!(size > 0 && requested <= size);
            match block.at("state").text().as_str() {
                "active_allocated" => {
                    own.allocated += size;
                    own.requested += requested;
                    checked.live.insert((device, at, size, requested));
                }
                "inactive" => {}
                other => panic!("state {other}"),
            }
            block.at("frames").list();
            at += size;
        }
        assert_eq!(at, address + size, "blocks tile their segment");
        assert_eq!(segment.at("allocated_size").integer(), own.allocated);
        assert_eq!(segment.at("active_size").integer(), own.allocated);
        assert_eq!(segment.at("requested_size").integer(), own.requested);
        let sums = checked.sums.entry(device).or_default();
        sums.reserved += own.reserved;
        sums.allocated += own.allocated;
        sums.requested += own.requested;
    }
    for (device, trace) in (0..).zip(page.at("device_traces").list()) {
        play_backwards(&mut checked, device, &trace.list());
    }
    checked
}

fn play_backwards(checked: &mut Checked, device: u64, trace: &[Value]) {
    let mut segments = Segments::default();
    for segment in checked.page.at("segments").list() {
        if segment.at("device").integer() == device {
            segments
                .0
                .insert(segment.at("address").integer(), segment.at("total_size").integer());
        }
    }
    let live = checked.live.iter().filter(|live| live.0 == device);
    let mut blocks: BTreeMap<u64, bool> = live.map(|live| (live.1, false)).collect();
    for entry in trace.iter().rev() {
        let action = entry.at("action").text();
        *checked.actions.entry(action.clone()).or_default() += 1;
        entry.at("frames").list();
        entry.at("time_us").integer();
        let size = entry.at("size").integer();
        if matches!(action.as_str(), "segment_map" | "segment_unmap") {
            // MemoryViz joins pieces of equal streams, and writes over the stream of entries if all have stream 0.
            assert_eq!(entry.at("stream").integer(), 1);
        }
        if action == "oom" {
            entry.at("device_free").integer();
            continue;
        }
        let address = entry.at("addr").integer();
        let inside = |blocks: &BTreeMap<u64, bool>| blocks.range(address..address + size).next().is_some();
        match action.as_str() {
            "free_completed" => {
                assert!(segments.holds_all(address, size), "a block outside of all segments");
                assert_eq!(
                    blocks.insert(address, true),
                    None,
                    "the block was freed, and then again"
                );
            }
            "free_requested" => {
                assert_eq!(
                    blocks.insert(address, false),
                    Some(true),
                    "a free that is not completed"
                );
            }
            "alloc" => {
                assert!(segments.holds_all(address, size), "a block outside of all segments");
                assert_eq!(blocks.remove(&address), Some(false), "a block that is not there");
            }
            "segment_free" => {
                assert!(!segments.holds(address), "two segments at one address");
                segments.0.insert(address, size);
            }
            "segment_alloc" => {
                assert!(!inside(&blocks), "a block in a segment that begins");
                assert_eq!(segments.0.remove(&address), Some(size), "the segment that begins");
            }
            "segment_unmap" => segments.map(address, size),
            "segment_map" => {
                assert!(!inside(&blocks), "a block in memory that is mapped");
                segments.unmap(address, size);
            }
            other => panic!("action {other}"),
        }
    }
    // Only memory without entries was there before the first entry.
    assert!(segments.0.keys().all(|&address| address >= MADE_UP), "{:?}", segments.0);
    assert!(blocks.keys().all(|&address| address >= MADE_UP), "{blocks:?}");
}
