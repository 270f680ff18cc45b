//! The page that lists the processes of the node, and leads to their reports. It has no script.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base::cuda::HOST_DEVICE;
use base::text::printable;
use base::units::size;
use journal::reader::{Journal, State};
use sha2::{Digest, Sha256};

use super::figures::positive;
use super::node::{Node, now_ns};
use super::process::Process;
use crate::analysis::rank::rank;
use crate::render::format::{ended, time};

const FRAME: &str = include_str!("jobs.html");
pub const STYLE: &str = include_str!("jobs.css");

/// The most processes that the page lists, the newest first.
const MOST_ROWS: usize = 200;
/// The most characters of a text of a job.
const LONGEST: usize = 80;

/// What the metrics know of a process: text about its devices, and its failures.
struct Current {
    holds: String,
    failures: u64,
}

/// A journal that was found in the folders.
pub struct Found {
    pub name: String,
    pub path: PathBuf,
    current: Option<Current>,
}

/// The journals, each by a name that can stand in an address: the name of its file, or a digest of its path if another
/// file has the same name. So a name never leads to another file than before.
pub fn found(node: &Node) -> Vec<Found> {
    let mut count: BTreeMap<&OsStr, u64> = BTreeMap::new();
    for (path, _) in node.found() {
        *count.entry(path.file_stem().unwrap_or_default()).or_default() += 1;
    }
    let found = node.found().map(|(path, process)| {
        let stem = path.file_stem().unwrap_or_default();
        let plain = stem
            .to_str()
            .filter(|stem| count[OsStr::new(stem)] == 1 && is_plain(stem));
        Found {
            name: plain.map_or_else(|| digest_name(path), str::to_owned),
            path: path.to_owned(),
            current: process.map(current),
        }
    });
    found.collect()
}

fn is_plain(stem: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !stem.starts_with('.') && stem.len() <= 200 && stem.bytes().all(fits)
}

/// A name that no file's name is taken for: `is_plain` has no tilde.
fn digest_name(path: &Path) -> String {
    let digest = Sha256::digest(path.as_os_str().as_encoded_bytes());
    let digits: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("~{digits}")
}

fn current(process: &Process) -> Current {
    let mut parts = Vec::new();
    for (&device, figures) in process.figures.devices.iter() {
        let levels = figures.levels(device);
        let (live, reserved) = (size(positive(levels.allocated)), size(positive(levels.reserved)));
        let room = process
            .device(device)
            .map(|device| device.limit.unwrap_or(device.total_memory));
        let of = room
            .filter(|room| *room > 0)
            .map_or(String::new(), |room| format!(" of {}", size(room)));
        parts.push(match device {
            HOST_DEVICE => format!("pinned {live}"),
            number => format!("device {number}: live {live}, reserved {reserved}{of}"),
        });
    }
    let failures = process.figures.devices.values();
    Current {
        holds: parts.join("; "),
        failures: failures
            .map(|figures| figures.counts.failures.iter().sum::<u64>())
            .sum(),
    }
}

/// The page. Reads the heads of the newest journals.
pub fn page(found: Vec<Found>) -> String {
    let all = found.len();
    let mut dated: Vec<(SystemTime, Found)> = (found.into_iter())
        .filter_map(|found| Some((found.path.symlink_metadata().ok()?.modified().ok()?, found)))
        .collect();
    dated.sort_by_key(|(modified, _)| std::cmp::Reverse(*modified));
    dated.truncate(MOST_ROWS);
    let mut rows: Vec<((bool, u64), String)> = Vec::new();
    let mut unread = 0;
    for (_, found) in &dated {
        match Journal::open(&found.path) {
            Ok(journal) => rows.push(row(found, &journal)),
            Err(_) => unread += 1,
        }
    }
    rows.sort_by_key(|(order, _)| std::cmp::Reverse(*order));
    let mut told = format!("As of {}. Journals in the folders: {all}", time(now_ns()));
    if dated.len() < all {
        told += &format!(", of which the {} newest are here", dated.len());
    }
    if unread > 0 {
        told += &format!("; without a head that can be read: {unread}");
    }
    told += ". The page asks again every 15 seconds.";
    let rows: String = rows.into_iter().map(|(_, row)| row).collect();
    let table = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Processes\"><table><caption>Processes</caption>\
         <thead><tr><th scope=\"col\">Job</th><th scope=\"col\">Process</th><th scope=\"col\">Strategy</th>\
         <th scope=\"col\">Started</th><th scope=\"col\">State</th><th scope=\"col\">Holds</th>\
         <th scope=\"col\" class=\"number\">Failures</th><th scope=\"col\">Pages</th></tr></thead>\
         <tbody>{rows}</tbody></table></div>"
    );
    let mut page = String::new();
    let mut rest = FRAME;
    // No mark is looked for in what came for another one: a text of a job may look like a mark.
    while let Some((before, after)) = rest.split_once("{{") {
        let (mark, behind) = after.split_once("}}").unwrap_or((after, ""));
        page += before;
        page += &match mark {
            "host" => escaped(&base::identity::host_name()),
            "style" => STYLE.to_owned(),
            "told" => escaped(&told),
            _ => table.clone(),
        };
        rest = behind;
    }
    page + rest
}

/// A row of the table, and its place: running processes first, the newest first.
fn row(found: &Found, journal: &Journal) -> ((bool, u64), String) {
    let header = journal.header();
    let state = journal.state();
    let is_running = state == State::Running;
    let text = |text: &str| escaped(&printable(text, LONGEST));
    let rank = rank(header).map_or(String::new(), |rank| format!(", rank {}", text(&rank)));
    let (holds, failures, bad) = match &found.current {
        Some(current) => (
            escaped(&current.holds),
            current.failures.to_string(),
            if current.failures > 0 { " bad" } else { "" },
        ),
        None => (String::new(), String::new(), ""),
    };
    let name = escaped(&found.name);
    let live = match is_running {
        true => format!(" <a href=\"live/{name}\">Live</a>"),
        false => String::new(),
    };
    let row = format!(
        "<tr><td>{}</td><td>{} on {}{rank}</td><td>{}</td><td>{}</td><td>{}</td><td>{holds}</td>\
         <td class=\"number{bad}\">{failures}</td><td><a href=\"report/{name}\">Report</a>{live}</td></tr>\n",
        text(&header.job),
        header.pid,
        text(&header.host),
        text(&header.strategy),
        time(header.wall_start_ns),
        ended(state),
    );
    ((is_running, header.wall_start_ns), row)
}

/// Text that is no markup, in an element or in an attribute.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            character => safe.push(character),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        assert_eq!(escaped("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
    }

    #[test]
    fn only_plain_names_stand_in_addresses() {
        assert!(is_plain("node1-4711-98765"));
        for stem in ["", "..", ".hidden", "a/b", "a%2fb", "a b", "a\"b", "~00"] {
            assert!(stem.is_empty() || !is_plain(stem), "{stem}");
        }
        assert!(digest_name(Path::new("/a/b.vraj")).starts_with('~'));
    }
}
