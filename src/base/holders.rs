//! The processes on a device as NVML lists them, in two lists under CUDA's Multi-Process Service (MPS).

use std::collections::HashSet;

/// What a process is in MPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Alone,
    Client,
    Server,
}

/// A process on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The pid on the host.
    pub pid: u32,
    /// `None` if NVML does not tell them.
    pub bytes: Option<u64>,
    pub role: Role,
}

/// Each process once, by its pid and bytes. The server of MPS has the memory of all `clients` in `list` (nvtop#93); here each
/// client has its own. The server is the one that holds at least that much; where /proc shows its name, that decides.
pub fn apart(list: &[(u32, Option<u64>)], clients: &[(u32, Option<u64>)]) -> Vec<Holder> {
    let with = |role| move |&(pid, bytes): &(u32, Option<u64>)| Holder { pid, bytes, role };
    let is_client = |pid: u32| clients.iter().any(|client| client.0 == pid);
    let of_clients = clients.iter().try_fold(0u64, |sum, client| sum.checked_add(client.1?));
    let mut others: Vec<Holder> = list.iter().map(with(Role::Alone)).collect();
    let mut seen = HashSet::new();
    others.retain(|one| !is_client(one.pid) && seen.insert(one.pid));
    let is_named =
        |pid| std::fs::read(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.starts_with(b"nvidia-cuda-mps"));
    let may_serve = |one: &&mut Holder| !clients.is_empty() && one.bytes >= of_clients;
    if let Some(server) = others
        .iter_mut()
        .filter(may_serve)
        .min_by_key(|one| (!is_named(one.pid), one.bytes))
    {
        server.role = Role::Server;
        server.bytes = server
            .bytes
            .zip(of_clients)
            .map(|(bytes, sum)| bytes.saturating_sub(sum));
    }
    others.extend(clients.iter().map(with(Role::Client)));
    others
}
