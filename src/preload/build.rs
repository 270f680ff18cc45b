//! Link options of `libvramshim.so`.

fn main() {
    // Our own references to our exported functions must reach ours. Without this the loader binds them to the first
    // definition in the process, and with a layer preloaded in front of us our table would hold that layer's functions.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo:rerun-if-changed=build.rs");
}
