//! The metrics that a node has. docs/metrics.md describes each of them; `tests/metrics` compares the page with what is
//! served.

use base::cuda::HOST_DEVICE;
use journal::reader::State;

use super::counted::Ended;
use super::figures::{CAUSES, Counts, Kind, Levels, UNKNOWN_CLASS, cause_name, positive as bytes};
use super::node::Node;
use super::process::{Labels, Process};
use super::series::{Metric, Unit, Value};
use crate::analysis::names::class_name;

/// The value of the label `pid` for all processes without series of their own.
const OTHER: &str = "other";

/// A counter of processes and of the node: its name behind the prefix, its help text, whether it counts bytes, and the
/// count.
type CounterRow = (&'static str, &'static str, bool, fn(&Counts) -> u64);

const COUNTERS: [CounterRow; 8] = [
    ("allocations", "Requests that got memory", false, |counts| {
        counts.allocations
    }),
    ("frees", "Allocations that were freed", false, |counts| counts.frees),
    (
        "direct_allocations",
        "Allocations that the next layer served one by one",
        false,
        |counts| counts.direct,
    ),
    ("free_failures", "Frees that failed", false, |counts| {
        counts.free_failures
    }),
    (
        "segments_obtained",
        "Segments that strategies obtained from the next layer",
        false,
        |counts| counts.segments_obtained,
    ),
    (
        "segments_returned",
        "Pieces of memory that strategies gave back to the next layer",
        false,
        |counts| counts.segments_returned,
    ),
    (
        "reclaimed",
        "Bytes that other processes gave back for a process",
        true,
        |counts| counts.reclaimed,
    ),
    (
        "given_back",
        "Bytes that a process gave back for others",
        true,
        |counts| counts.given,
    ),
];

/// A level of a device in a process.
type LevelRow = (&'static str, &'static str, fn(&Levels) -> i128);

const LEVELS: [LevelRow; 3] = [
    (
        "vramshim_requested",
        "Bytes that the job asked for and holds, or held when it ended",
        |levels| levels.requested,
    ),
    (
        "vramshim_allocated",
        "Bytes that the job holds, or held when it ended, after rounding",
        |levels| levels.allocated,
    ),
    (
        "vramshim_reserved",
        "Bytes that are obtained from the driver or a layer before it, or were when the process ended",
        |levels| levels.reserved,
    ),
];

/// Gives each metric of a node to `take`, one after another, so that not all series are in memory at once.
pub fn each(node: &Node, take: &mut dyn FnMut(Metric)) {
    let mut page = Page(take);
    processes(&mut page, node);
    accounts(&mut page, node);
    totals(&mut page, node);
    own(&mut page, node);
}

/// Gives one metric after another.
struct Page<'a>(&'a mut dyn FnMut(Metric));

impl Page<'_> {
    fn counter(&mut self, name: &str, help: &str, in_bytes: bool, series: Vec<(Labels, u64)>) {
        self.give(name, help, in_bytes.then_some(Unit::Bytes), true, series);
    }

    fn gauge(&mut self, name: &str, help: &str, unit: Option<Unit>, series: Vec<(Labels, impl Into<Value>)>) {
        self.give(name, help, unit, false, series);
    }

    fn give(
        &mut self,
        name: &str,
        help: &str,
        unit: Option<Unit>,
        is_counter: bool,
        series: Vec<(Labels, impl Into<Value>)>,
    ) {
        let series = series.into_iter().map(|(labels, value)| (labels, value.into()));
        (self.0)(Metric {
            name: name.to_owned(),
            help: format!("{help}."),
            unit,
            is_counter,
            series: series.collect(),
        });
    }
}

/// The labels of a device in a process, and `more`.
fn labels_of(process: &Process, device: i16, more: Option<(&'static str, String)>) -> Labels {
    let mut labels = process.labels.clone();
    labels.push(match device {
        HOST_DEVICE => ("device", "host".to_owned()),
        number => ("device", number.to_string()),
    });
    let uuid = process.device(device).map(|device| device.uuid.clone());
    labels.extend(uuid.filter(|uuid| !uuid.is_empty()).map(|uuid| ("uuid", uuid)));
    labels.extend(more);
    labels
}

fn other() -> Labels {
    vec![("pid", OTHER.to_owned())]
}

/// The series of each process, and of those without series of their own together.
fn processes(page: &mut Page, node: &Node) {
    let (shown, hidden): (Vec<&Process>, Vec<&Process>) =
        node.processes().partition(|process| process.is_shown == Some(true));
    let devices = || {
        let pairs = shown
            .iter()
            .flat_map(|process| process.figures.devices.iter().map(move |pair| (*process, pair)));
        pairs.map(|(process, (device, figures))| (process, *device, figures))
    };
    let has_other = !hidden.is_empty() || node.left != Counts::default() || node.left_lost > 0;
    let mut others = node.left;
    let mut levels_of_others = Levels::default();
    for (device, figures) in hidden.iter().flat_map(|process| process.figures.devices.iter()) {
        others.add(&figures.counts);
        if *device != HOST_DEVICE {
            levels_of_others.add(&figures.levels(*device));
        }
    }
    for (name, help, level) in LEVELS {
        let own = devices().map(|(process, device, figures)| {
            (labels_of(process, device, None), bytes(level(&figures.levels(device))))
        });
        let rest = has_other.then(|| (other(), bytes(level(&levels_of_others))));
        page.gauge(name, help, Some(Unit::Bytes), own.chain(rest).collect());
    }
    let ratio = devices().filter_map(|(process, device, figures)| {
        let levels = figures.levels(device);
        let ratio = bytes(levels.allocated) as f64 / bytes(levels.reserved) as f64;
        ratio.is_finite().then(|| (labels_of(process, device, None), ratio))
    });
    let help = "Allocated bytes for each reserved byte, from 0 to 1";
    page.gauge("vramshim_allocated", help, Some(Unit::Ratio), ratio.collect());
    let of_class = |level: fn(&Levels) -> i128| -> Vec<(Labels, u64)> {
        let classes = devices().flat_map(|(process, device, figures)| {
            figures
                .classes()
                .map(move |(class, levels)| (process, device, class, levels))
        });
        classes
            .map(|(process, device, class, levels)| {
                let name = match class {
                    UNKNOWN_CLASS => "unknown".to_owned(),
                    class => class_name(class),
                };
                (labels_of(process, device, Some(("class", name))), bytes(level(levels)))
            })
            .collect()
    };
    let help = "Bytes of one class of memory that the job holds, or held when it ended, after rounding";
    page.gauge(
        "vramshim_class_allocated",
        help,
        Some(Unit::Bytes),
        of_class(|levels| levels.allocated),
    );
    let help = "Bytes of one class of memory that are obtained from the driver or a layer before it, or were when the process ended";
    page.gauge(
        "vramshim_class_reserved",
        help,
        Some(Unit::Bytes),
        of_class(|levels| levels.reserved),
    );
    let of_devices = |value: fn(&super::process::Device) -> Option<u64>| -> Vec<(Labels, u64)> {
        let pairs = shown
            .iter()
            .flat_map(|process| process.devices.iter().map(move |device| (process, device)));
        pairs
            .filter_map(|(process, device)| Some((labels_of(process, device.number, None), value(device)?)))
            .collect()
    };
    let help = "The limit that the process has on the device, alone or with its group; absent if there is none";
    page.gauge(
        "vramshim_limit",
        help,
        Some(Unit::Bytes),
        of_devices(|device| device.limit),
    );
    let help = "Memory of the device, as the driver told the process";
    page.gauge(
        "vramshim_device_memory",
        help,
        Some(Unit::Bytes),
        of_devices(|device| Some(device.total_memory)),
    );
    for (name, help, in_bytes, count) in COUNTERS {
        let own =
            devices().map(|(process, device, figures)| (labels_of(process, device, None), count(&figures.counts)));
        let rest = has_other.then(|| (other(), count(&others)));
        page.counter(&format!("vramshim_{name}"), help, in_bytes, own.chain(rest).collect());
    }
    let mut failures = Vec::new();
    for kind in Kind::ALL {
        let label = ("kind", kind.name().to_owned());
        for (process, device, figures) in devices() {
            let labels = labels_of(process, device, Some(label.clone()));
            failures.push((labels, figures.counts.failures[kind as usize]));
        }
        if has_other {
            let mut labels = other();
            labels.push(label);
            failures.push((labels, others.failures[kind as usize]));
        }
    }
    host_memory(page, &shown);
    let help = "Requests for memory that failed; limit: the library refused it";
    page.counter("vramshim_allocation_failures", help, false, failures);
    // A series for each verdict of each process would be as many as all others together.
    let mut verdicts = Vec::new();
    let mut add = |counts: &Counts, labels: &dyn Fn() -> Labels| {
        for (cause, count) in CAUSES.into_iter().zip(counts.causes).filter(|(_, count)| *count > 0) {
            let mut labels = labels();
            labels.push(("verdict", cause_name(cause).to_owned()));
            verdicts.push((labels, count));
        }
    };
    devices().for_each(|(process, device, figures)| {
        add(&figures.counts, &|| labels_of(process, device, None));
    });
    if has_other {
        add(&others, &other);
    }
    let help = "The same failures by verdict, of those that occurred; other: the call itself was wrong";
    page.counter("vramshim_failure_verdicts", help, false, verdicts);
    let lost_of_others = hidden
        .iter()
        .map(|process| process.lost)
        .fold(node.left_lost, u64::saturating_add);
    let lost = shown.iter().map(|process| (process.labels.clone(), process.lost));
    let lost = lost.chain(has_other.then(|| (other(), lost_of_others)));
    let help = "Events that the journal does not have; with more than 0 the levels of the process may be wrong";
    page.counter("vramshim_events_lost", help, false, lost.collect());
    let running = |process: &&Process| u64::from(process.state == State::Running);
    let rows = shown.iter().map(|process| (process.labels.clone(), running(process)));
    page.gauge(
        "vramshim_process_running",
        "1 if the process runs, 0 once it has ended",
        None,
        rows.collect(),
    );
    let rows = shown
        .iter()
        .map(|process| (process.labels.clone(), process.started_ns as f64 / 1e9));
    let help = "When the journal was created, in seconds after 1970";
    page.gauge("vramshim_process_start_time", help, Some(Unit::Seconds), rows.collect());
}

/// What the processes hold of the host's memory, as their journals last said. The heap is known with `VRAMSHIM_HOST_HEAP`.
fn host_memory(page: &mut Page, shown: &[&Process]) {
    let mut rows = Vec::new();
    for process in shown {
        let Some(memory) = process.figures.host_memory() else {
            continue;
        };
        let kinds = [
            ("resident", Some(memory.resident)),
            ("pinned", Some(memory.pinned)),
            ("heap_allocated", memory.heap.map(|heap| heap.allocated)),
            ("heap_mapped", memory.heap.map(|heap| heap.mapped)),
        ];
        for (kind, bytes) in kinds {
            rows.extend(bytes.map(|bytes| {
                let mut labels = process.labels.clone();
                labels.push(("kind", kind.to_owned()));
                (labels, bytes)
            }));
        }
    }
    let help = "Memory of the host that the process held when its journal last said, by kind; the kinds overlap";
    page.gauge("vramshim_host", help, Some(Unit::Bytes), rows);
}

/// The accounts that groups of processes share.
fn accounts(page: &mut Page, node: &Node) {
    let all = &node.accounts.read;
    let used = all.iter().map(|account| (account.labels.clone(), account.used));
    let help = "Bytes of the device that the processes of an account hold together";
    page.gauge("vramshim_account_used", help, Some(Unit::Bytes), used.collect());
    let limits = all
        .iter()
        .filter_map(|account| Some((account.labels.clone(), account.limit?)));
    let help = "The limit of the group, as the process that joined last has it; absent without a limit";
    page.gauge("vramshim_account_limit", help, Some(Unit::Bytes), limits.collect());
}

/// What happened on the node. Nothing here falls while this program runs.
fn totals(page: &mut Page, node: &Node) {
    let totals = &node.totals;
    for (name, help, in_bytes, count) in COUNTERS {
        let help = format!("{help}: all processes of the node, since the start of serve");
        let all = vec![(Labels::new(), count(&totals.counts))];
        page.counter(&format!("vramshim_node_{name}"), &help, in_bytes, all);
    }
    let label = |name, value: &str| vec![(name, value.to_owned())];
    let failures = Kind::ALL.map(|kind| (label("kind", kind.name()), totals.counts.failures[kind as usize]));
    let help = "Requests for memory that failed: all processes of the node, since the start of serve";
    page.counter("vramshim_node_allocation_failures", help, false, failures.into());
    let verdicts = CAUSES.into_iter().zip(totals.counts.causes);
    let verdicts = verdicts.map(|(cause, count)| (label("verdict", cause_name(cause)), count));
    let help = "The same failures by verdict: all processes of the node, since the start of serve";
    page.counter("vramshim_node_failure_verdicts", help, false, verdicts.collect());
    let of_host = totals.counts.failures[Kind::HostGuard as usize];
    let failed = totals.counts.failures.iter().sum::<u64>() - of_host;
    let help = "The sum of vramshim_node_allocation_failures over all kinds but host_guard";
    page.counter("paddle_gpu_malloc_failed", help, false, vec![(Labels::new(), failed)]);
    let help = "Events that no journal has: all processes of the node, since the start of serve";
    page.counter(
        "vramshim_node_events_lost",
        help,
        false,
        vec![(Labels::new(), totals.lost)],
    );
    let ended = Ended::ALL.map(|how| (label("how", how.name()), totals.ended[how as usize]));
    let help = "Processes that ended since the start of serve; exited: with status 0, failed: with another";
    page.counter("vramshim_node_processes_ended", help, false, ended.into());
    let (mut running, mut ended) = (0, 0);
    for process in node.processes() {
        *(if process.state == State::Running {
            &mut running
        } else {
            &mut ended
        }) += 1;
    }
    let rows = vec![(label("state", "running"), running), (label("state", "ended"), ended)];
    page.gauge(
        "vramshim_node_processes",
        "Processes whose journals are read now",
        None,
        rows,
    );
}

/// About this program.
fn own(page: &mut Page, node: &Node) {
    let own = &node.own;
    let one = |value: u64| vec![(Labels::new(), value)];
    let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    page.gauge(
        "vramshim_build_info",
        "1; the label has the version of vramshim",
        None,
        vec![(version, 1u64)],
    );
    let (followed, passed_over) = node.journals();
    let label = |value: &str| vec![("state", value.to_owned())];
    let rows = vec![
        (label("read"), followed),
        (label("passed_over"), passed_over),
        (label("left_out"), own.left_out),
    ];
    let help = "Journals in the folders; passed_over: ended long ago, a copy, or unreadable; left_out: too many";
    page.gauge("vramshim_serve_journals", help, None, rows);
    page.counter(
        "vramshim_serve_collections",
        "How often the journals were read",
        false,
        one(own.collections),
    );
    page.counter(
        "vramshim_serve_read",
        "Bytes of records that were read",
        true,
        one(own.read_bytes),
    );
    let help = "Bytes of records that are not read yet; a long journal takes several collections";
    page.gauge("vramshim_serve_unread", help, Some(Unit::Bytes), one(own.unread_bytes));
    page.counter(
        "vramshim_serve_damaged",
        "Journals that are damaged",
        false,
        one(own.damaged),
    );
    let help = "Journals that cannot be read now, for example for want of permission";
    page.gauge(
        "vramshim_serve_unreadable",
        help,
        None,
        one(node.unreadable.len() as u64),
    );
    let help = "Folders that cannot be read now";
    page.gauge("vramshim_serve_folders_failed", help, None, one(own.folders_failed));
    let help = "Accounts and their folders that cannot be read now";
    page.gauge("vramshim_serve_accounts_failed", help, None, one(node.accounts.failed));
    let hidden = node
        .processes()
        .filter(|process| process.is_shown != Some(true))
        .count();
    let help = "Processes that are summed under pid=\"other\", because there are more than --most-processes";
    page.gauge("vramshim_serve_hidden_processes", help, None, one(hidden as u64));
    let help = "How long the last reading of the journals took";
    let seconds = vec![(Labels::new(), own.collected_in.as_secs_f64())];
    page.gauge("vramshim_serve_collection", help, Some(Unit::Seconds), seconds);
}
