//! Exceptions of PyTorch's C++ library, for an allocator that has no memory.
//!
//! PyTorch's allocator throws `c10::OutOfMemoryError`, which Python sees as `torch.OutOfMemoryError`. The same object
//! is made here by exported functions: libstdc++ makes the string, `c10::Error` constructs itself, and the table of
//! virtual functions of `c10::OutOfMemoryError` makes it one. If a PyTorch lacks one of these names,
//! `c10::detail::torchCheckFail` throws a `c10::Error`, which Python sees as a `RuntimeError`.
//!
//! Nothing is thrown here. An exception must not pass through a frame of Rust, so the caller leaves all such frames
//! first and then jumps to `Thrown::function`.
//!
//! Source: the headers of PyTorch 2.12 (`c10/util/Exception.h`), the Itanium C++ ABI (exceptions, layout of virtual
//! tables), and `nm -D` of libc10 and libc10_cuda.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_void};
use std::mem::{MaybeUninit, transmute};
use std::ptr;

use super::symbols;

/// A function that throws, with its arguments. If `function` is null, nothing is to be thrown.
#[repr(C)]
pub struct Thrown {
    pub function: *mut c_void,
    arguments: [usize; 4],
}

impl Thrown {
    pub const NOTHING: Thrown = Thrown {
        function: ptr::null_mut(),
        arguments: [0; 4],
    };
}

/// The library that has the names. `dlsym` also searches the libraries that this one needs: libc10 and libstdc++.
const LIBRARY: &CStr = c"libc10_cuda.so";

/// More bytes than any version of `c10::OutOfMemoryError` has (2.12: about 150).
const EXCEPTION_BYTES: usize = 1024;

/// libstdc++'s `std::string` with the C++11 ABI.
#[repr(C, align(8))]
struct CxxString(MaybeUninit<[u8; 32]>);

/// `c10::SourceLocation`
#[repr(C)]
struct SourceLocation {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

type AllocateException = unsafe extern "C" fn(usize) -> *mut c_void;
type ConstructString = unsafe extern "C" fn(*mut CxxString, *const c_char, *const u8);
type DestroyString = unsafe extern "C" fn(*mut CxxString);
type ConstructError = unsafe extern "C" fn(*mut c_void, SourceLocation, *mut CxxString);

fn find(name: &CStr) -> Option<*mut c_void> {
    symbols::in_loaded_library(LIBRARY, name)
}

/// The call that throws a new `c10::OutOfMemoryError` with this message; `None` if a name is missing.
fn thrown_out_of_memory(message: &CStr) -> Option<Thrown> {
    let (throw, type_info) = (find(c"__cxa_throw")?, find(c"_ZTIN3c1016OutOfMemoryErrorE")?);
    // As the ABI lays it out: offset to the top, type information, destructor, ...
    let virtual_table: *const [*mut c_void; 3] = find(c"_ZTVN3c1016OutOfMemoryErrorE")?.cast();
    let mut text = CxxString(MaybeUninit::uninit());
    let place = SourceLocation {
        function: c"vramshim_torch_alloc".as_ptr(),
        file: c"libvramshim".as_ptr(),
        line: 0,
    };
    // SAFETY: the functions of these names have these signatures; the names encode most of each. They get what their C++
    // declarations name. The third argument of the string's constructor is an allocator, an empty object that is not read.
    // The object is larger than the error, and it becomes an error of the derived class, which adds no fields, by that
    // class's virtual table.
    unsafe {
        let allocate_exception = transmute::<*mut c_void, AllocateException>(find(c"__cxa_allocate_exception")?);
        let construct_string = transmute::<*mut c_void, ConstructString>(find(
            c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEC1EPKcRKS3_",
        )?);
        let destroy_string = transmute::<*mut c_void, DestroyString>(find(
            c"_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEED1Ev",
        )?);
        let construct_error = transmute::<*mut c_void, ConstructError>(find(
            c"_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
        )?);
        let object = allocate_exception(EXCEPTION_BYTES);
        construct_string(&mut text, message.as_ptr(), &0);
        construct_error(object, place, &mut text);
        destroy_string(&mut text);
        *object.cast() = (&raw const (*virtual_table)[2]);
        let destroy = (*virtual_table)[2];
        Some(Thrown {
            function: throw,
            arguments: [object as usize, type_info as usize, destroy as usize, 0],
        })
    }
}

/// What throws `torch.OutOfMemoryError`, or at least a `RuntimeError`, with this message. Throws nothing if PyTorch
/// is not loaded.
pub fn out_of_memory_error(message: &CStr) -> Thrown {
    thrown_out_of_memory(message).unwrap_or_else(|| runtime_error(message))
}

/// What throws a `RuntimeError` with this message. Throws nothing if PyTorch is not loaded.
pub fn runtime_error(message: &CStr) -> Thrown {
    const MOST_BYTES: usize = 2048;
    thread_local! {
        /// The message must outlive this call, because the function that throws copies it.
        static MESSAGE: UnsafeCell<[u8; MOST_BYTES]> = const { UnsafeCell::new([0; MOST_BYTES]) };
    }
    let Some(function) = find(c"_ZN3c106detail14torchCheckFailEPKcS2_jS2_") else {
        return Thrown::NOTHING;
    };
    let text = MESSAGE.with(|buffer| {
        let bytes = message.to_bytes();
        let length = bytes.len().min(MOST_BYTES - 1);
        // SAFETY: only this thread has the buffer, and no reference to it is kept. `length` leaves room for the NUL.
        unsafe {
            let buffer = buffer.get().cast::<u8>();
            ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, length);
            *buffer.add(length) = 0;
            buffer
        }
    });
    let (name, file) = (c"vramshim_torch_alloc".as_ptr(), c"libvramshim".as_ptr());
    Thrown {
        function,
        arguments: [name as usize, file as usize, 0, text as usize],
    }
}
