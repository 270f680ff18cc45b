//! The environment that the job would have: this program's environment, changed by the options.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::library::preload;
use super::processes::{self, End};
use crate::failure::Failure;

/// How long a child may take to start.
const TIME_TO_LOAD: Duration = Duration::from_secs(30);

/// Environment variables that are set for the job, with their values.
pub type Variables = Vec<(&'static str, OsString)>;

pub struct Environment {
    /// The variables that the options set; they win over this program's environment.
    own: Variables,
    pub library: Option<PathBuf>,
    /// What is preloaded beside it: the host guard, and the stand-ins of the simulated GPU.
    beside: Vec<PathBuf>,
}

impl Environment {
    pub fn new(own: Variables, library: Option<PathBuf>, beside: Vec<PathBuf>) -> Self {
        Environment { own, library, beside }
    }

    pub fn own(&self, name: &str) -> Option<&OsString> {
        self.own.iter().find(|(own, _)| *own == name).map(|(_, value)| value)
    }

    pub fn get(&self, name: &str) -> Option<OsString> {
        self.own(name).cloned().or_else(|| std::env::var_os(name))
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

    /// The library and what is preloaded beside it.
    pub fn parts(&self) -> impl Iterator<Item = &PathBuf> {
        self.library.iter().chain(&self.beside)
    }

    /// The entries of the job's `LD_PRELOAD` under `vramshim run`, each once: the parts come first.
    pub fn preloads_of_run(&self) -> Vec<PathBuf> {
        let mut preloads: Vec<PathBuf> = Vec::new();
        for path in self.parts().cloned().chain(self.given()) {
            if !preloads.contains(&path) {
                preloads.push(path);
            }
        }
        preloads
    }

    /// The same, but if the variable already names the library, its entries come first: the job may be started without
    /// `vramshim run`.
    pub fn preloads(&self) -> Vec<PathBuf> {
        let mut given = self.given();
        if !given.iter().any(|path| self.is_library(path)) {
            return self.preloads_of_run();
        }
        given.extend(self.beside.iter().cloned());
        given
    }

    pub fn is_beside(&self, path: &Path) -> bool {
        self.beside.iter().any(|part| part == path)
    }

    /// Gives this process the environment of `vramshim run`, which the command inherits.
    pub fn enter(self) -> Result<(), Failure> {
        let preloads = preload(&self.preloads_of_run())?;
        for (name, value) in self.own.into_iter().chain([("LD_PRELOAD", preloads)]) {
            // SAFETY: the program has only this thread, so no other reads the environment meanwhile.
            unsafe { std::env::set_var(name, value) };
        }
        Ok(())
    }

    /// Refuses parts that the loader does not take: the job, and each program that it starts, would end or run without them.
    /// A child is started with them. The loader says on standard error which one it leaves out, and why.
    pub fn check_loads(&self, parts: &[PathBuf]) -> Result<(), Failure> {
        preload(parts)?;
        let mut child = Command::new("/proc/self/exe");
        self.apply(child.arg("--version"), parts);
        let answer = processes::ask(&mut child, TIME_TO_LOAD).map_err(Failure::failed)?;
        let left_out = answer.error_text.lines().find(|line| line.contains("ld.so: object"));
        match (left_out, answer.end) {
            (None, End::By(status)) if status.success() => Ok(()),
            (Some(line), _) => Err(Failure::refused(line)),
            (None, _) => Err(Failure::refused(answer.failure("the loader", "starting", TIME_TO_LOAD))),
        }
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
