//! The simulated GPU does what headers and documentation say, also with the library before it.

use std::process::Command;

use serde_json::{Value, json};
use support::{
    AUTO_GROWTH, Fields, Job, MIB, NAIVE_BEST_FIT, PASSTHROUGH, Strategy, assert_all_agree, assert_fields, client,
    in_path, left_out, root, scratch, simulated, tests,
};

fn alone_and_under_each(job: impl Fn() -> Job) {
    job().alone().run().ok();
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH] {
        job().strategy(strategy).run().ok();
    }
}

fn everywhere(source: &str, scene: &str, with: impl Fn(Job) -> Job) {
    let name = format!("simgpu_{}", source.trim_end_matches(".c"));
    let path = client(&format!("simgpu/{source}"), &name, &["libcuda.so.1"]);
    alone_and_under_each(|| with(Job::new(&path).sim("1GiB", 2)).args([scene]));
}

fn graphs(scene: &str) {
    everywhere("graphs.c", scene, |job| job.env("SIMGPU_DELAYED", "1"));
}

tests! {
    a_child_graph_runs_when_its_graph_is_launched => graphs("children");
    a_conditional_node_runs_the_body_that_its_default_value_names => graphs("conditions");
    parameters_of_nodes_can_be_asked_for_and_set => graphs("parameters");
    nodes_of_an_executable_graph_can_be_changed_and_disabled => graphs("executable");
    an_executable_graph_takes_the_parameters_of_an_equal_graph_alone => graphs("update");
    nodes_of_events_record_and_wait => graphs("events");
}

fn objects(scene: &str) {
    everywhere("objects.c", scene, |job| job);
}

tests! {
    texture_objects_keep_their_descriptions_and_fit_blocks_of_a_policy => objects("textures");
    texture_references_need_no_offset_for_memory_of_cu_mem_alloc => objects("references");
    arrays_are_copied_to_and_from_all_kinds_of_memory => objects("arrays");
    old_launches_are_launches => objects("launches");
}

#[test]
fn blocks_need_no_mapping_each() {
    let path = client("simgpu/objects.c", "simgpu_objects", &["libcuda.so.1"]);
    let job = || Job::new(&path).sim("8GiB", 1).args(["many"]);
    job().alone().run().ok();
    job().strategy(PASSTHROUGH).run().ok();
}

fn refusals(scene: &str, with: impl Fn(Job) -> Job) {
    everywhere("refusals.c", scene, with);
}

#[test]
fn a_request_whose_bytes_fit_into_no_number_is_too_large() {
    refusals("sizes", |job| job);
}

#[test]
fn the_runtime_too_says_so() {
    let path = client("simgpu/refusals.c", "simgpu_refusals", &["libcuda.so.1"]);
    for number in ["12", "13"] {
        let runtime = simulated(&format!("libcudart.so.{number}"));
        alone_and_under_each(|| Job::new(&path).sim("1GiB", 2).args(["runtime"]).args([&runtime]));
    }
}

/// The journal has the largest number for the bytes of such a request, and nothing is on the books.
#[test]
fn a_request_that_fits_into_no_number_is_recorded_as_it_failed() {
    let path = client("simgpu/refusals.c", "simgpu_refusals", &["libcuda.so.1"]);
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH] {
        let job = Job::new(&path).sim("1GiB", 2).args(["pitched"]);
        let job = job.strategy(strategy).run().ok().inspect();
        let wanted = json!({"damaged": 0, "failed_calls": 1, "live": []});
        assert_fields(&job, wanted, strategy.name);
        assert_eq!(job["failed"][0]["last_size"], u64::MAX, "{strategy:?}");
    }
}

tests! {
    advice_and_prefetches_are_for_managed_memory_and_the_hosts => refusals("managed", |job| job);
    flags_for_future_use_are_refused => refusals("reserved", |job| job);
    /// Under a policy these copies were accesses to addresses that no memory lies at.
    memory_that_went_with_its_context_is_neither_filled_nor_copied => refusals("gone", |job| job);
}

tests! {
    blocks_of_one_page_can_all_be_shared_with_another_process => refusals("neighbours", Job::on_one_host);
    memory_of_another_process_needs_a_peer_if_it_is_on_another_device =>
        refusals("strangers", |job| job.on_one_host().env("SIMGPU_PEERS", "0"));
    a_pool_grants_its_memory_to_other_devices => everywhere("pools.c", "access", |job| job);
    pools_of_the_host_take_nothing_of_a_device => everywhere("pools.c", "host", |job| job);
}

/// At each moment the library's count is the simulator's.
#[test]
fn a_destroyed_pool_keeps_its_memory_until_the_last_free() {
    let path = client("simgpu/pools.c", "simgpu_pools", &["libcuda.so.1"]);
    let job = || Job::new(&path).sim("1GiB", 1).args(["destroyed"]);
    job().alone().run().ok();
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH] {
        let checkpoints = job().strategy(strategy).run().ok().json();
        assert_eq!(checkpoints.len(), 4);
        assert_all_agree(&checkpoints, strategy, "");
    }
}

/// The kernel allows a process 65530 mappings (vm.max_map_count).
#[test]
fn reservations_need_no_mapping_each() {
    everywhere("spaces.c", "many", |job| job);
    everywhere("spaces.c", "joined", |job| job);
}

/// A driver promises no contents of memory that was just obtained.
#[test]
fn fresh_memory_has_the_bytes_that_a_setting_names() {
    let path = client("simgpu/spaces.c", "simgpu_spaces", &["libcuda.so.1"]);
    let job = || Job::new(&path).sim("1GiB", 1).args(["fresh"]);
    job().alone().env("SIMGPU_FRESH", "165").run().ok();
    job().strategy(PASSTHROUGH).env("SIMGPU_FRESH", "165").run().ok();
}

#[test]
fn memory_of_another_processes_pool_is_known_and_not_charged() {
    let path = client("simgpu/pools.c", "simgpu_pools", &["libcuda.so.1"]);
    let job = || Job::new(&path).sim("1GiB", 2).args(["processes"]).on_one_host();
    job().alone().run().ok();
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH] {
        let finished = job().strategy(strategy).run().ok();
        let imported = |line: &Value| {
            let mut rows = line["account"]["totals"].list().iter();
            let its = rows.find(|row| row["class"] == "imported");
            its.map_or(0, |row| row["requested"]["current"].number())
        };
        let told: Vec<u64> = finished.json().iter().map(imported).collect();
        assert_eq!(told, [384 * MIB, 0], "{strategy:?}");
    }
}

fn utilised(job: Job) -> Job {
    job.env("SIMGPU_UTILISATION", "40")
}

fn nvml(scene: &str, with: impl Fn(Job) -> Job) {
    let path = client("simgpu/nvml.c", "simgpu_nvml", &["libnvidia-ml.so.1"]);
    alone_and_under_each(|| with(Job::new(&path).sim("1GiB", 2).args([scene])));
}

tests! {
    nvml_tells_what_a_device_is_without_the_driver => nvml("figures", utilised);
    nvml_lists_a_process_with_a_context_and_its_bytes => nvml("processes", utilised);
    nvml_tells_how_much_a_process_uses_the_device => nvml("utilisation", utilised);
    nvml_answers_with_the_errors_that_a_setting_names => nvml("errors", |job| {
        let faults = "nvmlDeviceGetMemoryInfo:2+=3,nvmlDeviceGetComputeRunningProcesses:1+=4";
        job.env("SIMGPU_FAULTS", faults)
    });
    under_mps_the_server_has_the_memory_of_its_clients => nvml("served", |job| job.env("SIMGPU_MPS", "4711000"));
    a_process_lives_as_long_as_one_of_its_threads => nvml("leader", Job::on_one_host);
}

/// In a container NVML tells ids of the host ("always", nvidia-docker#1483).
#[test]
fn nvml_tells_process_ids_of_the_host() {
    let namespaces = ["-m", "-p", "-f", "--mount-proc", "true"];
    let allowed = Command::new("unshare").args(namespaces).status();
    if !allowed.is_ok_and(|status| status.success()) {
        return left_out("this user may make no namespaces");
    }
    let path = client("simgpu/nvml.c", "simgpu_nvml", &["libnvidia-ml.so.1"]);
    let job = || {
        let script =
            "mkdir $SIMGPU_HOSTPROC && mount --bind /proc $SIMGPU_HOSTPROC && exec unshare -pf --mount-proc $0 host";
        let job = Job::new("unshare").sim("1GiB", 2).on_one_host();
        let host = job.folder().join("host");
        let job = job.env("SIMGPU_HOSTPROC", host);
        job.args(["-m", "bash", "-c", script]).args([&path])
    };
    job().alone().run().ok();
    job().strategy(PASSTHROUGH).run().ok();
}

/// Valgrind and `ulimit -v` refuse an arena of 16 TiB.
#[test]
fn little_address_space_is_enough() {
    let path = client("simgpu/objects.c", "simgpu_objects", &["libcuda.so.1"]);
    let script = "ulimit -v 6000000 && exec \"$0\" textures";
    alone_and_under_each(|| Job::new("bash").sim("1GiB", 2).args(["-c", script]).args([&path]));
}

#[test]
fn valgrind_finds_no_fault_and_no_lost_memory_of_the_library() {
    if !in_path("valgrind") {
        return left_out("valgrind is not installed");
    }
    let path = client("simgpu/objects.c", "simgpu_objects", &["libcuda.so.1"]);
    // Without lines of source files, each line of the report names an object.
    let folder = scratch("valgrind");
    std::fs::create_dir_all(&folder).expect("a folder");
    let library = folder.join("libvramshim.so");
    let mut strip = Command::new("strip");
    let stripped = strip.args(["-g", "-o"]).args([&library, &support::library()]).status();
    assert!(stripped.expect("strip, of binutils").success());
    let suppressions = format!("--suppressions={}", root().join("tests/simgpu/valgrind.supp").display());
    let options =
        "-q --error-exitcode=9 --leak-check=full --show-leak-kinds=all --errors-for-leak-kinds=none".split(' ');
    let report = |strategy: Option<Strategy>, more: &[&str]| {
        let job = Job::new("valgrind")
            .alone()
            .sim("1GiB", 2)
            .args(options.clone())
            .args(more);
        let job = job.args([&path]).args(["textures"]);
        let job = match strategy {
            Some(strategy) => job.strategy(strategy).preload(library.clone()),
            None => job,
        };
        job.run().ok().stderr
    };
    let alone = report(None, &[&suppressions]);
    assert_eq!(leaks_of(&alone, "libvramshim.so"), [""; 0]);
    assert!(!leaks_of(&report(Some(AUTO_GROWTH), &[]), "libvramshim.so").is_empty());
    for strategy in [NAIVE_BEST_FIT, AUTO_GROWTH] {
        let report = report(Some(strategy), &[&suppressions]);
        assert_eq!(leaks_of(&report, "libvramshim.so"), [""; 0], "{strategy:?}");
        // The file leaves out what the library asked for, and no more: the simulated driver's own memory is there.
        assert!(!leaks_of(&report, "libcuda.so").is_empty(), "{strategy:?}");
    }
}

/// The leaks of a report whose memory this object asked for.
fn leaks_of<'a>(report: &'a str, object: &str) -> Vec<&'a str> {
    let asked = |leak: &str| {
        let mut frames = leak.lines().filter(|line| line.contains(": "));
        let first = frames.find(|line| !line.contains("vgpreload"));
        first.is_some_and(|line| line.contains(object))
    };
    report.split("loss record").skip(1).filter(|leak| asked(leak)).collect()
}

/// Tests of fragmented devices rely on it.
#[test]
fn a_request_of_any_kind_needs_one_piece_if_the_device_has_no_pages() {
    let path = client("simgpu/spaces.c", "simgpu_spaces", &["libcuda.so.1"]);
    for pieces in ["0", "1"] {
        let job = Job::new(&path).alone().sim("1GiB", 1).args(["pieces"]);
        job.env("SIMGPU_CONTIGUOUS", pieces).run().ok();
    }
}
