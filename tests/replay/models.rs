//! Models of allocators of frameworks, request by request.

use std::sync::LazyLock;

use ::prices::Prices;
use policy::Settings;
use program::replay::allocator;
use program::replay::device::ModelDevice;
use program::replay::requests::{Allocator, TorchSettings, Way};

use super::*;

const WAY: Way = Way::Tensor(Some(0));

static PLAIN: LazyLock<TorchSettings> = LazyLock::new(TorchSettings::default);

fn torch<'a>(name: &str, device: &'a ModelDevice, settings: &'a TorchSettings) -> Box<dyn Allocator + 'a> {
    allocator(name, device, &Settings::default(), settings).expect("a model")
}

/// Addresses of requests of so many MiB on stream 0.
fn served<const N: usize>(allocator: &mut dyn Allocator, mebibytes: [u64; N]) -> [u64; N] {
    mebibytes.map(|size| allocator.allocate(size * MIB, WAY).expect("memory"))
}

#[test]
fn expandable_segments_give_back_what_is_free_in_the_middle_and_fill_the_lowest_hole() {
    let device = ModelDevice::new(100 * MIB, Prices::default(), 0);
    let mut allocator = torch("torch_expandable", &device, &PLAIN);
    let [first, kept, last] = served(&mut *allocator, [40, 20, 40]);
    assert_eq!((kept, last), (first + 40 * MIB, first + 60 * MIB));
    allocator.free(first, WAY.used_alone());
    allocator.free(last, WAY.used_alone());
    // Both holes are given back. The lower one is too short for the first request, and serves the second.
    assert_eq!(served(&mut *allocator, [60, 20]), [last, first]);
    assert!(allocator.allocate(40 * MIB, WAY).is_err(), "all 100 MiB are in use");
    // Only whole handles go back: of the free 10 to 40 MiB those of 20 MiB and more.
    let device = ModelDevice::new(60 * MIB, Prices::default(), 0);
    let mut allocator = torch("torch_expandable", &device, &PLAIN);
    let [_, freed] = served(&mut *allocator, [10, 30]);
    allocator.free(freed, WAY.used_alone());
    assert!(allocator.allocate(41 * MIB, Way::Tensor(Some(1))).is_err());
    assert!(allocator.allocate(40 * MIB, Way::Tensor(Some(1))).is_ok());
}

#[test]
fn of_blocks_of_one_size_pytorch_takes_the_one_that_was_made_first() {
    let device = ModelDevice::new(100 * MIB, Prices::default(), 0);
    let mut allocator = torch("torch", &device, &PLAIN);
    let [whole] = served(&mut *allocator, [16]);
    allocator.free(whole, WAY.used_alone());
    let [first, second, _] = served(&mut *allocator, [4, 4, 4]);
    allocator.free(second, WAY.used_alone());
    // What is left of the segment is older than the block that was cut from it.
    assert_eq!(served(&mut *allocator, [4, 4]), [first + 12 * MIB, second]);
}

#[test]
fn settings_of_pytorchs_allocator_round_and_keep_large_blocks_whole() {
    let device = ModelDevice::new(100 * MIB, Prices::default(), 0);
    let mut settings = TorchSettings::default();
    settings.set("max_split_size", "33554432");
    settings.set("roundup_power2_divisions", "{'1': 4, '2': 4, '4': 4, '8': 0}");
    let mut allocator = torch("torch", &device, &settings);
    let one = allocator.allocate(9 * MIB / 2, WAY).expect("memory");
    let other = allocator.allocate(9 * MIB / 2, WAY).expect("memory");
    assert_eq!(other - one, 5 * MIB, "a quarter of 4 MiB more");
    let [large] = served(&mut *allocator, [60]);
    allocator.free(large, WAY.used_alone());
    let [small] = served(&mut *allocator, [16]);
    assert_eq!((small != large, device.peak()), (true, 96 * MIB));
    // This one is smaller by 20 MiB and more: to serve it, the large segment goes back.
    assert_ne!(served(&mut *allocator, [39]), [large]);
    assert_eq!(device.peak(), 96 * MIB);
}

#[test]
fn auto_growth_hands_out_the_tail_of_the_tightest_block_and_joins_in_a_chunk_only() {
    let device = ModelDevice::new(100 * MIB, Prices::default(), 0);
    let settings = Settings {
        chunk_bytes: MIB,
        ..Settings::default()
    };
    let mut allocator = allocator("paddle_auto_growth", &device, &settings, &PLAIN).expect("a model");
    let first = allocator.allocate(1000, WAY).expect("memory");
    let second = allocator.allocate(256, WAY).expect("memory");
    assert_eq!(second, first - 256, "below the first, which got the end of the chunk");
    let chunk = first + 1024 - MIB;
    let other = allocator.allocate(2 * MIB, WAY).expect("memory");
    assert_eq!((device.bill().driver_calls(), device.peak()), (2, 3 * MIB));
    allocator.free(other, WAY.used_alone());
    allocator.free(first, WAY.used_alone());
    // Free: 1024 bytes behind the second block, MIB - 1280 bytes in front of the second block, 2 MiB in the other
    // chunk.
    assert_eq!(allocator.allocate(1025, WAY), Ok(chunk + MIB - 1280 - 1280));
    assert_eq!(allocator.allocate(512, WAY), Ok(first + 512));
    assert_eq!(allocator.allocate(MIB, WAY), Ok(other + MIB));
    assert_eq!(device.bill().driver_calls(), 2);
}
