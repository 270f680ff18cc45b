//! The next function of a name, behind this library in the loader's order: that of glibc or of another allocator. `anywhere`
//! looks in front of this library too.
//!
//! `dlsym` finds it at the first call. In glibc before 2.34 `dlsym` itself may ask for memory, for the place of its error
//! message. It then does without if it gets none ("We are out of memory ... we carry on", `_dlerror_run` in
//! dlfcn/dlerror.c). So a thread that is looking gets none.

use std::cell::Cell;
use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

thread_local! {
    // Constant and without a destructor, so it needs no memory.
    static LOOKS: Cell<bool> = const { Cell::new(false) };
}

pub struct Next {
    name: &'static CStr,
    in_front_too: bool,
    /// 0 as long as it is not known. The function never changes, so all threads store the same.
    found: AtomicUsize,
}

impl Next {
    pub const fn behind_us(name: &'static CStr) -> Next {
        Next {
            name,
            in_front_too: false,
            found: AtomicUsize::new(0),
        }
    }

    /// The first function of the name, wherever it is.
    pub const fn anywhere(name: &'static CStr) -> Next {
        Next {
            in_front_too: true,
            ..Next::behind_us(name)
        }
    }

    pub fn name(&self) -> &'static CStr {
        self.name
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
        if LOOKS.replace(true) {
            return None;
        }
        let place = if self.in_front_too {
            libc::RTLD_DEFAULT
        } else {
            libc::RTLD_NEXT
        };
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(place, self.name.as_ptr()) } as usize;
        LOOKS.set(false);
        self.found.store(found, Relaxed);
        (found != 0).then_some(found)
    }
}
