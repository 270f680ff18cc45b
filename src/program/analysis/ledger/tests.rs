use base::api::Api;

use super::*;
use crate::analysis::device_ledger::{Free, Level};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn record(kind: Kind, class: Class, address: u64, size: u64) -> Record {
    Record {
        time_ns: 0,
        address,
        size,
        allocated: size.next_multiple_of(512),
        detail: 0,
        tid: 1,
        result: 0,
        api: Api::cudaMalloc.number(),
        device: 0,
        kind: kind as u8,
        class: class.number(),
        flags: 0,
        stream: 0,
    }
}

fn direct(record: Record) -> Record {
    Record {
        flags: FLAG_DIRECT,
        detail: record.allocated,
        ..record
    }
}

fn moved(record: Record) -> Record {
    Record {
        flags: FLAG_MOVED,
        ..record
    }
}

fn replay(records: &[Record]) -> Ledger {
    let mut ledger = Ledger::default();
    for (index, record) in (0..).zip(records) {
        ledger.apply(&Event {
            index,
            record: Record {
                time_ns: index * 10,
                ..*record
            },
        });
    }
    ledger
}

#[test]
fn direct_allocations_are_reserved_as_they_are() {
    let ledger = replay(&[
        direct(record(Kind::Alloc, Class::Linear, 0x1000, 1000)),
        direct(record(Kind::Alloc, Class::Managed, 0x2000, 512)),
        record(Kind::Free, Class::Linear, 0x1000, 1000),
    ]);
    let all = ledger.devices[&0].all;
    assert_eq!(
        all.requested,
        Level {
            current: 512,
            peak: 1512
        }
    );
    assert_eq!(
        all.allocated,
        Level {
            current: 512,
            peak: 1536
        }
    );
    assert_eq!(
        all.reserved,
        Level {
            current: 512,
            peak: 1536
        }
    );
    assert_eq!(all.utilisation(), Some(1.0));
    assert_eq!(ledger.devices[&0].free(), Free::default());
    assert_eq!(ledger.anomalies.total(), 0);
    let live = ledger.live();
    assert_eq!((live.len(), live[0].size, live[0].time_ns), (1, 512, 10));
}

#[test]
fn segments_are_reserved_and_what_is_free_in_them_is_known() {
    let ledger = replay(&[
        record(Kind::SegmentAlloc, Class::Linear, 0x10000, 8192),
        record(Kind::Alloc, Class::Linear, 0x10000, 1024),
        record(Kind::Alloc, Class::Linear, 0x10400, 1000),
        record(Kind::Alloc, Class::Linear, 0x10800, 2048),
        record(Kind::Free, Class::Linear, 0x10400, 1000),
    ]);
    let device = &ledger.devices[&0];
    assert_eq!(
        device.all.reserved,
        Level {
            current: 8192,
            peak: 8192
        }
    );
    assert_eq!(
        device.all.allocated,
        Level {
            current: 3072,
            peak: 4096
        }
    );
    assert_eq!(
        device.free(),
        Free {
            bytes: 5120,
            largest: 4096
        }
    );
    assert_eq!(device.free().fragmentation(), 1.0 - 4096.0 / 5120.0);
    assert_eq!(
        device.at_peak,
        Free {
            bytes: 4096,
            largest: 4096
        },
        "the fullest moment at the peak counts"
    );
    assert_eq!(device.all.utilisation(), Some(0.5));
    assert_eq!(ledger.anomalies.total(), 0);
}

#[test]
fn mapped_memory_comes_and_goes_in_pieces() {
    const MIB: u64 = 1 << 20;
    let ledger = replay(&[
        record(Kind::SegmentAlloc, Class::Linear, 100 * MIB, 4 * MIB),
        record(Kind::SegmentAlloc, Class::Linear, 104 * MIB, 4 * MIB),
        record(Kind::Alloc, Class::Linear, 102 * MIB, 4 * MIB),
        record(Kind::SegmentFree, Class::Linear, 100 * MIB, 2 * MIB),
        record(Kind::Free, Class::Linear, 102 * MIB, 4 * MIB),
        moved(record(Kind::SegmentFree, Class::Linear, 102 * MIB, 2 * MIB)),
        moved(record(Kind::SegmentFree, Class::Linear, 106 * MIB, 2 * MIB)),
        moved(record(Kind::SegmentAlloc, Class::Linear, 200 * MIB, 4 * MIB)),
        record(Kind::SegmentAlloc, Class::Linear, 204 * MIB, 2 * MIB),
        record(Kind::Alloc, Class::Linear, 200 * MIB, 6 * MIB),
    ]);
    assert_eq!(ledger.anomalies.total(), 0);
    let device = &ledger.devices[&0];
    let expected = Level {
        current: 8 * MIB,
        peak: 8 * MIB,
    };
    assert_eq!(device.all.reserved, expected);
    let free = Free {
        bytes: 2 * MIB,
        largest: 2 * MIB,
    };
    assert_eq!(device.free(), free, "between 104 and 106 MiB");
    assert_eq!((device.remaps, device.remapped), (1, 4 * MIB));
    assert_eq!((device.segments_obtained, device.segments_returned), (4, 3));
    assert_eq!(device.space.segments(), 3);
}

#[test]
fn segments_that_cannot_be_change_nothing_that_is_there() {
    let ledger = replay(&[
        record(Kind::SegmentAlloc, Class::Linear, 0x10000, 0x1000),
        record(Kind::SegmentFree, Class::Linear, 0x90000, 0x1000),
        record(Kind::SegmentAlloc, Class::Linear, 0x10800, 0x1000),
        record(Kind::SegmentFree, Class::Linear, u64::MAX - 5, 0x1000),
    ]);
    assert_eq!(ledger.anomalies.segment, 3);
    assert_eq!(ledger.devices[&0].all.reserved.current, 0x1800);
    assert_eq!(ledger.devices[&0].free().bytes, 0x1800);
}

#[test]
fn pools_are_reserved_by_the_last_reading_alone() {
    let pool = |class, size, allocated| Record {
        allocated,
        ..record(Kind::PoolReserved, class, 0, size)
    };
    let ledger = replay(&[
        record(Kind::Alloc, Class::Async, 0x1000, 512),
        pool(Class::Async, 32 << 20, 0),
        pool(Class::Graph, 64 << 20, 1 << 20),
        pool(Class::Graph, 2 << 20, 0),
    ]);
    let device = &ledger.devices[&0];
    assert_eq!(
        device.all.reserved,
        Level {
            current: 34 << 20,
            peak: 96 << 20
        }
    );
    assert_eq!(
        device.all.allocated,
        Level {
            current: 512,
            peak: (1 << 20) + 512
        }
    );
    assert_eq!(
        device.classes[&Class::Graph.number()].allocated,
        Level {
            current: 0,
            peak: 1 << 20
        }
    );
}

#[test]
fn host_imported_and_address_ranges_stay_out_of_a_devices_total() {
    let ledger = replay(&[
        direct(record(Kind::Alloc, Class::Imported, 0x1000, GIB)),
        record(Kind::Alloc, Class::AddressRange, 0x1000, 64 * GIB),
        direct(record(Kind::Alloc, Class::Host, 0x2000, 4096)),
        direct(record(Kind::Alloc, Class::HostRegistered, 0x2000, 4096)),
    ]);
    assert_eq!(ledger.devices[&0].all.requested, Level::default());
    assert_eq!(ledger.devices[&0].classes.len(), 2);
    assert_eq!(ledger.devices[&HOST_DEVICE].all.requested.current, 8192);
    assert_eq!(
        ledger.anomalies.total(),
        0,
        "the same number in another name space is another thing"
    );
    assert!(ledger.sizes.is_empty());
}

#[test]
fn failures_are_kept_by_api_and_result() {
    let failed = |kind, result| Record {
        result,
        ..record(kind, Class::Linear, 0, 80 * GIB)
    };
    let ledger = replay(&[
        failed(Kind::AllocFailed, 2),
        failed(Kind::AllocFailed, 2),
        failed(Kind::FreeFailed, 1),
    ]);
    assert_eq!(ledger.failed_calls(), 3);
    let failure = ledger.failures[&(Api::cudaMalloc.number(), 2)];
    assert_eq!((failure.count, failure.last_size, failure.last_ns), (2, 80 * GIB, 10));
    assert_eq!(ledger.apis[&Api::cudaMalloc.number()].bytes, 0);
}

#[test]
fn what_cannot_be_is_counted_and_survived() {
    let ledger = replay(&[
        record(Kind::Free, Class::Linear, 0x9000, 1),
        direct(record(Kind::Alloc, Class::Linear, 0x1000, 4096)),
        direct(record(Kind::Alloc, Class::Linear, 0x1000, 4096)),
        direct(record(Kind::Alloc, Class::Linear, 0x1800, 4096)),
        record(Kind::SegmentFree, Class::Linear, 0x5, 1),
        Record {
            kind: 77,
            ..record(Kind::Alloc, Class::Linear, 0, 0)
        },
        Record {
            class: 99,
            ..record(Kind::Alloc, Class::Linear, 0xf000, 8)
        },
    ]);
    let expected = Anomalies {
        unknown_free: 1,
        same_address: 1,
        overlap: 1,
        segment: 1,
        unknown_kind: 1,
        unknown_class: 1,
    };
    assert_eq!(ledger.anomalies, expected);
    assert_eq!(ledger.devices[&0].all.requested.current, 8192);
}

#[test]
fn sizes_fall_into_powers_of_two() {
    let ledger = replay(&[
        direct(record(Kind::Alloc, Class::Linear, 0x10000, 1024)),
        direct(record(Kind::Alloc, Class::Linear, 0x20000, 2047)),
        direct(record(Kind::Alloc, Class::Linear, 0x30000, 2048)),
        record(Kind::Free, Class::Linear, 0x20000, 2047),
    ]);
    let SizeTotals {
        count,
        bytes,
        live,
        live_bytes,
    } = ledger.sizes[&10];
    assert_eq!((count, bytes, live, live_bytes), (2, 3071, 1, 1024));
    assert_eq!(ledger.sizes[&11].count, 1);
}

fn any_record() -> impl Strategy<Value = Record> {
    let number = prop_oneof![0u64..64, Just(u64::MAX), Just(1 << 63), any::<u64>()];
    (
        (number.clone(), number.clone(), number.clone(), number),
        (
            any::<i32>(),
            any::<u16>(),
            prop_oneof![-1i16..3, any::<i16>()],
            0u8..12,
            0u8..15,
            any::<u8>(),
        ),
    )
        .prop_map(
            |((address, size, allocated, detail), (result, api, device, kind, class, flags))| Record {
                time_ns: size,
                address,
                size,
                allocated,
                detail,
                tid: 1,
                result,
                api,
                device,
                kind,
                class,
                flags,
                stream: 0,
            },
        )
}

proptest! {
    #[test]
    fn nonsense_never_panics(records in prop::collection::vec(any_record(), 0..200)) {
        let ledger = replay(&records);
        for device in ledger.devices.values() {
            let free = device.free();
            prop_assert!(free.largest <= free.bytes);
            prop_assert!((0.0..=1.0).contains(&free.fragmentation()));
            prop_assert!(device.all.reserved.current <= device.all.reserved.peak);
        }
        let measured = records.iter().filter(|record| record.kind == Kind::Measured as u8).count();
        prop_assert_eq!(ledger.events as usize + measured, records.len());
        let _ = (ledger.live(), ledger.anomalies.total());
    }
}
