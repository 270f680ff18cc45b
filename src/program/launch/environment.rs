//! The environment that the job would have: this program's environment, changed by the options.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::options::Variables;

pub struct Environment {
    /// The variables that the options set; they win over this program's environment.
    own: Variables,
    /// The library, if it was found.
    pub library: Option<PathBuf>,
    /// The stand-ins of the simulated GPU, which are preloaded.
    stand_ins: Vec<PathBuf>,
}

impl Environment {
    pub fn new(own: Variables, library: Option<PathBuf>, stand_ins: Vec<PathBuf>) -> Self {
        Environment {
            own,
            library,
            stand_ins,
        }
    }

    pub fn get(&self, name: &str) -> Option<OsString> {
        let own = self.own.iter().find(|(own, _)| *own == name);
        own.map(|(_, value)| value.clone()).or_else(|| std::env::var_os(name))
    }

    /// The trimmed value of a variable; `None` if the variable is not set or empty.
    pub fn text(&self, name: &str) -> Option<String> {
        let value = self.get(name)?.to_string_lossy().trim().to_owned();
        (!value.is_empty()).then_some(value)
    }

    /// The files that `LD_PRELOAD` already names, in order.
    fn given(&self) -> Vec<PathBuf> {
        let value = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        let items = value.as_bytes().split(|byte| matches!(byte, b':' | b' '));
        let items = items.filter(|item| !item.is_empty());
        items.map(|item| PathBuf::from(OsStr::from_bytes(item))).collect()
    }

    pub fn is_library(&self, path: &Path) -> bool {
        let same = |library: &PathBuf| path.canonicalize().is_ok_and(|path| path == *library);
        self.library.as_ref().is_some_and(same)
    }

    /// The entries of the job's `LD_PRELOAD`, each once. If the variable already names the library, its entries come
    /// first. Otherwise the library, then the stand-ins, come first, as under `vramshim run`.
    pub fn preloads(&self) -> Vec<PathBuf> {
        let given = self.given();
        let mut preloads = Vec::new();
        if !given.iter().any(|path| self.is_library(path)) {
            preloads.extend(self.library.clone());
        } else {
            preloads.extend(given.iter().cloned());
        }
        preloads.extend(self.stand_ins.iter().cloned());
        for path in given {
            if !preloads.contains(&path) {
                preloads.push(path);
            }
        }
        preloads
    }

    pub fn is_stand_in(&self, path: &Path) -> bool {
        self.stand_ins.iter().any(|stand_in| stand_in == path)
    }

    /// Gives a command this environment, with `preloads` as `LD_PRELOAD`.
    pub fn apply(&self, command: &mut Command, preloads: &[PathBuf]) {
        command.envs(self.own.iter().map(|(name, value)| (name, value)));
        let paths: Vec<&[u8]> = preloads.iter().map(|path| path.as_os_str().as_bytes()).collect();
        if paths.is_empty() {
            command.env_remove("LD_PRELOAD")
        } else {
            command.env("LD_PRELOAD", OsStr::from_bytes(&paths.join(&b':')))
        };
    }
}
