//! The library is preloaded into programs that do not use CUDA. It changes nothing: the output stays the same byte for
//! byte, and the library opens no file, starts no thread and loads no other library.

mod foreign;

use std::path::Path;

use support::Job;

const HELLO: &str = "#include <stdio.h>\nint main(void){puts(\"hello\");return 5;}\n";

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().display().to_string()).collect();
    names.sort();
    names
}

/// A process lists its own threads, open descriptors and mapped files.
#[test]
fn no_thread_no_descriptor_no_file() {
    let script = "grep ^Threads /proc/$$/status; ls /proc/$$/fd; \
                  while read -r _ _ _ _ _ path; do case $path in /*) echo \"$path\";; esac; done < /proc/$$/maps | sort -u";
    let job = || {
        let job = Job::new("bash").args(["-c", script]);
        job.without("LD_LIBRARY_PATH").without("VRAMSHIM_DIR")
    };
    let alone = job().alone().run().ok();
    let with = job().env("VRAMSHIM_STRATEGY", "auto_growth").run().ok();
    let library = support::library().canonicalize().unwrap().display().to_string();
    // glibc before 2.34 has parts of itself in two more files.
    let is_own = |line: &str| line == library || line.ends_with("/libdl.so.2") || line.ends_with("/libpthread.so.0");
    let rest: Vec<&str> = with.stdout.lines().filter(|line| !is_own(line)).collect();
    assert_eq!(rest, alone.stdout.lines().collect::<Vec<_>>());
    // The library was loaded.
    assert!(with.stdout.lines().any(|line| line == library), "{}", with.stdout);
    assert!(with.stdout.starts_with("Threads:\t1\n"));
    assert!(files(with.folder.path()).is_empty());
}

/// In a job that uses CUDA the library starts no thread either.
#[test]
fn no_thread_under_cuda() {
    let path = support::client("support/clients/lifecycle.c", "lifecycle", &["libcuda.so.1"]);
    let job = Job::new(path).strategy(support::AUTO_GROWTH).args(["threads"]);
    assert_eq!(job.run().ok().stdout, "allocate 1000: 0\nThreads:\t1\n");
}

#[test]
fn a_statically_linked_program_runs_as_without_the_library() {
    let path = support::client("support/clients/lifecycle.c", "static", &["-static", "-DSTATIC"]);
    assert_eq!(Job::new(path).run().ok().stdout, "static\n");
}
