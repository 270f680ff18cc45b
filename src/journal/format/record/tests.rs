//! Tests that `encode` and `decode` undo each other, and that the bytes of each kind never change.

use super::*;
use base::cuda::HOST_DEVICE;
use base::shortage::{Allowance, Guard, Refusal, Refuser};
use proptest::prelude::*;

/// Unreleased builds had kinds of these numbers, and of 24 and 25.
const NO_LONGER_USED: [u8; 2] = [20, 21];
const BLOCK: u64 = 0x7f12_3456_7000;
const MEM_INFO: MemInfo = MemInfo {
    total: 80 << 30,
    free: 79 << 30,
};

fn block(class: Class, reserved: Option<u64>, stream: u8) -> Allocation {
    Allocation {
        class: class.into(),
        address: BLOCK,
        requested: 1000,
        allocated: 1024,
        reserved,
        stream,
    }
}

/// Events of all kinds, in which no field of an event is 0 everywhere, and their bytes.
macro_rules! samples {
    ($($api:ident $device:literal $event:expr => $bytes:literal)*) => {
        vec![$((Api::$api, $device, $event, $bytes)),*]
    };
}

fn samples() -> Vec<(Api, i16, Event, &'static str)> {
    use Event::{
        Alloc, AllocFailed, ContextCreated, ContextDestroyed, Free, FreeFailed, Host, Limit, Map, Mark, Measured,
        PoolReserved, Process, Reclaimed, Refused, SegmentAlloc, SegmentFree, StitchPart, Surge, Unmap,
    };
    let process = ProcessBytes {
        pid: 4711,
        bytes: Some(4096),
        told_by: Teller::Account,
        name: ShortName::cut_from("train"),
        namespace: 0xf000_0001,
        host_pid: 123_456,
        mps: Mps::Client,
    };
    samples! {
        cuMemAlloc 2 Alloc(block(Class::Pitched, Some(1536), 0))
            => "080706050403020100705634127f0000e8030000000000000004000000000000000600000000000014131211000000000100020001020100"
        cudaMalloc 2 Alloc(block(Class::Linear, None, 3))
            => "080706050403020100705634127f0000e803000000000000000400000000000000000000000000001413121100000000c800020001010003"
        cuCtxDestroy -1 Free { allocation: block(Class::Host, Some(1536), 0), context_gone: true }
            => "080706050403020100705634127f0000e8030000000000000004000000000000000600000000000014131211000000002600ffff02040300"
        cudaFreeAsync 2 Free { allocation: block(Class::Linear, None, 255), context_gone: false }
            => "080706050403020100705634127f0000e803000000000000000400000000000000000000000000001413121100000000d4000200020100ff"
        cudaMallocManaged 2 AllocFailed { class: Class::Managed.into(),
            requested: 1000, result: 2, over_limit: true, guard: None }
            => "08070605040302010000000000000000e803000000000000000000000000000002000000000000001413121100000000cc00020003030800"
        cuMemFree 2 FreeFailed { address: BLOCK, segment: None, result: 201 }
            => "080706050403020100705634127f000000000000000000000000000000000000c90000000000000014131211000000000500020004000000"
        Policy 2 FreeFailed { address: BLOCK, segment: Some(4096), result: -1 }
            => "080706050403020100705634127f000000100000000000000010000000000000ffffffff0000000014131211000000009001020004010000"
        Policy 2 SegmentAlloc { address: BLOCK, size: 4096, again: true }
            => "080706050403020100705634127f000000100000000000000010000000000000001000000000000014131211000000009001020005011000"
        Policy 2 StitchPart { address: BLOCK, size: 4096, home: 1 << 32 }
            => "080706050403020100705634127f00000010000000000000001000000000000000000000010000001413121100000000900102000c010000"
        Policy 2 SegmentFree { address: BLOCK, size: 4096, again: false, context_gone: true }
            => "080706050403020100705634127f000000100000000000000010000000000000001000000000000014131211000000009001020006010200"
        cuGraphLaunch 2 PoolReserved { class: Class::Graph.into(), reserved: 4096, used: 1000 }
            => "080706050403020100000000000000000010000000000000e8030000000000000000000000000000141312110000000024000200070b0000"
        cuCtxDestroy 2 ContextDestroyed { context: 0x5555_0000_1234 }
            => "0807060504030201341200005555000000000000000000000000000000000000000000000000000014131211000000002600020008000000"
        cuMemMap 2 Map { address: BLOCK, size: 4096, handle: 77 }
            => "080706050403020100705634127f0000001000000000000000000000000000004d0000000000000014131211000000001700020009070000"
        cuMemUnmap 2 Unmap { address: BLOCK, size: 4096 }
            => "080706050403020100705634127f00000010000000000000000000000000000000000000000000001413121100000000180002000a070000"
        Policy 2 Measured { mem_info: Some(MEM_INFO),
            told_by: Teller::NotKnown, process_bytes: Some(6000), reserved: 5000 }
            => "080706050403020188130000000000000000000014000000000000c01300000070170000000000001413121100000000900102000b000000"
        vramshim_mark -1 Mark { text: 77, kind: MarkKind::Begin }
            => "08070605040302014d0000000000000000000000000000000000000000000000010000000000000014131211000000003601ffff0d000000"
        Policy 2 AllocFailed { class: Class::Linear.into(), requested: 1000, result: 2,
            over_limit: false, guard: Some(Guard { bytes: 900, of_device: true }) }
            => "08070605040302010000000000000000e803000000000000840300000000000002000000000000001413121100000000900102000301c000"
        Policy 2 Measured { mem_info: None, told_by: Teller::Layer, process_bytes: None, reserved: 5000 }
            => "080706050403020188130000000000000000000000000000000000000000000000000000000000001413121100000000900102000b020000"
        Policy 2 Process(process)
            => "0807060504030201747261696e000000001000000000000067120000010000f000000000000000001413121140e20100900102000e050500"
        Policy 2 Limit(Allowance { limit: 4096, used: 1000, own: 77, group: true })
            => "080706050403020100000000000000000010000000000000e8030000000000004d000000000000001413121100000000900102000f000100"
        Policy 2 Reclaimed { bytes: 4096, processes: 3, for_others: true }
            => "0807060504030201030000000000000000100000000000000000000000000000010000000000000014131211000000009001020010000000"
        Policy 2 Refused(Refusal { by: Refuser::Layer, result: Some(-1), driver: Some(MEM_INFO) })
            => "080706050403020100000000000000000000000014000000000000c013000000ffffffff0000000014131211000000009001020011010100"
        Policy 2 Refused(Refusal { by: Refuser::Library, result: None, driver: Some(MEM_INFO) })
            => "080706050403020100000000000000000000000014000000000000c013000000000000000000000014131211000000009001020011030000"
        Policy -1 Host(HostMemory { resident: 4096, pinned: 1000 })
            => "080706050403020100000000000000000010000000000000e803000000000000000000000000000014131211000000009001ffff12000000"
        Policy 2 Surge(SurgeShare { grown: 4096, over_ns: 1000, asked: 77, place: 2 })
            => "0807060504030201020000000000000000100000000000004d00000000000000e80300000000000014131211000000009001020013000000"
        Policy 2 Event::FrameworkRequest(FrameworkRequest {
            requested: Some(4096), asks_again: Some(true), free: None })
            => "0807060504030201000000000000000000100000000000000000000000000000000000000000000014131211000000009001020016000700"
        torch_alloc 2 Event::FrameworkRequest(FrameworkRequest {
            requested: Some(4096), asks_again: None, free: Some(77) })
            => "0807060504030201000000000000000000100000000000004d00000000000000000000000000000014131211000000004001020016000900"
        Policy 2 ContextCreated { context: BLOCK, bytes: 4096, measure: ContextMeasure::MemInfo }
            => "080706050403020100705634127f000000100000000000000000000000000000000000000000000014131211000000009001020017020000"
    }
}

/// The event with a fixed time and thread, as the writer stores it.
fn stored(api: Api, device: i16, event: Event) -> RawRecord {
    event.encode(api, device).at(0x0102_0304_0506_0708, 0x1112_1314)
}

#[test]
fn each_kind_of_record_has_the_bytes_it_always_had() {
    let mut kinds = Vec::new();
    for (api, device, event, expected) in samples() {
        let raw = stored(api, device, event);
        kinds.push(raw.get::<_, u8>(KIND));
        let bytes = raw.to_bytes();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, expected, "{event:?}");
        // SAFETY: a record has 56 bytes without padding.
        assert_eq!(unsafe { std::mem::transmute::<RawRecord, [u8; 56]>(raw) }, bytes);
        assert_eq!(RawRecord::from_bytes(&bytes), raw);
        let record = raw.decode(7).expect("a possible record");
        let (slot, time_ns, tid) = (7, raw.time_ns(), raw.tid());
        let expected = Record {
            slot,
            time_ns,
            tid,
            api: api.into(),
            device,
            stack: 0,
            event,
        };
        assert_eq!(record, expected);
    }
    assert!(
        (ALLOC..=CONTEXT_CREATED).all(|kind| NO_LONGER_USED.contains(&kind) || kinds.contains(&kind)),
        "{kinds:?}"
    );
}

#[test]
fn a_long_name_is_cut_between_letters() {
    assert_eq!(ShortName::cut_from("train").text(), "train");
    assert_eq!(
        ShortName::cut_from("a-very-long-name-of-a-job").text(),
        "a-very-long-name"
    );
    assert_eq!(ShortName::cut_from("fünfzehnZeichenü").text(), "fünfzehnZeichen");
    assert_eq!(ShortName::default().text(), "");
}

proptest! {
    /// What any bytes stand for is encoded and decoded again.
    #[test]
    fn what_was_encoded_is_decoded(
        bytes in prop::collection::vec(any::<u8>(), 56),
        kind in 0..=CONTEXT_CREATED + 1,
        class in prop_oneof![0..20u8, any::<u8>()],
        small in prop::option::of(0..8u64),
        api in prop::sample::select(Api::ALL),
        device in prop_oneof![HOST_DEVICE..33, any::<i16>()],
    ) {
        let mut raw = RawRecord::from_bytes(&bytes);
        // Numbers of enums are small.
        for place in [SIZE, ADDRESS] {
            let bits = small.unwrap_or(place.get(&raw));
            place.replace(&mut raw, bits);
        }
        for (place, number) in [(KIND, kind.bits()), (CLASS, class.bits()), (DEVICE, device.bits()), (API, api.number().bits())] {
            place.replace(&mut raw, number);
        }
        let Some(record) = raw.decode(3) else {
            return Ok(());
        };
        prop_assert_eq!(matches!(record.event, Event::Unknown { .. }), NO_LONGER_USED.contains(&kind) || !(ALLOC..=CONTEXT_CREATED).contains(&kind));
        let again = record.event.encode(api, record.device);
        let again = again.at(record.time_ns, record.tid);
        let again = if kind == PROCESS { again } else { again.with_stack(record.stack) };
        prop_assert_eq!(again.decode(3), Some(record));
    }
}

fn allocation(address: u64, size: u64, class: Class) -> Event {
    Event::Alloc(Allocation {
        address,
        allocated: size,
        ..block(class, Some(size), 0)
    })
}

#[test]
fn what_no_process_can_have_is_no_record() {
    let possible = |event: Event, device: i16| stored(Api::cudaMalloc, device, event).decode(0).is_some();
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
        (allocation(BLOCK, LARGEST_RANGE, Class::Linear), 0, true),
        (allocation(BLOCK, LARGEST_RANGE + 1, Class::Linear), 0, false),
        (allocation(last, 4096, Class::Linear), 31, true),
        (allocation(last, 4097, Class::Linear), 0, false),
        (allocation(last, 4097, Class::Vmm), 0, true),
        (allocation(BLOCK, 4096, Class::Linear), 32, false),
        (allocation(BLOCK, 4096, Class::Host), HOST_DEVICE, true),
        (allocation(BLOCK, 4096, Class::Host), -2, false),
        (Event::segment(last, 4096), 0, true),
        (Event::segment(last, 4097), 0, false),
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
