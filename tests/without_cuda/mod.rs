//! The library is preloaded into programs that do not use CUDA. It changes nothing: the output stays the same byte for
//! byte, and the library opens no file, starts no thread and loads no other library.

mod foreign;

use std::path::Path;

use support::{Finished, Job, in_path, left_out};

/// Every path inside a folder, sorted.
fn tree(folder: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(next).unwrap().flatten() {
            paths.push(entry.path().strip_prefix(folder).unwrap().display().to_string());
            if entry.file_type().unwrap().is_dir() {
                open.push(entry.path());
            }
        }
    }
    paths.sort();
    paths
}

fn job(program: &str, arguments: &[&str]) -> Job {
    let job = Job::new(program)
        .args(arguments)
        .without("LD_LIBRARY_PATH")
        .without("VRAMSHIM_DIR");
    std::fs::write(
        job.folder().join("hello.c"),
        "#include <stdio.h>\nint main(void){puts(\"hello\");return 5;}\n",
    )
    .unwrap();
    job
}

fn outcome(finished: &Finished) -> (Option<i32>, &str, &str, Vec<String>) {
    (
        finished.status.code(),
        &finished.stdout,
        &finished.stderr,
        tree(finished.folder.path()),
    )
}

/// Checks that a program prints the same with the library as without. A strategy is set, so that a library that starts
/// would print its start line.
fn unchanged(program: &str, arguments: &[&str]) {
    if !in_path(program) {
        return left_out(&format!("{program} is not installed"));
    }
    let alone = job(program, arguments).alone().run();
    let with = job(program, arguments).env("VRAMSHIM_STRATEGY", "naive_best_fit").run();
    assert_eq!(outcome(&with), outcome(&alone), "{program} {arguments:?}");
    assert!(
        alone.stdout.len() + alone.stderr.len() > 0,
        "{program} {arguments:?} printed nothing to compare"
    );
}

#[test]
fn shells_and_their_commands() {
    unchanged(
        "bash",
        &[
            "-c",
            "echo $((6*7)); ls | sort; (exit 5); echo $?; type cd; sleep 0 & wait; kill -TERM $$",
        ],
    );
    unchanged("sh", &["-c", "cat hello.c | wc -c; nothing-of-that-name; echo $?"]);
    unchanged("ls", &["-a"]);
    unchanged("env", &["-i", "echo", "clean"]);
}

#[test]
fn git() {
    unchanged("git", &["--version"]);
    let script = "git init -q -b main . && git status --short && git add hello.c && git status --short";
    if in_path("git") {
        unchanged("bash", &["-c", &format!("{script} && rm -rf .git")]);
    } else {
        left_out("git is not installed");
    }
}

#[test]
fn compilers() {
    for compiler in ["gcc", "cc"] {
        unchanged(compiler, &["-v", "-fsyntax-only", "-Wall", "hello.c"]);
    }
    if in_path("gcc") {
        unchanged("bash", &["-c", "gcc -O2 -o hello hello.c && ./hello; echo $?"]);
    }
}

#[test]
fn interpreters() {
    let script = "import threading, ctypes, subprocess, json\n\
                  print(1, ctypes.CDLL(None).getpid() > 0, subprocess.check_output(['echo', 'child']))\n\
                  try: ctypes.CDLL(None).cudaMalloc\n\
                  except AttributeError: print('no cudaMalloc')";
    unchanged("python3", &["-c", "print(1)"]);
    if in_path("python3") {
        let alone = job("python3", &["-c", script]).alone().run();
        let with = job("python3", &["-c", script]).run();
        assert_eq!((&with.stderr, with.status.code()), (&alone.stderr, Some(0)));
        assert!(with.stdout.starts_with("1 True b'child\\n'"), "{}", with.stdout);
    }
    unchanged("node", &["-e", "console.log(1 + 1, typeof require('os').cpus)"]);
    unchanged("perl", &["-e", "print 6*7, qq(\\n)"]);
}

/// A process lists its own threads, open descriptors and mapped files.
#[test]
fn no_thread_no_descriptor_no_file() {
    let script = "grep ^Threads /proc/$$/status; ls /proc/$$/fd; \
                  while read -r _ _ _ _ _ path; do case $path in /*) echo \"$path\";; esac; done < /proc/$$/maps | sort -u";
    let alone = job("bash", &["-c", script]).alone().run().ok();
    let with = job("bash", &["-c", script])
        .env("VRAMSHIM_STRATEGY", "auto_growth")
        .run()
        .ok();
    let library = support::library().canonicalize().unwrap().display().to_string();
    let rest: Vec<&str> = with.stdout.lines().filter(|line| *line != library).collect();
    assert_eq!(rest, alone.stdout.lines().collect::<Vec<_>>());
    assert!(
        with.stdout.lines().any(|line| line == library),
        "the library was not loaded: {}",
        with.stdout
    );
    assert!(with.stdout.starts_with("Threads:\t1\n"));
    assert_eq!(tree(with.folder.path()), ["hello.c"]);
}

/// In a job that uses CUDA the library starts no thread either.
#[test]
fn no_thread_under_cuda() {
    let path = support::client("support/clients/lifecycle.c", "lifecycle", &["libcuda.so.1"]);
    let trace = Job::new(path)
        .strategy(support::AUTO_GROWTH)
        .args(["threads"])
        .run()
        .ok();
    assert_eq!(trace.stdout, "allocate 1000: 0\nThreads:\t1\n");
}

#[test]
fn a_statically_linked_program_runs_as_without_the_library() {
    let path = support::client("support/clients/lifecycle.c", "static", &["-static", "-DSTATIC"]);
    let finished = Job::new(path).run();
    assert_eq!(
        (finished.status.code(), finished.stdout.as_str()),
        (Some(0), "static\n")
    );
}
