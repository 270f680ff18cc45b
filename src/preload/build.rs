//! Link options of `libvramshim.so`.

use std::path::PathBuf;
use std::{env, fs};

/// An archive without members.
const EMPTY_ARCHIVE: &[u8] = b"!<arch>\n";

fn main() {
    // The library's references to its own exported functions must reach its own functions. Without this option, the loader
    // binds them to the first definition in the process. If a layer were preloaded in front of the library, the table of
    // hooks would then hold that layer's functions. The library exports functions only, so this is the same as
    // `-Bsymbolic-functions`, which the linker of zig does not know.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // After `dlclose` the loader would unmap code that hooks handed out and that runs at exit.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");

    // The start files of the C compiler would run code at the start and the end of every process, which costs page faults.
    // They prepare and end C++ objects and transactional memory, which the library does not have. `dso_handle.rs` defines
    // the one name of theirs that is needed.
    println!("cargo:rustc-cdylib-link-arg=-nostartfiles");

    // rustc asks the linker for `-lgcc_s`. `unwinder.rs` defines what would be used of it, so an empty archive of the name
    // serves, and the library does not need `libgcc_s.so.1`.
    let folder = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let archive = folder.join("libgcc_s.a");
    fs::write(&archive, EMPTY_ARCHIVE).unwrap_or_else(|error| panic!("{}: {error}", archive.display()));
    println!("cargo:rustc-cdylib-link-arg=-L{}", folder.display());
    println!("cargo:rerun-if-changed=build.rs");
}
