//! How a policy is served: it decides while it is locked, its work is carried out while it is not, and it learns what the
//! work achieved.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use base::cuda::{CudaResult, DriverError};
use base::sync::{BriefMutex, lock};

use crate::device_memory::DeviceMemory;
use crate::holdings::{After, Block, UsedBy};
use crate::policy::{Decision, Policy};
use crate::request::Request;
use crate::under_way::{Ticket, UnderWay};
use crate::work::Work;

/// Has a policy, and says who may use it when.
pub trait Holder {
    /// Runs `step` with the policy, while nobody else uses it. Calls of the driver must not be made in `step`. An error
    /// if there is no policy any more.
    fn with_policy<T>(&self, step: impl FnOnce(&mut Policy) -> CudaResult<T>) -> CudaResult<T>;

    /// Until the result is dropped, only the caller makes this policy grow. Others use the policy meanwhile. An error is
    /// the answer to the request.
    fn growing(&self) -> CudaResult<Growing<'_>>;

    /// Notes which memory is on its way back to the next layer. `None` if only one thread uses the policy.
    fn returns(&self) -> Option<&UnderWay>;
}

/// Only the caller makes a policy grow.
pub type Growing<'a> = Option<MutexGuard<'a, ()>>;

/// Work that is due. The work is boxed, so that an `Option<Due>` is small: most requests and frees have no work.
pub struct Due<'a> {
    pub work: Box<Work>,
    /// What may be done after it.
    then: After,
    /// Work that gives memory back is under way until this is dropped.
    _ticket: Option<Ticket<'a>>,
}

impl<'a> Due<'a> {
    /// Called while the policy is locked, so that the memory is always either the policy's or known to be under way.
    pub fn begun(holder: &'a impl Holder, work: Work, then: After) -> Self {
        let returns = holder.returns().filter(|_| work.gives_back());
        Due {
            then,
            _ticket: returns.map(UnderWay::begin),
            work: Box::new(work),
        }
    }

    /// The work of `policy`, which is that of `holder`, that is due next; see `Policy::next_work`.
    #[inline]
    pub fn next(holder: &'a impl Holder, policy: &mut Policy, after: After) -> Option<Self> {
        let work = policy.next_work(after)?;
        let then = if after == After::Request { after } else { After::Free };
        Some(Due::begun(holder, work, then))
    }
}

/// A policy that threads share.
pub struct Shared {
    /// `None` after `take`.
    pub policy: BriefMutex<Option<Box<Policy>>>,
    growing: Mutex<()>,
    returns: UnderWay,
}

impl Shared {
    pub fn new(policy: Box<Policy>) -> Self {
        Shared {
            policy: BriefMutex::new(Some(policy)),
            growing: Mutex::default(),
            returns: UnderWay::default(),
        }
    }

    /// As `growing`, but waits for nobody who makes the policy grow: the request then fails, to be served elsewhere.
    pub fn growing_at_once(&self) -> CudaResult<Growing<'_>> {
        match self.growing.try_lock() {
            Ok(growing) => Ok(Some(growing)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(Some(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => Err(DriverError::OUT_OF_MEMORY),
        }
    }

    /// Waits until the memory is there that is on its way back to the next layer, but not longer than this. Returns
    /// whether there was any, and all of it is there.
    pub fn wait_for_returns(&self, longest: Duration) -> bool {
        self.returns.wait_at_most(longest)
    }

    /// Takes the policy out, when no work is under way that its books do not know of yet. `None` if it was taken already.
    pub fn take(&self) -> Option<Box<Policy>> {
        let _growing = lock(&self.growing);
        loop {
            let mut policy = self.policy.lock();
            if !self.returns.is_under_way() {
                return policy.take();
            }
            drop(policy);
            self.returns.wait();
        }
    }
}

impl Holder for Shared {
    fn with_policy<T>(&self, step: impl FnOnce(&mut Policy) -> CudaResult<T>) -> CudaResult<T> {
        let mut policy = self.policy.lock();
        step(policy.as_mut().ok_or(DriverError::INVALID_CONTEXT)?)
    }

    fn growing(&self) -> CudaResult<Growing<'_>> {
        Ok(Some(lock(&self.growing)))
    }

    fn returns(&self) -> Option<&UnderWay> {
        Some(&self.returns)
    }
}

/// A policy that one thread uses.
impl Holder for RefCell<Box<Policy>> {
    fn with_policy<T>(&self, step: impl FnOnce(&mut Policy) -> CudaResult<T>) -> CudaResult<T> {
        step(&mut self.borrow_mut())
    }

    fn growing(&self) -> CudaResult<Growing<'_>> {
        Ok(None)
    }

    fn returns(&self) -> Option<&UnderWay> {
        None
    }
}

/// What comes next in a request.
pub enum Step<'a> {
    /// The answer, and work that is due.
    Done(CudaResult<Block>, Option<Due<'a>>),
    First(Due<'a>),
    Grow,
}

/// A block for the request. `got` is called with it before anybody else can use the policy.
///
/// Waits for nothing. If the answer is out of memory, the caller may wait, give idle memory back, and try once more.
pub fn serve(
    holder: &impl Holder,
    memory: &dyn DeviceMemory,
    request: Request,
    got: impl Fn(&Block),
) -> CudaResult<Block> {
    // A capture may have begun since the request was made.
    let mut request = request.during_capture(memory.is_capturing());
    match first_step(holder, &mut request, &got)? {
        Step::Done(answer, None) => answer,
        step => serve_on(holder, memory, request, got, step),
    }
}

/// The first step of `serve`, which needs no memory of the next layer. `serve_on` takes the later ones.
#[inline(always)]
pub fn first_step<'a>(holder: &'a impl Holder, request: &mut Request, got: impl Fn(&Block)) -> CudaResult<Step<'a>> {
    holder.with_policy(|policy| Ok(next_step(holder, policy, request, got)))
}

/// What `policy`, which is that of `holder`, does about the request now.
#[inline(always)]
fn next_step<'a>(
    holder: &'a impl Holder,
    policy: &mut Policy,
    request: &mut Request,
    got: impl Fn(&Block),
) -> Step<'a> {
    match policy.decide(request) {
        Ok(Decision::Block(block)) => {
            got(&block);
            Step::Done(Ok(block), Due::next(holder, policy, After::Request))
        }
        Ok(Decision::First(work)) => Step::First(Due::begun(holder, work, After::Request)),
        Ok(Decision::Grow) => Step::Grow,
        Err(problem) => Step::Done(Err(problem), Due::next(holder, policy, After::Request)),
    }
}

/// As `serve`, for a request whose first step was `step`.
#[cold]
pub fn serve_on<'a>(
    holder: &'a impl Holder,
    memory: &dyn DeviceMemory,
    mut request: Request,
    got: impl Fn(&Block),
    mut step: Step<'a>,
) -> CudaResult<Block> {
    let mut growing = None;
    let (answer, due) = loop {
        let mut done = None;
        match step {
            Step::First(mut due) => {
                due.work.carry_out(memory);
                done = Some(due);
            }
            Step::Grow => {
                growing = holder.growing()?;
                request.may_grow = true;
            }
            Step::Done(answer, due) => break (answer, due),
        }
        request = request.during_capture(memory.is_capturing());
        step = holder.with_policy(|policy| {
            // The policy commits and decides under one lock, so that no other request takes the memory that the work obtained.
            Ok(match done.map_or(Ok(()), |due| policy.commit(*due.work)) {
                Ok(()) => next_step(holder, policy, &mut request, &got),
                Err(problem) => Step::Done(Err(problem), Due::next(holder, policy, After::Request)),
            })
        })?;
    };
    drop(growing);
    work_off(holder, memory, due);
    answer
}

/// Frees the live block that begins at `address`. If it is awaited, the caller begins the wait next.
pub fn free(holder: &impl Holder, memory: &dyn DeviceMemory, address: u64, used_by: UsedBy) -> Option<Block> {
    let freed = holder.with_policy(|policy| {
        let block = policy.free(address, used_by);
        Ok((block, Due::next(holder, policy, After::free(used_by))))
    });
    let (block, due) = freed.ok()?;
    work_off(holder, memory, due);
    block
}

/// Does the work that is due, and all that becomes due meanwhile. `due` is the first of it. Returns how many bytes were
/// given back.
pub fn work_off<'a>(holder: &'a impl Holder, memory: &dyn DeviceMemory, due: Option<Due<'a>>) -> u64 {
    let (mut next, mut given_back) = (due, 0);
    while let Some(mut due) = next {
        due.work.carry_out(memory);
        given_back += due.work.given_back();
        let then = due.then;
        // No request depends on this work. If the context is gone meanwhile, nothing is left to do.
        let committed = holder.with_policy(|policy| {
            let _ = policy.commit(*due.work);
            Ok(Due::next(holder, policy, then))
        });
        next = committed.ok().flatten();
    }
    given_back
}

/// Gives clean memory without a live block back, as far as so many bytes are `wanted`; returns bytes. May wait for the GPU.
pub fn release_idle(holder: &impl Holder, memory: &dyn DeviceMemory, wanted: u64) -> u64 {
    let taken = holder.with_policy(|policy| {
        let works = policy.release_idle(wanted).into_iter();
        Ok(works
            .map(|work| Due::begun(holder, work, After::Free))
            .collect::<Vec<_>>())
    });
    let works = taken.unwrap_or_default().into_iter();
    works.map(|due| work_off(holder, memory, Some(due))).sum()
}
