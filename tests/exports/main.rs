//! What the library's file promises: the symbols it puts in front of everybody's, the libraries it needs, and the
//! functions that `shim.h` declares.

use std::collections::BTreeSet;
use std::process::Command;

use support::{AUTO_GROWTH, Job, client, library};

fn tool(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).arg(library()).output();
    let output = output.unwrap_or_else(|error| panic!("{name} (binutils, which comes with the C compiler): {error}"));
    assert!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn exported() -> BTreeSet<String> {
    let table = tool("nm", &["-D", "--defined-only"]);
    table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2))
        .map(str::to_owned)
        .collect()
}

/// A symbol that leaks is put in front of the job's own; one that is lost is an allocation nobody sees.
#[test]
fn the_exported_symbols_are_the_golden_list() {
    let golden = include_str!("exports.txt");
    let golden: BTreeSet<String> = golden.lines().map(str::to_owned).collect();
    let exported = exported();
    let extra: Vec<&String> = exported.difference(&golden).collect();
    let lost: Vec<&String> = golden.difference(&exported).collect();
    assert!(
        extra.is_empty() && lost.is_empty(),
        "exported, and not in tests/exports/exports.txt: {extra:?}\nin tests/exports/exports.txt, and not exported: {lost:?}"
    );
}

#[test]
fn nothing_is_needed_beyond_libc_libgcc_and_the_loader() {
    // glibc before 2.34 has threads and dlopen in libraries of their own.
    let allowed = ["libc.so.6", "libgcc_s.so.1", "libpthread.so.0", "libdl.so.2"];
    let headers = tool("objdump", &["-p"]);
    let needed: Vec<&str> = headers
        .lines()
        .filter_map(|line| line.trim().strip_prefix("NEEDED"))
        .map(str::trim)
        .filter(|name| !allowed.contains(name) && !name.starts_with("ld-linux"))
        .collect();
    assert!(needed.is_empty(), "needs {needed:?}");
}

/// The library must load wherever the tool chain's own programs do: no symbol of a glibc newer than the oldest that
/// Rust's standard library is built for needs, but for those that moved into libc with 2.34.
#[test]
fn no_symbol_of_a_newer_glibc_is_needed() {
    let table = tool("objdump", &["-T"]);
    let version = |line: &str| {
        let text = line.split("GLIBC_").nth(1)?;
        let text: String = text
            .chars()
            .take_while(|letter| letter.is_ascii_digit() || *letter == '.')
            .collect();
        let mut parts = text.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        Some((parts.next()?, parts.next()?))
    };
    let undefined = table.lines().filter(|line| line.contains("*UND*"));
    let newest = undefined.filter_map(|line| Some((version(line)?, line))).max();
    let (newest, line) = newest.expect("a symbol of glibc");
    println!("newest: {line}");
    assert!(newest <= (2, 34), "{line}");
}

#[test]
fn shim_h_declares_what_is_exported() {
    let header = std::fs::read_to_string(support::root().join("shim.h")).unwrap();
    let declared: BTreeSet<String> = header
        .lines()
        .filter(|line| line.ends_with(");") && !line.trim_start().starts_with('*'))
        .filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next())
        .map(str::to_owned)
        .collect();
    let ours: BTreeSet<String> = exported()
        .into_iter()
        .filter(|name| name.starts_with("vramshim_"))
        .collect();
    assert_eq!(declared, ours);
    assert!(declared.len() > 4, "{declared:?}");
}

/// Every field of `struct vramshim_stats` as a C program sees it, each with a value of its own.
#[test]
fn the_structure_of_shim_h_is_the_librarys() {
    let path = client("support/clients/behaviour.c", "behaviour", &["libcuda.so.1"]);
    let strategy = Job::new(path)
        .strategy(AUTO_GROWTH)
        .env("FLAGS_auto_growth_chunk_size_in_mb", "8");
    let finished = strategy.args(["stats"]).run().ok();
    let numbers: Vec<u64> = finished
        .stdout
        .split_whitespace()
        .map(|number| number.parse().unwrap())
        .collect();
    let expected: [u64; 10] = [
        1000 + 3000,                    // requested
        (16 << 20) + 1000 + 3000,       // its peak
        1024 + 3072,                    // allocated
        (16 << 20) + 1024 + 3072,       // its peak
        8 << 20,                        // reserved
        24 << 20,                       // its peak: a chunk of 16 MiB came and went
        (8 << 20) - 1024 - 3072,        // free inside
        (8 << 20) - 1024 - 2048 - 3072, // the largest free block: the hole lies between the two
        2,                              // live
        1,                              // failures
    ];
    assert_eq!(numbers, expected);
}
