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
    /// PyTorch keeps its allocator; its tensors are recorded with Python stacks, beside the journal
    Record,
    /// The library is PyTorch's allocator: the strategy serves each tensor
    Allocator,
    /// Nothing by itself, but the job can `import vramshim.torch`
    Off,
}

impl Torch {
    pub fn name(self) -> &'static str {
        match self {
            Torch::Record => "record",
            Torch::Allocator => "allocator",
            Torch::Off => "off",
        }
    }

    /// The variables for a job under the library at `library`.
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
