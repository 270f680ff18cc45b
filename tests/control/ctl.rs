//! `vramshim ctl` and jobs that have a control socket.

use std::ffi::{CStr, CString};
use std::io::ErrorKind::{ConnectionRefused, NotFound};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::member::Member;
use support::{
    AUTO_GROWTH, Fields, Job, PASSTHROUGH, Printed, Runs, Strategy, assert_fields, assert_says, inspect, journals_in,
    left_out, program, vramshim,
};

use crate::control::{assert_has_all, functions, job, marks};

const PATIENCE: Duration = Duration::from_secs(60);

/// A job that serves `vramshim ctl`, and takes commands on its standard input.
pub struct Served {
    job: Member,
    /// The process id that the job has here.
    pid: u32,
}

impl Served {
    pub fn start(strategy: Strategy, variables: &[(&str, &str)]) -> Served {
        let job = job("serve").strategy(strategy).env("VRAMSHIM_CONTROL", "1");
        Served::of(variables.iter().fold(job, |job, (name, value)| job.env(name, value)))
    }

    fn of(job: Job) -> Served {
        let mut job = Member::start(job);
        let pid = job.child.id();
        assert_eq!(job.answer(), format!("ready {pid}"));
        let served = Served { job, pid };
        served.until("the socket is there", |served| served.ctl(&["stats"]).code == Some(0));
        served
    }

    fn tell(&mut self, command: &str) -> String {
        self.job.ask(command)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.job.folder.path().join(name)
    }

    fn ctl(&self, arguments: &[&str]) -> Printed {
        let mut command = Command::new(program());
        command.args(["ctl", &self.pid.to_string()]).args(arguments);
        command.printed()
    }

    pub fn well(&self, arguments: &[&str]) -> Value {
        self.ctl(&[arguments, &["--json"]].concat()).ok().json()
    }

    fn refused(&self, arguments: &[&str], code: i32) {
        let output = self.ctl(arguments);
        assert_eq!(output.code, Some(code), "{arguments:?}: {}", output.said);
    }

    pub fn figure(&self, name: &str) -> u64 {
        self.well(&["stats", name])["stats"][name].number()
    }

    pub fn until(&self, what: &str, is_so: impl Fn(&Served) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < end, "not within {PATIENCE:?}: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn threads(&self) -> Vec<String> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid)).unwrap().flatten();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
        names.map(|name| name.trim().to_owned()).collect()
    }

    pub fn end(self) {
        self.job.end();
    }
}

fn socket_of(pid: u32) -> Option<PathBuf> {
    // SAFETY: geteuid has no preconditions.
    let user = unsafe { libc::geteuid() };
    let folder = base::control::folder_in("/tmp".as_ref(), user);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths = entries.map(|entry| entry.path());
    paths.find(|path| base::control::is_socket_of(&path.file_name().unwrap().to_string_lossy(), pid))
}

#[test]
fn a_running_job_is_asked_and_told_from_outside() {
    let mut job = Served::start(AUTO_GROWTH, &[]);
    let mut own = job.threads();
    own.retain(|name| name.starts_with("vramshim"));
    assert_eq!(own.len(), 1, "{own:?}");
    let all = job.well(&["stats"]);
    assert_fields(&all, json!({"pid": job.pid, "strategy": "auto_growth"}), "");
    assert_eq!(all["stats"]["device.0.requested"], 1000);
    let before = all["stats"]["device.0.reserved"].number();
    assert!(before >= 64 << 20, "{before}");
    let trimmed = job.well(&["trim", "--device", "0"]);
    let given_back = trimmed[0]["given_back"].number();
    assert!(given_back >= 64 << 20, "{trimmed}");
    assert_eq!(job.figure("device.0.reserved"), before - given_back);
    assert_eq!(job.well(&["trim"])[0]["given_back"], 0);

    let copy = job.at("copy.vraj");
    let dumped = job.well(&["dump", copy.to_str().unwrap()]);
    assert!(dumped["records"].number() >= 4, "{dumped}");
    let copied = &inspect(&copy)[0];
    assert_fields(copied, json!({"pid": job.pid, "ended": "running_when_copied"}), "");
    let why = vramshim(&["why", copy.to_str().unwrap()]).ok();
    assert_says(&why.text, "copied while it ran, after ");
    let bytes = std::fs::metadata(&copy).unwrap().len();
    assert_eq!(dumped["bytes"], bytes);

    job.well(&["set", "stacks", "native"]);
    assert_eq!(job.tell("allocate"), "allocated");
    job.well(&["dump", copy.to_str().unwrap()]);
    assert_ne!(functions(&copy), Vec::<String>::new(), "stacks from the change on");

    for (arguments, code) in [
        (&["stats", "device.0.colour"][..], 2),
        (&["trim", "--device", "7"], 2),
        (&["trim", "--device", "99"], 2),
        (&["set", "strategy", "passthrough"], 2),
        (&["set", "stacks", "perl"], 2),
        (&["set", "colour", "red"], 2),
        (&["dump", "copy.txt"], 2),
        (&["dump", "/nonexistent/copy.vraj"], 1),
    ] {
        job.refused(arguments, code);
    }
    // A copy replaces a copy, and another file only if that is asked for.
    let other = job.at("other.vraj");
    std::fs::write(&other, "kept").unwrap();
    job.refused(&["dump", other.to_str().unwrap()], 2);
    assert_eq!(std::fs::read(&other).unwrap(), b"kept");
    job.well(&["dump", other.to_str().unwrap(), "--force"]);
    let socket = socket_of(job.pid).expect("a socket");
    job.end();
    assert!(!socket.exists(), "a job that ends removes its socket");
}

#[test]
fn a_dump_from_outside_does_not_replace_the_journal_of_the_job() {
    let mut job = Served::start(AUTO_GROWTH, &[("VRAMSHIM_STACKS", "native")]);
    let [own] = &journals_in(&job.at("journals"))[..] else {
        panic!("one journal");
    };
    std::fs::hard_link(own, job.at("hard.vraj")).unwrap();
    symlink(own, job.at("soft.vraj")).unwrap();
    symlink(job.at("journals"), job.at("folder")).unwrap();
    std::fs::hard_link(own.with_extension("stacks"), job.at("side.stacks")).unwrap();
    let spelled = job.at("folder").join(own.file_name().unwrap());
    let others = ["hard.vraj", "soft.vraj", "side.vraj"].map(|name| job.at(name));
    for name in others.iter().chain([own, &spelled]) {
        job.refused(&["dump", name.to_str().unwrap()], 2);
    }
    assert!(!job.at("side.vraj").exists());
    assert_eq!(job.tell("allocate"), "allocated");
    drop(job.job.child.stdin.take());
    assert!(job.job.child.wait().unwrap().success());
    let [journal] = &inspect(own)[..] else {
        panic!("one job");
    };
    assert_has_all(journal, 6000);
    assert_ne!(functions(own), Vec::<String>::new(), "the stacks are there");
    assert!(marks(own).is_empty(), "a dump that is refused makes no mark");
}

#[test]
fn a_job_without_the_setting_has_no_socket() {
    let mut silent = Member::start(job("serve").strategy(PASSTHROUGH));
    assert!(silent.answer().starts_with("ready"));
    std::thread::sleep(Duration::from_millis(300));
    let pid = silent.child.id();
    let asked = || vramshim(&["ctl", &pid.to_string(), "stats"]).said;
    assert_says(&asked(), "vramshim run --control");
    assert_eq!(socket_of(pid), None);
    silent.end();
    assert_says(&asked(), "there is no process");
}

#[test]
fn silent_and_slow_peers_hold_up_nobody() {
    let mut job = Served::start(AUTO_GROWTH, &[("VRAMSHIM_IDLE_RELEASE", "20ms")]);
    let socket = socket_of(job.pid).expect("a socket");
    let connect = || UnixStream::connect(&socket).expect("a peer");
    let mut silent: Vec<UnixStream> = (0..20).map(|_| connect()).collect();
    // Half of a line, a line that never ends, and who asks and never reads the answer.
    for (number, peer) in silent.iter_mut().enumerate() {
        drop(peer.write_all([&b"sta"[..], &[b'x'; 5000], b"stats\n", b"stats\n"][number / 5]));
    }
    assert_eq!(job.tell("allocate"), "allocated");
    job.until("the keeper goes on to give idle memory back", |job| {
        job.figure("device.0.reserved") < 64 << 20
    });
    let mut slow = connect();
    for byte in b"stats\n" {
        slow.write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(15));
    }
    let mut answer = String::new();
    slow.set_read_timeout(Some(PATIENCE)).unwrap();
    slow.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("{\"ok\":true"), "{answer}");
    let mut wrong = connect();
    wrong.write_all(b"format c:\n").unwrap();
    answer.clear();
    wrong.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("{\"ok\":false,\"errno\":22"), "{answer}");
    job.end();
}

#[test]
fn a_job_that_closes_descriptors_keeps_its_own_files() {
    let mut job = Served::start(AUTO_GROWTH, &[]);
    let socket = socket_of(job.pid).expect("a socket");
    // A peer whose descriptor the job takes for a file of its own.
    let mut peer = UnixStream::connect(&socket).unwrap();
    peer.write_all(b"sta").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(job.tell("close"), "closed");
    drop(peer.write_all(b"ts\n"));
    job.until("there is a socket again", |job| job.ctl(&["stats"]).code == Some(0));
    assert_eq!(job.tell("files"), "whole");
    job.end();
}

#[test]
fn a_forked_child_does_not_answer_for_its_parent() {
    let mut job = Served::start(AUTO_GROWTH, &[]);
    let child = job.tell("fork");
    let child: i32 = child.strip_prefix("child ").expect("a child").parse().unwrap();
    let socket = socket_of(job.pid).expect("a socket");
    assert_eq!(job.well(&["stats", "pid"])["stats"]["pid"], job.pid);
    let of_child = vramshim(&["ctl", &child.to_string(), "stats"]);
    assert_eq!(of_child.code, Some(1), "the child has not used CUDA");
    // SAFETY: the process is a child of this one, and was not waited for.
    unsafe { libc::kill(job.pid as i32, libc::SIGKILL) };
    job.job.child.wait().unwrap();
    // The socket is left over, and nobody listens: the child closes it. The job of another test may have removed it.
    job.until("nobody listens", |_| match UnixStream::connect(&socket) {
        Ok(_) => false,
        Err(error) => {
            assert!(matches!(error.kind(), ConnectionRefused | NotFound), "{error}");
            true
        }
    });
    // SAFETY: the process is one that the job forked.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // The next job removes what was left over.
    let job = Served::start(AUTO_GROWTH, &[]);
    assert!(!socket.exists());
    job.end();
}

/// Gives a new process a folder of sockets of its own, and a /mnt of its own.
fn private_folders(sockets: &CStr) -> std::io::Result<()> {
    let none = std::ptr::null::<libc::c_void>();
    let mount = |what: *const libc::c_char, at: &CStr, flags, data: *const libc::c_void| {
        // SAFETY: the strings are NUL-terminated, and the call changes this new process alone.
        unsafe { libc::mount(c"none".as_ptr(), at.as_ptr(), what, flags, data) == 0 }
    };
    // SAFETY: the call takes a number only.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0
        && mount(none.cast(), c"/", libc::MS_REC | libc::MS_PRIVATE, none)
        && mount(c"tmpfs".as_ptr(), sockets, 0, c"mode=0700".as_ptr().cast())
        && mount(c"tmpfs".as_ptr(), c"/mnt", 0, none);
    done.then_some(()).ok_or_else(std::io::Error::last_os_error)
}

/// The job has a folder of sockets of its own, which can be opened to others. The job's user reaches it from outside, and
/// copies a journal that has no name outside.
#[test]
fn another_user_gets_no_answer_and_a_container_is_reached() {
    // SAFETY: geteuid has no preconditions.
    let sockets = base::control::folder_in("/tmp".as_ref(), unsafe { libc::geteuid() });
    drop(std::fs::DirBuilder::new().mode(0o700).create(&sockets));
    let place = CString::new(sockets.as_os_str().as_bytes()).unwrap();
    let privately = move || private_folders(&place);
    let mut trial = Command::new("true");
    // SAFETY: the function makes system calls only, so it may run between fork and exec.
    unsafe { trial.pre_exec(privately.clone()) };
    let can = trial.status().is_ok_and(|status| status.success());
    if !can || !support::in_path("nsenter") || !support::in_path("setpriv") {
        return left_out("a job with folders of its own: this needs the right to mount, nsenter and setpriv");
    }
    let job = job("serve").strategy(AUTO_GROWTH).env("VRAMSHIM_CONTROL", "1");
    let mut job = job.env("VRAMSHIM_DIR", "/mnt/journals");
    // SAFETY: as above.
    unsafe { job.command().pre_exec(privately) };
    let job = Served::of(job);
    assert_eq!(socket_of(job.pid), None, "it is in the job's own folder");
    let copy = job.at("copy.vraj");
    assert!(job.well(&["dump", copy.to_str().unwrap()])["records"].number() > 0);
    assert_eq!(inspect(&copy)[0]["pid"], job.pid);

    let inside = |user: &str, opened: &str| {
        let folder = sockets.display();
        let change = format!("chmod {opened} {folder} {folder}/*.sock && echo changed");
        let pid = job.pid.to_string();
        let enter = |words: &[&str]| Command::new("nsenter").args(["-m", "-t", &pid]).args(words).printed();
        assert_eq!(enter(&["sh", "-c", &change]).text.trim(), "changed");
        let (user, group) = (format!("--reuid={user}"), format!("--regid={user}"));
        // The program is copied into the job's /mnt, because the other user may not reach the folders of the build.
        let ask = ["/mnt/vramshim", "ctl", &pid, "stats"];
        enter(&[&["setpriv", "--clear-groups", &user, &group], &ask[..]].concat())
    };
    std::fs::copy(program(), format!("/proc/{}/root/mnt/vramshim", job.pid)).unwrap();
    for (user, opened, code) in [("65534", "700", 1), ("65534", "777", 1), ("0", "700", 0)] {
        let told = inside(user, opened);
        assert_eq!(told.code, Some(code), "{user} {opened}: {}", told.said);
    }
    job.end();
}
