//! A page in headless Chromium, driven through its debugging protocol. Chromium reads commands from descriptor 3 and
//! answers on descriptor 4; each message is JSON and ends with a zero byte.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use support::Fields;
use tempfile::TempDir;

/// A browser that does not answer for so long hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// The browser's program: what `VRAMSHIM_CHROMIUM` names, or one in `PATH`. `None` if there is none.
pub fn chromium() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("VRAMSHIM_CHROMIUM") {
        return Some(path.into());
    }
    let path = std::env::var_os("PATH")?;
    let in_path = |name: &str| {
        std::env::split_paths(&path)
            .map(|folder| folder.join(name))
            .find(|path| path.is_file())
    };
    let names = "chromium chromium-browser google-chrome chrome headless_shell";
    names.split(' ').find_map(in_path)
}

pub struct Browser {
    process: Child,
    commands: File,
    answers: Receiver<Vec<u8>>,
    session: Option<String>,
    next: u64,
    /// Errors on the console, errors of scripts, and requests to anywhere: there must be none at the end.
    complaints: Vec<String>,
    /// The time of the last touch, since 1970.
    touched: Duration,
    loaded: bool,
    _profile: TempDir,
}

fn pipe() -> (OwnedFd, OwnedFd) {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors, which nobody else owns.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0, "a pipe");
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    }
}

impl Browser {
    /// Starts the browser with an empty page.
    pub fn start(program: &Path) -> Browser {
        let profile = TempDir::new().expect("a folder for the browser");
        let (command_end, commands) = pipe();
        let (answers, answer_end) = pipe();
        let mut command = Command::new(program);
        command.args([
            "--headless",
            "--remote-debugging-pipe",
            // Tests often run as root, or in a container without user namespaces. The page is ours.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            "--hide-scrollbars",
        ]);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        command.arg("about:blank");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let ends: [RawFd; 2] = [command_end.as_raw_fd(), answer_end.as_raw_fd()];
        // SAFETY: the closure calls only functions that are safe between fork and exec. The descriptors are open until
        // the child has them. They are copied to high numbers first, because they may be 3 and 4 themselves.
        unsafe {
            command.pre_exec(move || {
                let high = ends.map(|end| libc::fcntl(end, libc::F_DUPFD, 50));
                if libc::dup2(high[0], 3) < 0 || libc::dup2(high[1], 4) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                libc::close(high[0]);
                libc::close(high[1]);
                // The browser's own processes end with it.
                libc::setpgid(0, 0);
                Ok(())
            });
        }
        let process = command.spawn().expect("the browser");
        let (send, received) = channel();
        let messages = BufReader::new(File::from(answers)).split(0);
        std::thread::spawn(move || {
            messages
                .map_while(Result::ok)
                .try_for_each(|message| send.send(message))
        });
        let mut browser = Browser {
            process,
            commands: commands.into(),
            answers: received,
            session: None,
            next: 0,
            complaints: Vec::new(),
            touched: SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock"),
            loaded: false,
            _profile: profile,
        };
        let target = browser.ask("Target.createTarget", json!({"url": "about:blank"}));
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.ask("Target.attachToTarget", target);
        browser.session = Some(attached["sessionId"].text().to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.ask(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Sends a command and waits for its answer.
    pub fn ask(&mut self, method: &str, parameters: Value) -> Value {
        self.next += 1;
        let number = self.next;
        let mut message = json!({"id": number, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message).expect("JSON");
        bytes.push(0);
        self.commands.write_all(&bytes).expect("the browser reads");
        loop {
            let answer = self.receive();
            if answer["id"] == json!(number) {
                assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.notice(&answer);
        }
    }

    /// Waits for a message.
    fn receive(&mut self) -> Value {
        let message = self.answers.recv_timeout(PATIENCE).expect("the browser answers");
        serde_json::from_slice(&message).expect("the browser sends JSON")
    }

    fn notice(&mut self, message: &Value) {
        let parameters = &message["params"];
        match message["method"].as_str() {
            Some("Page.loadEventFired") => self.loaded = true,
            Some(what @ ("Runtime.exceptionThrown" | "Log.entryAdded")) => {
                self.complaints.push(format!("{what}: {parameters}"));
            }
            Some("Runtime.consoleAPICalled") if parameters["type"] != "log" => {
                self.complaints.push(format!("console: {}", parameters["args"]));
            }
            Some("Network.requestWillBeSent") => {
                let url = parameters["request"]["url"].as_str().unwrap_or_default();
                if !url.starts_with("file:") && !url.starts_with("data:") && url != "about:blank" {
                    self.complaints.push(format!("request to {url}"));
                }
            }
            _ => {}
        }
    }

    /// Sets the size of the window, and the colours that the user prefers. A narrow one is that of a phone, with fingers.
    pub fn look(&mut self, width: u32, height: u32, scheme: &str) {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.ask("Emulation.setDeviceMetricsOverride", metrics);
        self.ask("Emulation.setTouchEmulationEnabled", json!({"enabled": width < 600}));
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.ask("Emulation.setEmulatedMedia", json!({"features": features}));
        self.settle();
    }

    pub fn open(&mut self, page: &Path) {
        let address = format!("file://{}", page.display());
        self.loaded = false;
        self.ask("Page.navigate", json!({"url": address}));
        while !self.loaded {
            let message = self.receive();
            self.notice(&message);
        }
        self.settle();
    }

    /// The value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let question = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.ask("Runtime.evaluate", question);
        let exception = answer.get("exceptionDetails");
        assert!(exception.is_none(), "{expression}: {exception:?}");
        answer["result"]["value"].clone()
    }

    /// Waits until what was changed is drawn.
    pub fn settle(&mut self) {
        self.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))");
    }

    pub fn text(&mut self, selector: &str) -> String {
        let selector = serde_json::to_string(selector).expect("JSON");
        let text = self.value(&format!("document.querySelector({selector}).innerText"));
        text.text().to_owned()
    }

    pub fn assert_shows(&mut self, selector: &str, words: &[&str]) {
        let text = self.text(selector);
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {selector}: {text}");
        }
    }

    pub fn click(&mut self, selector: &str) {
        let selector = serde_json::to_string(selector).expect("JSON");
        self.value(&format!("document.querySelector({selector}).click()"));
        self.settle();
    }

    /// Presses the left button at `from`, moves to `to`, and lets go.
    pub fn drag(&mut self, from: (f64, f64), to: (f64, f64)) {
        for (kind, (x, y), buttons) in [("Pressed", from, 1), ("Moved", to, 1), ("Released", to, 0)] {
            let kind = format!("mouse{kind}");
            let event = json!({"type": kind, "x": x, "y": y, "button": "left", "buttons": buttons, "clickCount": 1});
            self.ask("Input.dispatchMouseEvent", event);
        }
        self.settle();
    }

    /// Puts fingers on the places, moves them to each of the next, and lifts them.
    pub fn touch(&mut self, steps: &[&[(f64, f64)]]) {
        let kinds = ["touchStart"].into_iter().chain(std::iter::repeat("touchMove"));
        for (kind, fingers) in kinds.zip(steps.iter().copied()).chain([("touchEnd", &[][..])]) {
            let fingers = fingers.iter().map(|(x, y)| json!({"x": x, "y": y}));
            // A busy machine would part two taps.
            self.touched += Duration::from_millis(20);
            let seconds = self.touched.as_secs_f64();
            let event = json!({"type": kind, "touchPoints": fingers.collect::<Value>(), "timestamp": seconds});
            self.ask("Input.dispatchTouchEvent", event);
        }
        self.settle();
    }

    /// Presses a key that the focused element gets.
    pub fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let code = if key == "Tab" { 9 } else { 0 };
            let event = json!({"type": kind, "key": key, "windowsVirtualKeyCode": code});
            self.ask("Input.dispatchKeyEvent", event);
        }
        self.settle();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let group = self.process.id() as libc::pid_t;
        // SAFETY: the group is that of the browser, which `start` made and nobody has waited for yet.
        unsafe { libc::kill(-group, libc::SIGKILL) };
        let _ = self.process.wait();
        if !std::thread::panicking() {
            assert_eq!(self.complaints, Vec::<String>::new());
        }
    }
}
