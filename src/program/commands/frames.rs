//! `vramshim frames`: names the native frames in the reports of the host guard. The job may be dead: the report has the
//! addresses in files, and the build ids of the files.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use base::text::{printable, shown};
use clap::Args;
use journal::format::Frame;
use journal::reader::plain;

use crate::analysis::symbols;
use crate::escaped::Escaped;
use crate::failure::Failure;
use crate::import::plain_file::is_of_holes;
use crate::say::say;

const EXAMPLES: &str = "\
Examples:
  vramshim frames train.log | less
  kubectl logs POD | vramshim frames

A file is used only if it still has the build id that stands in the report. So call it where the job ran, such as in a \
container of the same image. Frames of other files keep their addresses. Other text is copied as it is; on a terminal, \
control characters are replaced.

Exit codes: 0 done, also if some frames have no name, 1 if the text cannot be read, 2 wrong usage.";

/// A report has fewer frames one behind the other. What a hostile text has is named in pieces.
const MOST_WAITING: usize = 256;
const LONGEST_NAME: usize = 400;
/// Bytes. A longer line is no frame, and is copied in pieces.
const LONGEST_LINE: u64 = 64 << 10;

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Frames {
    /// The job's standard error in a file [default: standard input]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// A frame as the host guard writes it (`report.rs` there): `  FILE+0xOFFSET [BUILD ID] (FUNCTION)`.
#[derive(PartialEq, Eq, Debug)]
struct Place {
    /// What stands before it, such as the rank that a launcher adds.
    before: String,
    file: Key,
    offset: u64,
}

/// A file as the report names it: its path and its build id.
type Key = (String, String);

fn place(line: &[u8]) -> Option<Place> {
    let line = std::str::from_utf8(line).ok()?;
    let (before, frame) = line.split_at(line.find("  /")?);
    let frame = frame.trim_start();
    // The path may have any character.
    let (file, rest) = frame.split_once(" [")?;
    let (path, offset) = file.rsplit_once("+0x")?;
    let build_id = rest.split(']').next()?;
    let is_id = !build_id.is_empty() && build_id.bytes().all(|digit| digit.is_ascii_hexdigit());
    let offset = u64::from_str_radix(offset, 16).ok().filter(|_| is_id)?;
    let (before, file) = (before.to_owned(), (path.to_owned(), build_id.to_owned()));
    Some(Place { before, file, offset })
}

#[derive(Default)]
struct Names {
    /// The frames of offsets, by file; `None` for a file that is gone, or is another one by now.
    known: BTreeMap<Key, Option<HashMap<u64, Vec<Frame>>>>,
    /// Lines that are frames, until the last one of their stack is read: a file is opened once for all of them.
    waiting: Vec<(Vec<u8>, Place)>,
}

impl Names {
    fn look(&mut self) {
        let mut unknown: BTreeMap<&Key, Vec<u64>> = BTreeMap::new();
        for (_, Place { file, offset, .. }) in &self.waiting {
            let known = self.known.get(file).map(Option::as_ref);
            if known.is_none_or(|known| known.is_some_and(|known| !known.contains_key(offset))) {
                unknown.entry(file).or_default().push(*offset);
            }
        }
        for (file, offsets) in unknown {
            let known = self.known.entry(file.clone()).or_default();
            if let Some(found) = symbols::frames_in(&file.0, &file.1, &offsets) {
                let known = known.get_or_insert_default();
                // An offset without a name is known, too: it has no frames.
                known.extend(offsets.into_iter().map(|offset| (offset, Vec::new())));
                known.extend(found);
            }
        }
    }

    fn write_waiting(&mut self, out: &mut impl Write) -> io::Result<()> {
        self.look();
        for (line, place) in self.waiting.drain(..) {
            let known = self.known.get(&place.file).and_then(Option::as_ref);
            let frames = known
                .and_then(|known| known.get(&place.offset))
                .map_or(&[][..], Vec::as_slice);
            if frames.is_empty() {
                out.write_all(&line)?;
            }
            for frame in frames {
                let [function, file] = [&frame.function, &frame.file].map(|text| printable(text, LONGEST_NAME));
                match frame.line {
                    0 => writeln!(out, "{}  {function} in {file}", place.before)?,
                    line => writeln!(out, "{}  {function} at {file}:{line}", place.before)?,
                }
            }
        }
        Ok(())
    }

    /// Writes the text with names in place of offsets. The outer error is that of the output, the inner one that of the text.
    fn copy(&mut self, mut text: impl BufRead, out: &mut impl Write) -> io::Result<io::Result<()>> {
        loop {
            let mut line = Vec::new();
            let read = match (&mut text).take(LONGEST_LINE).read_until(b'\n', &mut line) {
                Ok(read) => read,
                Err(error) => return Ok(Err(error)),
            };
            match place(line.trim_ascii_end()) {
                Some(place) => self.waiting.push((line, place)),
                None => {
                    self.write_waiting(out)?;
                    out.write_all(&line)?;
                }
            }
            if self.waiting.len() == MOST_WAITING || read == 0 {
                self.write_waiting(out)?;
            }
            if read == 0 {
                return out.flush().map(Ok);
            }
        }
    }
}

/// A pipe can be given as the standard input.
fn opened(file: &Path) -> io::Result<File> {
    let no_file = || io::Error::other("no plain file: give its text as the standard input");
    let opened = plain::open(file)?.ok_or_else(no_file)?;
    match is_of_holes(&opened) {
        true => Err(io::Error::other("it is all holes, and no log")),
        false => Ok(opened),
    }
}

impl Frames {
    pub fn name(self) -> Result<(), Failure> {
        let unread = |error: io::Error| match &self.file {
            Some(file) => Failure::failed(format!("{}: {error}", shown(file))),
            None => Failure::failed(format!("cannot read standard input: {error}")),
        };
        let mut names = Names::default();
        let stdout = io::stdout().lock();
        let mut out: Box<dyn Write> = if stdout.is_terminal() {
            Box::new(Escaped::for_terminal(io::BufWriter::new(stdout)))
        } else {
            // A progress bar has carriage returns, and a log may have colours.
            Box::new(io::BufWriter::new(stdout))
        };
        let copied = match &self.file {
            Some(file) => names.copy(BufReader::new(opened(file).map_err(unread)?), &mut out),
            None => names.copy(io::stdin().lock(), &mut out),
        };
        copied.map_err(Failure::unwritten)?.map_err(unread)?;
        for ((path, build_id), _) in names.known.iter().filter(|(_, known)| known.is_none()) {
            say!(
                "{}: the file cannot be read, or is not the one with the build id {build_id}; its frames keep their addresses",
                printable(path, LONGEST_NAME)
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_behind_what_a_launcher_adds() {
        let of = |line: &str| place(line.as_bytes());
        let expected = |before: &str, path: &str| {
            let (before, file, offset) = (before.to_owned(), (path.to_owned(), "00ff".to_owned()), 0x1a2b);
            Some(Place { before, file, offset })
        };
        assert_eq!(of("  /usr/a.so+0x1a2b [00ff] (f)"), expected("", "/usr/a.so"));
        assert_eq!(
            of("[rank0]:   /a b+0x3+0x1a2b [00ff]"),
            expected("[rank0]: ", "/a b+0x3")
        );
        assert_eq!(of("  /usr/a.so+0x1a2b (f)"), None);
        assert_eq!(of("  /usr/a.so+0x1a2b [zz]"), None);
        assert_eq!(of("  linux-vdso.so.1+0x1a2b [00ff]"), None);
        assert_eq!(of("see  /usr/a.so [1]"), None);
    }
}
