//! Blocks look like the driver's own allocations to other devices, to network cards and to copies between devices.

use support::{
    AUTO_GROWTH, AUTO_GROWTH_WITHOUT_VMM as CHUNKS, Job, NAIVE_BEST_FIT, PASSTHROUGH, Strategy, client, tests,
};

const ALL: [Strategy; 4] = [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH, CHUNKS];

fn linked(file: &str, libraries: &[&str], scene: &str) -> Job {
    let name = format!("registered-{file}-{}", libraries[0]);
    let path = client(&format!("registered/{file}.c"), &name, libraries);
    Job::new(path).sim("8GiB", 3).env("SIMGPU_DELAYED", "1").args([scene])
}

fn program(file: &str, scene: &str) -> Job {
    linked(file, &["libcuda.so.1"], scene)
}

fn play(job: impl Fn() -> Job) {
    job().alone().run().ok();
    for strategy in ALL {
        job().strategy(strategy).run().ok();
    }
}

tests! {
    behind_the_end_of_a_block_there_is_none => play(|| program("registered", "ends"));
    an_identity_is_never_used_again => play(|| program("registered", "identities"));
    access_flags_follow_peer_access => play(|| program("registered", "access"));
    peer_access_that_the_driver_had_already_is_known => play(|| program("registered", "already"));
    peer_access_ends_with_the_context => play(|| program("registered", "afresh"));
    sync_memops_hold_for_one_block_until_it_is_freed => play(|| program("registered", "sync"));
    an_exported_block_stays_where_it_is => play(|| program("registered", "exports"));
    copies_on_a_stream_of_another_device => play(|| program("copies", "streams"));
    copies_keep_their_place_in_their_stream => play(|| program("copies", "order"));
    copies_after_peer_access_was_enabled_and_disabled => play(|| program("copies", "enabled"));
}

#[test]
fn copies_between_devices_need_no_peer_access() {
    for scene in "all others first-attributed first-box-batch first-box-attributed".split(' ') {
        play(|| program("copies", scene));
    }
    for runtime in ["libcudart.so.12", "libcudart.so.13"] {
        play(|| linked("copies", &[runtime, "libcuda.so.1", "-DRUNTIME"], "all"));
    }
}

#[test]
fn copies_between_devices_that_cannot_be_peers() {
    for scene in ["all", "others", "apart"] {
        play(|| program("copies", scene).env("SIMGPU_PEERS", "0"));
    }
}

#[test]
fn copies_in_graphs() {
    play(|| program("copies", "captured"));
    play(|| program("copies", "nodes"));
}

#[test]
fn a_node_of_a_graph_that_gets_another_copy() {
    for scene in "copy elsewhere nowhere any any_v2 run_copy run_any batch".split(' ') {
        for peers in ["1", "0"] {
            play(|| program("nodes", scene).env("SIMGPU_PEERS", peers));
        }
    }
}

#[test]
fn peer_access_costs_few_calls_and_is_granted_once() {
    let job = program("copies", "enable").sim("64GiB", 4).strategy(AUTO_GROWTH);
    let told = job.run().ok().stdout;
    let numbers = told.split_whitespace();
    let calls: Vec<u64> = numbers.map(|number| number.parse().expect("a number")).collect();
    assert!((3..=12).contains(&calls[0]), "{calls:?} calls for three peers");
    assert_eq!(calls[1], 0, "calls after access was disabled and enabled again");
}

/// Network cards register memory by nvidia_peermem if the driver has no dma-bufs, and that takes no mapped memory.
#[test]
fn memory_is_not_mapped_if_network_cards_could_not_register_it() {
    let module = || client("support/clients/peermem.c", "peermem", &["-shared", "-fPIC"]);
    let without_module = || program("copies", "all").strategy(AUTO_GROWTH).env("SIMGPU_DMABUF", "0");
    let with_module = |dmabuf: &str| without_module().preload(module()).env("SIMGPU_DMABUF", dmabuf);
    let warnings = |job: Job| {
        let said = job.run().ok().said().into_iter();
        said.filter(|(_, text)| text.contains("nvidia_peermem")).count()
    };
    assert_eq!(warnings(with_module("0")), 3, "told once for each device");
    assert_eq!((warnings(with_module("1")), warnings(without_module())), (0, 0));
    // A job that maps memory learns that this fails.
    let maps = |job: Job| {
        let said = job.env("SIMGPU_FAULTS", "cuMemMap:1+=801").run().ok().said();
        let words = "virtual memory management fails";
        said.iter().any(|(_, text)| text.contains(words))
    };
    assert!(!maps(with_module("0")) && maps(with_module("1")) && maps(without_module()));
}
