//! What standard error is told of a refused request: the call, its size, and the native stack. Nothing here allocates.
//!
//! A frame is a file, the address in it as its symbol tables have it, the exported function, and the file's build id.
//! `addr2line` names functions and lines from that, after the process is gone and if the file is still the same.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};

use base::cancellation::Uncancelled;
use base::signals::without_signals_of_writes;

use crate::next::Next;
use crate::objects::Object;

/// More frames than this are not told.
const MOST_FRAMES: usize = 40;
/// A longer line is cut.
const LINE_BYTES: usize = 512;

/// A line that is written whole.
struct Line {
    text: [u8; LINE_BYTES],
    length: usize,
}

impl Write for Line {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        // The last byte is for the line feed.
        let room = self.text.get_mut(self.length..LINE_BYTES - 1).unwrap_or_default();
        let taken = more.len().min(room.len());
        for (to, from) in room.iter_mut().zip(more.bytes()) {
            *to = from;
        }
        self.length += taken;
        Ok(())
    }
}

impl Line {
    const EMPTY: Line = Line {
        text: [0; LINE_BYTES],
        length: 0,
    };

    fn end(mut self) {
        if let Some(end) = self.text.get_mut(self.length) {
            *end = b'\n';
        }
        write(self.text.get(..=self.length).unwrap_or(&self.text));
    }
}

fn line(arguments: fmt::Arguments) {
    let mut line = Line::EMPTY;
    let _ = line.write_fmt(arguments);
    line.end();
}

/// Writes to standard error. If the reader of a pipe has ended, or if the file may not grow, the text is lost, and the job gets
/// no signal.
fn write(text: &[u8]) {
    // SAFETY: the text is readable for its length.
    without_signals_of_writes(|| unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) });
}

/// The bound is wrong, so nothing is refused.
#[cold]
pub fn wrong_bound(bound: &CStr, why: fmt::Arguments) {
    let _uncancelled = Uncancelled::begin();
    line(format_args!(
        "vramshim host guard: VRAMSHIM_HOST_GUARD={bound:?} is {why}, so no request is refused; give a size such as 256GiB"
    ));
}

/// Whether the thread runs on the alternate stack of a signal handler. It may have as little as 2 KiB (`MINSIGSTKSZ`), and
/// the unwinder takes more.
fn is_on_alternate_stack() -> bool {
    // SAFETY: plain data, which the call writes.
    unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        libc::sigaltstack(std::ptr::null(), &mut stack) == 0 && stack.ss_flags & libc::SS_ONSTACK != 0
    }
}

/// The process that made the first request. Its forked children have a copy of the number, and programs that they become have
/// not.
static FIRST_PROCESS: AtomicI32 = AtomicI32::new(0);

/// This process makes its first request.
pub fn process_begins() {
    // SAFETY: the call takes nothing.
    FIRST_PROCESS.store(unsafe { libc::getpid() }, Relaxed);
}

/// `call` was asked for `size` bytes, with a bound of `bound` bytes; `None` if the product does not fit into a number. The
/// journal gets each request of a process, and standard error the first, second, fourth ...
#[cold]
pub fn refused(call: &'static CStr, size: Option<usize>, bound: usize) {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // malloc(3) is no cancellation point, and write(2) is one.
    let _uncancelled = Uncancelled::begin();
    // SAFETY: the address of the calling thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    tell_library(call, size.unwrap_or(usize::MAX), bound);
    let count = COUNT.fetch_add(1, Relaxed).wrapping_add(1);
    if count.is_power_of_two() {
        tell(call.to_str().unwrap_or_default(), size, bound, count);
    }
    // SAFETY: as above. posix_memalign(3) leaves errno alone.
    unsafe { *errno = before };
}

/// Tells `libvramshim.so`, if that library is in the process too: its journal gets each refusal.
fn tell_library(call: &CStr, size: usize, bound: usize) {
    static REFUSED: Next = Next::new(c"vramshim_host_refused", true);
    /// The function was looked for, and `libvramshim.so` is not in the process.
    static IS_ABSENT: AtomicBool = AtomicBool::new(false);
    if IS_ABSENT.load(Relaxed) {
        return;
    }
    let Some(refused) = REFUSED.address() else {
        return IS_ABSENT.store(true, Relaxed);
    };
    // SAFETY: the address is that of `vramshim_host_refused` of `shim.h`, which has this type. It may be called inside
    // `malloc`, and in a signal handler.
    let refused = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn(*const c_char, u64, u64)>(refused) };
    // SAFETY: the name is a C string.
    unsafe { refused(call.as_ptr(), size as u64, bound as u64) };
}

/// Bytes in the largest unit of which there is at least one, rounded down.
fn in_units(bytes: usize) -> (usize, &'static str) {
    match bytes {
        0..0x10_0000 => (bytes >> 10, "KiB"),
        0x10_0000..0x4000_0000 => (bytes >> 20, "MiB"),
        _ => (bytes >> 30, "GiB"),
    }
}

fn tell(name: &str, size: Option<usize>, bound: usize, count: u64) {
    // SAFETY: neither call takes anything.
    let (process, thread) = unsafe { (libc::getpid(), libc::syscall(libc::SYS_gettid)) };
    let rounded = in_units(size.unwrap_or(0));
    match size {
        Some(size) => line(format_args!(
            "vramshim host guard: {name} of {size} bytes ({} {}) refused (request {count}, process {process}, thread \
             {thread}): VRAMSHIM_HOST_GUARD is {bound} bytes, so the caller gets ENOMEM. Stack:",
            rounded.0, rounded.1
        )),
        None => line(format_args!(
            "vramshim host guard: {name} of more bytes than there are addresses refused (request {count}, process \
             {process}, thread {thread}): the caller gets ENOMEM. Stack:"
        )),
    }
    if is_on_alternate_stack() {
        return line(format_args!("  (not told in a signal handler with a stack of its own)"));
    }
    // Who walks the stack takes a lock of the loader's (dl_iterate_phdr). Any thread of the parent may have held it at the
    // fork, and the child does not have that thread, so the child would wait for ever.
    if process != FIRST_PROCESS.load(Relaxed) {
        return line(format_args!("  (not told in a forked process)"));
    }
    let mut walk = Walk {
        own: Object::at(tell as *const () as usize).map_or(0, |own| own.base),
        told: 0,
    };
    // SAFETY: the function and its argument live until the call returns. The unwinder reads the tables of the loaded
    // objects by dl_iterate_phdr, and keeps its state on the stack (libgcc, unwind.inc).
    unsafe { _Unwind_Backtrace(frame, (&raw mut walk).cast()) };
}

/// `_URC_NO_REASON` and `_URC_END_OF_STACK` of the Itanium C++ ABI, level I.
const GO_ON: c_int = 0;
const STOP: c_int = 5;

/// What the unwinder's calls share.
struct Walk {
    /// The base of this library, whose frames are not told.
    own: usize,
    told: usize,
}

type OnFrame = extern "C" fn(*mut c_void, *mut c_void) -> c_int;

// libgcc_s, which the Rust standard library links.
unsafe extern "C" {
    fn _Unwind_Backtrace(on_frame: OnFrame, argument: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

extern "C" fn frame(context: *mut c_void, argument: *mut c_void) -> c_int {
    // SAFETY: `argument` is the walk of `tell`, which nothing else uses meanwhile, and `context` is the unwinder's.
    let (walk, address) = unsafe { (&mut *argument.cast::<Walk>(), _Unwind_GetIP(context)) };
    if address == 0 || walk.told == MOST_FRAMES {
        return STOP;
    }
    // A return address may be that of the next function.
    let call = address.wrapping_sub(1);
    let object = Object::at(call);
    if object.as_ref().is_some_and(|object| object.base == walk.own) {
        return GO_ON;
    }
    walk.told += 1;
    let Some(object) = object else {
        line(format_args!("  {call:#x}"));
        return GO_ON;
    };
    // SAFETY: `Dl_info` is plain data, valid if all zero; `dladdr` writes it or returns 0.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for.
    let is_found = unsafe { libc::dladdr(call as *const c_void, &mut found) } != 0;
    let mut program = [0; LINE_BYTES / 2];
    let path = object.path(&mut program);
    let path = std::str::from_utf8(path).ok().filter(|path| !path.is_empty());
    // `FILE+OFFSET [BUILD ID] (FUNCTION)`; what is not known is left out. The program reads this (`commands/frames.rs`).
    let mut line = Line::EMPTY;
    let _ = write!(line, "  {}+{:#x}", path.unwrap_or("?"), call.wrapping_sub(object.base));
    if !object.build_id().is_empty() {
        let _ = line.write_str(" [");
        for byte in object.build_id() {
            let _ = write!(line, "{byte:02x}");
        }
        let _ = line.write_str("]");
    }
    // SAFETY: names of symbols are C strings that live as long as the object.
    let function = (is_found && !found.dli_sname.is_null()).then(|| unsafe { CStr::from_ptr(found.dli_sname) });
    // Last, because names in C++ can be longer than a line.
    if let Some(function) = function.and_then(|function| function.to_str().ok()) {
        let _ = write!(line, " ({function})");
    }
    line.end();
    GO_ON
}
