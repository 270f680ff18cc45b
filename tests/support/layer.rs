//! The quota layer of `tests/support/layer`: jobs over it in both forms, and the comparison of its book with ours.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use super::{Job, root, scratch, simulated};

/// How layers of this kind are put in front of a driver.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// Preloaded behind us, with a `dlsym` of its own.
    Preloaded,
    /// As `libcuda.so.1`, with the driver behind it.
    Replacing,
}

pub const FORMS: [Form; 2] = [Form::Preloaded, Form::Replacing];

/// What a layer does, as `tests/support/layer/habits.c` has it.
pub type Habits = &'static [(&'static str, &'static str)];

/// Where both forms lie, built once.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = scratch("layer");
        let script = root().join("tests/support/layer/build");
        let mut build = Command::new(script);
        let output = build.arg(&folder).arg(simulated("libcuda.so.1")).output();
        let output = output.expect("tests/support/layer/build");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder
    })
}

impl Job {
    /// With the layer in front of us: the job calls it, it calls us.
    pub fn under(self, limit: &str, habits: Habits) -> Job {
        let job = self
            .preload_in_front(built().join("liblayer.so"))
            .env("LAYER_LIMIT", limit);
        habits.iter().fold(job, |job, (name, value)| job.env(name, value))
    }

    /// With the layer between us and the simulated driver.
    pub fn over(self, form: Form, limit: &str, habits: Habits) -> Job {
        let driver = simulated("libcuda.so.1");
        let job = match form {
            Form::Preloaded => self.preload(built().join("liblayer.so")),
            Form::Replacing => {
                // The rest of the simulated GPU is still to be found.
                let folders = [built().join("replacing"), driver.parent().unwrap().to_owned()];
                let folders = std::env::join_paths(folders).expect("folders without a colon");
                self.env("LD_LIBRARY_PATH", folders).env("LAYER_DRIVER", driver)
            }
        };
        let job = job.env("LAYER_LIMIT", limit);
        habits.iter().fold(job, |job, (name, value)| job.env(name, value))
    }
}

/// What the layer charges for, of a device's totals: physical bytes, and of stream-ordered memory what was asked for.
fn charged(totals: &Value, device: u64, reserved: &dyn Fn(&Value) -> u64, requested: &dyn Fn(&Value) -> u64) -> u64 {
    let rows = totals.as_array().unwrap_or_else(|| panic!("no totals: {totals}"));
    let charge = |row: &Value| match row["class"].as_str() {
        Some("linear" | "pitched" | "managed" | "vmm") => reserved(row),
        Some("async") => requested(row),
        _ => 0,
    };
    rows.iter().filter(|row| row["device"] == device).map(charge).sum()
}

/// The layer's book of every device, within its limit.
fn book(checkpoint: &Value) -> Vec<u64> {
    let limit = checkpoint["layer"]["limit"].as_u64().expect("a layer's limit");
    let used = checkpoint["layer"]["used"].as_array().expect("a layer's book");
    let used: Vec<u64> = used.iter().map(|bytes| bytes.as_u64().unwrap()).collect();
    assert!(used.iter().all(|bytes| *bytes <= limit), "{used:?} of {limit}");
    used
}

/// The layer's book is what the simulator gave away.
pub fn assert_book_is_true(checkpoint: &Value, context: &str) {
    let field = |name: &'static str| move |row: &Value| row[name].as_u64().unwrap();
    for (device, used) in (0..).zip(book(checkpoint)) {
        let truth = &checkpoint["truth"]["totals"];
        let given = charged(truth, device, &field("reserved"), &field("requested"));
        assert_eq!(used, given, "layer and simulator, device {device}, {context}");
    }
}

/// The layer's book is the library's account.
pub fn assert_books_agree(checkpoint: &Value, context: &str) {
    let field = |name: &'static str| move |row: &Value| row[name]["current"].as_u64().unwrap();
    for (device, used) in (0..).zip(book(checkpoint)) {
        let account = &checkpoint["account"]["totals"];
        let ours = charged(account, device, &field("reserved"), &field("requested"));
        assert_eq!(used, ours, "layer and library, device {device}, {context}");
    }
}
