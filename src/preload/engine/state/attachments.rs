//! How often the job has attached to contexts (`cuCtxAttach`). A context begins with one reference, which is not counted
//! here. `cuCtxDetach` takes one away, and destroys the context with the last one (cuda.h 12.9, deprecated functions).

use std::collections::HashMap;
use std::sync::Mutex;

use base::sync::lock;

#[derive(Default)]
pub struct Attachments(Mutex<HashMap<u64, u64>>);

impl Attachments {
    pub fn attached(&self, context: u64, times: u64) {
        if times > 0 {
            *lock(&self.0).entry(context).or_default() += times;
        }
    }

    /// The job detaches from a context. Returns whether a reference is left.
    pub fn detaches(&self, context: u64) -> bool {
        let mut counts = lock(&self.0);
        let Some(count) = counts.get_mut(&context) else {
            return false;
        };
        *count -= 1;
        if *count == 0 {
            counts.remove(&context);
        }
        true
    }

    /// A context is about to be destroyed, and its handle may name another one right after that. Returns how often the job
    /// had attached to it.
    pub fn context_closes(&self, context: u64) -> u64 {
        lock(&self.0).remove(&context).unwrap_or(0)
    }
}
