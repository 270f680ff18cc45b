//! What NVML tells of processes: pids of the host, contexts, clients of MPS; and that passthrough changes none of its answers.

use std::process::Command;

use journal::format::{Listed, Mps, ProcessBytes};
use support::member::{Host, Member, member_client};
use support::{
    AUTO_GROWTH, Finished, Job, MIB, PASSTHROUGH, assert_says, client, left_out, root, run_to_shortage, vramshim,
};

const CONTEXT: u64 = 450;

fn may_have_namespaces() -> bool {
    let script = "mount --bind /proc /proc && exec unshare -pf --mount-proc true";
    let tried = Command::new("unshare").args(["-m", "bash", "-c", script]).status();
    let may = tried.is_ok_and(|status| status.success());
    if !may {
        left_out("this user may make no namespaces");
    }
    may
}

/// A job of this host with a pid namespace and a /proc of its own, as a container has them. NVML knows its pid on the host.
/// `script` is bash, and ends with `"$@"` where the job shall run.
fn contained(host: &Host, script: &str) -> Job {
    let script = format!(
        "mkdir -p $SIMGPU_HOSTPROC && mount --bind /proc $SIMGPU_HOSTPROC && \
         exec unshare -pf --kill-child --mount-proc bash -c '{script}' -- \"$@\""
    );
    let job = Job::new("unshare").args(["-m", "bash", "-c", &script, "--"]);
    let job = job.args([member_client()]).sim(host.memory, 1);
    let proc = job.folder().join("host");
    let job = job.env("SIMGPU_STATE", host.folder.path().join("state"));
    job.env("SIMGPU_HOSTPROC", proc)
        .env("SIMGPU_CONTEXT_BYTES", format!("{CONTEXT}MiB"))
}

fn with_context(host: &Host, name: &str, value: &str) -> Job {
    let job = host.job().env("SIMGPU_CONTEXT_BYTES", "300MiB");
    job.env(name, value)
}

/// Allocates until the limit refuses 2 MiB. Returns the MiB that were granted.
fn fill(pod: &mut Member) -> u64 {
    let mut granted = 0;
    for mib in [640, 64, 2] {
        while pod.allocate(mib * MIB) == 0 {
            granted += mib;
        }
    }
    granted
}

/// Three pods share a device that their limits fill. None of them sees its own pid in NVML's list, and all begin at once.
/// `VRAMSHIM_TEST_ROUNDS` sets the number of rounds; each ends with SIGKILL.
#[test]
fn pods_that_fill_a_device_get_their_limits_to_the_byte() {
    const LIMIT: u64 = 5120;
    if !may_have_namespaces() {
        return;
    }
    let rounds = std::env::var("VRAMSHIM_TEST_ROUNDS").map_or(3, |text| text.parse().expect("a number"));
    let host = Host::new("15360MiB");
    for round in 0..rounds {
        let strategy = [PASSTHROUGH, AUTO_GROWTH][round % 2];
        let pod = |number: u32| {
            let accounts = host.folder.path().join(format!("accounts-{number}"));
            let job = contained(&host, "exec \"$@\"").env("VRAMSHIM_ACCOUNTS", accounts);
            Member::start(
                job.strategy(strategy)
                    .env("VRAMSHIM_MEMORY_LIMIT", format!("{LIMIT}MiB")),
            )
        };
        let pods = [0, 1, 2].map(pod);
        let filled = pods.map(|mut pod| std::thread::spawn(move || (fill(&mut pod), pod)));
        let filled = filled.map(|thread| thread.join().expect("a pod"));
        for (granted, mut pod) in filled {
            let told = pod.information();
            let held = &told["truth"]["devices"][0]["used_by_process"];
            let context = format!("round {round}, {}: {}", strategy.name, told["limit"]);
            assert_eq!(granted, LIMIT - CONTEXT, "{context}");
            assert_eq!(*held, LIMIT * MIB, "{context}");
            pod.kill();
        }
    }
}

/// Without NVML nobody tells what a context takes. A bound counts that can be set, and it is told as one.
#[test]
fn without_nvml_a_bound_counts_for_the_context() {
    let host = Host::new("4GiB");
    let folder = tempfile::tempdir().expect("a folder");
    let driver = support::simulated("libcuda.so.1");
    std::os::unix::fs::symlink(driver, folder.path().join("libcuda.so.1")).expect("a link");
    for (bound, left) in [(None, 512), (Some("100MiB"), 924), (Some("0"), 1024)] {
        let job = host.job().env("LD_LIBRARY_PATH", folder.path());
        let job = job.env("SIMGPU_CONTEXT_BYTES", "64MiB");
        let job = job.env("VRAMSHIM_MEMORY_LIMIT", "1GiB");
        let job = bound.iter().fold(job, |job, bound| job.env("VRAMSHIM_CONTEXT", bound));
        let mut member = Member::start(job);
        assert_eq!(fill(&mut member), left, "{bound:?}");
        let said = member.end();
        assert_says(&said, "a bound that is assumed (VRAMSHIM_CONTEXT)");
        assert_says(&said, "is outside the limit");
    }
}

/// NVML need not tell the bytes of processes. What is used of the device grows when a context is made.
#[test]
fn without_bytes_of_processes_the_growth_of_the_device_counts() {
    let host = Host::new("4GiB");
    let job = || with_context(&host, "SIMGPU_NVML_BYTES", "0");
    let mut other = Member::start(job());
    assert_eq!(other.allocate(1000 * MIB), 0);
    let mut member = Member::start(job().env("VRAMSHIM_MEMORY_LIMIT", "1GiB"));
    assert_eq!(fill(&mut member), 724);
    // The context goes, and the next one is measured.
    member.ask("p");
    let again = fill(&mut member);
    other.end();
    let said = member.end();
    assert_eq!(again, 724, "{said}");
    assert_says(&said, "by which the device's used bytes grew");
}

/// The verdict on a member that runs out: what it says at once, and what `why` says later.
fn verdict(finished: &Finished) -> String {
    format!("{}{}", finished.stderr, finished.told(&["why"]).text)
}

/// A pid of the host may be that of a bystander in the namespace, and the process may not see its own.
#[test]
fn pids_of_the_host_name_nobody_in_another_namespace() {
    if !may_have_namespaces() {
        return;
    }
    let host = Host::new("4GiB");
    let mut other = Member::start(host.job());
    assert_eq!(other.allocate(3000 * MIB), 0);
    let script = "echo $((OTHER - 1)) >/proc/sys/kernel/ns_last_pid; sleep 30 & echo 50 >/proc/sys/kernel/ns_last_pid; \
                  until grep sleep /proc/$OTHER/comm >&2; do sleep 0.01; done; exec \"$@\"";
    let job = || {
        let job = contained(&host, script).env("OTHER", other.pid());
        job.input(&format!("a {}\na {}\n", 300 * MIB, 1000 * MIB))
    };
    for job in [job(), job().env("VRAMSHIM_MEMORY_LIMIT", "3GiB")] {
        let said = verdict(&job.run().ok());
        let pid = other.pid();
        let holder = format!("2.93 GiB by host pid {pid}, not visible here");
        for words in ["sleep\n", &holder, "Verdict: another process"] {
            assert_says(&said, words);
        }
        for words in ["(sleep)", &format!("{pid} sleep")] {
            assert!(!said.contains(words), "{said}");
        }
    }
    other.end();
}

#[test]
fn a_server_of_mps_holds_what_its_clients_do_not() {
    let told = |list: &[Listed], clients: &[Listed]| {
        let each = ProcessBytes::listed(list.to_vec(), clients).into_iter();
        each.map(|one| (one.host_pid, one.bytes, one.mps)).collect::<Vec<_>>()
    };
    let list = [(7, Some(50)), (9, Some(310)), (8, Some(900))];
    let with_clients = told(&list, &[(20, Some(100)), (21, Some(200))]);
    let expected = [
        (7, Some(50), Mps::None),
        (9, Some(10), Mps::Server),
        (8, Some(900), Mps::None),
        (20, Some(100), Mps::Client),
        (21, Some(200), Mps::Client),
    ];
    assert_eq!(with_clients, expected);
    // Without bytes of the clients, those of the server are theirs or its own.
    assert_eq!(told(&[(9, Some(310))], &[(20, None)])[0], (9, None, Mps::Server));
    assert_eq!(told(&[(7, None)], &[]), [(7, None, Mps::None)]);
}

/// Under MPS the server has the memory of its clients, this process among them.
#[test]
fn under_mps_the_clients_are_told_apart() {
    let host = Host::new("4GiB");
    let job = || with_context(&host, "SIMGPU_MPS", "4711000");
    let mut other = Member::start(job());
    assert_eq!(other.allocate(2500 * MIB), 0);
    let run = || job().input(&format!("a {}\na {}\n", 300 * MIB, 2000 * MIB)).run();
    let said = verdict(&run_to_shortage(run).ok());
    assert_says(&said, &format!("2.73 GiB by pid {} (member)", other.pid()));
    assert_says(&said, "context 0.30");
    assert_says(&said, "0 B by the MPS server, host pid 4711000, not visible here");
    assert!(!said.contains("GiB by the MPS server"), "{said}");
    let mut limited = Member::start(job().env("VRAMSHIM_MEMORY_LIMIT", "700MiB"));
    assert_eq!(fill(&mut limited), 400);
    limited.end();
    other.end();
}

/// A process lives as long as one of its threads, though the first one has left a zombie.
#[test]
fn a_process_whose_first_thread_has_ended_is_still_known() {
    let host = Host::new("4GiB");
    let mut member = Member::start(host.job());
    assert_eq!(member.allocate(300 * MIB), 0);
    assert_eq!(member.ask("z"), "0");
    let pid = member.pid();
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    while !state().contains(") Z ") {
        std::thread::yield_now();
    }
    let balance = vramshim(&["reconcile", &pid]).ok().text;
    assert_says(&balance, &format!("{pid} member"));
    assert_says(&vramshim(&["top", "--once", &pid]).ok().text, "member");
    let mut second = Member::start(host.job());
    // On a busy machine NVML may answer too late. The first failures are told, then fewer.
    for _ in 0..32 {
        assert_eq!(second.allocate(3900 * MIB), 2);
    }
    assert_says(&second.end(), &format!("300.0 MiB by pid {pid} (member)"));
    member.end();
}

/// Without a limit and a layer each answer of NVML is the one that the next library gave, also where NVML and CUDA call
/// different sizes the total, and where NVML fails.
#[test]
fn passthrough_changes_no_answer_of_nvml() {
    let path = client("pids/answers.c", "nvml_answers", &["-DDLOPEN"]);
    let exports = std::fs::read_to_string(root().join("tests/exports/exports.txt")).expect("the list of exports");
    let names: Vec<&str> = exports.lines().filter(|name| name.starts_with("nvml")).collect();
    assert!(names.len() >= 5, "{names:?}");
    for setting in [
        "SIMGPU_RESERVED=600MiB",
        "SIMGPU_MIG=1",
        "SIMGPU_NVML_BYTES=0",
        "SIMGPU_MPS=4711000",
        "SIMGPU_FAULTS=nvmlDeviceGetMemoryInfo:/2=3,nvmlDeviceGetComputeRunningProcesses:/3=4",
        "SIMGPU_FAULTS=nvmlDeviceGetUUID:/2=999,nvmlDeviceGetMemoryInfo:1+=999",
    ] {
        let (name, value) = setting.split_once('=').unwrap();
        let job = || {
            let job = Job::new(&path).args(&names).sim("4GiB", 2);
            job.env("SIMGPU_CONTEXT_BYTES", "500MiB").env(name, value)
        };
        // The pids differ from run to run.
        let answers = |job: Job| {
            let (child, folder) = job.start();
            let pid = child.id().to_le_bytes().map(|byte| format!("{byte:02x}")).concat();
            let output = child.wait_with_output().expect("its end");
            drop(folder);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).replace(&pid, "our pid.")
        };
        assert_eq!(answers(job()), answers(job().alone()), "{setting}");
    }
}
