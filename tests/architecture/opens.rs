//! What another user may have written is opened by one module, `journal::reader::plain`, which bounds the cost.

use super::all_files;

/// What opens a file, a folder or a socket, or asks for a peer's user.
const OPENS: [&str; 11] = [
    "File::open(",
    "File::options(",
    "OpenOptions::new(",
    "fs::read(",
    "fs::read_to_string(",
    "read_dir(",
    "UnixStream::connect(",
    "libc::open(",
    "libc::openat(",
    "SYS_open",
    "SO_PEERCRED",
];

/// The files that may open others, and what these are.
const MAY: [(&str, &str); 7] = [
    ("journal/reader/plain.rs", "the module"),
    (
        "program/commands/ctl/in_root.rs",
        "places, by O_PATH: nothing is opened that has an effect",
    ),
    ("program/commands/ctl/connection.rs", "the folder of a process in /proc"),
    ("program/commands/doctor/layers.rs", "/etc/ld.so.preload"),
    ("program/commands/top/rows.rs", "/etc/passwd"),
    ("program/launch/binary.rs", "the program that the user runs"),
    ("program/launch/simulator.rs", "the simulated GPU that the user names"),
];

/// A line that opens something other than what the kernel shows of processes and devices.
fn opens(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let is_call = |name: &&str| {
        code.match_indices(*name).any(|(at, _)| {
            let before = code[..at].chars().next_back();
            before.is_none_or(|letter| !letter.is_alphanumeric() && letter != '_')
        })
    };
    let of_kernel = [
        "\"/proc",
        "\"/sys/",
        "folder_of(",
        "folder.path().join(\"information\")",
    ];
    OPENS.iter().any(is_call) && !of_kernel.iter().any(|part| line.contains(part))
}

#[test]
fn one_module_opens_what_another_user_may_have_written() {
    let readers = |path: &String| path.starts_with("program/") || path.starts_with("journal/reader/");
    let (mut found, mut used) = (Vec::new(), Vec::new());
    for path in all_files().into_keys().filter(readers) {
        let text = std::fs::read_to_string(support::root().join("src").join(&path)).expect("a source");
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in code.lines().filter(|line| opens(line)) {
            match MAY.iter().find(|(file, _)| *file == path) {
                Some((file, _)) => used.push(*file),
                None if path.ends_with("/tests.rs") => {}
                None => found.push(format!("{path}: {}", line.trim())),
            }
        }
    }
    assert!(found.is_empty(), "use journal::reader::plain: {found:#?}");
    let idle: Vec<_> = MAY.iter().filter(|(file, _)| !used.contains(file)).collect();
    assert!(idle.is_empty(), "these open nothing any more: {idle:?}");
    assert!(opens("    let file = File::open(path)?;") && !opens("    TensorFile::open(&path)?;"));
}
