//! Builds the quota layer of `tests/support/layer`, runs jobs over it in both forms, and compares its book with the
//! library's ledger.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

use super::{Job, root, scratch, simulated};
use crate::Fields;

/// The two ways in which quota layers are put in front of a driver.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    /// Preloaded after the library, with a `dlsym` of its own.
    Preloaded,
    /// Installed as `libcuda.so.1`; it loads the driver itself.
    Replacing,
    /// As `Preloaded`, but the layer hooks nothing of virtual memory management.
    PreloadedWithoutVmm,
}

/// The forms that hook everything.
pub const FORMS: [Form; 2] = [Form::Preloaded, Form::Replacing];

/// Variables that set the behaviour of the layer (`tests/support/layer/habits.c`).
pub type Habits = &'static [(&'static str, &'static str)];

/// The folder with both forms, built once.
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
    /// Puts the layer before the library: the job calls the layer, and the layer calls the library.
    pub fn under(self, limit: &str, habits: Habits) -> Job {
        let job = self.preload_in_front(built().join("liblayer.so"));
        job.env("LAYER_LIMIT", limit).envs(habits)
    }

    /// Puts the layer between the library and the simulated driver.
    pub fn over(self, form: Form, limit: &str, habits: Habits) -> Job {
        let driver = simulated("libcuda.so.1");
        let job = match form {
            Form::Preloaded => self.preload(built().join("liblayer.so")),
            Form::PreloadedWithoutVmm => self.preload(built().join("without-vmm/liblayer.so")),
            Form::Replacing => {
                // The loader must still find the other libraries of the simulated GPU.
                let folders = [built().join("replacing"), driver.parent().unwrap().to_owned()];
                let folders = std::env::join_paths(folders).expect("folders without a colon");
                self.env("LD_LIBRARY_PATH", folders).env("LAYER_DRIVER", driver)
            }
        };
        job.env("LAYER_LIMIT", limit).envs(habits)
    }
}

/// Checks the layer's book against another's totals, of which the layer counts physical bytes, and requested bytes of
/// stream-ordered memory.
fn assert_book_is(checkpoint: &Value, teller: &str, bytes: impl Fn(&Value) -> &Value, context: &str) {
    let limit = checkpoint["layer"]["limit"].number();
    let rows = checkpoint[teller]["totals"].list();
    let charge = |row: &Value| match row["class"].as_str() {
        Some("linear" | "pitched" | "managed" | "vmm" | "array") => bytes(&row["reserved"]).number(),
        Some("async") => bytes(&row["requested"]).number(),
        _ => 0,
    };
    for (device, used) in checkpoint["layer"]["used"].list().iter().enumerate() {
        assert!(used.number() <= limit, "{used} of {limit}");
        let charged: u64 = rows.iter().filter(|row| row["device"] == device).map(charge).sum();
        assert_eq!(used.number(), charged, "layer and {teller}, device {device}, {context}");
    }
}

/// Checks the layer's book against the simulator's table.
pub fn assert_book_is_true(checkpoint: &Value, context: &str) {
    assert_book_is(checkpoint, "truth", |bytes| bytes, context);
}

/// Checks the layer's book against the library's ledger.
pub fn assert_books_agree(checkpoint: &Value, context: &str) {
    assert_book_is(checkpoint, "account", |bytes| &bytes["current"], context);
}
