//! Two processes share blocks of a policy through CUDA IPC, and both see the same bytes. If the memory cannot be
//! shared, the job gets a clear error.

mod liars;
mod refused;
mod service;

use serde_json::Value;
use support::member::Member;
use support::{AUTO_GROWTH, Fields, Job, MIB, NAIVE_BEST_FIT, PASSTHROUGH, Strategy, assert_says, client, glog};

/// `auto_growth` without virtual memory management: its segments come from `cuMemAlloc`.
const IN_CHUNKS: Strategy = Strategy {
    name: "auto_growth",
    environment: &[("SIMGPU_VMM", "0"), ("FLAGS_auto_growth_chunk_size_in_mb", "64")],
};
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

    /// The requested bytes of this class in the library's ledger.
    fn held(&mut self, class: &str) -> u64 {
        let line: Value = serde_json::from_str(&self.tell("checkpoint")).expect("a checkpoint");
        let rows = line["account"]["totals"].list();
        let its = rows.iter().filter(|row| row["class"] == class);
        its.map(|row| row["requested"]["current"].number()).sum()
    }

    /// The number of this class's entries in the simulator's table.
    fn truth(&mut self, class: &str) -> u64 {
        let line: Value = serde_json::from_str(&self.tell("checkpoint")).expect("a checkpoint");
        let rows = line["truth"]["totals"].list();
        let its = rows.iter().filter(|row| row["class"] == class);
        its.map(|row| row["count"].number()).sum()
    }

    /// The first word of its answer to `open`: a CUDA result.
    fn opens(&mut self, name: &str, handle: &str) -> String {
        let answer = self.tell(&format!("open {name} {handle}"));
        answer.split(' ').next().unwrap_or_default().to_owned()
    }

    /// What it holds of others: bytes in the ledger, entries and address ranges in the simulator's table.
    fn imported(&mut self) -> (u64, u64, u64) {
        (
            self.held("imported"),
            self.truth("imported"),
            self.truth("address_range"),
        )
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

#[test]
fn both_processes_see_the_same_bytes() {
    for strategy in ALL {
        let (mut owner, mut user) = pair(strategy);
        // Blocks at the start of a segment, inside a segment, and across several granules, with other blocks around.
        let sizes = [1000, 300_000, 7 * MIB + 4096, 5000, 2 * MIB];
        for (number, size) in sizes.into_iter().enumerate() {
            owner.well(&format!("alloc {number} {size}"));
            owner.well(&format!("fill {number} {number}"));
        }
        assert_eq!(
            owner.tell("threads"),
            "1",
            "{strategy:?}: no thread before the first export"
        );
        for (number, size) in sizes.into_iter().enumerate() {
            assert_eq!(owner.tell(&format!("capable {number}")), "1", "{strategy:?}");
            let handle = owner.well(&format!("get {number}"));
            assert_eq!(owner.well(&format!("get {number}")), handle, "one handle a block");
            let opened = user.well(&format!("open {number} {handle}"));
            assert!(opened.ends_with(&format!(" {size}")), "{opened}");
            assert_eq!(
                user.tell(&format!("check {number} {number}")),
                "right",
                "{strategy:?} {size}"
            );
            assert_eq!(
                user.tell(&format!("range {number} {}", size / 2)),
                format!("0 0 {size}")
            );
            assert_eq!(user.tell(&format!("capable {number}")), "0");
            assert_eq!(
                user.tell(&format!("get {number}")),
                INVALID_VALUE,
                "only the owner shares it"
            );
            user.well(&format!("fill {number} {}", number + 100));
        }
        assert_eq!(owner.tell("threads"), "2");
        for number in 0..sizes.len() {
            let seen = owner.tell(&format!("check {number} {}", number + 100));
            assert_eq!(seen, "right", "{strategy:?} {number}");
        }
        let total: u64 = sizes.iter().sum();
        assert_eq!(
            (owner.held("linear"), user.held("imported")),
            (total, total),
            "{strategy:?}"
        );
        assert_eq!(user.held("address_range"), 0);
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
    let (mut owner, mut user) = pair(AUTO_GROWTH);
    // Each of these blocks is a handle of its own. One large block takes the memory of all.
    for number in 0..300 {
        owner.well(&format!("alloc small{number} {}", 2 * MIB));
    }
    for number in 0..300 {
        owner.well(&format!("free small{number}"));
    }
    owner.well(&format!("alloc large {}", 600 * MIB));
    owner.well("fill large 3");
    let handle = owner.well("get large");
    user.well(&format!("open large {handle}"));
    assert_eq!(user.truth("imported"), 300);
    assert_eq!(user.tell("check large 3"), "right");
    user.well("fill large 4");
    assert_eq!(owner.tell("check large 4"), "right");
    user.well("close large");
    assert_eq!(user.truth("imported"), 0);
    assert_eq!((owner.end(), user.end()), (vec![], vec![]));
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
    owner.well("fill stitched 5");
    let handle = owner.well("get stitched");
    user.well(&format!("open stitched {handle}"));
    assert_eq!(user.tell("check stitched 5"), "right");
    user.well("fill stitched 6");
    assert_eq!(owner.tell("check stitched 6"), "right");
    user.well("close stitched");
    assert_eq!((owner.end(), user.end()), (vec![], vec![]));
}

#[test]
fn a_block_of_another_process_is_an_allocation_on_its_device() {
    for strategy in ALL {
        let on_two = || Process::start(job(strategy).sim("8GiB", 2));
        let (mut owner, mut user) = (on_two(), on_two());
        owner.well(&format!("alloc shared {}", 5 * MIB));
        owner.well("fill shared 4");
        let handle = owner.well("get shared");
        user.well(&format!("open shared {handle}"));
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
        assert_ne!(
            user.well("id shared"),
            first,
            "{strategy:?}: an identity is not used again"
        );
    }
}

/// The driver takes such a free for a close. What is shared next is another block, also at the same address.
#[test]
fn a_block_that_is_freed_in_place_of_closed_is_closed() {
    for strategy in ALL {
        let (mut owner, mut user) = pair(strategy);
        owner.well("alloc other 1200000000");
        for byte in 1..4 {
            owner.well("alloc shared 67108864");
            owner.well(&format!("fill shared {byte}"));
            let handle = owner.well("get shared");
            user.well(&format!("open a {handle}"));
            assert_eq!(user.tell(&format!("check a {byte}")), "right", "{strategy:?}");
            assert_eq!(user.tell("free a"), "0", "{strategy:?}");
            assert_eq!(user.held("imported"), 0, "{strategy:?}");
            assert_eq!(user.truth("imported"), 0, "{strategy:?}");
            owner.well("free shared");
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
        assert_eq!((owner.end(), user.end()), (vec![], vec![]));
    }
}

/// The first of two blocks may lie where their segment begins, which the driver has open for both.
#[test]
fn a_block_that_is_closed_too_often_closes_no_other() {
    for strategy in ALL {
        let (mut owner, mut user) = pair(strategy);
        for name in ["first", "second"] {
            owner.well(&format!("alloc {name} 100000"));
            owner.well(&format!("fill {name} 9"));
            let handle = owner.well(&format!("get {name}"));
            user.well(&format!("open {name} {handle}"));
        }
        user.well("close first");
        assert_eq!(user.tell("close first"), INVALID_VALUE, "{strategy:?}");
        assert_eq!(user.tell("check second 9"), "right", "{strategy:?}");
    }
}

/// Closing a handle waits for the work that uses the memory. Waiting is not allowed during a stream capture.
#[test]
fn a_handle_closed_during_a_capture_is_unmapped_later() {
    let delayed = || Process::start(job(AUTO_GROWTH).env("SIMGPU_DELAYED", "1"));
    let (mut owner, mut user) = (delayed(), delayed());
    for name in ["one", "two"] {
        owner.well(&format!("alloc {name} {}", 3 * MIB));
        let handle = owner.well(&format!("get {name}"));
        user.well(&format!("open {name} {handle}"));
    }
    let mapped = user.truth("imported");
    user.well("use one");
    user.well("capture");
    user.well("close one");
    assert_eq!((user.truth("imported"), user.tell("hazards").as_str()), (mapped, "0"));
    user.well("end");
    user.well("synchronise");
    assert!(user.truth("imported") < mapped);
    user.well("close two");
    let left = (user.truth("imported"), user.truth("address_range"));
    assert_eq!((left, user.tell("hazards").as_str()), ((0, 0), "0"));
    assert_eq!((owner.end(), user.end()), (vec![], vec![]));
}

/// The work may wait for what another thread does next.
#[test]
fn a_thread_that_closes_a_handle_holds_up_no_other_and_no_capture() {
    let delayed = || Process::start(job(AUTO_GROWTH).env("SIMGPU_DELAYED", "1"));
    let (mut owner, mut user) = (delayed(), delayed());
    let mut handles = Vec::new();
    for name in ["one", "two"] {
        owner.well(&format!("alloc {name} {}", 3 * MIB));
        handles.push(owner.well(&format!("get {name}")));
        user.well(&format!("open {name} {}", handles[handles.len() - 1]));
    }
    user.well("hold one");
    user.well("closing one");
    user.well("capture");
    user.well("close two");
    user.well("end");
    user.well(&format!("open two {}", handles[1]));
    user.well("go");
    user.well("close two");
    let left = (user.truth("imported"), user.truth("address_range"));
    assert_eq!((left, user.tell("hazards").as_str()), ((0, 0), "0"));
    assert_eq!((owner.end(), user.end()), (vec![], vec![]));
}

#[test]
fn a_freed_block_can_no_longer_be_opened() {
    for strategy in ALL {
        let (mut owner, mut user) = pair(strategy);
        owner.well("alloc shared 100000");
        let handle = owner.well("get shared");
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
        let (mut owner, mut user) = pair(strategy);
        owner.well("alloc shared 100000");
        let handle = owner.well("get shared");
        user.well(&format!("open x {handle}"));
        owner.well("destroy");
        user.well("destroy");
        let seen = (user.held("imported"), user.truth("address_range"));
        assert_eq!(
            seen,
            (0, 0),
            "{strategy:?}: the importer's context was destroyed with what it had opened"
        );
        let mut late = Process::start(job(strategy));
        assert_eq!(late.opens("x", &handle), INVALID_VALUE);
        late.end();
        assert_eq!((owner.end(), user.end()), (vec![], vec![]));
    }
}

#[test]
fn a_handle_of_an_ended_process_is_refused() {
    for strategy in ALL {
        let (mut owner, mut user) = pair(strategy);
        owner.well("alloc shared 100000");
        let handle = owner.well("get shared");
        // A forked child of the exporter inherits its descriptors. The importer must not take the child for the
        // exporter.
        owner.well(&format!("fill shared {}", 1));
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
        user.well(&format!("open x {handle}"));
        assert_eq!(user.tell("check x 2"), "right");
        assert_eq!(user.held("imported"), 100_000);
        // A handle that is opened twice must be closed twice.
        user.well(&format!("open x {handle}"));
        assert_eq!(user.held("imported"), 100_000);
        user.well("close x");
        assert_eq!(user.held("imported"), 100_000);
        assert_eq!(user.tell("check x 2"), "right");
        user.well("close x");
        assert_eq!(user.held("imported"), 0);
        assert_eq!(user.tell("close x"), INVALID_VALUE);
        assert_eq!(user.end(), [""; 0]);
    }
    owner.end();
}
