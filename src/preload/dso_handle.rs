//! `__dso_handle`, whose address stands for the library where it registers functions for the end of a thread or for a fork
//! (Itanium C++ ABI, 3.3.6). The C compiler's start files define it; the library is linked without them.

use std::arch::global_asm;

global_asm!(
    ".pushsection .rodata.dso_handle,\"a\"",
    ".balign 8",
    ".weak __dso_handle",
    ".hidden __dso_handle",
    "__dso_handle:",
    ".quad 0",
    ".popsection",
);
