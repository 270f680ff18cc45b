//! What is known of PyTorch's cache, and what is advised about it.

use support::made::Made;
use support::{MIB, assert_says};

use super::evidence::{BEGAN_US, TORCH, assert_told, fail, measure, with_tensors};
use super::why_of;

/// What the cache of PyTorch does not hold cannot be gained by doing without it.
#[test]
fn an_empty_cache_is_not_advised_against() {
    let folder = tempfile::tempdir().unwrap();
    let mut job = Made::with(folder.path(), 70, 0, "VRAMSHIM_TORCH=record\0", TORCH).unwrap();
    let segment = 0x7f00_0000_0000u64;
    let size = 800 * MIB;
    job.alloc_at(0, segment, size, 0).unwrap();
    let at = |job: &Made| BEGAN_US + job.now_ns() / 1000;
    let now = at(&job);
    let mut tensors = format!("S\t{now}\t0\t{segment}\t{size}\nA\t{now}\t0\t{segment}\t{size}\t0\t0\n");
    measure(&mut job, 174 * MIB, size, 850 * MIB);
    fail(&mut job, 300 * MIB, 2, false);
    tensors += &format!("O\t{}\t0\t{}\t0\nD\t{}\t1\t0\n", at(&job), 300 * MIB, at(&job));
    let told = with_tensors(&job.end(Some(1)).unwrap(), &tensors);
    assert_told(&told, 12, "live memory is too much");
    assert_eq!(told.page["why"]["ledger"]["cached"], 0);
    assert!(!told.text.contains("--torch allocator"), "{}", told.text);
}

/// The driver's own pool serves the tensors: PyTorch has no cache of which anything could be advised.
#[test]
fn no_cache_of_pytorch_is_supposed_over_the_drivers_pool() {
    let folder = tempfile::tempdir().unwrap();
    let settings = "VRAMSHIM_TORCH=state\0PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync\0";
    let mut job = Made::with(folder.path(), 70, 0, settings, TORCH).unwrap();
    job.alloc(0, 800 * MIB, 0).unwrap();
    measure(&mut job, 174 * MIB - 5, 800 * MIB, 850 * MIB);
    fail(&mut job, 300 * MIB, 2, false);
    let told = why_of(&job.end(Some(1)).unwrap());
    assert_told(&told, 12, "live memory is too much");
    // What is to be held less is not rounded down.
    assert_says(&told.text, "Hold 127 MiB less");
    for word in ["--torch record", "--torch allocator", "expandable", "segments"] {
        assert!(!told.text.contains(word), "{word}: {}", told.text);
    }
}
