//! Pins the bytes of one record of each kind: journals of older libraries must stay readable.

use super::*;
use base::api::{Api, Class};
use base::cuda::HOST_DEVICE;

const BLANK: Record = Record {
    time_ns: 0x0102_0304_0506_0708,
    address: 0,
    size: 0,
    allocated: 0,
    detail: 0,
    tid: 0x1112_1314,
    result: 0,
    api: 0,
    device: HOST_DEVICE,
    kind: 0,
    class: 0,
    flags: 0,
    stream: 0,
};

const ADDRESS: u64 = 0x7f12_3456_7000;

fn hex(record: Record) -> String {
    // SAFETY: a record has 56 bytes without padding.
    let bytes: [u8; 56] = unsafe { std::mem::transmute(record) };
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// 56 bytes each, in the order of `records` below.
const BYTES: [&str; 14] = [
    "080706050403020100705634127f0000e8030000000000000004000000000000000600000000000014131211000000000100020001020100",
    "080706050403020100705634127f0000e803000000000000000400000000000000000000000000001413121100000000c800020001010003",
    "080706050403020100705634127f0000e8030000000000000004000000000000000600000000000014131211000000002600ffff02040300",
    "080706050403020100705634127f0000e803000000000000000400000000000000000000000000001413121100000000d4000200020100ff",
    "08070605040302010000000000000000e803000000000000000000000000000000000000000000001413121102000000cc00020003030800",
    "080706050403020100705634127f000000000000000000000000000000000000000000000000000014131211c90000000500020004000000",
    "080706050403020100705634127f000000100000000000000010000000000000001000000000000014131211ffffffff9001020004010000",
    "080706050403020100705634127f000000100000000000000010000000000000001000000000000014131211000000009001020005010400",
    "080706050403020100705634127f000000100000000000000010000000000000001000000000000014131211000000009001020006010200",
    "080706050403020100000000000000000010000000000000e8030000000000000000000000000000141312110000000024000200070b0000",
    "0807060504030201341200005555000000000000000000000000000000000000000000000000000014131211000000002600020008000000",
    "080706050403020100705634127f0000001000000000000000000000000000004d0000000000000014131211000000001700020009070000",
    "080706050403020100705634127f00000010000000000000000000000000000000000000000000001413121100000000180002000a070000",
    "080706050403020188130000000000000000000014000000000000c01300000070170000000000001413121100000000900102000b000000",
];

#[test]
fn each_kind_of_record_has_the_bytes_it_always_had() {
    let records = [
        Record {
            kind: Kind::Alloc as u8,
            api: Api::cuMemAlloc.number(),
            class: Class::Pitched.number(),
            device: 2,
            address: ADDRESS,
            size: 1000,
            allocated: 1024,
            detail: 1536,
            flags: FLAG_DIRECT,
            ..BLANK
        },
        Record {
            kind: Kind::Alloc as u8,
            api: Api::cudaMalloc.number(),
            class: Class::Linear.number(),
            device: 2,
            address: ADDRESS,
            size: 1000,
            allocated: 1024,
            stream: 3,
            ..BLANK
        },
        Record {
            kind: Kind::Free as u8,
            api: Api::cuCtxDestroy.number(),
            class: Class::Host.number(),
            device: HOST_DEVICE,
            address: ADDRESS,
            size: 1000,
            allocated: 1024,
            detail: 1536,
            flags: FLAG_DIRECT | FLAG_CONTEXT_GONE,
            ..BLANK
        },
        Record {
            kind: Kind::Free as u8,
            api: Api::cudaFreeAsync.number(),
            class: Class::Linear.number(),
            device: 2,
            address: ADDRESS,
            size: 1000,
            allocated: 1024,
            stream: 255,
            ..BLANK
        },
        Record {
            kind: Kind::AllocFailed as u8,
            api: Api::cudaMallocManaged.number(),
            class: Class::Managed.number(),
            device: 2,
            size: 1000,
            result: 2,
            flags: FLAG_LIMIT,
            ..BLANK
        },
        Record {
            kind: Kind::FreeFailed as u8,
            api: Api::cuMemFree.number(),
            device: 2,
            address: ADDRESS,
            result: 201,
            ..BLANK
        },
        Record {
            kind: Kind::FreeFailed as u8,
            api: Api::Policy.number(),
            class: Class::Linear.number(),
            device: 2,
            address: ADDRESS,
            size: 4096,
            allocated: 4096,
            detail: 4096,
            result: -1,
            ..BLANK
        },
        Record {
            kind: Kind::SegmentAlloc as u8,
            api: Api::Policy.number(),
            class: Class::Linear.number(),
            device: 2,
            address: ADDRESS,
            size: 4096,
            allocated: 4096,
            detail: 4096,
            flags: FLAG_MOVED,
            ..BLANK
        },
        Record {
            kind: Kind::SegmentFree as u8,
            api: Api::Policy.number(),
            class: Class::Linear.number(),
            device: 2,
            address: ADDRESS,
            size: 4096,
            allocated: 4096,
            detail: 4096,
            flags: FLAG_CONTEXT_GONE,
            ..BLANK
        },
        Record {
            kind: Kind::PoolReserved as u8,
            api: Api::cuGraphLaunch.number(),
            class: Class::Graph.number(),
            device: 2,
            size: 4096,
            allocated: 1000,
            ..BLANK
        },
        Record {
            kind: Kind::ContextDestroyed as u8,
            api: Api::cuCtxDestroy.number(),
            device: 2,
            address: 0x5555_0000_1234,
            ..BLANK
        },
        Record {
            kind: Kind::Map as u8,
            api: Api::cuMemMap.number(),
            class: Class::Vmm.number(),
            device: 2,
            address: ADDRESS,
            size: 4096,
            detail: 77,
            ..BLANK
        },
        Record {
            kind: Kind::Unmap as u8,
            api: Api::cuMemUnmap.number(),
            class: Class::Vmm.number(),
            device: 2,
            address: ADDRESS,
            size: 4096,
            ..BLANK
        },
        Record {
            kind: Kind::Measured as u8,
            api: Api::Policy.number(),
            device: 2,
            address: 5000,
            size: 80 << 30,
            allocated: 79 << 30,
            detail: 6000,
            ..BLANK
        },
    ];
    assert_eq!(records.map(hex), BYTES);
}
