//! Who is answered, and what clients can do to the server.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use support::{Runs, assert_says, left_out, program};

use super::allocates;
use super::server::{Served, Text, ask};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A request for the metrics with this header.
fn with(header: &str) -> String {
    format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n")
}

fn with_mode(path: &Path, text: &str, mode: u32) -> String {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    path.display().to_string()
}

/// `vramshim serve` with arguments that it must refuse at once.
fn refused(arguments: &[&str]) {
    let output = Command::new(program()).arg("serve").args(arguments).printed();
    assert_eq!(output.code, Some(2), "{arguments:?}: {}", output.said);
}

#[test]
fn without_the_token_no_client_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let file = with_mode(&folder.path().join("token"), &format!("{TOKEN}\n"), 0o600);
    let served = Served::start(folder.path(), &["--token-file", &file]);
    for path in ["/metrics", "/", "/other"] {
        for shown in [
            "",
            "Authorization: Bearer 0123456789abcdef\r\n",
            "Authorization: Basic abc\r\n",
        ] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{shown}\r\n");
            let (status, head, body) = served.ask(&request);
            assert_eq!((status, body.contains("vramshim_")), (401, false), "{request}: {head}");
        }
    }
    let (status, _, body) = served.ask(&with(&format!("Authorization: Bearer {TOKEN}")));
    assert_eq!((status, body.contains("vramshim_node_processes")), (200, true));
}

#[test]
fn a_new_token_in_the_file_takes_the_place_of_the_old_one() {
    const NEXT: &str = "fedcba9876543210fedcba9876543210";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let file = with_mode(&path, TOKEN, 0o600);
    let served = Served::start(folder.path(), &["--token-file", &file]);
    let status = |token: &str| served.ask(&with(&format!("Authorization: Bearer {token}"))).0;
    assert_eq!((status(TOKEN), status(NEXT)), (200, 401));
    with_mode(&path, NEXT, 0o600);
    assert_eq!((status(TOKEN), status(NEXT)), (401, 200));
    // As Kubernetes does it: another file gets the name.
    with_mode(&folder.path().join("other"), TOKEN, 0o600);
    std::fs::rename(folder.path().join("other"), &path).unwrap();
    assert_eq!((status(TOKEN), status(NEXT)), (200, 401));
    // The last token holds as long as the file cannot be used.
    with_mode(&path, NEXT, 0o644);
    assert_eq!((status(TOKEN), status(NEXT)), (200, 401));
    std::fs::remove_file(&path).unwrap();
    assert_eq!((status(TOKEN), status(NEXT)), (200, 401));
}

#[test]
fn other_machines_are_answered_only_if_that_was_said() {
    let folder = tempfile::tempdir().unwrap();
    for address in ["0.0.0.0:0", "[::]:0", "somewhere"] {
        refused(&["--listen", address]);
    }
    let open = with_mode(&folder.path().join("open"), TOKEN, 0o644);
    refused(&["--listen", "0.0.0.0:0", "--token-file", &open]);
    let short = with_mode(&folder.path().join("short"), "secret", 0o600);
    for file in [&short, "/dev/zero", "/nowhere/token"] {
        refused(&["--token-file", file]);
    }
}

#[test]
fn only_get_and_head_of_known_paths_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let mut served = Served::start(folder.path(), &[]);
    let request = |line: &str| served.ask(&format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n"));
    assert_eq!(served.ask(&with("Host: y")).0, 400, "one host");
    let (status, head, body) = request("HEAD /metrics");
    assert_eq!((status, body.as_str()), (200, ""));
    assert!(head.to_lowercase().contains("content-length: "), "{head}");
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "FOO"] {
        assert_eq!(request(&format!("{method} /metrics")).0, 405, "{method}");
    }
    for path in [
        "/etc/passwd",
        "/../../etc/passwd",
        "/metrics/",
        "/metrics%00",
        "//metrics",
        "/%2e%2e/metrics",
    ] {
        assert_eq!(request(&format!("GET {path}")).0, 404, "{path}");
    }
    assert_eq!(request("GET /metrics?x=1").0, 200);
    let (_, head, body) = served.ask(&with("Accept: text/plain;version=0.0.4"));
    assert_says(&head.to_lowercase(), "content-type: text/plain; version=0.0.4");
    assert!(body.contains("# TYPE paddle_gpu_malloc_failed_total counter"));
    let (long, many) = (format!("X: {}", "y".repeat(1 << 20)), "A: b\r\n".repeat(500));
    for request in [&with(&long), &with(&many), "\0\0\0\r\n\r\n"] {
        assert_ne!(served.ask(request).0, 200);
    }
    assert!(served.is_running());
    served.scrape();
}

#[test]
fn clients_that_are_silent_or_slow_or_hang_up_do_not_hold_up_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut served = Served::start(folder.path(), &[]);
    for _ in 0..50 {
        let mut socket = served.connect();
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        // Closed with an answer unread, the connection is reset.
        drop(socket);
    }
    // More than there are places for. They never end their requests and never close; some send a byte now and then.
    let clients: Vec<_> = (0..40).map(|_| served.connect()).collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: ".iter();
            for byte in request.chain(std::iter::repeat(&b'x')) {
                for mut socket in &clients[..32] {
                    let _ = socket.write_all(&[*byte]);
                }
                if is_over.load(Relaxed) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        // A client has 5 seconds for its request. A scrape does not wait for that, but on a busy machine.
        let at_once = (0..5).any(|_| {
            let begin = Instant::now();
            served.scrape();
            begin.elapsed() < Duration::from_secs(5)
        });
        is_over.store(true, Relaxed);
        assert!(at_once);
    });
    let mut rest = Vec::new();
    // The end comes from the server: this client never closes.
    let _ = (&clients[0]).read_to_end(&mut rest);
    assert!(!String::from_utf8_lossy(&rest).contains("vramshim_node_processes"));
    assert!(served.is_running());
}

fn end_by(signal: i32, child: &mut std::process::Child) -> Option<i32> {
    // SAFETY: kill has no preconditions, and the child was not waited for yet.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
    child.wait().unwrap().code()
}

#[test]
fn signals_end_it_with_status_0() {
    let folder = tempfile::tempdir().unwrap();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut served = Served::start(folder.path(), &[]);
        assert_eq!(end_by(signal, &mut served.child), Some(0));
        let file = folder.path().join(format!("{signal}.prom"));
        let mut command = Command::new(program());
        command.args(["serve", "--every", "1h", "--textfile"]).arg(&file);
        let mut writer = command.arg("--dir").arg(folder.path()).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !file.exists() {
            assert!(Instant::now() < until, "no file");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(end_by(signal, &mut writer), Some(0));
    }
}

#[test]
fn a_folder_that_is_missing_is_waited_for_with_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("later");
    let served = Served::start(&missing, &["--keep-ended", "8000h"]);
    assert_says(&served.said, "later: there is no such folder yet");
    let failed = |text: &Text| text.value("vramshim_serve_unreadable", &[("what", "folder")]);
    assert_eq!(failed(&served.scrape()), Some(1.0));
    std::fs::create_dir(&missing).unwrap();
    allocates(&missing, 1, 1, 1);
    // Answers within half a second are the same.
    std::thread::sleep(Duration::from_millis(600));
    let text = served.scrape();
    assert_eq!(failed(&text), Some(0.0));
    let made = [("pid", "1"), ("device", "0")];
    assert_eq!(text.value("vramshim_allocations_total", &made), Some(1.0));
    std::fs::write(folder.path().join("file"), "").unwrap();
    let file = folder.path().join("file").display().to_string();
    refused(&["--dir", &file]);
}

/// What `action` returns if another user does it. `None` if this user may not become another one.
fn as_another_user<T: Send>(action: impl FnOnce() -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            // SAFETY: the raw call changes the ids of this thread alone, which ends with the closure.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) };
            (changed == 0).then(action)
        });
        other.join().unwrap()
    })
}

#[test]
fn a_unix_socket_is_for_its_user_alone_and_goes_with_the_server() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let path = folder.path().join("metrics.sock");
    let listen = format!("unix:{}", path.display());
    let start = || {
        let mut command = Command::new(program());
        command.args(["serve", "--listen", &listen, "--dir"]).arg(folder.path());
        command.stderr(Stdio::null()).spawn().unwrap()
    };
    let connect = || {
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            match UnixStream::connect(&path) {
                Ok(socket) => break socket,
                Err(error) if Instant::now() > until => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    };
    let mut first = start();
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_eq!(ask(connect(), request).0, 200);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    match as_another_user(|| UnixStream::connect(&path).map(drop)) {
        Some(connected) => {
            let error = connected.expect_err("another user has no way in");
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
        }
        None => left_out("a connection by another user: this user cannot become one"),
    }
    // A second server does not take the path from the first.
    assert_eq!(start().wait().unwrap().code(), Some(1));
    first.kill().unwrap();
    first.wait().unwrap();
    // Nobody answers at the socket that was left, so it is replaced.
    assert!(path.exists());
    let mut next = start();
    assert_eq!(ask(connect(), request).0, 200);
    assert_eq!(end_by(libc::SIGTERM, &mut next), Some(0));
    assert!(!path.exists());
    // What is no socket is left alone.
    std::fs::write(&path, "kept").unwrap();
    assert_eq!(start().wait().unwrap().code(), Some(1));
    assert_eq!(std::fs::read(&path).unwrap(), b"kept");
}
