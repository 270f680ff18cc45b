//! Two processes share blocks of a policy through CUDA IPC, and both see the same bytes. If the memory cannot be
//! shared, the job gets a clear error.

mod liars;
mod refused;
mod service;

use serde_json::Value;
use support::member::Member;
use support::{AUTO_GROWTH, Fields, Job, MIB, NAIVE_BEST_FIT, PASSTHROUGH, Strategy, assert_says, client, glog};

/// `auto_growth` without virtual memory management: its segments come from `cuMemAlloc`.
const IN_CHUNKS: Strategy = AUTO_GROWTH.with(&[("SIMGPU_VMM", "0"), ("FLAGS_auto_growth_chunk_size_in_mb", "64")]);
const ALL: [Strategy; 3] = [NAIVE_BEST_FIT, IN_CHUNKS, AUTO_GROWTH];

const INVALID_VALUE: &str = "1";
const INVALID_CONTEXT: &str = "201";
const MAP_FAILED: &str = "205";

/// A client that reads one command a line and answers each with a line.
struct Process(Member);

fn job(strategy: Strategy) -> Job {
    Job::new(client("ipc/ipc.c", "ipc", &["libcuda.so.1"])).strategy(strategy)
}

impl Process {
    fn start(job: Job) -> Process {
        Process(Member::start(job))
    }

    fn tell(&mut self, line: &str) -> String {
        self.0.ask(line).trim().to_owned()
    }

    fn well(&mut self, line: &str) -> String {
        let answer = self.tell(line);
        let rest = answer.strip_prefix('0').unwrap_or_else(|| panic!("{line}: {answer}"));
        rest.trim().to_owned()
    }

    fn sum(&mut self, book: &str, class: &str, figure: impl Fn(&Value) -> u64) -> u64 {
        let line: Value = serde_json::from_str(&self.tell("checkpoint")).expect("a checkpoint");
        let rows = line[book]["totals"].list().iter();
        rows.filter(|row| row["class"] == class).map(figure).sum()
    }

    fn held(&mut self, class: &str) -> u64 {
        self.sum("account", class, |row| row["requested"]["current"].number())
    }

    fn truth(&mut self, class: &str) -> u64 {
        self.sum("truth", class, |row| row["count"].number())
    }

    /// The first word of its answer to `open`: a CUDA result.
    fn opens(&mut self, name: &str, handle: &str) -> String {
        let answer = self.tell(&format!("open {name} {handle}"));
        answer.split(' ').next().unwrap_or_default().to_owned()
    }

    /// What it holds of others: bytes in the ledger, entries and address ranges in the simulator's table.
    fn imported(&mut self) -> (u64, u64, u64) {
        let [entries, ranges] = ["imported", "address_range"].map(|class| self.truth(class));
        (self.held("imported"), entries, ranges)
    }

    /// Ends the process and returns the library's messages, except the start line.
    fn end(self) -> Vec<String> {
        let text = self.0.end();
        let said = text.lines().filter_map(glog);
        let complaints = said.filter(|(severity, words)| "WE".contains(*severity) && !words.contains("in chunks"));
        complaints.map(|(_, words)| words).collect()
    }

    fn kill(self) {
        self.0.kill();
    }
}

fn pair(strategy: Strategy) -> (Process, Process) {
    (Process::start(job(strategy)), Process::start(job(strategy)))
}

/// A pair whose owner has shared a block of 100,000 bytes, and the handle.
fn sharing(strategy: Strategy) -> (Process, Process, String) {
    let (mut owner, user) = pair(strategy);
    owner.well("alloc shared 100000");
    let handle = owner.well("get shared");
    (owner, user, handle)
}

/// The owner shares a block, and both see what the other one writes. Returns the handle.
fn assert_shared(owner: &mut Process, user: &mut Process, name: &str) -> String {
    owner.well(&format!("fill {name} 3"));
    let handle = owner.well(&format!("get {name}"));
    user.well(&format!("open {name} {handle}"));
    assert_eq!(user.tell(&format!("check {name} 3")), "right", "{name}");
    user.well(&format!("fill {name} 4"));
    assert_eq!(owner.tell(&format!("check {name} 4")), "right", "{name}");
    handle
}

fn assert_quiet(owner: Process, user: Process) {
    assert_eq!((owner.end(), user.end()), (vec![], vec![]));
}

#[test]
fn both_processes_see_the_same_bytes() {
    for strategy in ALL {
        let (mut owner, mut user) = pair(strategy);
        // Blocks at the start of a segment, inside a segment, and across several granules, with other blocks around.
        let sizes = [1000, 300_000, 7 * MIB + 4096, 5000, 2 * MIB];
        for (number, size) in sizes.into_iter().enumerate() {
            owner.well(&format!("alloc {number} {size}"));
        }
        assert_eq!(owner.tell("threads"), "1", "{strategy:?}");
        for (number, size) in sizes.into_iter().enumerate() {
            assert_eq!(owner.tell(&format!("capable {number}")), "1", "{strategy:?}");
            let handle = assert_shared(&mut owner, &mut user, &number.to_string());
            assert_eq!(owner.well(&format!("get {number}")), handle, "one handle a block");
            let range = user.tell(&format!("range {number} {}", size / 2));
            assert_eq!(range, format!("0 0 {size}"));
            assert_eq!(user.tell(&format!("capable {number}")), "0");
            assert_eq!(user.tell(&format!("get {number}")), INVALID_VALUE);
        }
        assert_eq!(owner.tell("threads"), "2");
        let total: u64 = sizes.iter().sum();
        assert_eq!((user.held("imported"), user.held("address_range")), (total, 0));
        for number in 0..sizes.len() {
            user.well(&format!("close {number}"));
        }
        assert_eq!(user.imported(), (0, 0, 0));
        assert_eq!(owner.held("linear"), total);
        let complaints = user.end();
        assert_eq!(complaints.len(), sizes.len(), "{complaints:?}");
        assert!(complaints.iter().all(|words| words.contains("only that can share it")));
        assert_eq!(owner.end(), [""; 0]);
    }
}

#[test]
fn more_handles_than_one_message_carries() {
    let start = || Process::start(job(AUTO_GROWTH).sim("8GiB", 2));
    let (mut owner, mut user) = (start(), start());
    // Each of these blocks is a handle of its own. One large block takes the memory of all.
    for order in [format!("alloc small# {}", 18 * MIB), "free small#".to_owned()] {
        for number in 0..300 {
            owner.well(&order.replace('#', &number.to_string()));
        }
    }
    owner.well(&format!("alloc large {}", 300 * 18 * MIB));
    assert_shared(&mut owner, &mut user, "large");
    assert_eq!(user.truth("imported"), 300);
    user.well("close large");
    assert_eq!(user.truth("imported"), 0);
    assert_quiet(owner, user);
}

/// A block in a stitch has its memory in handles of several sizes, which the importer maps in the order of the stitch.
#[test]
fn a_block_in_a_stitch_is_shared() {
    let (mut owner, mut user) = pair(AUTO_GROWTH);
    for (name, mebibytes) in [("a", 40), ("b", 2), ("c", 80), ("d", 2)] {
        owner.well(&format!("alloc {name} {}", mebibytes * MIB));
    }
    owner.well("free a");
    owner.well("free c");
    owner.well(&format!("alloc stitched {}", 119 * MIB));
    assert_shared(&mut owner, &mut user, "stitched");
    user.well("close stitched");
    assert_quiet(owner, user);
}

#[test]
fn a_block_of_another_process_is_an_allocation_on_its_device() {
    for strategy in ALL {
        let on_two = || Process::start(job(strategy).sim("8GiB", 2));
        let (mut owner, mut user) = (on_two(), on_two());
        owner.well(&format!("alloc shared {}", 5 * MIB));
        let handle = assert_shared(&mut owner, &mut user, "shared");
        let first = user.well("id shared");
        user.well("device 1");
        user.well(&format!("alloc mine {}", 5 * MIB));
        // Without peer access, from either device.
        user.well("copy mine shared");
        assert_eq!(user.tell("check mine 4"), "right", "{strategy:?}");
        user.well("fill mine 8");
        user.well("device 0");
        user.well("copy shared mine");
        assert_eq!(user.tell("check shared 8"), "right", "{strategy:?}");
        // With peer access, enabled after the block was opened.
        user.well("device 1");
        user.well("peer 0");
        user.well("copy mine shared");
        assert_eq!(user.tell("check mine 8"), "right", "{strategy:?}");
        user.well("device 0");
        user.well("close shared");
        user.well(&format!("open shared {handle}"));
        // An identity is not used again.
        assert_ne!(user.well("id shared"), first, "{strategy:?}");
    }
}

/// The driver takes such a free for a close. What is shared next is another block, also at the same address.
#[test]
fn a_block_that_is_freed_in_place_of_closed_is_closed() {
    for strategy in ALL {
        let (mut owner, mut user) = pair(strategy);
        owner.well("alloc other 1200000000");
        for name in ["a", "b", "c"] {
            owner.well(&format!("alloc {name} 67108864"));
            assert_shared(&mut owner, &mut user, name);
            user.well(&format!("free {name}"));
            assert_eq!((user.held("imported"), user.truth("imported")), (0, 0), "{strategy:?}");
            owner.well(&format!("free {name}"));
        }
    }
}

#[test]
fn opened_twice_is_closed_twice() {
    for strategy in ALL {
        let (mut owner, mut user) = pair(strategy);
        owner.well("alloc other 100000");
        owner.well("alloc shared 100000");
        owner.well("fill shared 9");
        let handle = owner.well("get shared");
        let first = user.well(&format!("open a {handle}"));
        assert_eq!(user.well(&format!("open b {handle}")), first);
        assert_eq!(user.held("imported"), 100_000);
        user.well("close a");
        assert_eq!(user.tell("check b 9"), "right", "{strategy:?}");
        assert_eq!(user.held("imported"), 100_000);
        user.well("close b");
        assert_eq!(user.held("imported"), 0);
        assert_eq!(user.tell("close b"), INVALID_VALUE);
        // Opening works again after the last close.
        user.well(&format!("open a {handle}"));
        assert_eq!(user.tell("check a 9"), "right");
        assert_eq!(owner.opens("self", &handle), INVALID_CONTEXT);
        assert_quiet(owner, user);
    }
}

/// Two processes whose work is done late. The second one has opened two blocks of the first. Returns a handle.
fn with_two_blocks() -> (Process, Process, String) {
    let [mut owner, mut user] = [(); 2].map(|()| Process::start(job(AUTO_GROWTH).env("SIMGPU_DELAYED", "1")));
    let handles = ["one", "two"].map(|name| {
        owner.well(&format!("alloc {name} {}", 3 * MIB));
        let handle = owner.well(&format!("get {name}"));
        user.well(&format!("open {name} {handle}"));
        handle
    });
    let [_, two] = handles;
    (owner, user, two)
}

fn assert_nothing_is_left(owner: Process, mut user: Process) {
    let left = (user.truth("imported"), user.truth("address_range"));
    assert_eq!((left, user.tell("hazards").as_str()), ((0, 0), "0"));
    assert_quiet(owner, user);
}

/// Closing a handle waits for the work that uses the memory. Waiting is not allowed during a stream capture.
#[test]
fn a_handle_closed_during_a_capture_is_unmapped_later() {
    let (owner, mut user, _) = with_two_blocks();
    let mapped = user.truth("imported");
    for order in ["use one", "capture", "close one"] {
        user.well(order);
    }
    assert_eq!((user.truth("imported"), user.tell("hazards").as_str()), (mapped, "0"));
    user.well("end");
    user.well("synchronise");
    assert!(user.truth("imported") < mapped);
    user.well("close two");
    assert_nothing_is_left(owner, user);
}

/// The work may wait for what another thread does next.
#[test]
fn a_thread_that_closes_a_handle_holds_up_no_other_and_no_capture() {
    let (owner, mut user, two) = with_two_blocks();
    let again = format!("open two {two}");
    let before = ["hold one", "closing one", "capture", "close two", "end"];
    for order in before.into_iter().chain([&*again, "go", "close two"]) {
        user.well(order);
    }
    assert_nothing_is_left(owner, user);
}

#[test]
fn a_freed_block_can_no_longer_be_opened() {
    for strategy in ALL {
        let (mut owner, mut user, handle) = sharing(strategy);
        owner.well("free shared");
        // This block has the address of the freed block, but its owner never shared it.
        owner.well("alloc secret 100000");
        owner.well("fill secret 5");
        assert_eq!(user.opens("x", &handle), INVALID_VALUE);
        assert_ne!(owner.well("get secret"), handle);
        assert_eq!(user.held("imported"), 0);
        let said = user.end();
        assert!(said.len() == 1 && said[0].contains("freed"), "{said:?}");
        assert_eq!(owner.end(), [""; 0]);
    }
}

#[test]
fn destroying_a_context_ends_what_it_shared() {
    for strategy in ALL {
        let (mut owner, mut user, handle) = sharing(strategy);
        user.well(&format!("open x {handle}"));
        owner.well("destroy");
        user.well("destroy");
        // The importer's context was destroyed with what it had opened.
        let left = (user.held("imported"), user.truth("address_range"));
        assert_eq!(left, (0, 0), "{strategy:?}");
        let mut late = Process::start(job(strategy));
        assert_eq!(late.opens("x", &handle), INVALID_VALUE);
        late.end();
        assert_quiet(owner, user);
    }
}

#[test]
fn a_handle_of_an_ended_process_is_refused() {
    for strategy in ALL {
        let (mut owner, mut user, handle) = sharing(strategy);
        // A forked child of the exporter inherits its descriptors. The importer must not take the child for the
        // exporter.
        assert_ne!(owner.tell("fork"), "-1");
        owner.kill();
        assert_eq!(user.opens("x", &handle), MAP_FAILED);
        let said = user.end();
        // If the importer had waited for the process that had ended, it would say that the exporter does not answer.
        assert!(said.len() == 1 && said[0].contains("the exporter is gone"), "{said:?}");
    }
}

#[test]
fn without_the_library_a_ticket_is_refused() {
    for strategy in ALL {
        let mut owner = Process::start(job(strategy));
        let mut user = Process::start(job(strategy).alone());
        owner.well("alloc shared 100000");
        let handle = owner.well("get shared");
        assert_eq!(user.opens("x", &handle), INVALID_VALUE);
        user.end();
        owner.end();
    }
}

#[test]
fn handles_of_the_driver_pass_through() {
    let mut owner = Process::start(job(PASSTHROUGH));
    owner.well("alloc shared 100000");
    owner.well("fill shared 2");
    let handle = owner.well("get shared");
    assert_eq!(owner.tell("threads"), "1");
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH] {
        let mut user = Process::start(job(strategy));
        let held = 100_000;
        for (order, held) in [("open x", held), ("open x", held), ("close x", held), ("close x", 0)] {
            if held > 0 && order == "close x" {
                assert_eq!(user.tell("check x 2"), "right");
            }
            user.well(&format!("{order} {handle}"));
            assert_eq!(user.held("imported"), held);
        }
        assert_eq!(user.tell("close x"), INVALID_VALUE);
        assert_eq!(user.end(), [""; 0]);
    }
    owner.end();
}
