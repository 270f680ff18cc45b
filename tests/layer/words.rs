//! What the library says and does over a layer's limit: whose refusal it was, a layer in front, the inherited limit, and a
//! layer's answers for NVML.

use serde_json::Value;
use support::layer::{Form, Habits};
use support::member::{Host, Member};
use support::{AUTO_GROWTH, Job, MIB, THREE, client, inspect, program};

use super::{GIB, WELL_BEHAVED, quota};

/// The lines "Refused by" of a job's standard error.
fn refusers(errors: &str) -> Vec<&str> {
    let lines = errors.lines().map(str::trim);
    lines.filter_map(|line| line.strip_prefix("Refused by: ")).collect()
}

#[test]
fn out_of_memory_names_who_refused() {
    let path = client("support/clients/quota.c", "quota-dlopen", &["-DDLOPEN"]);
    let device = || Job::new(&path).sim("1GiB", 1).args(["arrays"]);
    let table = [
        ("the driver: device 0 has", device()),
        (
            "the limit of this process (VRAMSHIM_MEMORY_LIMIT).",
            device().env("VRAMSHIM_MEMORY_LIMIT", "512MiB"),
        ),
        (
            "liblayer.so, a layer before the driver (it shows 32.0 MiB free of 512.0 MiB",
            quota(Form::Preloaded, WELL_BEHAVED, &["arrays"]).env("LAYER_LIMIT", "512MiB"),
        ),
    ];
    for (words, job) in table {
        let finished = job.run().ok();
        let told = refusers(&finished.stderr);
        assert!(
            !told.is_empty() && told.iter().all(|line| line.contains(words)),
            "{words}: {}",
            finished.stderr
        );
    }
    // The journal says the same.
    for (scene, is_of_layer) in [
        (device(), false),
        (quota(Form::Preloaded, WELL_BEHAVED, &["arrays"]), true),
    ] {
        let finished = scene.run().ok();
        let journals = finished.folder.path().join("journals");
        let why = Job::new(program()).alone().args(["why"]).args([journals]).run().stdout;
        assert!(why.contains("Device 0 at"), "{why}");
        assert_eq!(why.contains("or let the layer give at least "), is_of_layer, "{why}");
        assert_eq!(
            why.contains("total and free are what a layer showed, "),
            is_of_layer,
            "{why}"
        );
    }
    let host = Host::new("4GiB");
    let mut one = Member::start(host.member("1GiB"));
    let mut two = Member::start(host.member("1GiB"));
    assert_eq!((one.allocate(700 * MIB), two.allocate(700 * MIB)), (0, 2));
    one.end();
    let errors = two.end();
    assert_eq!(
        refusers(&errors),
        ["the limit of this group (VRAMSHIM_MEMORY_LIMIT)."],
        "{errors}"
    );
}

/// Tensors are requested through the layer, so that it charges them.
#[test]
fn a_layer_in_front_counts_tensors_too() {
    let path = client("support/clients/quota.c", "quota-dlopen", &["-DDLOPEN"]);
    for strategy in THREE {
        let job = Job::new(&path)
            .sim("2GiB", 1)
            .under("1GiB", WELL_BEHAVED)
            .args(["tensors"]);
        let finished = job.strategy(strategy).run().ok();
        let (context, errors) = (strategy.name, &finished.stderr);
        // 1 GiB holds 21 tensors of 48 MiB.
        assert!(
            finished.stdout.ends_with("tensors: 21 served\n"),
            "{context}: {}",
            finished.stdout
        );
        let lines = finished.json();
        let used = |line: &Value| line["layer"]["used"][0].as_u64().expect("bytes");
        assert_eq!(
            lines.iter().map(used).collect::<Vec<_>>(),
            [0, 21 * 48 * MIB, 0],
            "{context}"
        );
        for line in &lines {
            assert_eq!(
                line["account"]["totals"][0]["requested"]["current"]
                    .as_u64()
                    .unwrap_or(0),
                used(line),
                "{context}"
            );
        }
        let told = "tensors are requested through ";
        assert_eq!(errors.matches(told).count(), 1, "{context}: {errors}");
        let told = refusers(errors);
        assert!(
            told.iter()
                .all(|line| line.contains("liblayer.so, a layer in front of the library")),
            "{errors}"
        );
    }
}

/// nvshare hooks `cuMemGetInfo` alone, so `cuDeviceTotalMem` shows the whole device there.
#[test]
fn the_inherited_limit_is_what_the_layer_shows_by_either_function() {
    const BOTH: Habits = &[];
    const ONE: Habits = &[("LAYER_TOTAL", "device")];
    for habits in [BOTH, ONE] {
        for form in [Form::Preloaded, Form::Replacing] {
            let job = Job::new(client("support/clients/member.c", "member-linked", &["libcuda.so.1"])).sim("2GiB", 1);
            let mut member = Member::start(job.over(form, "1GiB", habits).env("VRAMSHIM_MEMORY_LIMIT", "inherit"));
            assert_eq!(member.allocate(200 * MIB), 0, "{form:?} {habits:?}");
            let told = member.information();
            let figures = ["limit", "used"].map(|name| told["limit"][name].as_u64().expect("bytes"));
            assert_eq!(figures, [GIB, 200 * MIB], "{form:?} {habits:?}");
            assert_eq!(
                (&told["total"], &told["device_total"]),
                (&GIB.into(), &GIB.into()),
                "{form:?} {habits:?}"
            );
            let errors = member.end();
            let differ = errors.contains("the total that the next layer's cuMemGetInfo shows");
            assert_eq!(differ, !habits.is_empty(), "{form:?} {habits:?}: {errors}");
        }
    }
}

/// The layer's answers for NVML have no contexts. The job sees them, but what the journal says that NVML measured is the
/// driver's.
#[test]
fn the_measured_bytes_of_the_process_are_the_drivers() {
    const OF_BOOK: Habits = &[("LAYER_NVML", "book")];
    for habits in [WELL_BEHAVED, OF_BOOK] {
        let job = Job::new(client("support/clients/member.c", "member", &["-DDLOPEN"])).sim("4GiB", 1);
        let job = job.over(Form::Preloaded, "2GiB", habits).strategy(AUTO_GROWTH);
        let job = job
            .env("SIMGPU_CONTEXT_BYTES", "300MiB")
            .env("VRAMSHIM_MEMORY_LIMIT", "1GiB");
        let folder = tempfile::tempdir().expect("a folder");
        let mut member = Member::start(job.env("VRAMSHIM_DIR", folder.path()));
        assert_eq!(member.allocate(100 * MIB), 0, "{habits:?}");
        let told = member.information();
        assert_eq!(told["limit"]["context"], 300 * MIB, "{habits:?}: {told:#}");
        member.end();
        let job = &inspect(folder.path())[0];
        assert!(
            job["software"]["layer"]
                .as_str()
                .is_some_and(|path| path.ends_with("liblayer.so")),
            "{job:#}"
        );
    }
}
