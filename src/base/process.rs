//! What a journal says about the process that writes it: the job's name, the command line and environment variables.

use std::os::unix::ffi::OsStrExt;

use crate::identity::{folder_of, for_file_name};

/// The arguments of the process, NUL-separated; empty if they cannot be read.
pub fn command_line() -> Vec<u8> {
    std::fs::read("/proc/self/cmdline").unwrap_or_default()
}

/// `NAME=value` for each environment variable that is set and is in `names`, or that `others` wants; a NUL ends each
/// entry.
pub fn environment(names: &[&str], others: impl Fn(&str) -> bool) -> Vec<u8> {
    let named = names
        .iter()
        .filter_map(|&name| Some((name.to_owned(), std::env::var_os(name)?)));
    let mut wanted: Vec<_> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| others(name) && !names.contains(&name.as_str()))
        .collect();
    wanted.sort();
    let mut text = Vec::new();
    for (name, value) in named.chain(wanted) {
        text.extend_from_slice(name.as_bytes());
        text.push(b'=');
        text.extend_from_slice(value.as_bytes());
        text.push(0);
    }
    text
}

/// A short name for the job, fit for a file name: the script or module that Python runs, or else the program. The name
/// is `train` for `python train.py`, and `pkg.mod` for `python -m pkg.mod`.
pub fn job_name() -> String {
    job_name_of(&command_line())
}

/// The name of the job of a process of this pid namespace, or else of its program. `None` if neither can be read.
pub fn job_name_of_process(pid: u32) -> Option<String> {
    let folder = folder_of(pid);
    let read = |file| std::fs::read(folder.join(file)).unwrap_or_default();
    let line = read("cmdline");
    if !line.is_empty() {
        return Some(job_name_of(&line));
    }
    let name = String::from_utf8_lossy(&read("comm")).trim().to_owned();
    (!name.is_empty()).then_some(name)
}

/// The name of a process's job, from its arguments, each ended by a NUL.
pub fn job_name_of(line: &[u8]) -> String {
    let arguments: Vec<String> = line
        .split(|&byte| byte == 0)
        .filter(|part| !part.is_empty())
        .map(|part| String::from_utf8_lossy(part).into_owned())
        .collect();
    name_of(&arguments)
}

fn name_of(arguments: &[String]) -> String {
    let stem = |path: &str| {
        let base = path.rsplit('/').next().unwrap_or(path);
        base.strip_suffix(".py").unwrap_or(base).to_owned()
    };
    let Some(program) = arguments.first().map(|path| stem(path)) else {
        return "job".to_owned();
    };
    let mut rest = arguments[1..].iter();
    let name = if program.starts_with("python") || program.starts_with("pypy") {
        loop {
            match rest.next().map(String::as_str) {
                Some("-m") => break rest.next().cloned().unwrap_or(program),
                Some("-W" | "-X") => drop(rest.next()),
                Some("-c" | "-") | None => break program,
                Some(flag) if flag.starts_with('-') => {}
                Some(script) => break stem(script),
            }
        }
    } else {
        program
    };
    for_file_name(&name)
}

#[cfg(test)]
mod tests {
    use super::name_of;

    #[test]
    fn the_script_names_the_job() {
        let name = |line: &str| name_of(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(name("/usr/bin/python3 -u /srv/train.py --lr 1"), "train");
        assert_eq!(name("python -m torch.distributed.run x.py"), "torch.distributed.run");
        assert_eq!(name("python3.11 -c pass"), "python3.11");
        assert_eq!(name("./bench"), "bench");
        assert_eq!(name_of(&[]), "job");
    }
}
