//! The processes on a device as NVML lists them, in two lists under CUDA's Multi-Process Service (MPS).

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
    others.retain(|one| !is_client(one.pid));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_holds_what_its_clients_do_not() {
        let told = apart(
            &[(7, Some(50)), (9, Some(310)), (8, Some(900))],
            &[(20, Some(100)), (21, Some(200))],
        );
        let one = |pid, bytes, role| Holder {
            pid,
            bytes: Some(bytes),
            role,
        };
        let alone = [
            one(7, 50, Role::Alone),
            one(9, 10, Role::Server),
            one(8, 900, Role::Alone),
        ];
        assert_eq!(told[..3], alone);
        assert_eq!(told[3..], [one(20, 100, Role::Client), one(21, 200, Role::Client)]);
        // Without bytes of the clients, those of the server are theirs or its own.
        let told = apart(&[(9, Some(310))], &[(20, None)]);
        assert_eq!((told[0].role, told[0].bytes), (Role::Server, None));
        assert_eq!(apart(&[(7, None)], &[])[0].role, Role::Alone);
    }
}
