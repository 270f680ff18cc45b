//! A request of a size that the kernel grants. Written, it fills all the memory that the job may have: here a limit of the
//! process, and a control group.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Printed, Runs, left_out};

use crate::guards::host::{guard, host};

/// What the exit code of `host.c` says if the job's own work gets no memory.
const NO_MEMORY_FOR_THE_WORK: i32 = 3;

fn run(bound: Option<&str>, arguments: &[OsString]) -> Printed {
    let mut job = Command::new(host());
    job.arg("fills").args(arguments);
    if let Some(bound) = bound {
        job.env("LD_PRELOAD", guard()).env("VRAMSHIM_HOST_GUARD", bound);
    }
    job.printed()
}

fn assert_guarded(output: &Printed, mib: u64) {
    let text = &output.said;
    assert_eq!((output.code, output.signal), (Some(0), None), "{text}");
    assert_eq!(output.text, "the request: ENOMEM\nthe work: done\n");
    let call = format!("malloc of {} bytes ({} GiB) refused", mib << 20, mib >> 10);
    assert!(text.contains(&call), "{text}");
    assert!(text.contains("(ask_for_a_lot)"), "{text}");
}

#[test]
fn a_granted_request_takes_the_address_space_of_the_work() {
    // 1024 MiB are asked for and 300 are needed, within a limit of 1200.
    let arguments: Vec<OsString> = ["1024", "300", "1200"].map(Into::into).to_vec();
    let free = run(None, &arguments);
    assert_eq!(free.text, "the request: granted\n");
    assert_eq!(free.code, Some(NO_MEMORY_FOR_THE_WORK), "{}", free.said);
    assert_guarded(&run(Some("512MiB"), &arguments), 1024);
}

/// A control group with a limit of memory, which ends with this value.
struct Group {
    folder: PathBuf,
}

impl Group {
    /// `None` if the machine lets this process make none: it takes root, and a controller of memory.
    fn new(limit: u64) -> Option<Group> {
        let name = format!("vramshim-test-{}", std::process::id());
        // Version 2, and version 1 (cgroups(7)), each with what limits memory, and memory and swap.
        let kinds = [
            ("/sys/fs/cgroup", "memory.max", "memory.swap.max", "0".to_owned()),
            (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                limit.to_string(),
            ),
        ];
        kinds.into_iter().find_map(|(root, memory, swap, of_swap)| {
            let folder = Path::new(root).join(&name);
            fs::create_dir(&folder).ok()?;
            let group = Group { folder };
            // A folder of another file system, or a group without the controller, does not have the file.
            let is_limited =
                group.folder.join(memory).exists() && fs::write(group.folder.join(memory), limit.to_string()).is_ok();
            // Without swap there is no such file, and nothing to limit.
            let _ = fs::write(group.folder.join(swap), of_swap);
            is_limited.then_some(group)
        })
    }

    fn entry(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// Processes of the group that the kernel has killed for lack of memory.
    fn killed(&self) -> u64 {
        let text = ["memory.events", "memory.oom_control"]
            .into_iter()
            .find_map(|name| fs::read_to_string(self.folder.join(name)).ok())
            .expect("the events of the group");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.expect("oom_kill").parse().expect("a number")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}

#[test]
fn a_granted_request_fills_a_control_group_and_the_kernel_kills_the_job() {
    // 3 GiB are asked for and 64 MiB are needed, within 512 MiB.
    let Some(group) = Group::new(512 << 20) else {
        return left_out("a job in a control group, because this user can make none with a limit of memory");
    };
    let mut arguments: Vec<OsString> = ["3072", "64", "0"].map(Into::into).to_vec();
    arguments.push(group.entry().into());
    let free = run(None, &arguments);
    assert_eq!(free.text, "the request: granted\n", "{}", free.said);
    assert_eq!(free.signal, Some(9));
    assert_eq!(group.killed(), 1);
    assert_guarded(&run(Some("1GiB"), &arguments), 3072);
    assert_eq!(group.killed(), 1, "the guarded job stays below the limit");
}
