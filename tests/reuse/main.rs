//! A freed block is not handed out again while work of its former owner may still touch it. The simulator does all work
//! as late as CUDA allows. The client asks the simulator about every block that it gets, and checks that its bytes
//! stay.

use support::{Finished, Job, PASSTHROUGH, STRATEGIES, Strategy, client};

fn scene(name: &str) -> Job {
    let path = client("reuse/reuse.c", "reuse", &["libcuda.so.1"]);
    Job::new(path).env("SIMGPU_DELAYED", "1").args([name])
}

fn played(name: &str, strategy: Strategy) -> Finished {
    scene(name).strategy(strategy).run().ok()
}

/// The other tests rely on this behaviour of the simulator. With the library preloaded it is the same.
#[test]
fn the_simulator_delays_and_orders_work_as_documented() {
    scene("order").alone().run().ok();
    played("order", PASSTHROUGH);
}

#[test]
fn no_block_is_reused_before_the_work_of_its_former_owner_is_done() {
    for strategy in STRATEGIES {
        played("streams", strategy);
    }
}

#[test]
fn during_a_capture_the_capture_stays_valid_and_no_busy_block_is_reused() {
    for strategy in STRATEGIES {
        let told = played("capture", strategy).stdout;
        let frees = |mode: &str| told.lines().filter(|line| line.starts_with(mode)).count();
        assert_eq!(
            (frees("relaxed: freed 4 made 8"), frees("global: ")),
            (10, 10),
            "{told}"
        );
        // The driver refuses a free during a capture. A policy serves the free without a call to the driver.
        let expected = if strategy.name == PASSTHROUGH.name { 0 } else { 10 };
        assert_eq!(frees("global: freed 4"), expected, "{strategy:?}: {told}");
    }
}

#[test]
fn no_request_waits_before_it_reuses_a_freed_block() {
    for strategy in STRATEGIES {
        assert_eq!(played("once", strategy).stdout, "0\n", "{strategy:?}");
    }
}
