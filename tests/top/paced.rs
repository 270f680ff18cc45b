//! A job that runs a number of steps on command and waits in between (`tests/top/paced.c`).

use serde_json::Value;

use support::member::Member;
use support::{Job, Printed, Strategy, client, reserved, totals, vramshim_with};

pub struct Paced {
    pub member: Member,
}

/// The figures of the job, the simulator and the library while the job waits.
pub struct Answer {
    pub checkpoint: Value,
    /// The library's own figures, by device.
    pub stats: Value,
    /// The process id of the child that the job forked.
    pub child: Option<u32>,
}

impl Paced {
    pub fn start(strategy: Strategy, seed: u64, threads: u32) -> Paced {
        Self::start_as(job(strategy, seed, threads))
    }

    pub fn start_as(job: Job) -> Paced {
        let member = Member::start(job);
        Paced { member }
    }

    pub fn pid(&self) -> u32 {
        self.member.child.id()
    }

    pub fn answer(&mut self) -> Answer {
        let mut answer = Answer {
            checkpoint: Value::Null,
            stats: Value::Null,
            child: None,
        };
        while answer.stats.is_null() {
            let said: Value = serde_json::from_str(&self.member.answer()).expect("JSON");
            if let Some(stats) = said.get("stats") {
                answer.stats = stats.clone();
            } else if let Some(child) = said.get("child") {
                answer.child = child.as_u64().map(|pid| pid as u32);
            } else {
                answer.checkpoint = said;
            }
        }
        answer
    }

    pub fn tell(&mut self, line: &str) -> Answer {
        self.member.tell(line);
        self.answer()
    }

    pub fn kill(&mut self) {
        self.member.child.kill().expect("a kill");
        self.member.child.wait().expect("a child");
    }
}

pub fn job(strategy: Strategy, seed: u64, threads: u32) -> Job {
    let path = client("top/paced.c", "paced", &["libcuda.so.1"]);
    Job::new(path)
        .strategy(strategy)
        .args([seed.to_string(), threads.to_string()])
}

pub fn top<A: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = A>) -> Printed {
    vramshim_with(&["top"], arguments)
}

/// The output of `vramshim top --once --json` for these processes and folders.
pub fn page<A: AsRef<std::ffi::OsStr>>(only: impl IntoIterator<Item = A>) -> Value {
    vramshim_with(&["top", "--once", "--json"], only).ok().json()
}

/// The bytes that a job requested and still holds on a device, and the bytes that the simulator reserved for it.
pub fn truth(answer: &Answer, device: i64) -> (u64, u64) {
    let sum = |totals: support::Totals| {
        let counts = |class: &str| !matches!(class, "imported" | "address_range");
        let here = totals
            .into_iter()
            .filter(|((on, class), _)| *on == device && counts(class));
        here.map(|(_, bytes)| bytes).sum()
    };
    let own = totals(&answer.checkpoint["own"], |row| &row["requested"]);
    (sum(own), sum(reserved(&answer.checkpoint)))
}
