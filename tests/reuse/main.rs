//! Freed memory is not handed out while work of its former owner may still touch it, on a simulator whose work is done
//! as late as CUDA allows. The client asks the simulator of every range it is given, and looks whether its bytes stay.

use support::{
    AUTO_GROWTH, AUTO_GROWTH_CHUNKS, Finished, Job, NAIVE_BEST_FIT, PASSTHROUGH, STRATEGIES, Strategy, client,
};

fn scene(name: &str) -> Job {
    let path = client("reuse/reuse.c", "reuse", &["libcuda.so.1"]);
    Job::new(path).env("SIMGPU_DELAYED", "1").args([name])
}

fn played(name: &str, strategy: Strategy) -> Finished {
    scene(name).strategy(strategy).run().ok()
}

/// What the other tests here build on; and that the library stands in nobody's way.
#[test]
fn the_simulator_delays_and_orders_work_as_documented() {
    scene("order").alone().run().ok();
    played("order", PASSTHROUGH);
}

#[test]
fn no_block_comes_back_before_the_work_of_its_former_owner_is_done() {
    for strategy in STRATEGIES {
        played("streams", strategy);
    }
}

#[test]
fn an_open_capture_is_neither_spoilt_nor_a_reason_to_hand_out_busy_memory() {
    for strategy in STRATEGIES {
        let told = played("capture", strategy).stdout;
        let frees = |mode: &str| told.lines().filter(|line| line.starts_with(mode)).count();
        assert_eq!(
            (frees("relaxed: freed 4 made 8"), frees("global: ")),
            (10, 10),
            "{told}"
        );
        // Only the driver forbids a free beside a capture; a policy has no reason to ask it.
        let expected = if strategy.name == PASSTHROUGH.name { 0 } else { 10 };
        assert_eq!(frees("global: freed 4"), expected, "{strategy:?}: {told}");
    }
}

#[test]
fn one_synchronisation_serves_a_hundred_freed_blocks() {
    assert_eq!(played("once", PASSTHROUGH).stdout, "0\n");
    for strategy in [NAIVE_BEST_FIT, AUTO_GROWTH, AUTO_GROWTH_CHUNKS] {
        let count: u32 = played("once", strategy).stdout.trim().parse().unwrap();
        println!("{strategy:?}: {count}");
        assert!(count <= 1, "{strategy:?}: {count} synchronisations");
    }
}
