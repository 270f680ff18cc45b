//! Asks NVML about the devices of hosts: at once, or in a thread of its own, because NVML can take long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::analysis::host::{Host, HostId};
use crate::analysis::nvml::{self, Everything};

/// A host whose devices are asked for.
pub struct Question {
    pub host: Host,
    /// The devices that its processes use. NVML finds MIG instances by their UUIDs alone.
    pub uuids: BTreeSet<String>,
}

/// The devices of a host.
pub struct Asked {
    /// The name of a simulated GPU (`Host::name`).
    pub simulator: Option<String>,
    pub devices: Everything,
}

impl Question {
    pub fn new(host: Host) -> Question {
        Question {
            host,
            uuids: BTreeSet::new(),
        }
    }

    pub fn ask(&self) -> Asked {
        let uuids: Vec<String> = self.uuids.iter().cloned().collect();
        Asked {
            simulator: self.host.name(),
            devices: nvml::ask_all(&self.host, &uuids),
        }
    }
}

/// A thread that asks. It ends when the `Asker` does, after the question that it works on.
pub struct Asker {
    questions: SyncSender<Vec<Question>>,
    answers: Receiver<BTreeMap<HostId, Asked>>,
}

impl Asker {
    pub fn start() -> Asker {
        // A question that the thread has not taken yet is not asked twice.
        let (questions, taken) = sync_channel::<Vec<Question>>(0);
        let (give, answers) = sync_channel(1);
        thread::spawn(move || {
            while let Ok(questions) = taken.recv() {
                let asked = questions
                    .iter()
                    .map(|question| (question.host.id(), question.ask()))
                    .collect();
                if give.send(asked).is_err() {
                    break;
                }
            }
        });
        Asker { questions, answers }
    }

    /// Asks, unless the thread still works on the last question. Returns the answer to the last question if it has come.
    pub fn ask(&mut self, questions: Vec<Question>) -> Option<BTreeMap<HostId, Asked>> {
        let answer = self.answers.try_recv().ok();
        // A thread that is busy takes no question.
        let _ = self.questions.try_send(questions);
        answer
    }
}
