//! Tests that `encode` and `decode` undo each other, and that the bytes of each kind never change. Otherwise journals
//! of older libraries could not be read.

use super::*;
use base::cuda::HOST_DEVICE;
use base::shortage::{Guard, Refusal, Refuser};
use proptest::prelude::*;

const ADDRESS: u64 = 0x7f12_3456_7000;

/// The 56 bytes of each record, in the order of `records` below.
const BYTES: [&str; 16] = [
    "080706050403020100705634127f0000e8030000000000000004000000000000000600000000000014131211000000000100020001020100",
    "080706050403020100705634127f0000e803000000000000000400000000000000000000000000001413121100000000c800020001010003",
    "080706050403020100705634127f0000e8030000000000000004000000000000000600000000000014131211000000002600ffff02040300",
    "080706050403020100705634127f0000e803000000000000000400000000000000000000000000001413121100000000d4000200020100ff",
    "08070605040302010000000000000000e803000000000000000000000000000002000000000000001413121100000000cc00020003030800",
    "080706050403020100705634127f000000000000000000000000000000000000c90000000000000014131211000000000500020004000000",
    "080706050403020100705634127f000000100000000000000010000000000000ffffffff0000000014131211000000009001020004010000",
    "080706050403020100705634127f000000100000000000000010000000000000001000000000000014131211000000009001020005011000",
    "080706050403020100705634127f00000010000000000000001000000000000000000000010000001413121100000000900102000c010000",
    "080706050403020100705634127f000000100000000000000010000000000000001000000000000014131211000000009001020006010200",
    "080706050403020100000000000000000010000000000000e8030000000000000000000000000000141312110000000024000200070b0000",
    "0807060504030201341200005555000000000000000000000000000000000000000000000000000014131211000000002600020008000000",
    "080706050403020100705634127f0000001000000000000000000000000000004d0000000000000014131211000000001700020009070000",
    "080706050403020100705634127f00000010000000000000000000000000000000000000000000001413121100000000180002000a070000",
    "080706050403020188130000000000000000000014000000000000c01300000070170000000000001413121100000000900102000b000000",
    "08070605040302014d0000000000000000000000000000000000000000000000010000000000000014131211000000003601ffff0d000000",
];

/// Records of failures as formats 1 and 2 have them, and their results and sizes.
const OLD_FAILURES: [(&str, i32, u64); 3] = [
    (
        "08070605040302010000000000000000e803000000000000000000000000000000000000000000001413121102000000cc00020003030800",
        2,
        1000,
    ),
    (
        "080706050403020100705634127f000000000000000000000000000000000000000000000000000014131211c90000000500020004000000",
        201,
        0,
    ),
    (
        "080706050403020100705634127f000000100000000000000010000000000000001000000000000014131211ffffffff9001020004010000",
        -1,
        4096,
    ),
];

/// The event with a fixed time and thread, as the writer stores it.
fn stored(api: Api, device: i16, event: Event) -> RawRecord {
    RawRecord {
        time_ns: 0x0102_0304_0506_0708,
        tid: 0x1112_1314,
        ..event.encode(api, device)
    }
}

fn bytes(record: RawRecord) -> [u8; 56] {
    // SAFETY: a record has 56 bytes without padding.
    unsafe { std::mem::transmute(record) }
}

fn hex(record: RawRecord) -> String {
    bytes(record).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_words_of_a_record_are_its_bytes() {
    for text in BYTES {
        let bytes: Vec<u8> = (0..text.len())
            .step_by(2)
            .map(|place| u8::from_str_radix(&text[place..place + 2], 16).unwrap())
            .collect();
        let record = RawRecord::from_bytes(&bytes);
        let words = record.to_words();
        assert_eq!(words.map(u64::to_le_bytes).concat(), bytes);
        assert_eq!(RawRecord::from_words(words), record);
    }
}

#[test]
fn each_kind_of_record_has_the_bytes_it_always_had() {
    let allocation = |class: Class, reserved, stream| Allocation {
        class: class.into(),
        address: ADDRESS,
        requested: 1000,
        allocated: 1024,
        reserved,
        stream,
    };
    let records = [
        stored(
            Api::cuMemAlloc,
            2,
            Event::Alloc(allocation(Class::Pitched, Some(1536), 0)),
        ),
        stored(Api::cudaMalloc, 2, Event::Alloc(allocation(Class::Linear, None, 3))),
        stored(
            Api::cuCtxDestroy,
            HOST_DEVICE,
            Event::Free {
                allocation: allocation(Class::Host, Some(1536), 0),
                context_gone: true,
            },
        ),
        stored(
            Api::cudaFreeAsync,
            2,
            Event::Free {
                allocation: allocation(Class::Linear, None, 255),
                context_gone: false,
            },
        ),
        stored(
            Api::cudaMallocManaged,
            2,
            Event::AllocFailed {
                class: Class::Managed.into(),
                requested: 1000,
                result: 2,
                over_limit: true,
                guard: None,
            },
        ),
        stored(
            Api::cuMemFree,
            2,
            Event::FreeFailed {
                address: ADDRESS,
                segment: None,
                result: 201,
            },
        ),
        stored(
            Api::Policy,
            2,
            Event::FreeFailed {
                address: ADDRESS,
                segment: Some(4096),
                result: -1,
            },
        ),
        stored(
            Api::Policy,
            2,
            Event::SegmentAlloc {
                address: ADDRESS,
                size: 4096,
                again: true,
            },
        ),
        stored(
            Api::Policy,
            2,
            Event::StitchPart {
                address: ADDRESS,
                size: 4096,
                home: 1 << 32,
            },
        ),
        stored(
            Api::Policy,
            2,
            Event::SegmentFree {
                address: ADDRESS,
                size: 4096,
                again: false,
                context_gone: true,
            },
        ),
        stored(
            Api::cuGraphLaunch,
            2,
            Event::PoolReserved {
                class: Class::Graph.into(),
                reserved: 4096,
                used: 1000,
            },
        ),
        stored(
            Api::cuCtxDestroy,
            2,
            Event::ContextDestroyed {
                context: 0x5555_0000_1234,
            },
        ),
        stored(
            Api::cuMemMap,
            2,
            Event::Map {
                address: ADDRESS,
                size: 4096,
                handle: 77,
            },
        ),
        stored(
            Api::cuMemUnmap,
            2,
            Event::Unmap {
                address: ADDRESS,
                size: 4096,
            },
        ),
        stored(
            Api::Policy,
            2,
            Event::Measured {
                mem_info: Some(MemInfo {
                    total: 80 << 30,
                    free: 79 << 30,
                }),
                process_bytes: Some(6000),
                reserved: 5000,
            },
        ),
        stored(
            Api::vramshim_mark,
            HOST_DEVICE,
            Event::Mark {
                text: 77,
                kind: MarkKind::Begin,
            },
        ),
    ];
    assert_eq!(records.map(hex), BYTES);
}

#[test]
fn a_long_name_is_cut_between_letters() {
    assert_eq!(ShortName::of("train").text(), "train");
    assert_eq!(ShortName::of("a-very-long-name-of-a-job").text(), "a-very-long-name");
    assert_eq!(ShortName::of("fünfzehnZeichenü").text(), "fünfzehnZeichen");
    assert_eq!(ShortName::default().text(), "");
}

#[test]
fn failures_of_old_formats_keep_their_results() {
    for (bytes, expected, size) in OLD_FAILURES {
        let bytes: Vec<u8> = (0..56)
            .map(|place| u8::from_str_radix(&bytes[2 * place..][..2], 16).unwrap())
            .collect();
        let record = RawRecord::from_bytes(&bytes).of_old_format().decode(0).unwrap();
        let (result, bytes) = match record.event {
            Event::AllocFailed { requested, result, .. } => (result, requested),
            Event::FreeFailed { segment, result, .. } => (result, segment.unwrap_or(0)),
            other => panic!("{other:?}"),
        };
        assert_eq!((result, bytes, record.stack), (expected, size, 0));
    }
}

fn any_guard() -> impl Strategy<Value = Option<Guard>> {
    any::<Option<(u64, bool)>>().prop_map(|guard| guard.map(|(bytes, of_device)| Guard { bytes, of_device }))
}

fn any_class() -> impl Strategy<Value = ClassCode> {
    any::<u8>().prop_map(ClassCode::from)
}

fn any_allocation() -> impl Strategy<Value = Allocation> {
    (
        any_class(),
        any::<u64>(),
        any::<u64>(),
        any::<u64>(),
        any::<Option<u64>>(),
        any::<u8>(),
    )
        .prop_map(|(class, address, requested, allocated, reserved, stream)| Allocation {
            class,
            address,
            requested,
            allocated,
            reserved,
            stream,
        })
}

fn any_event() -> impl Strategy<Value = Event> {
    let number = any::<u64>;
    let some = || 1..=u64::MAX;
    prop_oneof![
        any_allocation().prop_map(Event::Alloc),
        (any_allocation(), any::<bool>()).prop_map(|(allocation, context_gone)| Event::Free {
            allocation,
            context_gone
        }),
        (any_class(), number(), any::<i32>(), any::<bool>(), any_guard()).prop_map(
            |(class, requested, result, over_limit, guard)| Event::AllocFailed {
                class,
                requested,
                result,
                over_limit,
                guard,
            }
        ),
        (number(), any::<Option<u64>>(), any::<i32>()).prop_map(|(address, segment, result)| Event::FreeFailed {
            address,
            segment,
            result
        }),
        (number(), number(), any::<bool>()).prop_map(|(address, size, again)| Event::SegmentAlloc {
            address,
            size,
            again
        }),
        (number(), number(), number()).prop_map(|(address, size, home)| Event::StitchPart { address, size, home }),
        (number(), number(), any::<bool>(), any::<bool>()).prop_map(|(address, size, again, context_gone)| {
            Event::SegmentFree {
                address,
                size,
                again,
                context_gone,
            }
        }),
        (any_class(), number(), number()).prop_map(|(class, reserved, used)| Event::PoolReserved {
            class,
            reserved,
            used
        }),
        number().prop_map(|context| Event::ContextDestroyed { context }),
        (number(), number(), number()).prop_map(|(address, size, handle)| Event::Map { address, size, handle }),
        (number(), number()).prop_map(|(address, size)| Event::Unmap { address, size }),
        (
            prop::option::of((some(), number()).prop_map(|(total, free)| MemInfo { total, free })),
            prop::option::of(some()),
            number()
        )
            .prop_map(|(mem_info, process_bytes, reserved)| Event::Measured {
                mem_info,
                process_bytes,
                reserved
            }),
        (
            number(),
            prop::sample::select(vec![MarkKind::Instant, MarkKind::Begin, MarkKind::End])
        )
            .prop_map(|(text, kind)| Event::Mark { text, kind }),
        (any::<u32>(), any::<Option<u64>>(), any::<bool>(), "[a-z]{0,20}").prop_map(|(pid, bytes, by_nvml, name)| {
            Event::Process(ProcessBytes {
                pid,
                bytes,
                told_by: if by_nvml { Teller::Nvml } else { Teller::Account },
                name: ShortName::of(&name),
            })
        }),
        (number(), number(), number(), any::<bool>()).prop_map(|(limit, used, own, group)| Event::Limit(LimitState {
            limit,
            used,
            own,
            group
        })),
        (number(), any::<u32>(), any::<bool>()).prop_map(|(bytes, processes, for_others)| Event::Reclaimed {
            bytes,
            processes,
            for_others
        }),
        (
            prop::sample::select(vec![Refuser::Driver, Refuser::Layer, Refuser::LayerInFront]),
            any::<Option<i32>>(),
            prop::option::of((some(), number()).prop_map(|(total, free)| MemInfo { total, free }))
        )
            .prop_map(|(by, result, driver)| Event::Refused(Refusal { by, result, driver })),
        (
            number(),
            number(),
            prop::option::of((any::<bool>(), number(), number()))
        )
            .prop_map(|(resident, pinned, heap)| Event::Host(HostMemory {
                resident,
                pinned,
                heap: heap.map(|(is_glibc, allocated, mapped)| Heap {
                    allocator: if is_glibc {
                        Allocator::Glibc
                    } else {
                        Allocator::Jemalloc
                    },
                    allocated,
                    mapped,
                }),
            })),
        (number(), number(), number(), any::<u32>()).prop_map(|(grown, over_ns, asked, place)| Event::Surge(
            SurgeShare {
                grown,
                over_ns,
                asked,
                place
            }
        )),
        prop_oneof![Just(0), SURGE + 1..=u8::MAX].prop_map(|kind| Event::Unknown { kind }),
    ]
}

proptest! {
    #[test]
    fn what_was_encoded_is_decoded(
        event in any_event(),
        api in prop::sample::select(Api::ALL),
        device in any::<i16>(),
        slot in any::<u64>(),
        stack in any::<u32>(),
    ) {
        let raw = stored(api, device, event).with_stack(stack);
        let read = RawRecord::from_bytes(&bytes(raw));
        prop_assert_eq!(read, raw);
        let device = match event {
            Event::AllocFailed { .. } | Event::FreeFailed { .. } if !is_possible_device(device) => HOST_DEVICE,
            _ => device,
        };
        let expected = Record { slot, time_ns: raw.time_ns, tid: raw.tid, api: api.into(), device, stack, event };
        prop_assert_eq!(read.decode(slot), event.is_possible(device).then_some(expected));
    }

    #[test]
    fn any_bytes_decode(bytes in prop::collection::vec(any::<u8>(), 56), device in HOST_DEVICE..32) {
        let raw = RawRecord { device, ..RawRecord::from_bytes(&bytes) };
        let Some(record) = raw.decode(0) else {
            return Ok(());
        };
        let unknown = matches!(record.event, Event::Unknown { .. });
        prop_assert_eq!(unknown, !(ALLOC..=SURGE).contains(&raw.kind));
    }
}

fn allocation(address: u64, size: u64, class: Class) -> Event {
    Event::Alloc(Allocation {
        class: class.into(),
        address,
        requested: size,
        allocated: size,
        reserved: Some(size),
        stream: 0,
    })
}

#[test]
fn what_no_process_can_have_is_no_record() {
    let possible = |event: Event, device: i16| stored(Api::cudaMalloc, device, event).decode(0).is_some();
    let segment = |address, size| Event::SegmentAlloc {
        address,
        size,
        again: false,
    };
    let part = |address, home| Event::StitchPart {
        address,
        size: 4096,
        home,
    };
    let pool = |reserved| Event::PoolReserved {
        class: Class::Async.into(),
        reserved,
        used: 0,
    };
    let last = u64::MAX - 4096;
    for (event, device, expected) in [
        (allocation(ADDRESS, LARGEST_RANGE, Class::Linear), 0, true),
        (allocation(ADDRESS, LARGEST_RANGE + 1, Class::Linear), 0, false),
        (allocation(last, 4096, Class::Linear), 31, true),
        (allocation(last, 4097, Class::Linear), 0, false),
        (allocation(last, 4097, Class::Vmm), 0, true),
        (allocation(ADDRESS, 4096, Class::Linear), 32, false),
        (allocation(ADDRESS, 4096, Class::Host), HOST_DEVICE, true),
        (allocation(ADDRESS, 4096, Class::Host), -2, false),
        (segment(last, 4096), 0, true),
        (segment(last, 4097), 0, false),
        (part(0, last), 0, true),
        (part(0, last + 1), 0, false),
        (pool(LARGEST_RANGE), 0, true),
        (pool(LARGEST_RANGE + 1), 0, false),
    ] {
        assert_eq!(possible(event, device), expected, "{event:?} on device {device}");
    }
}

/// Jobs do ask for 2^63 bytes, and for memory of devices that are not there.
#[test]
fn a_failed_request_may_name_any_size_and_device() {
    let event = Event::AllocFailed {
        class: Class::Linear.into(),
        requested: u64::MAX,
        result: 2,
        over_limit: false,
        guard: None,
    };
    for (device, expected) in [(0, 0), (31, 31), (32, HOST_DEVICE), (-7, HOST_DEVICE)] {
        let record = stored(Api::cuMemCreate, device, event).decode(0).unwrap();
        assert_eq!((record.event, record.device), (event, expected));
    }
}
