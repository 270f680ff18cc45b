//! Promises of `auto_growth` on memory that it maps.

use policy::device_memory::DeviceMemory;
use policy::{Settings, Strategy as Kind};

use crate::policy_properties::cases::draw;
use crate::policy_properties::model::Model;
use crate::policy_properties::pins::Job;
use crate::policy_properties::run::{Run, Step, run};
use crate::policy_properties::with_each_fault;

fn growing() -> Run {
    let model = Model::default();
    model.virtual_memory.set(true);
    Run::new(Kind::AutoGrowth, &Settings::default(), model)
}

/// A free, and the end of the wait that it begins.
fn freed(which: usize) -> [Step; 2] {
    [Step::Free(which), Step::WaitEnds(0)]
}

/// Three MiB that reach to the end of a handle are free, and three that begin with another; all else is in use, and the
/// device has no more.
fn two_halves() -> Vec<Step> {
    let allocated = [3, 3, 2, 3, 3].map(|mebibytes| Step::AllocateOn(mebibytes << 20, 0));
    // After `Free(1)`, the last block has the index 1.
    let freed = [1, 3].into_iter().flat_map(freed);
    let allocated = [Step::Others(48 << 20)].into_iter().chain(allocated);
    allocated.chain(freed).collect()
}

#[test]
fn what_is_free_of_two_handles_serves_one_request() {
    let mut run = growing();
    run.take_all(two_halves().into_iter().chain([Step::AllocateOn(6 << 20, 0)]));
    assert_eq!(run.model.outstanding(), 14 << 20, "no new memory");
    let mapped = run.model.mappings.borrow().len();
    assert_eq!(run.policy.statistics().stitch_uses, 1);
    // The memory is side by side at home again, whatever address it was used at.
    for _ in 0..4 {
        run.take_all(freed(0));
    }
    run.take(Step::AllocateOn(14 << 20, 0));
    assert_eq!(run.model.outstanding(), 14 << 20, "no new memory");
    assert_eq!(run.model.mappings.borrow().len(), mapped, "no new stitch");
    run.end();
}

/// A process may have few addresses: under valgrind, or with a limit (`RLIMIT_AS`).
#[test]
fn few_addresses_serve_as_long_as_there_are_any() {
    let mut run = growing();
    run.model.addresses_left.set(Some(24 << 20));
    run.take_all([2; 12].map(|mebibytes| Step::Allocate(mebibytes << 20)));
    assert_eq!(run.live.len(), 12, "every address serves");
    run.end();
}

#[test]
fn new_memory_serves_where_no_addresses_are_left_for_stitches() {
    let mut run = growing();
    run.take_all(two_halves());
    run.model.addresses_left.set(Some(0));
    run.model.others.set(40 << 20);
    run.take(Step::AllocateOn(6 << 20, 0));
    assert_eq!(run.live.len(), 4, "the device had memory");
    assert_eq!(run.model.outstanding(), 20 << 20, "new memory");
    run.end();
}

#[test]
fn handles_are_small_beside_the_device_however_large_they_are_wanted() {
    let settings = Settings {
        chunk_bytes: 5000 << 20,
        ..Settings::default()
    };
    let job = Job::new(4 << 30, &settings);
    job.block(1 << 20);
    assert_eq!(job.reserved(), 256 << 20);
    (0..15).for_each(|_| _ = job.block(256 << 20));
}

#[test]
fn a_fault_while_handles_are_mapped_twice_loses_no_byte() {
    let mut steps = two_halves();
    steps.push(Step::AllocateOn(6 << 20, 0));
    steps.extend((0..2).flat_map(|_| {
        let rest = [Step::AllocateOn(9 << 20, 0), Step::ReleaseIdle];
        freed(0).into_iter().chain(rest)
    }));
    with_each_fault(|fault_at| run(Kind::AutoGrowth, &Settings::default(), true, fault_at, &steps));
}

#[test]
fn a_chunk_serves_the_request_that_it_was_obtained_for_whatever_its_size() {
    let mut run = growing();
    run.take(Step::Allocate(1 << 20));
    run.model.refuses_handles.set(true);
    run.take_all([17, 1, 3].map(|mebibytes| Step::Allocate(mebibytes << 20)));
    assert_eq!(run.live.len(), 4);
    assert_eq!(
        run.model.outstanding(),
        (2 + 17 + 3) << 20,
        "the second small block is in the first handle"
    );
    run.end();
}

/// Another process ends, which the policy does not learn before the next growth.
#[test]
fn a_large_request_gets_few_handles_however_little_the_device_had() {
    let job = Job::with_memory(80 << 30);
    let other = job.device.allocate(79 << 30).expect("memory");
    job.block(900 << 20);
    job.device.free(other, 79 << 30).expect("a segment");
    (0..3).for_each(|_| _ = job.block(10 << 30));
    let handles = job.policy.borrow().statistics().handles;
    assert!(handles < 64, "{handles} handles");
}

#[test]
fn new_memory_serves_where_nothing_can_be_unmapped() {
    let mut run = growing();
    run.take_all([2, 2, 2].map(|mebibytes| Step::Allocate(mebibytes << 20)));
    run.take_all(freed(1));
    run.model.keeps_mappings.set(true);
    run.take(Step::Allocate(4 << 20));
    assert_eq!(run.live.len(), 3, "the device had memory");
    run.end();
}

#[test]
fn what_is_remembered_is_bounded_also_where_nothing_is_unmapped() {
    let mut run = growing();
    run.model.keeps_mappings.set(true);
    let mut state = 1u64;
    for _ in 0..20_000 {
        let drawn = draw(&mut state);
        match run.live.len() > 25 {
            true => run.take_all(freed(drawn as usize)),
            false => run.take(Step::AllocateOn(512 * (1 + drawn % 8192), 0)),
        }
    }
    let stitches = run.policy.statistics().stitches;
    assert!((100..=1024).contains(&stitches), "{stitches} stitches");
    run.end();
}

/// A job that repeats itself gets the same places again, and calls the driver no more.
#[test]
fn a_job_that_repeats_itself_settles() {
    let mut run = growing();
    run.model.others.set(20 << 20);
    let mut changes = Vec::new();
    for _ in 0..6 {
        let mut state = 7u64;
        let before = run.model.changes.get();
        for _ in 0..300 {
            let drawn = draw(&mut state);
            match run.live.len() > 12 {
                true => run.take(Step::Free(drawn as usize)),
                false => run.take(Step::AllocateOn(512 * (1 + drawn % 10_000), 0)),
            }
        }
        while !run.live.is_empty() {
            run.take(Step::Free(0));
        }
        changes.push(run.model.changes.get() - before);
    }
    assert!(changes[0] > 50, "{changes:?}");
    assert_eq!(changes[3..], [0, 0, 0], "{changes:?}");
    assert!(run.policy.statistics().stitch_uses > 0);
    assert_eq!(run.model.events_recorded.get(), 0, "one stream needs no events");
    run.end();
}

#[test]
fn a_stitch_that_is_neither_accessible_nor_unmapped_stays_accounted_for() {
    for fault_after in 1..6 {
        let mut run = growing();
        run.take_all(two_halves());
        run.model.keeps_mappings.set(true);
        run.model.fault_at.set(run.model.calls.get() + fault_after);
        run.take(Step::Allocate(6 << 20));
        run.end();
    }
}

/// As long as memory is not short, what a stream has freed stays with this stream. When memory is short, one event for each stream
/// is enough.
#[test]
fn memory_that_is_short_goes_to_other_streams_when_events_are_done() {
    let mut run = growing();
    run.model.others.set(44 << 20);
    run.take_all([(6, 0), (2, 0), (6, 0), (2, 1)].map(|(mebibytes, stream)| Step::AllocateOn(mebibytes << 20, stream)));
    run.take(Step::Free(0));
    run.take(Step::AllocateOn(4 << 20, 0));
    assert_eq!(run.model.outstanding(), 16 << 20, "the stream itself needs no event");
    assert_eq!(run.model.events_recorded.get(), 0);
    run.take(Step::AllocateOn(3 << 20, 1));
    assert_eq!(run.model.outstanding(), 20 << 20, "the work of the first is not done");
    // The first asks the policy for work after a free, and the second does it.
    run.take(Step::Record);
    run.take(Step::Record);
    let recorded = run.model.events_recorded.get();
    assert!(recorded > 0, "memory was short");
    run.take(Step::StreamEnds(0));
    run.take(Step::AllocateOn(2 << 20, 1));
    assert_eq!(run.model.events_recorded.get(), recorded, "requests record no event");
    assert_eq!(
        run.model.outstanding(),
        20 << 20,
        "another stream, when the work is done"
    );
    run.end();
}
