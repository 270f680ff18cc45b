//! The metrics of a node, as text. docs/metrics.md describes each of them; `tests/metrics` compares the page with what is
//! served.

use std::fmt::Write;

use base::cuda::HOST_DEVICE;
use journal::reader::State;

use super::counted::Ended;
use super::followed_process::{Labels, Process};
use super::node::Node;
use crate::analysis::figures::{Kind, UNKNOWN_CLASS, cause_name, positive as bytes};
use crate::analysis::finding::Verdict;
use crate::analysis::held::Held;
use crate::analysis::names::class_name;

/// The text format of Prometheus (version 0.0.4), which every collector reads.
pub fn text(node: &Node) -> String {
    let mut text = Text(String::new());
    processes(&mut text, node);
    devices(&mut text, node);
    accounts(&mut text, node);
    totals(&mut text, node);
    own(&mut text, node);
    text.0
}

struct Text(String);

impl Text {
    /// Writes one metric. A counter is one whose name ends with `_total`.
    fn metric(&mut self, name: &str, help: &str, series: impl IntoIterator<Item = (Labels, u64)>) {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        // Writing to a String does not fail.
        let _ = write!(self.0, "# HELP {name} {help}.\n# TYPE {name} {kind}\n");
        for (labels, value) in series {
            self.0 += name;
            let mut before = '{';
            for (label, text) in &labels {
                let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                let _ = write!(self.0, "{before}{label}=\"{text}\"");
                before = ',';
            }
            let end = if labels.is_empty() { "" } else { "}" };
            let _ = writeln!(self.0, "{end} {value}");
        }
    }
}

/// The labels of a device in a process, and `more`.
fn labels_of(process: &Process, device: i16, more: Option<(&'static str, String)>) -> Labels {
    let mut labels = process.labels.clone();
    labels.push(match device {
        HOST_DEVICE => ("device", "host".to_owned()),
        number => ("device", number.to_string()),
    });
    labels.extend(process.uuid(device).map(|uuid| ("uuid", uuid)));
    labels.extend(more);
    labels
}

/// The series of each process that has its own.
fn processes(text: &mut Text, node: &Node) {
    let shown = node.processes().filter(|process| process.is_shown);
    let shown: Vec<&Process> = shown.collect();
    let devices = || {
        let pairs = shown
            .iter()
            .flat_map(|process| process.figures.devices.iter().map(move |pair| (*process, pair)));
        pairs.map(|(process, (device, figures))| (process, *device, figures))
    };
    let mut level = |name: &str, help: &str, of_pytorch: bool, level: fn(&Held) -> Option<u64>| {
        let rows = devices().filter_map(|(process, device, _)| {
            let cache = of_pytorch.then(|| ("cache", "PyTorch".to_owned()));
            Some((labels_of(process, device, cache), level(&process.held(device))?))
        });
        text.metric(name, help, rows);
    };
    let help = "Bytes that the job asked CUDA for and holds, or held when it ended, after rounding";
    level("vramshim_allocated_bytes", help, false, |held| Some(held.allocated));
    let help = "Bytes that are obtained from the driver or a layer before it, or were when the process ended";
    level("vramshim_reserved_bytes", help, false, |held| Some(held.reserved));
    let help = "Reserved bytes that the job uses; absent if it is not known what is used inside a framework's cache";
    level("vramshim_live_bytes", help, false, |held| held.live);
    let help = "Reserved bytes that are free, as in a framework's cache; absent if live is";
    level("vramshim_cached_bytes", help, false, |held| held.cached);
    let help = "Bytes that are used inside a framework's cache; absent if they are not known";
    level("vramshim_used_in_cache_bytes", help, true, |held| {
        Some(held.pytorch?.used)
    });
    let contexts =
        devices().filter_map(|(process, device, figures)| Some((labels_of(process, device, None), figures.context()?)));
    let help = "Bytes of the contexts of the process, by NVML when it first used the device; absent if it was not told";
    text.metric("vramshim_context_bytes", help, contexts);
    let classes = devices().flat_map(|(process, device, figures)| {
        figures.classes().map(move |(class, levels)| {
            let name = match class {
                UNKNOWN_CLASS => "unknown".to_owned(),
                class => class_name(class),
            };
            let labels = labels_of(process, device, Some(("class", name)));
            (labels, bytes(levels.allocated))
        })
    });
    let help = "Bytes of one class of memory that the job holds, or held when it ended, after rounding";
    text.metric("vramshim_class_allocated_bytes", help, classes);
    let limits = shown.iter().flat_map(|process| {
        let devices = process.devices.iter();
        devices.filter_map(|device| {
            let number = i16::try_from(device.ordinal).ok()?;
            Some((labels_of(process, number, None), device.limit?))
        })
    });
    let help = "The limit that the process has on the device, alone or with its group; absent if there is none";
    text.metric("vramshim_limit_bytes", help, limits);
    let allocations =
        devices().map(|(process, device, figures)| (labels_of(process, device, None), figures.counts.allocations));
    let help = "Requests that got memory";
    text.metric("vramshim_allocations_total", help, allocations);
    let failures = Kind::ALL.iter().flat_map(|&kind| {
        devices().map(move |(process, device, figures)| {
            let labels = labels_of(process, device, Some(("kind", kind.name().to_owned())));
            (labels, figures.counts.failures[kind as usize])
        })
    });
    let help = "Calls for memory that failed; limit: the library refused it";
    text.metric("vramshim_allocation_failures_total", help, failures);
    let lost = shown.iter().map(|process| (process.labels.clone(), process.lost));
    let help = "Events that the journal does not have; with more than 0 the levels of the process may be wrong";
    text.metric("vramshim_events_lost_total", help, lost);
    let running = |process: &&Process| u64::from(process.state == State::Running);
    let rows = shown.iter().map(|process| (process.labels.clone(), running(process)));
    let help = "1 if the process runs, 0 once it has ended";
    text.metric("vramshim_process_running", help, rows);
}

fn devices(text: &mut Text, node: &Node) {
    let series = |(uuid, bytes): (&String, &u64)| (vec![("uuid", uuid.clone())], *bytes);
    let devices = &node.devices;
    text.metric(
        "vramshim_device_total_bytes",
        "Bytes of the device",
        devices.total.iter().map(series),
    );
    let help = "Bytes of the device that all processes use, by NVML; absent if it is not told";
    text.metric("vramshim_device_used_bytes", help, devices.used.iter().map(series));
}

fn accounts(text: &mut Text, node: &Node) {
    let all = &node.accounts.read;
    let used = all.iter().map(|account| (account.labels.clone(), account.used));
    let help = "Bytes of the device that the processes of an account hold together";
    text.metric("vramshim_account_used_bytes", help, used);
    let limits = all
        .iter()
        .filter_map(|account| Some((account.labels.clone(), account.limit?)));
    let help = "The limit of the group, as the process that joined last has it; absent without a limit";
    text.metric("vramshim_account_limit_bytes", help, limits);
}

/// What happened on the node. Nothing here falls while this program runs.
fn totals(text: &mut Text, node: &Node) {
    let totals = &node.totals;
    let one = |value: u64| [(Labels::new(), value)];
    let label = |name, value: &str| vec![(name, value.to_owned())];
    let help = "Requests that got memory: all processes of the node, since the start of serve";
    text.metric("vramshim_node_allocations_total", help, one(totals.counts.allocations));
    let failures = Kind::ALL
        .iter()
        .map(|&kind| (label("kind", kind.name()), totals.counts.failures[kind as usize]));
    let help = "Calls for memory that failed: all processes of the node, since the start of serve";
    text.metric("vramshim_node_allocation_failures_total", help, failures);
    let verdicts = Verdict::ALL.iter().copied().zip(totals.counts.causes);
    let verdicts = verdicts.map(|(cause, count)| (label("verdict", cause_name(cause)), count));
    let help = "The same failed calls by verdict; other: the call itself was wrong";
    text.metric("vramshim_node_failure_verdicts_total", help, verdicts);
    let of_host = totals.counts.failures[Kind::HostGuard as usize];
    let failed = totals.counts.failures.iter().sum::<u64>() - of_host;
    let help = "The sum of vramshim_node_allocation_failures_total over all kinds but host_guard";
    text.metric("paddle_gpu_malloc_failed_total", help, one(failed));
    let help = "Events that no journal has: all processes of the node, since the start of serve";
    text.metric("vramshim_node_events_lost_total", help, one(totals.lost));
    let ended = Ended::ALL
        .iter()
        .map(|&how| (label("how", how.name()), totals.ended[how as usize]));
    let help = "Processes that ended since the start of serve; exited: with status 0, failed: with another";
    text.metric("vramshim_node_processes_ended_total", help, ended);
    let running = node.processes().filter(|process| process.state == State::Running);
    let running = running.count() as u64;
    let ended = node.processes().count() as u64 - running;
    let rows = [(label("state", "running"), running), (label("state", "ended"), ended)];
    text.metric("vramshim_node_processes", "Processes whose journals are read now", rows);
}

/// What this program cannot read.
fn own(text: &mut Text, node: &Node) {
    let damaged = [(Labels::new(), node.damaged)];
    text.metric("vramshim_serve_damaged_total", "Journals that are damaged", damaged);
    let label = |what: &str| vec![("what", what.to_owned())];
    let unreadable = [
        (label("journal"), node.unreadable.len() as u64),
        (label("left_out"), node.folders.left_out),
        (label("folder"), node.folders.failed()),
        (label("account"), node.accounts.failed),
    ];
    let help = "What cannot be read now, for example for want of permission, or because there are too many journals";
    text.metric("vramshim_serve_unreadable", help, unreadable);
}
