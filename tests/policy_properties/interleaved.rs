//! Several threads that use one policy, with all their steps in a random order.
//!
//! Each thread decides, carries out and commits as `policy::serve` does. Between two of its steps any other thread may make
//! any number of steps, because no policy is locked while the driver is called. The threads are simulated, so that a seed
//! repeats a run. No byte is handed out twice or while work may use it, and when all threads are idle, the books agree with
//! the device to the byte.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use base::cuda::DriverError;
use policy::{After, Decision, Policy, Request, Settings, Strategy as Kind, UsedBy, WaitTicket, Work};

use crate::policy_properties::cases::draw;
use crate::policy_properties::model::{Model, TOTAL};
use crate::policy_properties::run::Live;

const THREADS: usize = 4;
const STREAMS: u64 = 2;
const STEPS: usize = 400;

enum Task {
    Idle,
    /// Decide, after the work that was carried out is committed.
    Decide(Request, Option<Work>),
    /// Carry out the work that a request needs.
    Serve(Request, Work),
    /// Carry out these works, one after the other. The first may have been carried out already. The ticket is of a wait
    /// that the thread makes afterwards.
    WorkOff(VecDeque<Work>, bool, Option<(WaitTicket, u64)>),
}

struct Threads {
    model: Model,
    policy: Box<Policy>,
    tasks: [Task; THREADS],
    /// The thread that alone makes the policy grow.
    growing: Option<usize>,
    live: Vec<Live>,
    state: u64,
}

impl Threads {
    fn new(kind: Kind, settings: &Settings, seed: u64) -> Threads {
        Threads {
            model: Model::default(),
            policy: kind.create(settings).expect("a policy"),
            tasks: [const { Task::Idle }; THREADS],
            growing: None,
            live: Vec::new(),
            state: seed,
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        draw(&mut self.state) % end
    }

    /// A thread that is idle begins something.
    fn begin(&mut self) -> Task {
        let is_full = self.live.len() > 40;
        match self.below(20) {
            0..9 if !is_full => {
                let size = match self.below(4) {
                    0 => 1 + self.below(200_000),
                    1 | 2 => 1 + self.below(4 << 20),
                    _ => 1 + self.below(24 << 20),
                };
                let stream = Some(self.below(2 * STREAMS)).filter(|&stream| stream < STREAMS);
                Task::Decide(Live::request(size, stream).expect("a size"), None)
            }
            0..17 if !self.live.is_empty() => self.free(),
            17 => {
                let stream = self.below(STREAMS);
                self.model.stream_ends(stream);
                Task::Idle
            }
            18 if !self.model.capturing.get() => {
                let works = self.policy.release_idle(u64::MAX);
                Task::WorkOff(works.into(), false, None)
            }
            _ => {
                let opens = self.below(8) == 0;
                self.model.capturing.set(opens);
                Task::Idle
            }
        }
    }

    fn free(&mut self) -> Task {
        let which = self.below(self.live.len() as u64) as usize;
        let Live { block, stream } = self.live.swap_remove(which);
        let streams: Vec<u64> = stream.into_iter().collect();
        let used_by = match stream {
            Some(_) => UsedBy::Streams(&streams),
            None if self.model.capturing.get() => UsedBy::Unknown,
            None => UsedBy::Awaited,
        };
        self.model.in_use(block.address, block.allocated, used_by);
        let freed = self.policy.free(block.address, used_by).expect("a live block");
        assert_eq!(freed, block);
        let is_awaited = used_by == UsedBy::Awaited;
        let works: VecDeque<Work> = self.policy.next_work(After::free(used_by)).into_iter().collect();
        let wait = is_awaited.then(|| self.policy.begin_wait()).flatten();
        let freed = if wait.is_some() { self.model.wait_begins() } else { 0 };
        Task::WorkOff(works, false, wait.map(|ticket| (ticket, freed)))
    }

    /// The next step of a thread that has something to do.
    fn go_on(&mut self, thread: usize, task: Task) -> Task {
        match task {
            Task::Idle => self.begin(),
            Task::Serve(request, mut work) => {
                work.carry_out(&self.model);
                Task::Decide(request, Some(work))
            }
            Task::Decide(request, done) => self.decide(thread, request, done),
            Task::WorkOff(mut works, false, wait) => match works.front_mut() {
                Some(work) => {
                    // What a free gives back is waited for by the driver.
                    self.model.may_wait.set(true);
                    work.carry_out(&self.model);
                    self.model.may_wait.set(false);
                    Task::WorkOff(works, true, wait)
                }
                None => {
                    if let Some((ticket, freed)) = wait {
                        self.model.wait_ends(freed);
                        self.policy.end_wait(ticket);
                        return Task::WorkOff(self.policy.next_work(After::Free).into_iter().collect(), false, None);
                    }
                    Task::Idle
                }
            },
            Task::WorkOff(mut works, true, wait) => {
                let done = works.pop_front().expect("work that was carried out");
                self.policy.commit(done).expect("no request");
                works.extend(self.policy.next_work(After::Free));
                Task::WorkOff(works, false, wait)
            }
        }
    }

    fn decide(&mut self, thread: usize, mut request: Request, done: Option<Work>) -> Task {
        request = request.during_capture(self.model.capturing.get());
        let committed = done.map_or(Ok(()), |work| self.policy.commit(work));
        let answer = match committed.and_then(|()| self.policy.decide(&mut request)) {
            Ok(Decision::First(work)) => return Task::Serve(request, work),
            Ok(Decision::Grow) => {
                if self.growing.is_none() {
                    self.growing = Some(thread);
                    request.may_grow = true;
                }
                return Task::Decide(request, None);
            }
            Ok(Decision::Block(block)) => Ok(block),
            Err(problem) => Err(problem),
        };
        if self.growing == Some(thread) {
            self.growing = None;
        }
        match answer {
            Ok(block) => {
                self.model.assert_usable(&block, &request);
                let stream = request.stream;
                self.live.push(Live { block, stream });
            }
            Err(problem) => assert!([DriverError::OUT_OF_MEMORY, DriverError(700)].contains(&problem)),
        }
        Task::WorkOff(self.policy.next_work(After::Request).into_iter().collect(), false, None)
    }

    fn check(&self) {
        let ranges = self.live.iter().map(|live| (live.block.address, live.block.allocated));
        self.model.assert_apart(ranges);
        let statistics = self.policy.statistics();
        let allocated: u64 = self.live.iter().map(|live| live.block.allocated).sum();
        assert_eq!(statistics.allocated, allocated);
        assert_eq!(statistics.live_blocks, self.live.len());
        let outside = TOTAL - self.model.outstanding();
        assert!(statistics.free + outside <= TOTAL, "more free memory than there is");
        for live in &self.live {
            let found = self.policy.find(live.block.address + live.block.allocated / 2);
            assert_eq!(found, Some(live.block));
            assert!(self.policy.owns(live.block.address));
        }
        if self.tasks.iter().all(|task| matches!(task, Task::Idle)) {
            assert_eq!(statistics.reserved, self.model.outstanding(), "reserved");
            assert_eq!(statistics.free, statistics.reserved - statistics.allocated, "free");
        }
    }

    fn step(&mut self, thread: usize) {
        let task = std::mem::replace(&mut self.tasks[thread], Task::Idle);
        self.tasks[thread] = self.go_on(thread, task);
        self.check();
    }

    /// Lets all threads end what they do, in a random order.
    fn finish(&mut self) {
        loop {
            let is_busy = |thread: &usize| !matches!(self.tasks[*thread], Task::Idle);
            let busy: Vec<usize> = (0..THREADS).filter(is_busy).collect();
            if busy.is_empty() {
                return self.check();
            }
            let next = self.below(busy.len() as u64) as usize;
            self.step(busy[next]);
        }
    }

    fn end(mut self) {
        self.finish();
        self.model.capturing.set(false);
        self.model.fault_at.set(0);
        while !self.live.is_empty() {
            self.tasks[0] = self.free();
            self.finish();
        }
        let ticket = self.policy.begin_wait();
        self.model.wait_ends(self.model.wait_begins());
        ticket.into_iter().for_each(|ticket| self.policy.end_wait(ticket));
        let mut works: VecDeque<Work> = self.policy.next_work(After::Free).into_iter().collect();
        works.extend(self.policy.release_idle(u64::MAX));
        self.tasks[0] = Task::WorkOff(works, false, None);
        self.finish();
        assert_eq!(self.model.outstanding(), 0, "every byte goes back");
        assert_eq!(self.policy.statistics().reserved, 0);
        assert!(self.model.events_kept() < 64, "events are forgotten");
    }
}

/// Returns how many calls of the driver were made. The call with the number `fault_at` fails; none if it is 0.
fn play(kind: Kind, settings: &Settings, seed: u64, fault_at: u64) -> u64 {
    let mut threads = Threads::new(kind, settings, seed);
    threads.model.virtual_memory.set(seed.is_multiple_of(2));
    threads.model.context_events.set(!seed.is_multiple_of(3));
    threads.model.fault_at.set(fault_at);
    for _ in 0..STEPS {
        let thread = threads.below(THREADS as u64) as usize;
        threads.step(thread);
    }
    let calls = threads.model.calls.get();
    threads.end();
    calls
}

fn settings(seed: u64) -> Settings {
    let mut state = seed;
    let mut mebibytes = |end: u64| (draw(&mut state) % end) << 20;
    Settings {
        initial_bytes: mebibytes(24),
        reallocate_bytes: mebibytes(8),
        chunk_bytes: mebibytes(8),
        free_idle_chunk: seed.is_multiple_of(2),
        free_when_no_cache_hit: seed.is_multiple_of(5),
        fraction: Some(0.3),
        ..Settings::default()
    }
}

/// `VRAMSHIM_TEST_SEED` repeats a run.
#[test]
fn threads_that_decide_and_commit_in_any_order() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    let given = std::env::var("VRAMSHIM_TEST_SEED").ok();
    let first = given
        .as_ref()
        .map_or(u64::from(now.subsec_nanos()), |seed| seed.parse().expect("a number"));
    let seeds = first..first + if given.is_some() { 1 } else { 24 };
    for seed in seeds {
        for kind in crate::policy_properties::policies() {
            println!("VRAMSHIM_TEST_SEED={seed} ({kind:?})");
            let calls = play(kind, &settings(seed), seed, 0);
            for fault_at in (1..=calls).step_by(7) {
                play(kind, &settings(seed), seed, fault_at);
            }
        }
    }
}
