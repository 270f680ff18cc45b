//! A block that stays keeps little memory besides its own: it neither holds a large handle back from the next layer, nor
//! takes the place of a large request.

use std::cell::RefCell;

use base::cuda::DriverError;
use policy::{Policy, Request, Settings, Strategy as Kind, UsedBy};
use prices::Prices;
use program::replay::device::ModelDevice;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A job that uses one stream, as most jobs of PyTorch do.
pub struct Job {
    pub device: ModelDevice,
    pub policy: RefCell<Box<Policy>>,
}

impl Job {
    pub fn with_memory(bytes: u64) -> Self {
        Job::new(bytes, &Settings::default())
    }

    pub fn new(bytes: u64, settings: &Settings) -> Self {
        let policy = Kind::AutoGrowth.create(settings);
        Job {
            device: ModelDevice::new(bytes, Prices::default(), 0),
            policy: RefCell::new(policy.expect("a policy")),
        }
    }

    fn ask_once(&self, bytes: u64) -> Result<u64, DriverError> {
        let request = Request::new(bytes)?.on(Some(1));
        policy::serve(&self.policy, &self.device, request, |_| ()).map(|block| block.address)
    }

    /// Idle memory goes back before the job runs out of memory.
    fn ask(&self, bytes: u64) -> Result<u64, DriverError> {
        self.ask_once(bytes).or_else(|_| {
            self.release();
            self.ask_once(bytes)
        })
    }

    pub fn block(&self, bytes: u64) -> u64 {
        let block = self.ask(bytes);
        block.unwrap_or_else(|_| panic!("{} MiB, reserved {}", bytes / MIB, self.reserved() / MIB))
    }

    fn free(&self, blocks: impl IntoIterator<Item = u64>) {
        for block in blocks {
            policy::free(&self.policy, &self.device, block, UsedBy::Streams(&[1])).expect("a live block");
        }
    }

    /// As `empty_cache`.
    fn release(&self) {
        self.give_back(u64::MAX);
    }

    fn give_back(&self, wanted: u64) -> u64 {
        let ticket = self.policy.borrow_mut().begin_wait();
        if let Some(ticket) = ticket {
            self.policy.borrow_mut().end_wait(ticket);
        }
        policy::release_idle(&self.policy, &self.device, wanted)
    }

    pub fn reserved(&self) -> u64 {
        self.policy.borrow().statistics().reserved
    }
}

/// A batch-size finder: a step that is too large runs out of memory, and what it allocated is freed but for a workspace of
/// the library behind it. The next smaller step must find all other memory.
#[test]
fn a_workspace_that_stays_after_a_large_step_holds_nothing_else_back() {
    let (weight, bias, workspace) = (256 * MIB, 64 * KIB, 32 * MIB);
    let sizes = |batch: u64| (batch * 16 * KIB, batch * 64 * KIB);
    for too_large in [65_536, 61_234, 58_982] {
        let job = Job::with_memory(8 * GIB);
        let (input, output) = sizes(too_large);
        let step = [weight, bias, input, output].map(|bytes| job.block(bytes));
        job.block(workspace);
        assert_eq!(job.ask(output), Err(DriverError::OUT_OF_MEMORY));
        job.free(step);
        job.release();
        assert!(job.reserved() <= workspace + 4 * MIB, "{} MiB", job.reserved() / MIB);
        let (input, output) = sizes(53_083);
        for bytes in [weight, bias, input, output, output] {
            job.block(bytes);
        }
    }
}

/// What has gone back must be obtained again, so no more goes than a request needs.
#[test]
fn idle_handles_go_back_as_far_as_they_are_wanted() {
    let job = Job::with_memory(8 * GIB);
    let sizes = [500, 40, 300, 700, 60, 20].map(|mib| mib * MIB);
    job.free(sizes.map(|bytes| job.block(bytes)));
    let before = job.reserved();
    for (wanted, goes) in [(30, 40), (600, 700), (810, 500 + 300 + 20), (1, 60), (1, 0)] {
        assert_eq!(job.give_back(wanted * MIB), goes * MIB, "{wanted} MiB are wanted");
    }
    assert_eq!(job.reserved(), before - sizes.iter().sum::<u64>());
}

#[test]
fn a_block_that_stays_between_large_ones_keeps_little_memory() {
    for kept in [4, 64 * KIB, MIB, 8 * MIB, 32 * MIB] {
        for large in [300 * MIB, GIB + 5 * KIB, 3 * GIB - KIB] {
            let job = Job::with_memory(16 * GIB);
            let before = job.block(GIB + 3 * KIB);
            let first = job.block(large);
            job.block(kept);
            let second = job.block(large);
            job.free([before, first, second]);
            job.release();
            let most = kept + 16 * GIB / 64;
            assert!(job.reserved() <= most, "{kept} after {large}: {}", job.reserved() / MIB);
        }
    }
}

/// The loss that a job keeps of each step.
#[test]
fn small_blocks_that_stay_leave_free_memory_whole() {
    let job = Job::with_memory(8 * GIB);
    let large = 5 * GIB;
    job.free([job.block(large)]);
    let reserved = job.reserved();
    for _ in 0..8 {
        for _ in 0..100 {
            job.block(4);
        }
        job.block(MIB);
        job.free([job.block(large)]);
        assert!(job.reserved() <= reserved + 16 * MIB, "{} MiB", job.reserved() / MIB);
    }
    job.release();
    assert!(job.reserved() <= 16 * MIB, "{} MiB", job.reserved() / MIB);
}

#[test]
fn small_requests_get_every_byte_before_the_job_runs_out_of_memory() {
    let job = Job::with_memory(8 * GIB);
    job.free([job.block(7 * GIB)]);
    let taken = (0..).take_while(|_| job.ask(MIB).is_ok()).count() as u64;
    assert!(taken >= 8 * KIB - 2, "{taken} MiB");
}
