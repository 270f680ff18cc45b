//! Makes the variables by which a Python job finds the package `vramshim`, and runs its start-up hook.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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

    /// The variables of a job under the library at `library`. Without `PYTHONPATH`, which cannot hold a path with a colon, the
    /// library starts what this mode asks for.
    pub fn variables(self, library: &Path) -> Result<Vec<(&'static str, OsString)>, Failure> {
        let folder = config::python_folder(library).ok_or_else(|| {
            Failure::refused(format!(
                "no folder with the Python part (python/vramshim) beside {} or one folder above; copy src/python there",
                shown(library)
            ))
        })?;
        let mut variables = vec![(table::TORCH.name, OsString::from(self.name()))];
        let mut path = folder.into_os_string();
        if !path.as_bytes().contains(&b':') {
            if let Some(before) = std::env::var_os("PYTHONPATH").filter(|before| !before.is_empty()) {
                path.push(":");
                path.push(before);
            }
            variables.push(("PYTHONPATH", path));
        }
        Ok(variables)
    }
}
