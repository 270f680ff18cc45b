use base::api::Api;

use super::*;
use crate::analysis::device_ledger::{Free, Level};
use crate::analysis::samples::{block, record};

fn allocation(class: Class, address: u64, size: u64) -> Allocation {
    Allocation {
        class: class.into(),
        allocated: size.next_multiple_of(512),
        reserved: None,
        ..block(address, size)
    }
}

fn alloc(class: Class, address: u64, size: u64) -> Event {
    Event::Alloc(allocation(class, address, size))
}

/// An allocation whose memory the call itself obtained from the next layer, as without a policy.
fn direct(class: Class, address: u64, size: u64) -> Event {
    Event::Alloc(Allocation {
        reserved: Some(size.next_multiple_of(512)),
        ..allocation(class, address, size)
    })
}

fn free(class: Class, address: u64, size: u64) -> Event {
    Event::free(allocation(class, address, size))
}

fn again(mut event: Event) -> Event {
    if let Event::SegmentAlloc { again, .. } | Event::SegmentFree { again, .. } = &mut event {
        *again = true;
    }
    event
}

fn level(current: u64, peak: u64) -> Level {
    Level { current, peak }
}

fn replay(events: &[Event]) -> Ledger {
    let mut ledger = Ledger::default();
    for (slot, &event) in (0..).zip(events) {
        let mut record = Record {
            slot,
            ..record(slot * 10, event)
        };
        if let Event::SegmentAlloc { .. } | Event::SegmentFree { .. } = event {
            record.api = Api::Policy.into();
        }
        ledger.apply(&record);
    }
    ledger
}

#[test]
fn mapped_memory_comes_and_goes_in_pieces() {
    const MIB: u64 = 1 << 20;
    let ledger = replay(&[
        Event::segment(100 * MIB, 4 * MIB),
        Event::segment(104 * MIB, 4 * MIB),
        alloc(Class::Linear, 102 * MIB, 4 * MIB),
        Event::segment_gone(100 * MIB, 2 * MIB),
        free(Class::Linear, 102 * MIB, 4 * MIB),
        Event::segment_gone(102 * MIB, 2 * MIB),
    ]);
    assert_eq!(ledger.anomalies.total(), 0);
    let device = &ledger.devices[&0];
    assert_eq!(device.all.reserved, level(4 * MIB, 8 * MIB));
    assert_eq!((device.segments_obtained, device.segments_returned), (2, 2));
    assert_eq!(device.space.segments(), 1);
}

/// A framework's cache has a segment in that of a policy, and one of its own.
#[test]
fn what_is_free_in_a_frameworks_cache_is_reserved_and_not_live() {
    const MIB: u64 = 1 << 20;
    let mut ledger = replay(&[Event::segment(100 * MIB, 16 * MIB)]);
    let mut by_framework = |event| ledger.apply(&record(100, event));
    by_framework(Event::segment(104 * MIB, 4 * MIB));
    by_framework(Event::segment(200 * MIB, 8 * MIB));
    by_framework(alloc(Class::Linear, 104 * MIB, MIB));
    by_framework(alloc(Class::Linear, 200 * MIB, 2 * MIB));
    by_framework(alloc(Class::Linear, 110 * MIB, MIB));
    let all = |ledger: &Ledger| {
        let device = &ledger.devices[&0];
        assert_eq!(ledger.anomalies.total(), 0);
        let free = device.all.reserved.current - device.all.allocated.current;
        assert_eq!(device.free().bytes, free);
        (
            device.all.reserved.current / MIB,
            free / MIB,
            device.free().largest / MIB,
        )
    };
    assert_eq!(all(&ledger), (24, 20, 6));
    for event in [
        free(Class::Linear, 104 * MIB, MIB),
        Event::segment_gone(104 * MIB, 4 * MIB),
        Event::segment_gone(204 * MIB, 4 * MIB),
    ] {
        ledger.apply(&record(200, event));
    }
    assert_eq!(all(&ledger), (20, 17, 10));
}

#[test]
fn a_block_in_a_stitch_takes_the_bytes_of_its_parts() {
    const MIB: u64 = 1 << 20;
    let part = |at: u64, size: u64, home: u64| Event::StitchPart {
        address: at * MIB,
        size: size * MIB,
        home: home * MIB,
    };
    let mut events = vec![
        Event::segment(100 * MIB, 16 * MIB),
        alloc(Class::Linear, 104 * MIB, 4 * MIB),
        again(Event::segment(200 * MIB, 6 * MIB)),
        part(200, 4, 100),
        part(204, 2, 108),
        alloc(Class::Linear, 202 * MIB, 3 * MIB),
    ];
    let free_of = |events: &[Event]| {
        let ledger = replay(events);
        assert_eq!(ledger.anomalies.total(), 0);
        let Free { bytes, largest } = ledger.devices[&0].free();
        (bytes / MIB, largest / MIB)
    };
    assert_eq!(free_of(&events), (9, 7), "100 to 102, and 109 to 116");
    let mut shared = events.clone();
    shared.push(alloc(Class::Linear, 108 * MIB, MIB));
    assert_eq!(replay(&shared).anomalies.overlap, 1, "two blocks have the same bytes");

    events.push(free(Class::Linear, 202 * MIB, 3 * MIB));
    assert_eq!(free_of(&events), (12, 8));
    let device = &replay(&events).devices[&0];
    assert_eq!((device.stitches, device.stitched), (1, 6 * MIB));
    assert_eq!(
        (device.all.reserved.current, device.all.allocated.current),
        (16 * MIB, 4 * MIB)
    );
    events.push(again(Event::segment_gone(200 * MIB, 6 * MIB)));
    assert_eq!(free_of(&events), (12, 8));
    let device = &replay(&events).devices[&0];
    assert_eq!((device.stitches, device.stitched), (1, 0));
    assert_eq!((device.segments_obtained, device.segments_returned), (1, 0));
}

#[test]
fn segments_that_cannot_be_change_nothing_that_is_there() {
    let ledger = replay(&[
        Event::segment(0x10000, 0x1000),
        Event::segment_gone(0x90000, 0x1000),
        Event::segment(0x10800, 0x1000),
        Event::segment_gone(u64::MAX - 5, 0x1000),
    ]);
    assert_eq!(ledger.anomalies.segment, 3);
    assert_eq!(ledger.devices[&0].all.reserved.current, 0x1800);
    assert_eq!(ledger.devices[&0].free().bytes, 0x1800);
}

#[test]
fn pools_are_reserved_by_the_last_reading_alone() {
    let pool = |class: Class, reserved, used| Event::PoolReserved {
        class: class.into(),
        reserved,
        used,
    };
    let ledger = replay(&[
        alloc(Class::Async, 0x1000, 512),
        pool(Class::Async, 32 << 20, 0),
        pool(Class::Graph, 64 << 20, 1 << 20),
        pool(Class::Graph, 2 << 20, 0),
    ]);
    let device = &ledger.devices[&0];
    assert_eq!(device.all.reserved, level(34 << 20, 96 << 20));
    assert_eq!(device.all.allocated, level(512, (1 << 20) + 512));
    assert_eq!(device.classes[&Class::Graph.number()].allocated, level(0, 1 << 20));
}

#[test]
fn what_cannot_be_is_counted_and_survived() {
    let ledger = replay(&[
        free(Class::Linear, 0x9000, 1),
        direct(Class::Linear, 0x1000, 4096),
        direct(Class::Linear, 0x1000, 4096),
        direct(Class::Linear, 0x1800, 4096),
        Event::segment_gone(0x5, 1),
        Event::Unknown { kind: 77 },
        Event::Alloc(Allocation {
            class: 99.into(),
            ..allocation(Class::Linear, 0xf000, 8)
        }),
    ]);
    let expected = Anomalies {
        unknown_free: 1,
        same_address: 1,
        overlap: 1,
        segment: 1,
        unknown_kind: 1,
        unknown_class: 1,
        unknown_device: 0,
    };
    assert_eq!(ledger.anomalies, expected);
    assert_eq!(ledger.devices[&0].all.requested.current, 8192);
}
