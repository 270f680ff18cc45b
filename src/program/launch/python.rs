//! Finds the folder with the Python part, and makes the variables by which a Python job runs its start-up hook.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base::text::shown;
use clap::ValueEnum;
use config::table;

use crate::failure::Failure;

/// What happens in a job that imports PyTorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Torch {
    /// PyTorch keeps its allocator; snapshots of its live tensors with Python stacks, beside the journal, about once a second
    State,
    /// The same of every tensor with its times, which costs more
    Record,
    /// The library is PyTorch's allocator: the strategy serves each tensor
    Allocator,
    /// Nothing by itself, but the job can `import vramshim.torch`
    Off,
}

impl Torch {
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub fn variables(self, library: &Path) -> Result<Vec<(&'static str, OsString)>, Failure> {
        let folder = find_folder(library)?;
        if folder.as_os_str().as_bytes().contains(&b':') {
            return Err(Failure::refused(format!(
                "{}: PYTHONPATH cannot hold a path with a colon; move the folder elsewhere",
                shown(&folder)
            )));
        }
        let mut path = folder.into_os_string();
        if let Some(before) = std::env::var_os("PYTHONPATH").filter(|before| !before.is_empty()) {
            path.push(":");
            path.push(before);
        }
        Ok(vec![
            (table::TORCH.name, OsString::from(self.name())),
            ("PYTHONPATH", path),
        ])
    }
}

/// The option of Python in a command that keeps the start-up hook from running, with the reason. Wrappers may stand before
/// Python (`env`, `timeout`).
pub fn hides_hook(command: &[OsString]) -> Option<(char, &'static str)> {
    let is_python = |word: &&OsString| {
        let name = Path::new(word).file_name().unwrap_or_default().to_string_lossy();
        let version = name.strip_prefix("python");
        version.is_some_and(|version| version.chars().all(|letter| letter.is_ascii_digit() || letter == '.'))
    };
    let words = command.iter().skip_while(|word| !is_python(word)).skip(1);
    let mut words = words.map(|word| word.to_string_lossy());
    while let Some(word) = words.next() {
        // The script ends the options.
        let letters = word.strip_prefix('-').filter(|letters| !letters.is_empty())?;
        // What follows one of these is a value, code or a module.
        let end = letters.find(['c', 'm', 'W', 'X', '-']).unwrap_or(letters.len());
        match letters[..end].chars().find(|letter| "IES".contains(*letter)) {
            Some('S') => return Some(('S', "imports no sitecustomize")),
            Some(letter) => return Some((letter, "ignores PYTHONPATH")),
            None if letters[end..].starts_with(['c', 'm']) => return None,
            // Its value is a word of its own.
            None if matches!(&letters[end..], "W" | "X") => drop(words.next()),
            None => {}
        }
    }
    None
}

/// The folder `python` beside the library or one folder above it, or the sources that the library was built from.
fn find_folder(library: &Path) -> Result<PathBuf, Failure> {
    let beside = library.parent().unwrap_or(Path::new("."));
    let places = ["python", "../python", "../../src/python"].map(|place| beside.join(place));
    let found = places.iter().find(|place| place.join("sitecustomize.py").is_file());
    found.and_then(|place| place.canonicalize().ok()).ok_or_else(|| {
        Failure::refused(format!(
            "no folder with the Python part (python/sitecustomize.py) beside {} or one folder above; copy src/python \
             there",
            shown(library)
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_option_that_hides_the_hook_is_found() {
        let hides = |line: &str| {
            let command: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            hides_hook(&command).map(|(letter, _)| letter)
        };
        for (lines, letter) in [
            ("python -I train.py|/usr/bin/python3.12 -u -Ic pass", Some('I')),
            ("env A=1 python3 -Wignore -E -m train", Some('E')),
            ("python -Xdev --version -BS train.py", Some('S')),
            ("python train.py -I|python -c -I|python -m train -S|python - -I", None),
            ("python -W -I train.py|python -XI train.py", None),
            ("python --version -u|pythonic -I|train -I|python", None),
        ] {
            for line in lines.split('|') {
                assert_eq!(hides(line), letter, "{line}");
            }
        }
    }
}
