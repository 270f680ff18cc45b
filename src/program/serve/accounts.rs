//! The accounts that groups of processes share, as they are now.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use base::text::{printable, shown};
use base::uuid::uuid_text;
use journal::reader::plain;
use quota::file::EXTENSION;
use quota::glimpse::glimpse;

use super::followed_process::Labels;
use crate::say::say;

/// The most names of a folder that are looked at. A folder can have any number of files.
const MOST: usize = 4096;
/// The most characters of a folder's name in a label.
const LONGEST: usize = 200;
const MOST_MESSAGES: usize = 100;

/// One account: the group and the device in labels, and bytes.
pub struct Account {
    pub labels: Labels,
    pub used: u64,
    pub limit: Option<u64>,
}

pub struct Accounts {
    folders: Vec<PathBuf>,
    pub read: Vec<Account>,
    /// Folders and files that cannot be read, and folders with more than `MOST` names.
    pub failed: u64,
    /// The folders among them.
    pub folders_failed: u64,
    told: BTreeSet<PathBuf>,
}

impl Accounts {
    pub fn new(folders: Vec<PathBuf>) -> Accounts {
        Accounts {
            folders,
            read: Vec::new(),
            failed: 0,
            folders_failed: 0,
            told: BTreeSet::new(),
        }
    }

    pub fn collect(&mut self) {
        self.read.clear();
        (self.failed, self.folders_failed) = (0, 0);
        let (mut taken, mut seen) = (BTreeSet::new(), BTreeSet::new());
        for folder in self.folders.clone() {
            // One folder has many names: `accounts`, `./accounts`, and links.
            if !seen.insert(folder.canonicalize().unwrap_or_else(|_| folder.clone())) {
                continue;
            }
            let files = match plain::entries_of(&folder) {
                Ok(files) => files.map(|file| file.path()),
                Err(error) => {
                    self.folders_failed += 1;
                    self.fail(&folder, &error.to_string());
                    continue;
                }
            };
            for (number, path) in files.enumerate() {
                if number == MOST {
                    self.fail(&folder, &format!("only {MOST} of its names are looked at"));
                    break;
                }
                if path.extension() != Some(EXTENSION.as_ref()) {
                    continue;
                }
                match glimpse(&path) {
                    Ok(found) => {
                        let labels = vec![
                            ("accounts", printable(&folder.to_string_lossy(), LONGEST)),
                            ("uuid", uuid_text(found.uuid)),
                        ];
                        // A folder may differ from another only behind what a label holds.
                        if taken.insert(labels.clone()) {
                            self.read.push(Account {
                                labels,
                                used: found.used,
                                limit: found.limit,
                            });
                        }
                    }
                    Err(why) => self.fail(&path, &why.to_string()),
                }
            }
        }
    }

    fn fail(&mut self, path: &Path, why: &str) {
        self.failed += 1;
        if self.told.len() < MOST_MESSAGES && self.told.insert(path.to_owned()) {
            say!("accounts {}: {}", shown(path), printable(why, 200));
        }
    }
}
