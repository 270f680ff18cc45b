//! What the job can be told while it runs: by `shim.h` (`vramshim_set`, `vramshim_dump`), and by a line over the control
//! socket.

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use super::names;
use crate::engine::Engine;
use base::api::Api;
use base::cancellation::Uncancelled;
use config::{Change, Unchanged};
use journal::format::MarkKind;

/// Changes a setting. The error is an errno: `ENOENT` for an unknown name, `EPERM` if the setting is fixed, `EINVAL` for a
/// value that is not accepted, `ENODATA` if there is no engine yet, or no journal for what would be recorded.
pub fn set(engine: Option<&'static Engine>, name: &str, value: &str) -> Result<(), i32> {
    let _uncancelled = Uncancelled::begin();
    let change = Change::parse(name, value).map_err(|why| match why {
        Unchanged::UnknownName => libc::ENOENT,
        Unchanged::Fixed => libc::EPERM,
        Unchanged::BadValue(_) => libc::EINVAL,
    })?;
    let engine = engine.ok_or(libc::ENODATA)?;
    let stacks = || engine.state.records.stacks.as_ref().ok_or(libc::ENODATA);
    match change {
        Change::Stacks(kinds) => stacks()?.record(kinds),
        Change::StackDepth(depth) => stacks()?.record_to_depth(depth),
        Change::IdleRelease(time) => engine.pools.release_after(time),
    }
    Ok(())
}

/// Writes a copy of the journal to a file. The error is an errno: `EINVAL` if the name does not end in `.vraj`, `ENODATA`
/// if the process keeps no journal, `EBUSY` if the file is that of the journal itself or one beside it, else that of
/// the file.
pub fn dump(engine: Option<&'static Engine>, path: &Path) -> Result<(), i32> {
    let _uncancelled = Uncancelled::begin();
    let engine = engine.ok_or(libc::ENODATA)?;
    if !journal::copy::may_be_named(path) {
        return Err(libc::EINVAL);
    }
    let journal = engine.state.records.journal.as_ref().ok_or(libc::ENODATA)?;
    if journal.dump_would_replace(path).unwrap_or(false) {
        return Err(libc::EBUSY);
    }
    engine.mark(Api::vramshim_mark, b"vramshim_dump", MarkKind::Instant);
    engine.state.note_host_memory();
    let errno = |problem: io::Error| problem.raw_os_error().unwrap_or(libc::EIO);
    journal.dump(path).map(drop).map_err(errno)
}

impl Engine {
    /// The answer to one line of `vramshim ctl`, as a line of JSON.
    pub fn answer(&'static self, line: &str) -> String {
        let mut words = line.split_ascii_whitespace();
        let command = (
            words.next().unwrap_or_default(),
            words.next(),
            words.next(),
            words.next(),
        );
        match command {
            ("stats", None, ..) => self.all_stats(),
            ("trim", None, ..) => {
                let devices = self.state.measurements.used_devices();
                given_back(devices.map(|device| (device, self.release_idle(device))).collect())
            }
            ("trim", Some(device), None, _) => match device.parse() {
                Ok(device) if self.state.measurements.is_present(device) => {
                    given_back(vec![(device, self.release_idle(device))])
                }
                _ => refused(libc::ENODEV, "the job has no such device"),
            },
            ("journal", None, ..) => match &self.state.records.journal {
                Some(journal) => format!(
                    "{{\"ok\":true,\"journal\":{},\"now_ns\":{}}}\n",
                    quoted(&journal.path().to_string_lossy()),
                    journal.now_ns()
                ),
                None => refused(libc::ENODATA, "the process keeps no journal (VRAMSHIM_JOURNAL_MAX=0)"),
            },
            ("mark", None, ..) => {
                self.mark(Api::vramshim_mark, b"vramshim ctl dump", MarkKind::Instant);
                self.state.note_host_memory();
                "{\"ok\":true}\n".to_owned()
            }
            ("set", Some(name), Some(value), None) => {
                match (set(Some(self), name, value), Change::parse(name, value)) {
                    (Ok(()), _) => "{\"ok\":true}\n".to_owned(),
                    (Err(errno), Err(why)) => refused(errno, &why.to_string()),
                    (Err(errno), Ok(_)) => refused(errno, "the process keeps no journal (VRAMSHIM_JOURNAL_MAX=0)"),
                }
            }
            _ => refused(
                libc::EINVAL,
                "no such command; this library knows stats, trim, journal, mark and set",
            ),
        }
    }

    fn all_stats(&'static self) -> String {
        let journal = self.journal_path();
        let journal = journal.map_or_else(|| "null".to_owned(), |path| quoted(&path.to_string_lossy()));
        let names = names::stat_names(Some(self)).into_iter();
        let stats = names.filter_map(|name| Some(format!("\"{name}\":{}", names::stat(Some(self), &name).ok()?)));
        format!(
            "{{\"ok\":true,\"version\":\"{}\",\"pid\":{},\"strategy\":\"{}\",\"journal\":{journal},\"stats\":{{{}}}}}\n",
            env!("CARGO_PKG_VERSION"),
            self.pid,
            self.strategy.name(),
            stats.collect::<Vec<_>>().join(","),
        )
    }
}

fn given_back(devices: Vec<(i16, u64)>) -> String {
    let each: Vec<String> = devices
        .iter()
        .map(|(device, bytes)| format!("{{\"device\":{device},\"given_back\":{bytes}}}"))
        .collect();
    format!("{{\"ok\":true,\"devices\":[{}]}}\n", each.join(","))
}

fn refused(errno: i32, why: &str) -> String {
    format!("{{\"ok\":false,\"errno\":{errno},\"error\":{}}}\n", quoted(why))
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            control if (control as u32) < 0x20 => {
                let _ = write!(quoted, "\\u{:04x}", control as u32);
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_line_of_json_cannot_have_is_escaped() {
        assert_eq!(quoted("a\"b\\c\nd\u{e9}"), "\"a\\\"b\\\\c\\u000ad\u{e9}\"");
    }

    #[test]
    fn settings_are_refused_before_an_engine_is_asked() {
        assert_eq!(set(None, "stacks", "python"), Err(libc::ENODATA));
        assert_eq!(set(None, "stacks", "perl"), Err(libc::EINVAL));
        assert_eq!(set(None, "strategy", "auto_growth"), Err(libc::EPERM));
        assert_eq!(set(None, "colour", "red"), Err(libc::ENOENT));
        assert_eq!(dump(None, Path::new("a.vraj")), Err(libc::ENODATA));
    }
}
