//! The tables of hooks, in a form that costs nothing at the start of a process.
//!
//! A pointer in a table is a relocation: the loader writes the pointer at the start, into a page that the process then has
//! for itself. Every process that inherits the preload pays for that, though few use CUDA. So a row has distances of 32 bits
//! from itself to the function and to the slot, which the linker fills in. Assembler writes the rows, because Rust has no
//! such constants.

use std::ffi::{CStr, c_void};

use crate::next::{Function, Slot};

/// A row: how far away each is from the field itself, in bytes. A slot of 0 stands for none: a runtime function is found
/// for each caller anew.
#[repr(C)]
pub struct Row {
    ours: i32,
    slot: i32,
}

/// The hooked functions of one library.
#[derive(Clone, Copy)]
pub struct Table {
    /// The names in the order of the rows, each followed by a NUL.
    pub names: &'static str,
    /// The bytes of each name.
    pub lengths: &'static [u8],
    pub rows: &'static [Row],
}

/// One hooked function.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The name and its NUL.
    name: &'static str,
    row: &'static Row,
}

impl Table {
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = Entry> {
        let mut left = self.names;
        self.rows.iter().zip(self.lengths).map_while(move |(row, &length)| {
            let (name, rest) = left.split_at_checked(usize::from(length) + 1)?;
            left = rest;
            Some(Entry { name, row })
        })
    }
}

/// What is so many bytes away from the field that says so.
fn at_distance(field: &'static i32) -> *const c_void {
    std::ptr::from_ref(field)
        .cast::<u8>()
        .wrapping_offset(*field as isize)
        .cast()
}

impl Entry {
    #[inline]
    pub fn name(self) -> &'static str {
        &self.name[..self.name.len() - 1]
    }

    /// Our function of that name.
    #[inline]
    pub fn ours(self) -> *const c_void {
        at_distance(&self.row.ours)
    }

    /// The next layer's function; `None` for a runtime function.
    pub fn next(self) -> Option<Function> {
        if self.row.slot == 0 {
            return None;
        }
        let name = CStr::from_bytes_with_nul(self.name.as_bytes()).ok()?;
        // SAFETY: the linker has put the distance to the slot of this name there, which is a static variable.
        let slot = unsafe { &*at_distance(&self.row.slot).cast::<Slot>() };
        Some(Function { name, slot })
    }
}

/// Defines a function that returns a table. Each row is `name path::of::function [path::of::slot]`; the brackets may be empty.
macro_rules! table {
    ($table:ident $symbol:literal: $($name:ident $ours:path [$($slot:path)?])+) => {
        #[allow(non_snake_case)]
        pub fn $table() -> $crate::abi::table::Table {
            const NAMES: &str = concat!($(stringify!($name), "\0"),+);
            const COUNT: usize = [$(stringify!($name)),+].len();
            static LENGTHS: [u8; COUNT] = [$(stringify!($name).len() as u8),+];
            unsafe extern "C" {
                #[link_name = $symbol]
                static ROWS: [$crate::abi::table::Row; COUNT];
            }
            // SAFETY: the assembler below defines so many rows under this name, and nothing writes to them.
            let rows = unsafe { &*&raw const ROWS };
            $crate::abi::table::Table { names: NAMES, lengths: &LENGTHS, rows }
        }
        std::arch::global_asm!(
            ".pushsection .rodata.vramshim,\"a\"",
            ".balign 4",
            concat!(".globl ", $symbol),
            concat!(".hidden ", $symbol),
            concat!(".type ", $symbol, ", %object"),
            concat!($symbol, ":"),
            $(".long {} - .", $crate::abi::table::table!(@slot $($slot)?),)+
            concat!(".size ", $symbol, ", . - ", $symbol),
            ".popsection",
            $(sym $ours, $(sym $slot,)?)+
        );
    };
    (@slot $slot:path) => { ".long {} - ." };
    (@slot) => { ".long 0" };
}
pub(super) use table;

#[cfg(test)]
mod tests {
    use crate::abi::{DRIVER, NVML, RUNTIME, entry, hooks, runtime};
    use crate::next::hooked;

    #[test]
    fn rows_lead_to_functions_and_slots() {
        let entries = || DRIVER().iter().chain(RUNTIME().iter()).chain(NVML().iter());
        assert!(entries().count() > 200);
        for one in entries() {
            let found = entry(one.name().as_bytes()).expect("the entry of a name");
            assert_eq!((found.name(), found.ours()), (one.name(), one.ours()));
            let is_runtime = one.name().starts_with("cuda");
            assert_eq!(
                one.next().map(|next| next.name.to_str()),
                (!is_runtime).then(|| Ok(one.name()))
            );
        }
        let free = entry(b"cuMemFree_v2").expect("an entry");
        assert_eq!(free.ours(), hooks::cuMemFree_v2 as *const _);
        assert!(std::ptr::eq(
            free.next().expect("a slot").slot,
            hooked::cuMemFree_v2().slot
        ));
        assert_eq!(
            entry(b"cudaFree").expect("an entry").ours(),
            runtime::cudaFree as *const _
        );
        assert!(entry(b"cuMemFree_v").is_none() && entry(b"cuMemFree_v22").is_none() && entry(b"").is_none());
    }
}
