//! Link options of `libvramshim.so`.

fn main() {
    // The library's references to its own exported functions must reach its own functions. Without this option, the loader
    // binds them to the first definition in the process. If a layer were preloaded in front of the library, the table of
    // hooks would then hold that layer's functions.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo:rerun-if-changed=build.rs");
}
