//! Tells whether a process uses the GPUs of this machine or a simulated GPU (`vramshim run --sim`).
//!
//! The variables of the process tell the two apart. A simulated NVML must be loaded with the same variables; otherwise
//! it would report a different simulated GPU.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::identity::{effective_user, folder_of};
use base::text::shown;

const SIMULATED: &str = "SIMGPU_";
const STATE: &str = "SIMGPU_STATE";
const LIBRARIES: &str = "LD_LIBRARY_PATH";

#[derive(Clone, Debug)]
pub enum Host {
    /// The GPUs of this machine. NVML is loaded with this program's environment.
    Machine,
    Simulated(Simulated),
    /// A simulated GPU that this program cannot query.
    Closed(Closed),
}

/// Tells hosts apart. The devices of two hosts are different devices, also if they have the same UUIDs: every simulated
/// GPU has the UUIDs of every other one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostId {
    Machine,
    /// Device and inode of the file that holds the state of the simulated GPU.
    State(u64, u64),
    /// The path of such a file, which can no longer be examined.
    Path(OsString),
    /// The simulated GPU of this process alone.
    Process(u32),
}

#[derive(Clone, Debug)]
pub struct Closed {
    /// Why the simulated GPU of the process cannot be asked, in words.
    pub why: String,
    id: HostId,
}

#[derive(Clone, Debug)]
pub struct Simulated {
    /// Device and inode of the file that holds the state of the simulated GPU.
    state: (u64, u64),
    /// The working directory of the process: relative paths in `variables` start here.
    pub folder: PathBuf,
    pub variables: Vec<(OsString, OsString)>,
}

impl Host {
    pub fn of(pid: u32) -> Host {
        let environment = fs::read(folder_of(pid).join("environ")).unwrap_or_default();
        let variables: Vec<(OsString, OsString)> = environment
            .split(|&byte| byte == 0)
            .filter_map(|pair| {
                let at = pair.iter().position(|&byte| byte == b'=')?;
                let text = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
                Some((text(&pair[..at]), text(&pair[at + 1..])))
            })
            .filter(|(name, _)| is_simulated(name) || name == LIBRARIES)
            .collect();
        if !variables.iter().any(|(name, _)| is_simulated(name)) {
            return Host::Machine;
        }
        let id = match state_of(&variables) {
            Some(path) => HostId::Path(path.clone()),
            None => HostId::Process(pid),
        };
        simulated(pid, variables).unwrap_or_else(|why| Host::Closed(Closed { why, id }))
    }

    pub fn id(&self) -> HostId {
        match self {
            Host::Machine => HostId::Machine,
            Host::Simulated(simulated) => HostId::State(simulated.state.0, simulated.state.1),
            Host::Closed(closed) => closed.id.clone(),
        }
    }

    /// A name for a simulated GPU: the process that started it, or the file of its state. `None` for this machine.
    pub fn name(&self) -> Option<String> {
        let path = match self {
            Host::Machine => return None,
            Host::Simulated(simulated) => state_of(&simulated.variables),
            Host::Closed(Closed {
                id: HostId::Process(pid),
                ..
            }) => return Some(format!("pid {pid}")),
            Host::Closed(Closed {
                id: HostId::Path(path), ..
            }) => Some(path),
            Host::Closed(_) => None,
        };
        let path = path?.to_string_lossy();
        // `vramshim run --sim` names a descriptor of its own process, which becomes the job.
        let pid = path.strip_prefix("/proc/").and_then(|rest| rest.split_once("/fd/"));
        Some(pid.map_or_else(|| path.clone().into_owned(), |(pid, _)| format!("pid {pid}")))
    }

    /// Whether both have the same set of devices.
    pub fn is(&self, other: &Host) -> bool {
        !matches!(self, Host::Closed(_)) && self.id() == other.id()
    }
}

fn state_of(variables: &[(OsString, OsString)]) -> Option<&OsString> {
    let mut found = variables
        .iter()
        .filter(|(name, value)| name == STATE && !value.is_empty());
    found.next().map(|(_, value)| value)
}

pub fn is_simulated(name: &OsStr) -> bool {
    name.as_bytes().starts_with(SIMULATED.as_bytes())
}

fn simulated(pid: u32, variables: Vec<(OsString, OsString)>) -> Result<Host, String> {
    let process = folder_of(pid);
    let closed = |why: &str| format!("the simulated GPU of process {pid} {why}");
    // The variables name libraries that this program will load. It therefore accepts only processes of its own user.
    let owner = fs::metadata(&process).map(|process| process.uid());
    if owner.ok() != Some(effective_user()) {
        return Err(closed("is another user's"));
    }
    let namespace = |process: &Path| fs::read_link(process.join("ns/pid")).ok();
    if namespace(&process) != namespace(Path::new("/proc/self")) {
        return Err(closed("counts processes in another namespace"));
    }
    let folder = fs::read_link(process.join("cwd"));
    let folder = folder.map_err(|error| format!("process {pid}: its folder: {error}"))?;
    let state = state_of(&variables).map(|value| folder.join(value));
    let state = state.ok_or_else(|| closed(&format!("is its own: it has no {STATE} to share")))?;
    let shared = fs::metadata(&state)
        .map_err(|error| closed(&format!("cannot be asked: {STATE} {}: {error}", shown(&state))))?;
    Ok(Host::Simulated(Simulated {
        state: (shared.dev(), shared.ino()),
        folder,
        variables,
    }))
}
