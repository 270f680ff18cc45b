//! The native frames of the calling thread.
//!
//! From one frame the next is found by a *step*: where the caller's frame begins, and where the callee kept the frame
//! pointer. `unwind` makes the step for a place in the code from the unwind tables that compilers write for exceptions;
//! it is kept with the frame's number, so a place costs this once. Code without such tables is stepped by its frame
//! pointer. Memory is read only between the stack pointer and the end of the thread's stack, so wrong tables or code
//! without frame pointers give wrong frames at worst, which end the walk.
//!
//! If a library is unloaded and another is loaded at its addresses, what is kept does not match: each place is kept
//! with a stamp of the object that it is in.

use std::cell::Cell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;

use super::intern::Interned;
use super::unwind;
use crate::next::elf;
use crate::next::symbols;
use journal::format::NoStack;

/// How many frames of the library itself lie above the job's at most.
const OUR_FRAMES: usize = 40;

/// The registers of a frame that the walk needs.
#[derive(Clone, Copy)]
struct Registers {
    code: usize,
    stack: usize,
    frame: usize,
}

/// The addresses of the calling thread's stack; `None` if they are not known.
#[derive(Clone, Copy)]
struct Bounds {
    low: usize,
    high: usize,
}

thread_local! {
    // Constant and without a destructor, so that it may be used at any moment of a thread's life.
    static BOUNDS: Cell<Option<Bounds>> = const { Cell::new(None) };
}

impl Bounds {
    fn of_this_thread() -> Option<Bounds> {
        if let Some(known) = BOUNDS.get() {
            return Some(known);
        }
        let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
        let (mut low, mut size) = (std::ptr::null_mut::<c_void>(), 0);
        // SAFETY: the attributes are filled before they are read, and destroyed afterwards.
        unsafe {
            if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
                return None;
            }
            let got = libc::pthread_attr_getstack(attributes.as_ptr(), &mut low, &mut size);
            libc::pthread_attr_destroy(attributes.as_mut_ptr());
            if got != 0 {
                return None;
            }
        }
        let bounds = Bounds {
            low: low as usize,
            high: low as usize + size,
        };
        BOUNDS.set(Some(bounds));
        Some(bounds)
    }

    /// The word of the stack at `address`, if it lies between `from` and the end of the stack.
    fn word(&self, from: usize, address: usize) -> Option<usize> {
        let inside = address >= from && address.is_multiple_of(8) && address.checked_add(8)? <= self.high;
        // SAFETY: a thread's stack is readable from its stack pointer to its end.
        inside.then(|| unsafe { *(address as *const usize) })
    }
}

/// The registers of this function's caller.
#[inline(always)]
fn here() -> Registers {
    let (code, stack, frame): (usize, usize, usize);
    // SAFETY: the instructions read registers only.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(
            "lea {code}, [rip]", "mov {stack}, rsp", "mov {frame}, rbp",
            code = out(reg) code, stack = out(reg) stack, frame = out(reg) frame,
            options(nomem, nostack, preserves_flags)
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!(
            "adr {code}, .", "mov {stack}, sp", "mov {frame}, x29",
            code = out(reg) code, stack = out(reg) stack, frame = out(reg) frame,
            options(nomem, nostack, preserves_flags)
        );
    }
    Registers { code, stack, frame }
}

/// The registers of the caller of the frame in `registers`.
fn step(step: unwind::Step, registers: Registers, bounds: &Bounds) -> Option<Registers> {
    let (from, words, saved) = match step {
        unwind::Step::Last => return None,
        // The frame pointer points to the caller's, and the return address lies behind it.
        unwind::Step::FramePointer => {
            let frame = registers.frame;
            return Some(Registers {
                code: bounds.word(registers.stack, frame.checked_add(8)?)?,
                stack: frame + 16,
                frame: bounds.word(registers.stack, frame)?,
            });
        }
        unwind::Step::FromStack { words, saved } => (registers.stack, words, saved),
        unwind::Step::FromFrame { words, saved } => (registers.frame, words, saved),
    };
    let base = from.checked_add(8 * words as usize)?;
    if base <= registers.stack {
        return None;
    }
    Some(Registers {
        code: bounds.word(registers.stack, base - 8)?,
        stack: base,
        frame: match saved {
            0 => registers.frame,
            words => bounds.word(registers.stack, base.checked_sub(8 * words as usize)?)?,
        },
    })
}

/// The number of the frame at `place`, and the step to its caller; the number is 0 for a frame of the library itself.
#[inline]
fn frame(interned: &Interned, place: usize, stamp: u64) -> Result<(u32, unwind::Step), NoStack> {
    let (number, step) = interned.place([place as u64, stamp], |describe| {
        let object = elf::object_of(place as *const c_void).ok_or(NoStack::NoFrame)?;
        let step = unwind::step_at(&object, place);
        if object.is_ours() {
            return Ok((0, step.pack()));
        }
        let module = interned.module([object.base as u64, stamp], |line| {
            let program = std::fs::read_link("/proc/self/exe").unwrap_or_default();
            let path = match object.path().to_bytes() {
                [] => program.as_os_str().as_bytes(),
                path => path,
            };
            let build_id: String = object.build_id().iter().map(|byte| format!("{byte:02x}")).collect();
            line.field(path).field(build_id.as_bytes())
        })?;
        let offset = format!("{:x}", place.wrapping_sub(object.base));
        let number = describe(&[module.to_string().as_bytes(), offset.as_bytes()])?;
        Ok((number, step.pack()))
    })?;
    Ok((number, unwind::Step::unpack(step)))
}

/// Writes the numbers of the calling thread's frames to `out`, innermost first, and returns how many there are. Frames
/// of the library are left out. The walk ends before the first frame that `ends` accepts.
#[inline(never)]
pub fn frames(interned: &Interned, out: &mut [u32], ends: impl Fn(usize) -> bool) -> Result<usize, NoStack> {
    let mut registers = here();
    let bounds = Bounds::of_this_thread().ok_or(NoStack::Failed)?;
    // Code of a coroutine runs on a stack that is not the thread's.
    if !(bounds.low..bounds.high).contains(&registers.stack) {
        return Err(NoStack::NoFrame);
    }
    let by_generation = match elf::stamp(registers.code as *const c_void) {
        Some(_) => None,
        // In a forked child the lock of the loader's list may be held for ever.
        None if symbols::in_forked_child() => return Err(NoStack::Failed),
        None => Some(elf::generation() | 1),
    };
    let mut count = 0;
    for depth in 0..out.len() + OUR_FRAMES {
        // A return address can be that of the next function, if the call is the last instruction of its function.
        let place = registers.code - usize::from(depth > 0);
        let stamp = by_generation
            .or_else(|| elf::stamp(place as *const c_void))
            .unwrap_or(0);
        if stamp == 0 || count == out.len() || ends(place) {
            break;
        }
        let (number, next) = match frame(interned, place, stamp) {
            Ok(found) => found,
            Err(NoStack::NoFrame) => break,
            Err(reason) => return Err(reason),
        };
        if number != 0 {
            out[count] = number;
            count += 1;
        }
        match step(next, registers, &bounds) {
            Some(caller) if caller.code > 4096 && caller.stack > registers.stack => registers = caller,
            _ => break,
        }
    }
    match count {
        0 => Err(NoStack::NoFrame),
        count => Ok(count),
    }
}
