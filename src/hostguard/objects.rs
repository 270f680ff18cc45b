//! Which loaded file has an address of code. Nothing here allocates.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::{ptr, slice};

use base::notes::build_id;

/// SHA-1 has 20 bytes, and linkers make no longer ids.
const LONGEST_ID_BYTES: usize = 32;

/// A program or a shared library in this process.
pub struct Object {
    /// What the addresses of its file have become in memory, less these addresses. Of a program that is not
    /// position-independent it is 0.
    pub base: usize,
    /// Empty for the program itself. A C string of the loader's, or null.
    name: *const c_char,
    id: [u8; LONGEST_ID_BYTES],
    id_bytes: usize,
}

impl Object {
    pub fn at(address: usize) -> Option<Object> {
        let mut search: Search = (address, None);
        // SAFETY: the callback gets a pointer to `search`, which lives until the call returns.
        unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
        search.1
    }

    /// Empty if the file has none.
    pub fn build_id(&self) -> &[u8] {
        self.id.get(..self.id_bytes).unwrap_or_default()
    }

    /// The path; of the program, `program` is filled with it.
    pub fn path<'a>(&'a self, program: &'a mut [u8]) -> &'a [u8] {
        // SAFETY: names of loaded objects are C strings that live as long as the object.
        let name = (!self.name.is_null()).then(|| unsafe { CStr::from_ptr(self.name) });
        let name = name.unwrap_or_default();
        if !name.is_empty() {
            return name.to_bytes();
        }
        // SAFETY: the name is a C string, and the buffer is writable for its length.
        let length = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), program.as_mut_ptr().cast(), program.len()) };
        let length = usize::try_from(length).unwrap_or(0);
        program.get(..length).unwrap_or_default()
    }
}

/// An address, and the object that has it once it is found.
type Search = (usize, Option<Object>);

/// Called by dl_iterate_phdr(3) for each loaded object; 1 ends the search.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader gives the description of a loaded object, and `search` is that of `Object::at`.
    let (info, (address, found)) = unsafe { (&*info, &mut *search.cast::<Search>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the object has so many headers, which stay as long as it is loaded.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let base = info.dlpi_addr as usize;
    let place = address.wrapping_sub(base) as u64;
    let is_in = |from: u64, bytes: u64, header: &libc::Elf64_Phdr| {
        header.p_type == libc::PT_LOAD
            && header.p_flags & libc::PF_R != 0
            && from >= header.p_vaddr
            && (from - header.p_vaddr)
                .checked_add(bytes)
                .is_some_and(|end| end <= header.p_memsz)
    };
    if !headers.iter().any(|header| is_in(place, 1, header)) {
        return 0;
    }
    let mut object = Object {
        base,
        name: info.dlpi_name,
        id: [0; LONGEST_ID_BYTES],
        id_bytes: 0,
    };
    for note in headers.iter().filter(|header| header.p_type == libc::PT_NOTE) {
        // Notes that are not loaded cannot be read here.
        if headers.iter().any(|header| is_in(note.p_vaddr, note.p_memsz, header)) {
            // SAFETY: the bytes lie in a readable segment of the object, which stays loaded until dl_iterate_phdr returns.
            let notes = unsafe {
                slice::from_raw_parts(
                    ptr::with_exposed_provenance::<u8>(base.wrapping_add(note.p_vaddr as usize)),
                    note.p_memsz as usize,
                )
            };
            if let Some(id) = build_id(notes)
                && let Some(to) = object.id.get_mut(..id.len())
            {
                to.copy_from_slice(id);
                object.id_bytes = id.len();
            }
        }
    }
    *found = Some(object);
    1
}
