//! Makes the pages about one process: its report, and the live page.
//!
//! One page is made at a time, on a thread of its own. A page is kept, and made again only once it is much older than the
//! time that it took: however many look, pages of one process cost a small part of a core.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::sync::lock;
use base::units::size;
use hyper::body::Bytes;
use journal::format::SLOT_SIZE;
use journal::reader::Journal;
use tokio::sync::Semaphore;

use super::node::now_ns;
use crate::report;

/// The longest journal of which a page is made, in bytes. It takes about four seconds.
const LONGEST: u64 = 1 << 30;
/// A page is kept at least for so long.
const KEPT: Duration = Duration::from_secs(3);
/// A page is kept for so many times what it took to make it.
const PATIENT: u32 = 20;
/// The most pages that are kept; the oldest goes first.
const MOST: usize = 4;
/// How long an answer waits for its page. The page is made on, for the next request.
const WAITS: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Report,
    Live,
}

#[derive(Clone)]
pub struct Page {
    path: PathBuf,
    kind: Kind,
    pub body: Bytes,
    /// As `Live::made_ms`.
    pub made_ms: u64,
    made: Instant,
    took: Duration,
}

impl Page {
    pub fn age(&self) -> Duration {
        self.made.elapsed()
    }

    fn keeps(took: Duration) -> Duration {
        KEPT.max(took * PATIENT)
    }
}

pub enum Made {
    Page(Page),
    /// Other pages are being made, or this one takes long.
    Busy,
    /// Why there is no page.
    None(String),
}

pub struct Reports {
    making: Arc<Semaphore>,
    kept: Mutex<Vec<Page>>,
}

impl Default for Reports {
    fn default() -> Self {
        Reports {
            making: Arc::new(Semaphore::new(1)),
            kept: Mutex::default(),
        }
    }
}

impl Reports {
    fn fresh(&self, path: &Path, kind: Kind) -> Option<Page> {
        let kept = lock(&self.kept);
        let mut found = kept.iter().filter(|page| page.path == path && page.kind == kind);
        found.find(|page| page.age() < Page::keeps(page.took)).cloned()
    }

    /// The page of a journal. `path` comes from the list of the folders.
    pub async fn page(self: Arc<Reports>, path: PathBuf, kind: Kind) -> Made {
        if let Some(page) = self.fresh(&path, kind) {
            return Made::Page(page);
        }
        let Ok(Ok(place)) = tokio::time::timeout(WAITS, self.making.clone().acquire_owned()).await else {
            return Made::Busy;
        };
        // Who had the place may have made this page.
        if let Some(page) = self.fresh(&path, kind) {
            return Made::Page(page);
        }
        let making = tokio::task::spawn_blocking(move || {
            let _place = place;
            match make(&path, kind) {
                Ok(page) => {
                    self.keep(page.clone());
                    Made::Page(page)
                }
                Err(why) => Made::None(why),
            }
        });
        match tokio::time::timeout(WAITS, making).await {
            Ok(Ok(made)) => made,
            Ok(Err(_)) => Made::None("the page could not be made".to_owned()),
            Err(_) => Made::Busy,
        }
    }

    fn keep(&self, page: Page) {
        let mut kept = lock(&self.kept);
        kept.retain(|one| one.path != page.path || one.kind != page.kind);
        if kept.len() == MOST {
            kept.remove(0);
        }
        kept.push(page);
    }
}

fn make(path: &Path, kind: Kind) -> Result<Page, String> {
    let (made, made_ms) = (Instant::now(), now_ns() / 1_000_000);
    let journal = Journal::open(path).map_err(|error| error.to_string())?;
    let bytes = journal.claimed().saturating_mul(SLOT_SIZE as u64);
    if bytes > LONGEST {
        return Err(format!(
            "the journal has {} and pages are made of at most {}; run: vramshim report FILE",
            size(bytes),
            size(LONGEST)
        ));
    }
    drop(journal);
    let report = report::gather(&[path.to_owned()], None, |_, _, _| {}).map_err(|why| why[0].to_string())?;
    let mut body = Vec::new();
    report::write(&mut body, &report).map_err(|error: io::Error| error.to_string())?;
    Ok(Page {
        path: path.to_owned(),
        kind,
        body: body.into(),
        made_ms,
        made,
        took: made.elapsed(),
    })
}
