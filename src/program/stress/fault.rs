//! What broke in a turn of `vramshim stress`.

use serde::{Deserialize, Serialize};

use crate::analysis::names::result_name;
use crate::render::format::size;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A call of the driver answered an error.
    CallFailed,
    /// A request was refused for lack of memory while the device had enough.
    NoMemory,
    /// A block was handed out that covers bytes of a live block.
    HandedOutTwice,
    /// A block no longer has the bytes that were written to it.
    BytesChanged,
    /// The ledger does not have what the worker holds.
    LedgerDiffers,
    /// Free memory by `cuMemGetInfo` moved by other bytes than the ledger.
    DriverDiffers,
    /// NVML's figures moved by other bytes than the ledger or the driver.
    NvmlDiffers,
    /// The ledger has memory although all of it was freed.
    NotFreed,
    /// The device has less free memory after the worker's end than before its start.
    NotGivenBack,
    /// A call, or the worker, made no progress.
    Hangs,
    /// The worker was ended by a signal, or ended by itself without a reason.
    Died,
    /// The worker could not begin.
    NotStarted,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub kind: Kind,
    /// The call of the driver, if one is to blame. `None` if the worker died with several calls in progress.
    pub call: Option<String>,
    /// What the call answered.
    pub code: Option<i32>,
    /// The bytes of the call or of the block.
    pub bytes: Option<u64>,
    /// The whole sentence, for people.
    pub words: String,
}

impl Fault {
    pub fn new(kind: Kind, words: String) -> Fault {
        Fault {
            kind,
            call: None,
            code: None,
            bytes: None,
            words,
        }
    }

    /// A call that answered an error.
    pub fn of_call(kind: Kind, call: &str, code: i32, bytes: u64, more: &str) -> Fault {
        let of = match bytes {
            0 => String::new(),
            bytes => format!(" of {}", size(bytes)),
        };
        Fault {
            kind,
            call: Some(call.to_owned()),
            code: Some(code),
            bytes: (bytes > 0).then_some(bytes),
            words: format!("{call}{of} answered {} ({code}){more}", result_name(code)),
        }
    }

    pub fn in_call(self, call: &str, bytes: u64) -> Fault {
        Fault {
            call: Some(call.to_owned()),
            bytes: (bytes > 0).then_some(bytes),
            ..self
        }
    }
}
