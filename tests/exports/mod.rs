//! The symbols of the two installed files. The library exports exactly the listed names and needs only libc and
//! the loader. The program exports none of these names. `shim.h` declares every exported `vramshim_` function.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Runs, assert_says, library, program};

/// One exported name a line.
const GOLDEN: &str = include_str!("exports.txt");

fn tool(name: &str, arguments: &[&str], file: &Path) -> String {
    Command::new(name).args(arguments).arg(file).printed().ok().text
}

/// The names in a file's dynamic symbol table that the file itself defines.
pub fn exported(file: &Path) -> BTreeSet<String> {
    let table = tool("nm", &["-D", "--defined-only"], file);
    let names = table.lines().filter_map(|line| line.split_whitespace().nth(2));
    names.map(str::to_owned).collect()
}

fn golden() -> BTreeSet<String> {
    GOLDEN.lines().map(str::to_owned).collect()
}

/// An extra exported name could replace a function of the job. A CUDA call whose name is missing would pass the library
/// by.
#[test]
fn the_exported_symbols_are_the_golden_list() {
    let (golden, exported) = (golden(), exported(&library()));
    let extra: Vec<&String> = exported.difference(&golden).collect();
    let lost: Vec<&String> = golden.difference(&exported).collect();
    assert!(
        extra.is_empty() && lost.is_empty(),
        "exported, and not in tests/exports/exports.txt: {extra:?}\nin tests/exports/exports.txt, and not exported: {lost:?}"
    );
}

#[test]
fn constant_data_is_protected() {
    let headers = tool("readelf", &["--program-headers", "--wide"], &library());
    let dynamic = tool("readelf", &["--dynamic", "--wide"], &library());
    assert_says(&headers, "GNU_RELRO");
    assert_says(&dynamic, "NOW");
}

/// If the program were linked with the library's crate, the dynamic loader would find the program's `dlsym`, `_exit`
/// and `cuMemAlloc_v2` before libc's and the driver's, in every run of `vramshim`. The test first checks that the
/// filter finds every name of the golden list in the library.
#[test]
fn the_program_exports_nothing_that_the_library_does() {
    let golden = golden();
    let interposed = |file: &Path| -> BTreeSet<String> {
        let starts = ["cu", "nvml", "vramshim_", "dlsym", "dlvsym", "_exit", "_Exit"];
        let ours = |name: &String| golden.contains(name) || starts.iter().any(|start| name.starts_with(start));
        exported(file).into_iter().filter(ours).collect()
    };
    // The filter finds the library's own names.
    assert_eq!(interposed(&library()), golden);
    assert_eq!(interposed(&program()), BTreeSet::new());
}

#[test]
fn nothing_is_needed_beyond_libc_and_the_loader() {
    // glibc before 2.34 has threads and dlopen in libraries of their own.
    let allowed = ["libc.so.6", "libpthread.so.0", "libdl.so.2"];
    let headers = tool("objdump", &["-p"], &library());
    for line in headers.lines() {
        if let Some(name) = line.trim().strip_prefix("NEEDED").map(str::trim) {
            assert!(allowed.contains(&name) || name.starts_with("ld-linux"), "needs {name}");
        }
    }
}

/// The library needs no glibc newer than 2.34, so that it loads on older systems. The limit is 2.34, because with that
/// version the symbols of libdl and libpthread moved into libc.
#[test]
fn no_symbol_of_a_newer_glibc_is_needed() {
    let table = tool("objdump", &["-T"], &library());
    let version = |line: &str| {
        let text = line.split("GLIBC_").nth(1)?;
        let end = text.find(|letter: char| letter != '.' && !letter.is_ascii_digit());
        let mut parts = text[..end?].split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        Some((parts.next()?, parts.next()?))
    };
    let undefined = table.lines().filter(|line| line.contains("*UND*"));
    let newest = undefined.filter_map(|line| Some((version(line)?, line))).max();
    let (newest, line) = newest.expect("a symbol of glibc");
    println!("newest: {line}");
    assert!(newest <= (2, 34), "{line}");
}

/// A library that needs a function of glibc 2.99, as any other or by a weak symbol.
fn library_of_the_future(folder: &Path, is_weak: bool) -> PathBuf {
    let place = |name: &str| folder.join(name).display().to_string();
    let weak = if is_weak { "__attribute__((weak))" } else { "" };
    let needs =
        format!("{weak} extern void of_the_future(void); void *vramshim_version(void) {{ return of_the_future; }}");
    for (name, text) in [
        ("libc.c", "void of_the_future(void) {}"),
        ("libc.map", "GLIBC_2.99 { global: of_the_future; local: *; };"),
        ("library.c", &needs),
    ] {
        std::fs::write(place(name), text).unwrap();
    }
    let compile = |arguments: &[&str]| {
        let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        compiler.args(["-shared", "-fPIC", "-nostdlib"]).args(arguments);
        compiler.printed().ok();
    };
    let (libc, library) = (place("libc.so.6"), place("libvramshim.so"));
    let script = format!("-Wl,--version-script={}", place("libc.map"));
    compile(&["-Wl,-soname,libc.so.6", &script, "-o", &libc, &place("libc.c")]);
    compile(&["-o", &library, &place("library.c"), &libc]);
    library.into()
}

/// The loader ends every program that preloads a library with an unmet version, unless only weak symbols have it. `run`
/// and `doctor` look before.
#[test]
fn a_library_that_needs_a_newer_glibc_is_refused_before_it_is_preloaded() {
    for is_weak in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let library = library_of_the_future(folder.path(), is_weak);
        let mut preloaded = Command::new("true");
        assert_eq!(preloaded.env("LD_PRELOAD", &library).printed().code == Some(0), is_weak);
        let vramshim = |arguments: &[&str]| {
            let mut command = Command::new(program());
            command.args(arguments).current_dir(folder.path());
            command.env("VRAMSHIM_LIBRARY", &library).printed()
        };
        let run = vramshim(&["run", "--quiet", "--", "echo", "started"]);
        assert_eq!(run.code, Some(if is_weak { 0 } else { 2 }), "{run:?}");
        let checked = |most: &str| {
            let mut script = Command::new(support::root().join("scripts/ci/check-glibc"));
            script.args(["--most", most]).arg(&library).printed().code
        };
        assert_eq!((checked("2.98"), checked("2.99")), (Some(i32::from(!is_weak)), Some(0)));
        if !is_weak {
            assert_says(&run.said, "version `GLIBC_2.99' not found");
            let doctor = vramshim(&["doctor", "--json"]);
            assert_eq!(doctor.code, Some(4), "{doctor:?}");
            assert_says(&doctor.text, "version `GLIBC_2.99' not found");
        }
    }
}

#[test]
fn shim_h_declares_what_is_exported() {
    let header = std::fs::read_to_string(support::root().join("shim.h")).unwrap();
    let declares = |line: &&str| line.ends_with(");") && !line.trim_start().starts_with('*');
    let names = header.lines().filter(declares);
    let names = names.filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next());
    let declared: BTreeSet<String> = names.map(str::to_owned).collect();
    let mut ours = exported(&library());
    ours.retain(|name| name.starts_with("vramshim_"));
    assert_eq!(declared, ours);
    assert!(declared.len() > 4, "{declared:?}");
}
