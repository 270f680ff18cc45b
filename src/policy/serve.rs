//! How a policy is served: it decides while it is locked, its work is carried out while it is not, and it learns what the
//! work achieved.

use std::cell::RefCell;
use std::sync::{Mutex, MutexGuard};

use base::cuda::DriverError;
use base::sync::lock;

use crate::device_memory::DeviceMemory;
use crate::policy::{Block, Decision, Policy, UsedBy};
use crate::request::Request;
use crate::work::Work;

/// Has a policy, and says who may use it when.
pub trait Holder {
    /// Runs `step` with the policy, while nobody else uses it. Calls of the driver must not be made in `step`. An error
    /// if there is no policy any more.
    fn with_policy<T>(&self, step: impl FnOnce(&mut dyn Policy) -> Result<T, DriverError>) -> Result<T, DriverError>;

    /// Until the result is dropped, only the caller makes this policy grow. Others use the policy meanwhile.
    fn growing(&self) -> Option<MutexGuard<'_, ()>>;
}

/// A policy that threads share.
pub struct Shared {
    policy: Mutex<Option<Box<dyn Policy>>>,
    growing: Mutex<()>,
}

impl Shared {
    pub fn new(policy: Option<Box<dyn Policy>>) -> Self {
        Shared {
            policy: Mutex::new(policy),
            growing: Mutex::default(),
        }
    }

    /// The policy; `None` while its context is gone.
    pub fn policy(&self) -> &Mutex<Option<Box<dyn Policy>>> {
        &self.policy
    }
}

impl Holder for Shared {
    fn with_policy<T>(&self, step: impl FnOnce(&mut dyn Policy) -> Result<T, DriverError>) -> Result<T, DriverError> {
        let mut policy = lock(&self.policy);
        step(policy.as_deref_mut().ok_or(DriverError::INVALID_CONTEXT)?)
    }

    fn growing(&self) -> Option<MutexGuard<'_, ()>> {
        Some(lock(&self.growing))
    }
}

/// A policy that one thread uses.
impl Holder for RefCell<Box<dyn Policy>> {
    fn with_policy<T>(&self, step: impl FnOnce(&mut dyn Policy) -> Result<T, DriverError>) -> Result<T, DriverError> {
        step(self.borrow_mut().as_mut())
    }

    fn growing(&self) -> Option<MutexGuard<'_, ()>> {
        None
    }
}

/// A block for the request. `got` is called with it before anybody else can use the policy.
///
/// Waits for nothing. If the answer is out of memory, the caller waits, gives idle memory back, and tries once more.
pub fn serve(
    holder: &impl Holder,
    memory: &dyn DeviceMemory,
    mut request: Request,
    got: impl Fn(&Block),
) -> Result<Block, DriverError> {
    let mut growing = None;
    let mut done: Option<Work> = None;
    loop {
        let (decided, due) = holder.with_policy(|policy| {
            // One step, so that nobody else takes the memory that the work has obtained.
            let committed = done.take().map_or(Ok(()), |work| policy.commit(work));
            let decided = committed.and_then(|()| policy.decide(&mut request));
            if let Ok(Decision::Block(block)) = &decided {
                got(block);
            }
            let is_last = matches!(decided, Ok(Decision::Block(_)) | Err(_));
            Ok((decided, is_last.then(|| policy.next_work(false)).flatten()))
        })?;
        let answer = match decided {
            Ok(Decision::First(mut work)) => {
                work.carry_out(memory);
                done = Some(work);
                continue;
            }
            Ok(Decision::Grow) => {
                growing = holder.growing();
                request.may_grow = true;
                continue;
            }
            Ok(Decision::Block(block)) => Ok(block),
            Err(problem) => Err(problem),
        };
        drop(growing);
        work_off(holder, memory, due, false);
        return answer;
    }
}

/// Frees the live block that begins at `address`.
pub fn free(holder: &impl Holder, memory: &dyn DeviceMemory, address: u64, used_by: UsedBy) -> Option<Block> {
    let may_wait = used_by == UsedBy::Nothing;
    let freed = holder.with_policy(|policy| Ok((policy.free(address, used_by), policy.next_work(may_wait))));
    let (block, due) = freed.ok()?;
    work_off(holder, memory, due, may_wait);
    block
}

/// Does the work that is due, and all that becomes due meanwhile. `due` is the first of it.
pub fn work_off(holder: &impl Holder, memory: &dyn DeviceMemory, mut due: Option<Work>, may_wait: bool) {
    while let Some(mut work) = due {
        work.carry_out(memory);
        // No request depends on this work. If the context is gone meanwhile, nothing is left to do.
        let committed = holder.with_policy(|policy| {
            let _ = policy.commit(work);
            Ok(policy.next_work(may_wait))
        });
        due = committed.ok().flatten();
    }
}

/// Gives clean memory without a live block back; returns bytes. May wait for the GPU.
pub fn release_idle(holder: &impl Holder, memory: &dyn DeviceMemory) -> u64 {
    let works = holder.with_policy(|policy| Ok(policy.release_idle()));
    let mut given_back = 0;
    for mut work in works.unwrap_or_default() {
        work.carry_out(memory);
        given_back += work.given_back();
        let _ = holder.with_policy(|policy| policy.commit(work));
    }
    given_back
}
