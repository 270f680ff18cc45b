//! Records of what the library found out, beside what the job did: what the device and its limit held at a failure for lack
//! of memory, what the process holds of the host's memory, and who asked for memory while it grew too fast.

use std::collections::HashSet;

use base::text::printable;

use super::Event;

/// A process in a list of NVML: its pid on the host, and its bytes if NVML tells them.
pub type Listed = (u32, Option<u64>);

/// Bytes of a device that a process holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessBytes {
    /// 0 if it is not known, such as that of a process of another pid namespace.
    pub pid: u32,
    /// `None` if the process is known to use the device, but not how much.
    pub bytes: Option<u64>,
    pub told_by: Teller,
    /// The name of the process's job as far as it fits; empty if it is not known.
    pub name: ShortName,
    /// The inode number of the pid namespace of `pid`; 0 if it is not known.
    pub namespace: u32,
    /// The pid on the host; 0 if it is not known.
    pub host_pid: u32,
    pub mps: Mps,
}

numbered! {
    /// Who says a figure.
    pub enum Teller: u8 {
        NotKnown = 0,
        Driver = 1,
        /// A layer between the library and the driver.
        Layer = 2,
        Nvml = 3,
        /// The library's own book.
        Ledger = 4,
        /// The account that the processes of a group share.
        Account = 5,
    }
}

numbered! {
    /// What a process is in CUDA's Multi-Process Service.
    pub enum Mps: u8 {
        NotKnown = 0,
        /// It takes no part.
        None = 1,
        Client = 2,
        Server = 3,
    }
}

/// Bytes, and how well they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    Exact(u64),
    AtLeast(u64),
    AtMost(u64),
    NotKnown(Reason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    NotAsked,
    EventsLost,
}

/// What PyTorch wanted when its request to the library failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameworkRequest {
    /// Its own request, such as a tensor; `None` if it is not known.
    pub requested: Option<u64>,
    /// Whether it gives memory back and asks again; `None` if it is not known.
    pub asks_again: Option<bool>,
    /// The free bytes of the device that it told, as PyTorch's own record does; `None` if it told none.
    pub free: Option<u64>,
}

numbered! {
    /// How the bytes of a context were found.
    pub enum ContextMeasure: u8 {
        NotKnown = 0,
        /// NVML's figure of the process, less what the ledger has.
        Nvml = 1,
        /// `cuMemGetInfo` before and after.
        MemInfo = 2,
        /// A bound that was set.
        Assumed = 3,
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShortName(pub(super) [u8; 16]);

/// What the process holds of the host's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Resident bytes of anonymous and shared memory (proc_pid_status(5)); mapped files are left out.
    pub resident: u64,
    /// Host memory that the job obtained or registered through CUDA.
    pub pinned: u64,
}

/// A part of a surge: memory that grew faster than `VRAMSHIM_SURGE`, and one of those who asked for memory meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SurgeShare {
    /// By how many bytes the memory grew, and within which time.
    pub grown: u64,
    pub over_ns: u64,
    /// Bytes that the stack of this record asked for meanwhile, freed ones among them.
    pub asked: u64,
    /// 1 for the stack that asked for most, 2 for the next. 0 if no stack is known; then `asked` is 0.
    pub place: u32,
}

impl Event {
    pub fn moves_memory(&self) -> bool {
        use Event::{Alloc, Free, SegmentAlloc, SegmentFree};
        matches!(self, Alloc(_) | Free { .. } | SegmentAlloc { .. } | SegmentFree { .. })
    }

    /// Whether the event says what the library found out, and is no act of the job.
    pub fn is_finding(&self) -> bool {
        matches!(
            self,
            Event::Measured { .. }
                | Event::Limit(_)
                | Event::Process(_)
                | Event::Refused(_)
                | Event::Reclaimed { .. }
                | Event::Host(_)
                | Event::Surge(_)
                | Event::FrameworkRequest(_)
                | Event::ContextCreated { .. }
        )
    }
}

/// What this process and all others hold, if the list of all processes of a device says both. `None`, too, if the numbers of
/// the list are so large that they cannot be true.
pub fn shares(processes: &[ProcessBytes], own_pid: u32) -> Option<(u64, u64)> {
    let told = || processes.iter().filter(|process| process.told_by == Teller::Nvml);
    let own = told().find(|process| process.pid == own_pid)?.bytes?;
    let others = told().filter(|process| process.pid != own_pid);
    let others = others
        .map(|process| process.bytes)
        .try_fold(0u64, |sum, bytes| sum.checked_add(bytes?))?;
    Some((own, others))
}

impl ProcessBytes {
    /// The processes of NVML's two lists, by pid on the host and bytes: each once. The server of MPS has the memory of all its
    /// `clients` in `list` (nvtop#93), and here each client has its own. The server is the one that holds at least that much;
    /// where /proc shows its name, that decides.
    pub fn listed(mut list: Vec<Listed>, clients: &[Listed]) -> Vec<ProcessBytes> {
        let mut seen: HashSet<u32> = clients.iter().map(|client| client.0).collect();
        list.retain(|one| seen.insert(one.0));
        let of_clients = clients.iter().try_fold(0u64, |sum, client| sum.checked_add(client.1?));
        let name = |pid| std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let may_serve = list.iter_mut().filter(|one| !clients.is_empty() && one.1 >= of_clients);
        let server = may_serve.min_by_key(|one| (!name(one.0).starts_with(b"nvidia-cuda-mps"), one.1));
        let server = server.map_or(0, |server| {
            server.1 = server.1.zip(of_clients).map(|(bytes, sum)| bytes.saturating_sub(sum));
            server.0
        });
        let is_client = |pid| clients.iter().any(|client| client.0 == pid);
        let with = |&(host_pid, bytes): &Listed| ProcessBytes {
            host_pid,
            bytes,
            told_by: Teller::Nvml,
            mps: match host_pid {
                pid if is_client(pid) => Mps::Client,
                pid if pid == server => Mps::Server,
                _ => Mps::None,
            },
            ..ProcessBytes::default()
        };
        list.iter().chain(clients).map(with).collect()
    }

    /// The process in words: `pid 4711 (train)`, or its pid on the host if the teller knows only that.
    pub fn words(&self) -> String {
        let name = printable(&self.name.text(), 16);
        let is_server = self.mps == Mps::Server;
        let server = if is_server { "the MPS server, " } else { "" };
        match (self.pid, name.as_str()) {
            (0, _) if self.host_pid == 0 => "a process of another pid namespace".to_owned(),
            (0, _) => format!("{server}host pid {}, not visible here", self.host_pid),
            (pid, "") => format!("{server}pid {pid}"),
            (pid, name) => format!("{server}pid {pid} ({name})"),
        }
    }
}

impl ShortName {
    /// As many whole letters of the name as fit.
    pub fn cut_from(name: &str) -> ShortName {
        let mut bytes = [0; 16];
        let end = name.floor_char_boundary(bytes.len());
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        ShortName(bytes)
    }

    pub fn text(&self) -> String {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        String::from_utf8_lossy(&self.0[..end]).into_owned()
    }
}

impl HostMemory {
    /// The largest of the numbers.
    pub(super) fn largest(&self) -> u64 {
        self.resident.max(self.pinned)
    }
}
