//! The memory limit of one process. The process never gets more than its limit, in any class of memory. A refusal looks
//! like CUDA's own, and every answer about free and total memory agrees with the limit.

mod group;
mod handles;

use serde_json::{Value, json};
use support::layer::FORMS;
use support::member::{Host, Member};
use support::{
    AUTO_GROWTH, Fields, GIB, Job, MIB, NAIVE_BEST_FIT, OUT_OF_MEMORY, STRATEGIES, THREE, assert_agree,
    assert_all_agree, assert_fields, assert_journal_agrees, assert_says, client,
};

fn limited(scene: &str, limit: &str) -> Job {
    let job = Job::new(client("support/clients/quota.c", "quota-dlopen", &["-DDLOPEN"])).sim("4GiB", 1);
    job.env("VRAMSHIM_MEMORY_LIMIT", limit).args([scene, "1", "250"])
}

/// The bytes of device 0 in the library's ledger, over all classes of device memory.
fn held(checkpoint: &Value, kind: &str) -> u64 {
    let rows = checkpoint["account"]["totals"].list().iter();
    let of_device =
        rows.filter(|row| row["device"] == 0 && row["class"] != "address_range" && row["class"] != "imported");
    of_device.map(|row| row[kind]["current"].number()).sum()
}

#[test]
fn every_kind_of_memory_counts_and_the_answers_agree() {
    for strategy in THREE {
        let context = strategy.name;
        let finished = limited("book", "1GiB").strategy(strategy).run().ok();
        let lines = finished.json();
        let mut compared = 0;
        for pair in lines.windows(2).filter(|pair| pair[1].get("information").is_some()) {
            assert_agree(&pair[0], strategy, context);
            let told = &pair[1]["information"];
            let left = GIB - held(&pair[0], "reserved");
            let pooled = |kind| {
                let rows = pair[0]["account"]["totals"].list();
                let linear = rows.iter().find(|row| row["class"] == "linear");
                linear.map_or(0, |row| row[kind]["current"].number())
            };
            let inside = pooled("reserved") - pooled("allocated");
            assert_fields(told, json!({"free": left + inside, "total": GIB}), context);
            compared += 1;
        }
        assert!(compared > 4, "{context}: {compared} answers");
        let (job, last) = (finished.inspect(), support::checkpoints(&lines).pop().unwrap());
        assert_journal_agrees(&job, last, context);
        assert_eq!(job["failed_calls"], 0, "{context}");
    }
}

#[test]
fn the_limit_is_out_of_memory_and_is_reported() {
    for strategy in THREE {
        let context = strategy.name;
        let finished = limited("limit", "1GiB").strategy(strategy).run().ok();
        let served = finished.stdout.lines().filter(|line| line.ends_with(" served"));
        let served: Vec<u64> = served.filter_map(|line| line.split(' ').nth(1)?.parse().ok()).collect();
        assert_eq!(served.len(), 5, "{context}: {served:?}");
        let all_fit = served.iter().all(|count| (20..=21).contains(count));
        assert!(all_fit, "{context}: {served:?}");
        for line in support::checkpoints(&finished.json()) {
            assert_agree(line, strategy, context);
            let used = line["truth"]["devices"][0]["used_by_process"].number();
            assert!(used <= GIB, "{context}: {used}");
        }
        let mut reports = finished.said();
        reports.retain(|(level, _)| *level == 'W');
        let wanted = "the limit of its process is 1.00 GiB (VRAMSHIM_MEMORY_LIMIT)";
        assert_says(&reports[0].1, wanted);
        assert!(reports.len() < 6, "{context}: too many reports, {reports:?}");
    }
}

/// CUDA 13 hands out pools of a device, of the host and of managed memory, which no call creates.
#[test]
fn pools_that_nobody_created_count_where_their_memory_is() {
    let path = client("limits/pools.c", "pools-dlopen", &["-DDLOPEN"]);
    for strategy in THREE {
        let job = Job::new(&path).sim("4GiB", 1).env("VRAMSHIM_MEMORY_LIMIT", "512MiB");
        let checkpoints = job.strategy(strategy).run().ok().json();
        assert_eq!(checkpoints.len(), 5);
        for (checkpoint, expected) in checkpoints.iter().zip([0, 0, 256, 320, 320]) {
            let context = format!("{strategy:?}: {checkpoint}");
            assert_agree(checkpoint, strategy, &context);
            assert_eq!(held(checkpoint, "reserved"), expected * MIB, "{context}");
        }
    }
}

/// A driver that lacks memory takes what its pools hold free, and says nothing of it. That counts no longer when the limit
/// refuses a request.
#[test]
fn what_the_driver_took_from_its_pools_serves_a_request_under_the_limit() {
    let host = Host::new("1200MiB");
    for strategy in STRATEGIES {
        let mut other = Member::start(host.job());
        let mut member = Member::start(host.job().env("VRAMSHIM_MEMORY_LIMIT", "1GiB").strategy(strategy));
        assert_eq!(other.allocate(600 * MIB), 0);
        assert_eq!(member.ask(&format!("q {}", 512 * MIB)), "0", "{strategy:?}");
        assert_eq!(member.allocate(400 * MIB), 0, "{strategy:?}");
        drop(other.end());
        assert_eq!(member.allocate(600 * MIB), 0, "{strategy:?}");
        drop(member.end());
    }
}

/// The client asks for every class of memory while the limit is reached.
#[test]
fn a_reached_limit_leaves_the_account_right() {
    let path = client("support/clients/exercise.c", "linked", &["libcuda.so.1"]);
    for strategy in STRATEGIES {
        let job = Job::new(&path).env("VRAMSHIM_MEMORY_LIMIT", "10MiB").strategy(strategy);
        let finished = job.args(["11", "1000", "1"]).run().ok();
        let lines = finished.json();
        let checkpoints = support::checkpoints(&lines);
        assert_all_agree(checkpoints.iter().copied(), strategy, "");
        let job = finished.inspect();
        assert_fields(&job, json!({"anomalies": 0, "events_lost": 0}), strategy.name);
        assert_journal_agrees(&job, checkpoints[checkpoints.len() - 1], strategy.name);
        // The limit was reached.
        assert!(job["failed_calls"].number() > 10, "{strategy:?}");
    }
}

#[test]
fn limits_are_understood_however_they_are_written() {
    let host = Host::new("4GiB");
    // What a process is told of the device, with this limit and perhaps another variable.
    let told = |limit: &str, variable: &str| {
        let (name, value) = variable.split_once('=').unwrap_or(("NONE", ""));
        let job = host.job().env("VRAMSHIM_MEMORY_LIMIT", limit).env(name, value);
        Member::start(job).information()
    };
    let uuid = told("", "")["truth"]["devices"][0]["uuid"].text().to_owned();
    let by_uuid = format!("0=3GiB,{uuid}=1GiB");
    let by_part = format!("0=3GiB,GPU-{}=1 GiB", uuid[4..10].to_uppercase());
    for (limit, variable, gib) in [
        ("", "", 4),
        ("0", "", 4),
        ("1GiB", "", 1),
        ("25%", "", 1),
        ("1GiB,1=2GiB", "", 1),
        ("1=2GiB", "", 4),
        ("3GiB,0=1GiB", "", 1),
        (&by_uuid, "", 1),
        (&by_part, "", 1),
        ("16GiB", "", 4),
        ("", "FLAGS_gpu_memory_limit_mb=1024", 1),
        ("", "CUDA_DEVICE_MEMORY_LIMIT=1g", 4),
        ("inherit", "CUDA_DEVICE_MEMORY_LIMIT_0=1024m", 1),
        ("inherit", "CUDA_MEM_LIMIT_0=1gb", 1),
        ("inherit", "", 4),
        ("a lot", "", 4),
    ] {
        let (told, context) = (told(limit, variable), format!("{limit} {variable}"));
        let bytes = gib * GIB;
        let wanted = json!({"total": bytes, "device_total": bytes, "free": bytes});
        assert_fields(&told, wanted, &context);
        assert_fields(&told["nvml"], json!({"total": bytes, "free": bytes}), &context);
        assert_eq!(told["nvml"]["v2"]["total"], bytes, "{context}");
    }
}

/// A limit with a UUID holds for that device under every ordinal.
#[test]
fn visible_devices_change_numbers_and_not_devices() {
    let host = Host::new("4GiB");
    let two = |order: &str, limit: &str| {
        let job = host.job().sim("4GiB,6GiB", 2).env("CUDA_VISIBLE_DEVICES", order);
        let mut member = Member::start(job.env("VRAMSHIM_MEMORY_LIMIT", limit));
        assert_eq!(member.allocate(MIB), 0);
        let information = member.information();
        member.end();
        let uuid = information["truth"]["devices"][0]["uuid"].text().to_owned();
        (uuid, information)
    };
    let (second, information) = two("1,0", "0=2GiB");
    assert_eq!([&information["total"], &information["nvml"]["total"]], [2 * GIB; 2]);
    let (first, information) = two("0,1", &format!("{second}=1GiB"));
    assert_ne!(first, second);
    assert_eq!([&information["total"], &information["nvml"]["total"]], [4 * GIB; 2]);
    let (_, information) = two("1", &format!("{second}=1GiB"));
    assert_eq!([&information["total"], &information["nvml"]["used"]], [GIB, MIB]);
}

/// A MIG instance is a device of its own for CUDA and for NVML. The limit holds for the instance, not for the card.
#[test]
fn a_limit_holds_for_a_mig_instance_and_not_for_its_card() {
    let host = Host::new("4GiB");
    let start = |limit: &str| Member::start(host.job().env("SIMGPU_MIG", "1").env("VRAMSHIM_MEMORY_LIMIT", limit));
    let mut member = start("1GiB");
    assert_eq!(member.allocate(MIB), 0);
    let told = member.information();
    let part = &told["mig"];
    assert!(part["uuid"].text().starts_with("MIG-"), "{told}");
    assert_ne!(part["uuid"].text()[4..], told["nvml"]["uuid"].text()[4..]);
    assert_fields(part, json!({"total": GIB, "used": MIB}), "");
    assert_eq!(told["total"], GIB);
    assert_fields(&told["nvml"], json!({"total": 8 * GIB, "used": MIB}), "");
    member.end();
    for (uuid, total) in [(&part["uuid"], 2 * GIB), (&told["nvml"]["uuid"], 4 * GIB)] {
        let mut member = start(&format!("{}=2GiB", uuid.text()));
        assert_eq!(member.allocate(MIB), 0);
        assert_eq!(member.information()["total"], total, "{uuid}");
        member.end();
    }
}

/// The memory of contexts counts. If more than the limit is used, the free memory is 0. Questions and frees still
/// succeed.
#[test]
fn contexts_count_and_a_limit_below_what_is_used_reads_as_nothing_free() {
    let host = Host::new("4GiB");
    let job = |limit: &str| {
        let job = host.job().env("SIMGPU_CONTEXT_BYTES", "300MiB");
        job.env("VRAMSHIM_MEMORY_LIMIT", limit)
    };
    let mut member = Member::start(job("1GiB"));
    assert_eq!(member.allocate(100 * MIB), 0);
    let told = member.information();
    let of_process = &told["nvml"]["processes"][0]["used"];
    assert_eq!([&told["nvml"]["used"], of_process], [400 * MIB; 2]);
    let own = json!({"limit": GIB, "used": 400 * MIB, "available": 624 * MIB, "context": 300 * MIB, "group": 0});
    assert_fields(&told, json!({"free": 624 * MIB, "limit": own}), "");
    assert_eq!(told["nvml"]["used"], told["truth"]["devices"][0]["used_by_process"]);
    // `c` makes another context, which is counted with the next question. `d` destroys it.
    member.ask("c");
    member.ask("d");
    assert_eq!(member.information()["nvml"]["used"], 400 * MIB);
    assert_eq!(member.allocate(700 * MIB), OUT_OF_MEMORY);
    member.end();
    let mut member = Member::start(job("200MiB"));
    let told = member.information();
    assert_fields(&told, json!({"free": 0, "total": 200 * MIB}), "");
    assert_fields(&told["nvml"], json!({"free": 0, "used": 300 * MIB}), "");
    assert_eq!(member.allocate(MIB), OUT_OF_MEMORY);
    assert_eq!(member.ask("f 0"), "0", "freeing nothing");
    member.end();
}

/// What the library allocates for a moment to wait beside captures is no memory of a context.
#[test]
fn a_measurement_during_a_wait_of_the_library_counts_no_bytes_of_the_wait() {
    let path = client("limits/waits.c", "waits", &["libcuda.so.1"]);
    for strategy in [NAIVE_BEST_FIT, AUTO_GROWTH] {
        let job = Job::new(&path).strategy(strategy).env("VRAMSHIM_MEMORY_LIMIT", "3GiB");
        // Without events of contexts the library waits so.
        let job = job.env("SIMGPU_FAULTS", "cuCtxRecordEvent:1+=801");
        let job = job.env("SIMGPU_LATCH", "cuMemFree").env("SIMGPU_LATCH_DIR", ".");
        let lines = job.run().ok().json();
        let held = &lines[1]["truth"]["devices"][0]["used_by_process"];
        assert_eq!(&lines[0]["used"], held, "{strategy:?}");
    }
}

/// The memory of a reset context leaves the account. The memory of the next context enters it with the first use.
#[test]
fn the_memory_of_a_reset_context_leaves_the_account() {
    for strategy in THREE {
        let host = Host::new("4GiB");
        let job = host.job().env("SIMGPU_CONTEXT_BYTES", "300MiB");
        let mut member = Member::start(job.env("VRAMSHIM_MEMORY_LIMIT", "1GiB").strategy(strategy));
        for round in 0..3 {
            let results = [100, 700].map(|mib| member.allocate(mib * MIB));
            assert_eq!(results, [0, OUT_OF_MEMORY], "{} round {round}", strategy.name);
            let told = member.information();
            let own = &told["truth"]["devices"][0]["used_by_process"];
            assert_eq!(&told["nvml"]["used"], own, "{} round {round}", strategy.name);
            member.ask("p");
        }
        member.end();
    }
}

/// A program may set the limit itself, as it may set the strategy: after its first questions about the device, but
/// before it uses the device.
#[test]
fn a_program_may_limit_itself_before_it_begins() {
    let host = Host::new("4GiB");
    let mut member = Member::start(host.job().args(["late"]));
    assert_eq!(member.allocate(2 * GIB), OUT_OF_MEMORY);
    assert_eq!(member.information()["total"], GIB);
    member.end();
}

#[test]
fn the_journal_tells_the_limit_and_what_it_refused() {
    let host = Host::new("4GiB");
    let job = host.job().env("VRAMSHIM_MEMORY_LIMIT", "1GiB");
    let job = job.input("a 2147483648\na 8589934592\n").run().ok().inspect();
    assert_eq!(job["devices"][0]["limit"], GIB);
    assert_eq!(job["failed"][0]["refused_by_limit"], 2, "{}", job["failed"]);
}

#[test]
fn the_limit_may_be_given_to_the_program() {
    use support::program;
    let accounts = tempfile::tempdir().unwrap();
    let start = |arguments: &[&str]| {
        let driver = support::simulated("libcuda.so.1");
        let job = Job::new(program()).alone().without("LD_LIBRARY_PATH");
        let job = job.env("VRAMSHIM_SIMGPU", driver.parent().unwrap());
        let job = job.args(["run", "--sim", "4GiB"]).args(arguments);
        job.args(["--"]).args([support::member::member_client()])
    };
    let folder = accounts.path().join("new").to_str().unwrap().to_owned();
    let mut member = Member::start(start(&["--limit", "0=1GiB", "--accounts", &folder]));
    assert_eq!((member.allocate(2 * GIB), member.allocate(GIB)), (OUT_OF_MEMORY, 0));
    let told = member.information();
    assert_fields(&told["limit"], json!({"limit": GIB, "group": 1}), "");
    member.end();
    for arguments in [["--limit", "lots"], ["--accounts", "/dev/null"]] {
        assert_eq!(start(&arguments).run().status.code(), Some(2), "{arguments:?}");
    }
}

/// A next layer reports less memory than the device has. Every answer of the library agrees with the layer.
#[test]
fn the_answers_agree_with_a_layer_that_has_a_limit() {
    for form in FORMS {
        for strategy in THREE {
            let host = Host::new("4GiB");
            let mut member = Member::start(host.job().over(form, "1GiB", &[]).strategy(strategy));
            assert_eq!(member.allocate(100 * MIB), 0);
            let told = member.information();
            let context = format!("{form:?} {}: {told}", strategy.name);
            let reserved = held(&told, "reserved");
            let nvml = &told["nvml"];
            let wanted = json!({"total": GIB, "used": reserved, "free": GIB - reserved});
            assert_fields(nvml, wanted, &context);
            assert_eq!(nvml["processes"][0]["used"], reserved, "{context}");
            let wanted = json!({"total": GIB, "free": GIB - held(&told, "allocated")});
            assert_fields(&told, wanted, &context);
            member.end();
        }
    }
}
