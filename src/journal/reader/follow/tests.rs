//! Tests a follower on a journal that simulated threads write one step at a time. The follower looks between the steps.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::format::HEADER_SIZE;
use crate::reader::tests::SlotFile;

const THREADS: usize = 4;
/// Slots that a simulated thread takes at once.
const BATCH: u64 = 5;

#[derive(Clone, Copy, Default)]
struct Thread {
    next: u64,
    end: u64,
    under_way: Option<(u64, u64)>,
}

struct Stage {
    file: SlotFile,
    claimed: u64,
    clock: u64,
    threads: [Thread; THREADS],
    /// The time of every slot that was committed.
    committed: BTreeMap<u64, u64>,
}

impl Stage {
    fn new() -> Stage {
        Stage {
            file: SlotFile::new(),
            claimed: 0,
            clock: 0,
            threads: Default::default(),
            committed: BTreeMap::new(),
        }
    }

    fn follower(&self, portion: u64, held: usize) -> Follower {
        Follower::in_portions(self.file.open(), portion, held)
    }

    /// One step of a thread: it commits the event that is under way, or begins a new event if none is.
    fn step(&mut self, number: usize, batch: bool) {
        let mut thread = self.threads[number];
        if let Some((index, time)) = thread.under_way.take() {
            self.file.commit(index, time);
            self.committed.insert(index, time);
        } else {
            if thread.next == thread.end {
                thread.next = self.claimed;
                self.claimed += if batch { BATCH } else { 1 };
                thread.end = self.claimed;
                self.file.claim(self.claimed);
            }
            self.file.begin(thread.next);
            self.clock += 10;
            thread.under_way = Some((thread.next, self.clock));
            thread.next += 1;
        }
        self.threads[number] = thread;
    }

    fn finish(&mut self) {
        for number in 0..THREADS {
            if self.threads[number].under_way.is_some() {
                self.step(number, false);
            }
        }
    }
}

fn all(follower: &mut Follower) -> Vec<(u64, u64)> {
    while !follower.follow().unwrap() {}
    follower.finish();
    follower.map(|event| (event.slot, event.time_ns)).collect()
}

fn assert_ascending(told: &[(u64, u64)]) {
    let ascends = told.is_sorted_by_key(|(index, time)| (*time, *index));
    assert!(ascends, "{told:?}");
}

fn assert_each_once(told: &[(u64, u64)], stage: &Stage) {
    let set: BTreeMap<u64, u64> = told.iter().copied().collect();
    assert_eq!((set.len(), &set), (told.len(), &stage.committed));
}

type Step = (usize, bool);

/// One step of a test: a step of a thread, or a part of `follow`.
#[derive(Clone, Debug)]
enum Act {
    Step(Step),
    Look([Vec<Step>; 3]),
    LookAtMarked,
    Settle,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let step = || (0..THREADS, any::<bool>());
    let steps = || prop::collection::vec(step(), 0..8);
    let act = prop_oneof![
        12 => step().prop_map(Act::Step),
        2 => [steps(), steps(), steps()].prop_map(Act::Look),
        1 => Just(Act::LookAtMarked),
        1 => Just(Act::Settle),
    ];
    prop::collection::vec(act, 0..600)
}

fn look(stage: &mut Stage, follower: &mut Follower, between: [Vec<Step>; 3]) {
    let known = follower.read.latest;
    follower.journal.refresh().unwrap();
    let parts = [
        Follower::look_at_marked,
        Follower::look_at_reserved,
        Follower::look_at_new,
    ];
    for (part, steps) in parts.into_iter().zip(between) {
        steps.into_iter().for_each(|(thread, batch)| stage.step(thread, batch));
        part(follower).unwrap();
    }
    follower.looked(known);
}

fn play(stage: &mut Stage, follower: &mut Follower, acts: Vec<Act>) -> Vec<(u64, u64)> {
    let mut told = Vec::new();
    for act in acts {
        match act {
            Act::Step((thread, batch)) => stage.step(thread, batch),
            Act::Look(between) => look(stage, follower, between),
            Act::LookAtMarked => follower.look_at_marked().unwrap(),
            Act::Settle => {
                follower.settle();
                told.extend(follower.map(|event| (event.slot, event.time_ns)));
            }
        }
    }
    stage.finish();
    told.extend(all(follower));
    told
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn each_event_comes_once_and_in_order_wherever_the_threads_stand(acts in acts()) {
        let mut stage = Stage::new();
        let mut follower = stage.follower(PORTION, HELD);
        follower.settle();
        let told = play(&mut stage, &mut follower, acts);
        assert_each_once(&told, &stage);
        assert_ascending(&told);
        prop_assert_eq!((follower.late(), follower.unfinished()), (0, 0));
    }

    #[test]
    fn a_long_file_is_read_in_portions_while_it_grows(before in acts(), acts in acts(), portion in 1u64..40) {
        let mut stage = Stage::new();
        for act in before {
            if let Act::Step((thread, batch)) = act {
                stage.step(thread, batch);
            }
        }
        // The events that are under way before the first look are ended here, because their records may come late.
        stage.finish();
        let mut follower = stage.follower(portion, THREADS * BATCH as usize);
        follower.read.begun = true;
        let told = play(&mut stage, &mut follower, acts);
        assert_each_once(&told, &stage);
    }
}

#[test]
fn what_is_under_way_holds_back_what_began_later_and_comes_when_it_is_done() {
    let mut stage = Stage::new();
    let mut follower = stage.follower(PORTION, HELD);
    assert!(follower.follow().unwrap());
    stage.step(0, false);
    stage.step(0, false);
    assert!(follower.follow().unwrap());
    assert_eq!(follower.by_ref().count(), 1);
    stage.step(1, true); // thread 1 begins an event, which stays under way
    for _ in 0..6 {
        stage.step(2, true);
    }
    follower.follow().unwrap();
    assert_eq!((follower.by_ref().count(), follower.unfinished()), (0, 1));
    stage.step(1, true);
    follower.follow().unwrap();
    let times: Vec<u64> = follower.by_ref().map(|event| event.time_ns).collect();
    assert_eq!(times, [20, 30, 40, 50]);
    assert_eq!((follower.late(), follower.unfinished()), (0, 0));
}

#[test]
fn what_was_under_way_before_anybody_looked_holds_nothing_back() {
    let mut stage = Stage::new();
    stage.step(0, true);
    stage.step(1, true);
    stage.step(1, true);
    let mut follower = stage.follower(PORTION, HELD);
    follower.follow().unwrap();
    assert_eq!((follower.by_ref().count(), follower.unfinished()), (1, 1));
    stage.step(0, true);
    follower.follow().unwrap();
    assert_eq!((follower.by_ref().count(), follower.late()), (1, 1));
}

/// The threads of a long file use their slots at different paces.
#[test]
fn a_first_reading_in_portions_is_in_order() {
    let mut stage = Stage::new();
    for step in 0..12_000usize {
        let thread = match step % 10 {
            0..6 => 0,
            6..9 => 1,
            _ => 2 + step / 10 % 2,
        };
        stage.step(thread, step % 3 > 0);
    }
    stage.finish();
    for portion in [1, 7, 64, 1000, 100_000] {
        let mut follower = stage.follower(portion, THREADS * BATCH as usize);
        let mut told = Vec::new();
        let mut most = 0;
        while !follower.follow().unwrap() {
            told.extend(follower.by_ref().map(|event| (event.slot, event.time_ns)));
            most = most.max(follower.read.order.len());
        }
        told.extend(all(&mut follower));
        assert_each_once(&told, &stage);
        assert_ascending(&told);
        assert!(most <= THREADS * BATCH as usize, "{most} events wait");
    }
}

#[test]
fn a_file_that_is_cut_short_or_damaged_is_no_harm() {
    let mut stage = Stage::new();
    (0..100).for_each(|step| stage.step(step % THREADS, true));
    let mut follower = stage.follower(PORTION, HELD);
    follower.follow().unwrap();
    stage.file.file.set_len(HEADER_SIZE as u64 + 100).unwrap();
    assert!(follower.follow().unwrap());
    stage.file.claim(u64::MAX);
    assert!(follower.follow().unwrap());
    stage.file.file.set_len(100).unwrap();
    assert!(follower.follow().is_err());
}
