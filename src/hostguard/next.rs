//! The next function of a name, behind this library in the loader's order: that of glibc or of another allocator.
//!
//! `dlsym` finds it at the first call. In glibc before 2.34 `dlsym` itself may ask for memory, for the place of its error
//! message. It then does without if it gets none ("We are out of memory ... we carry on", `_dlerror_run` in
//! dlfcn/dlerror.c). So a thread that is looking gets none.

use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use base::identity::thread_id;

/// The threads that are looking, each at the place that its id has here. A variable of each thread would do, but the loader
/// finds that by `__tls_get_addr`, which ThreadSanitizer replaces before it can serve it.
static LOOKING: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// The mark of a thread that looks. If another thread takes its place meanwhile, the thread may look once more inside its own
/// look, and finds the same.
struct Look {
    place: &'static AtomicU64,
    thread: u64,
}

impl Look {
    /// `None` if this thread is looking already.
    fn begin() -> Option<Look> {
        // With the process: what a thread of the parent left in a forked child is not this thread's.
        let thread = u64::from(std::process::id()) << 32 | u64::from(thread_id());
        let place = &LOOKING[thread as usize % LOOKING.len()];
        (place.swap(thread, Relaxed) != thread).then(|| Look { place, thread })
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        let _ = self.place.compare_exchange(self.thread, 0, Relaxed, Relaxed);
    }
}

pub struct Next {
    pub name: &'static CStr,
    /// Whether the first function of the name is meant, wherever it is, and not the first one behind this library.
    in_front_too: bool,
    /// 0 as long as it is not known. The function never changes, so all threads store the same.
    found: AtomicUsize,
}

impl Next {
    pub const fn new(name: &'static CStr, in_front_too: bool) -> Next {
        Next {
            name,
            in_front_too,
            found: AtomicUsize::new(0),
        }
    }

    /// The function's address; `None` while this thread looks for one.
    #[inline(always)]
    pub fn address(&self) -> Option<usize> {
        match self.found.load(Relaxed) {
            0 => self.look(),
            found => Some(found),
        }
    }

    #[cold]
    fn look(&self) -> Option<usize> {
        let _look = Look::begin()?;
        let place = if self.in_front_too {
            libc::RTLD_DEFAULT
        } else {
            libc::RTLD_NEXT
        };
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(place, self.name.as_ptr()) } as usize;
        self.found.store(found, Relaxed);
        (found != 0).then_some(found)
    }
}
