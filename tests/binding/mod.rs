//! The library binds its references at its first use (`src/preload/next/bind`), so that a process without CUDA does not pay
//! for them. It reaches the functions that the loader would have bound, whichever function of it is called first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{AUTO_GROWTH, Finished, Job, PASSTHROUGH, client, deferred_library, library, root};

fn tool(name: &str, arguments: &[&str], file: &Path) -> String {
    let output = Command::new(name).args(arguments).arg(file).output();
    let output = output.unwrap_or_else(|error| panic!("{name} (binutils, which comes with the C compiler): {error}"));
    assert!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The exported functions and their addresses in the file.
fn exported(library: &Path) -> BTreeMap<String, String> {
    let table = tool("nm", &["-D", "--defined-only"], library);
    let entries = table.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let (address, _, name) = (words.next()?, words.next()?, words.next()?);
        Some((name.to_owned(), address.to_owned()))
    });
    entries.collect()
}

fn under(library: PathBuf, program: PathBuf) -> Job {
    Job::new(program).alone().preload(library)
}

fn first(scene: &str, names: &[&str]) -> Job {
    let library = deferred_library();
    let exported = exported(&library);
    let job = under(library, client("binding/first.c", "first", &[])).args([scene]);
    job.args(names.iter().map(|name| &exported[*name]))
}

/// What the loader still binds: what the library uses before the rest is bound (`marks::KEPT`), variables, and what is called
/// through the table of procedures.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_loader_binds_what_it_must_and_no_more() {
    let library = deferred_library();
    let headers = tool("readelf", &["--program-headers", "--wide"], &library);
    assert!(!headers.contains("GNU_RELRO"), "{headers}");
    let expected = [
        "__register_atfork",
        "__tls_get_addr",
        "_r_debug",
        "bcmp",
        "dl_iterate_phdr",
        "environ",
        "memcmp",
        "memcpy",
        "memmove",
        "memset",
        "strlen",
    ];
    let references = tool("readelf", &["--relocs", "--use-dynamic", "--wide"], &library);
    let references: Vec<&str> = references.lines().filter(|line| line.contains(" R_X86_64_")).collect();
    for line in &references {
        let name = line.split_whitespace().nth(4).unwrap_or_default();
        let name = name.split('@').next().unwrap_or_default();
        let kind = line.split_whitespace().nth(2).unwrap_or_default();
        let is_own = kind == "R_X86_64_DTPMOD64" || kind == "R_X86_64_RELATIVE";
        // A build without optimisation has such calls of its own library, too.
        let is_expected = expected.contains(&name) || kind == "R_X86_64_JUMP_SLOT";
        assert!(is_own || is_expected, "{line}");
    }
    assert!((3..30).contains(&references.len()), "{references:?}");
}

/// The outcome of a function in a child of the job, as `waitpid` tells it.
fn outcomes(finished: Finished) -> BTreeMap<String, i32> {
    let finished = finished.ok();
    let lines = finished.stdout.lines().filter_map(|line| line.split_once(' '));
    lines
        .map(|(offset, status)| (offset.to_owned(), status.parse().expect("a status")))
        .collect()
}

/// A function that runs before the library is bound would use addresses of the file, and crash. Each gets zeros here, so some
/// crash anyway: as they do if another function was called before.
#[test]
fn each_function_can_be_the_first_of_a_process() {
    let library = deferred_library();
    let exported = exported(&library);
    assert!(exported.len() > 200);
    let each = |before: &str| {
        let job = under(library.clone(), client("binding/first.c", "first", &[])).args(["call", before]);
        outcomes(job.args(exported.values()).run())
    };
    let (first, second) = (each("0"), each(&exported["vramshim_version"]));
    for (name, address) in &exported {
        assert_eq!(
            first[address], second[address],
            "{name}: status as the first call, and as the second"
        );
    }
    let returned = first.values().filter(|status| **status == libc::SIGUSR1).count();
    assert!(returned > 150, "{returned} functions returned");
}

/// The functions that bind for themselves are those that the assembler calls, and those that end the process.
#[test]
fn every_exported_function_binds_first() {
    let mut others = Vec::new();
    for entry in std::fs::read_dir(root().join("src/preload/abi"))
        .expect("the folder")
        .flatten()
    {
        let text = std::fs::read_to_string(entry.path()).expect("a source");
        let file = entry.file_name().to_string_lossy().into_owned();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (number, _) in lines
            .iter()
            .enumerate()
            .filter(|(_, line)| **line == "#[unsafe(no_mangle)]")
        {
            let is_naked = lines[number + 1] == "#[unsafe(naked)]";
            if file != "exported.rs" && !is_naked {
                others.push(format!("{file}: {}", lines[number + 1]));
            }
        }
    }
    others.sort();
    assert_eq!(
        others,
        [
            "process.rs: pub unsafe extern \"C\" fn _Exit(status: c_int) -> ! {",
            "process.rs: pub unsafe extern \"C\" fn _exit(status: c_int) -> ! {",
        ],
        "functions that are not exported by `exported!`"
    );
}

#[test]
fn threads_handlers_and_children_may_be_first_at_once() {
    first("crowd", &["vramshim_version", "vramshim_stat_names"]).run().ok();
}

#[test]
fn the_first_call_leaves_errno_as_it_is() {
    first("errno", &["vramshim_version"]).run().ok();
}

/// As with `PT_GNU_RELRO`, but from the first use on.
#[cfg(target_arch = "x86_64")]
#[test]
fn constant_data_is_protected_once_it_is_bound() {
    let headers = tool("readelf", &["--program-headers", "--wide"], &deferred_library());
    let constant = headers
        .lines()
        .find(|line| line.contains("LOOS+0x7672"))
        .expect("the header of ours");
    let address = constant.split_whitespace().nth(2).expect("an address");
    let finished = first("maps", &["vramshim_version"]).args([address]).run().ok();
    assert_eq!(finished.stdout, "rw-p\nr--p\n");
}

/// The interposer in the program, preloaded before the library, and preloaded after it.
fn interposed(library: &Path) -> [String; 3] {
    let shared = || {
        client(
            "binding/interposer.c",
            "libinterposer-binding.so",
            &["-shared", "-fPIC"],
        )
    };
    let program = || {
        client(
            "binding/interposer.c",
            "interposed-itself",
            &["-DPROGRAM", "-rdynamic", "libcuda.so.1"],
        )
    };
    let plain = || client("support/clients/training.c", "training", &["libcuda.so.1"]);
    let run = |job: Job| {
        let finished = job.strategy(AUTO_GROWTH).run().ok();
        let counts = finished
            .stdout
            .lines()
            .filter(|line| line.ends_with(" yes") || line.ends_with(" no"));
        counts.map(|line| format!("{line}\n")).collect::<String>()
    };
    [
        run(under(library.to_owned(), program())),
        run(under(library.to_owned(), plain()).preload_in_front(shared())),
        run(under(library.to_owned(), plain()).preload(shared())),
    ]
}

#[test]
fn functions_that_others_interpose_are_reached_as_the_loader_would() {
    let (now, before) = (interposed(&deferred_library()), interposed(&library()));
    assert_eq!(now, before);
    for counts in now {
        assert_eq!(counts, "malloc yes\nopen64 yes\ngetenv yes\n");
    }
}

/// Nobody has preloaded the library: a program opens it. Then objects may be loaded and unloaded in front of it.
#[test]
fn a_library_that_is_opened_by_a_program_binds_too() {
    let program = client("binding/opens.c", "opens", &[]);
    for arguments in [&[][..], &["in a namespace"]] {
        let job = Job::new(&program).alone().args([deferred_library()]).args(arguments);
        assert_eq!(
            job.run().ok().stdout,
            "0.1.0\nvramshim_stat_names: yes\n",
            "{arguments:?}"
        );
    }
}

/// The library keeps addresses of what it calls. So it keeps the objects, too.
#[test]
fn a_driver_whose_handle_the_job_closes_stays_loaded() {
    let path = client("binding/closes.c", "closes", &[]);
    let alone = Job::new(&path).alone().run().ok();
    assert_eq!(alone.stdout.lines().count(), 4, "{}", alone.stdout);
    for strategy in [PASSTHROUGH, AUTO_GROWTH] {
        let finished = Job::new(&path).strategy(strategy).run().ok();
        assert_eq!(finished.stdout, alone.stdout, "{strategy:?}");
    }
}
