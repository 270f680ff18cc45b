//! Runs `vramshim top` on a pseudo terminal and keeps the screen that a user would see.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use support::program;

/// Every wait of the tests is shorter than this, unless something hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A byte that `top` never writes, and that changes nothing on the screen.
const MARK: u8 = 0;

pub struct Terminal {
    master: File,
    slave: OwnedFd,
    output: Receiver<Vec<u8>>,
    screen: vt100::Parser,
    child: Child,
    before: Vec<u8>,
    /// Whether the byte `MARK` has come.
    marked: bool,
    /// Whether the alternate screen was ever shown.
    pub drawn: bool,
}

fn size(rows: u16, columns: u16) -> libc::winsize {
    libc::winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// The modes of a terminal, as bytes that can be compared.
fn modes(terminal: &OwnedFd) -> Vec<u8> {
    // SAFETY: termios is plain data, for which all zeros are valid.
    let mut modes: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, `modes` is valid for writing.
    assert_eq!(unsafe { libc::tcgetattr(terminal.as_raw_fd(), &mut modes) }, 0);
    let flags = [modes.c_iflag, modes.c_oflag, modes.c_cflag, modes.c_lflag];
    let mut bytes: Vec<u8> = flags.iter().flat_map(|flag| flag.to_le_bytes()).collect();
    bytes.extend(modes.c_cc);
    bytes
}

/// A pause while nobody reads what `top` draws.
pub fn pause(_terminal: &mut Terminal) {
    std::thread::sleep(Duration::from_millis(20));
}

impl Terminal {
    /// Starts `vramshim top` with these arguments.
    pub fn start(rows: u16, columns: u16, arguments: &[&str]) -> Terminal {
        Self::open(rows, columns, arguments, &[], true)
    }

    /// The same with more variables. Without a session of its own it is a job of this process: a process of the same
    /// session, as a shell is, may continue it when it stops.
    pub fn open(
        rows: u16,
        columns: u16,
        arguments: &[&str],
        variables: &[(&str, &str)],
        leads_session: bool,
    ) -> Terminal {
        let (mut master, mut slave) = (-1, -1);
        let (name, modes_to_set, size) = (std::ptr::null_mut(), std::ptr::null(), size(rows, columns));
        // SAFETY: openpty writes both descriptors. The other arguments are null or only read.
        let opened = unsafe { libc::openpty(&mut master, &mut slave, name, modes_to_set, &size) };
        assert_eq!(opened, 0, "a pseudo terminal");
        // No child keeps the terminal alive.
        for fd in [master, slave] {
            // SAFETY: the descriptor is open, and the call takes numbers alone.
            assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
        }
        // SAFETY: openpty opened both descriptors, and nothing else owns them.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let before = modes(&slave);
        let mut command = Command::new(program());
        command
            .arg("top")
            .args(arguments)
            .env("TERM", "xterm-256color")
            .env_remove("NO_COLOR");
        command.envs(variables.iter().copied());
        let stdio = || slave.try_clone().expect("another descriptor");
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        // SAFETY: setsid, setpgid and ioctl are system calls that allocate nothing, so they may be made between fork and exec.
        unsafe {
            command.pre_exec(move || {
                if leads_session {
                    libc::setsid();
                    libc::ioctl(0, libc::TIOCSCTTY, 0);
                } else {
                    libc::setpgid(0, 0);
                }
                Ok(())
            });
        }
        let child = command.spawn().expect("vramshim top");
        let (send, output) = channel();
        let mut reader = master.try_clone().expect("another descriptor");
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(got @ 1..) = reader.read(&mut bytes) {
                if send.send(bytes[..got].to_vec()).is_err() {
                    break;
                }
            }
        });
        Terminal {
            master,
            slave,
            output,
            screen: vt100::Parser::new(rows, columns, 0),
            child,
            before,
            marked: false,
            drawn: false,
        }
    }

    pub fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("keys");
    }

    /// Ends `top` as its users do.
    pub fn quit(&mut self) {
        self.press("q");
        assert_eq!(self.ended().code(), Some(0));
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: `kill` touches no memory. The child was not waited for, so its process id is still its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    pub fn resize(&mut self, rows: u16, columns: u16) {
        // SAFETY: the descriptor is open, and the size is only read.
        unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCSWINSZ, &size(rows, columns)) };
        self.screen.screen_mut().set_size(rows, columns);
    }

    pub fn text(&self) -> String {
        self.screen.screen().contents()
    }

    /// Reads what `top` drew. Returns false if nothing came within this time.
    fn take(&mut self, wait: Duration) -> bool {
        let Ok(bytes) = self.output.recv_timeout(wait) else {
            return false;
        };
        self.marked |= bytes.contains(&MARK);
        // The bytes go in small pieces to the screen, so that no state in between is missed.
        for piece in bytes.chunks(8) {
            self.screen.process(piece);
            self.drawn |= self.screen.screen().alternate_screen();
        }
        true
    }

    /// Waits until the text on the screen satisfies `wanted`.
    pub fn until(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + LIMIT;
        while !wanted(&self.text()) {
            if let Some(status) = self.child.try_wait().expect("a child") {
                self.settle();
                let text = self.text();
                assert!(wanted(&text), "{what}: top ended, {status}\n{text}");
                break;
            }
            assert!(Instant::now() < end, "{what}: never seen\n{}", self.text());
            self.take(Duration::from_millis(50));
            // Reads on until the drawing is complete.
            while self.take(Duration::from_millis(20)) {}
        }
        self.text()
    }

    /// Lets the terminal hang up. `top` must end within five seconds.
    pub fn hang_up(&mut self) {
        // Both descriptors of the master side go: that of the thread which reads, at the next bytes, and this one.
        self.output = channel().1;
        self.press("r");
        self.master = File::open("/dev/null").expect("/dev/null");
        self.ended_within(Duration::from_secs(5), pause);
    }

    /// Stops the output of the terminal, as Ctrl+S does, so that `top` waits while it draws.
    pub fn fill(&mut self) {
        // SAFETY: the descriptor is open, and the call takes numbers alone.
        assert_eq!(unsafe { libc::tcflow(self.slave.as_raw_fd(), libc::TCOOFF) }, 0);
        self.press("rrrrrrrr");
        std::thread::sleep(Duration::from_millis(300));
    }

    pub fn ended_within(&mut self, limit: Duration, meanwhile: impl Fn(&mut Terminal)) -> ExitStatus {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(Instant::now() < end, "top does not end\n{}", self.text());
            meanwhile(self);
        }
    }

    pub fn until_stopped(&mut self) {
        let end = Instant::now() + LIMIT;
        loop {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("its state");
            if stat.contains(") T ") {
                break;
            }
            assert!(Instant::now() < end, "top never stopped");
            self.take(Duration::from_millis(20));
        }
        self.settle();
    }

    /// Waits until `top` ends, and checks that the terminal is as it was.
    pub fn ended(&mut self) -> ExitStatus {
        let status = self.ended_within(LIMIT, |terminal| {
            terminal.take(Duration::from_millis(20));
        });
        self.settle();
        self.assert_restored();
        status
    }

    /// Takes all that `top` has drawn before it ended or stopped. A mark is written behind that.
    fn settle(&mut self) {
        self.marked = false;
        let mut slave = File::from(self.slave.try_clone().expect("another descriptor"));
        slave.write_all(&[MARK]).expect("a mark");
        let end = Instant::now() + LIMIT;
        while !self.marked {
            assert!(Instant::now() < end, "what top drew does not arrive\n{}", self.text());
            self.take(Duration::from_millis(50));
        }
    }

    /// Whether any character on the screen has a colour of its own, is bold or dim.
    pub fn is_coloured(&self) -> bool {
        let screen = self.screen.screen();
        let (rows, columns) = screen.size();
        let cells = (0..rows).flat_map(|row| (0..columns).filter_map(move |column| screen.cell(row, column)));
        cells
            .into_iter()
            .any(|cell| cell.fgcolor() != vt100::Color::Default || cell.bold() || cell.inverse())
    }

    pub fn assert_restored(&self) {
        let screen = self.screen.screen();
        assert!(!screen.alternate_screen(), "the alternate screen is still shown");
        assert!(!screen.hide_cursor(), "the cursor is still hidden");
        assert_eq!(modes(&self.slave), self.before, "the terminal's modes");
    }

    pub fn assert_raw(&self) {
        assert_ne!(modes(&self.slave), self.before, "the terminal's modes");
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
