//! What the library says and does over a layer's limit: whose refusal it was, a layer in front, the inherited limit, and a
//! layer's answers for NVML.

use serde_json::{Value, json};
use support::layer::{Form, Habits};
use support::member::{Host, Member, member_client};
use support::{AUTO_GROWTH, Fields, Job, MIB, THREE, assert_fields, client, inspect, vramshim_with};

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
        ("the driver itself, which has ", device()),
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
    // The figures of the journal are said to be the layer's.
    for (scene, is_of_layer) in [
        (device(), false),
        (quota(Form::Preloaded, WELL_BEHAVED, &["arrays"]), true),
    ] {
        let finished = scene.run().ok();
        let why = finished.told(&["why"]).text;
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

/// The journal has who refused, the refuser's own result, and what the driver itself had.
#[test]
fn the_verdict_names_who_refused_and_with_what() {
    const OWN_RESULT: Habits = &[("LAYER_REFUSAL", "-1")];
    const SAME_FREE: Habits = &[("LAYER_LINEAR", "managed")];
    let path = client("support/clients/quota.c", "quota-dlopen", &["-DDLOPEN"]);
    let device = || Job::new(&path).sim("1GiB", 1).args(["tensors"]);
    let over = |form, habits| quota(form, habits, &["tensors"]);
    let layers = [
        "liblayer.so, a layer before the driver",
        "libcuda.so.1, a layer before the driver",
    ];
    for strategy in THREE {
        let table = [
            (device(), "driver", 2, "live_set", "refused by the driver itself at "),
            (
                device().env("VRAMSHIM_MEMORY_LIMIT", "512MiB"),
                "limit",
                0,
                "limit",
                "refused by the limit at ",
            ),
            (
                over(Form::Preloaded, WELL_BEHAVED),
                "layer",
                2,
                "layer_limit",
                layers[0],
            ),
            (
                over(Form::Replacing, WELL_BEHAVED),
                "layer",
                2,
                "layer_limit",
                layers[1],
            ),
            (
                over(Form::Preloaded, OWN_RESULT),
                "layer",
                -1,
                "layer_limit",
                "with its own result -1",
            ),
            (
                over(Form::Preloaded, SAME_FREE),
                "layer",
                2,
                "layer_limit",
                "the layer refused 48.0 MiB although 1.00 GiB of 2.00 GiB are free by its own figures",
            ),
        ];
        for (job, by, result, verdict, words) in table {
            let finished = job.strategy(strategy).run().ok();
            let (text, page) = (finished.told(&["why"]).text, finished.told(&["why", "--json"]).json());
            let context = format!("{words}, {}: {text}\n{page:#}", strategy.name);
            assert!(text.contains(words), "{context}");
            // A reservation leaves a piece that would have served, given back in time.
            let is_in_cache = strategy.name == "naive_best_fit" && page["why"]["verdict"] == "cached_but_unusable";
            assert!(is_in_cache || page["why"]["verdict"] == verdict, "{context}");
            let refused = &page["why"]["failure"]["refused_by"];
            assert_eq!(refused["by"], by, "{context}");
            let known = (result != 0).then_some(result);
            assert_eq!(refused["result"].as_i64(), known, "{context}");
            assert_eq!(refused["file"].is_string(), by == "layer", "{context}");
            let free = |who: &str| refused[who]["free"].as_u64();
            assert!(free("shown").is_some(), "{context}");
            assert_eq!(free("driver") >= Some(GIB), by == "layer", "{context}");
            // The library says the same as the journal.
            let said = refusers(&finished.stderr);
            let in_library = said.iter().any(|line| match by {
                "limit" => line.starts_with("the limit of this process"),
                "driver" => line.starts_with("the driver itself"),
                _ => line.contains("a layer before the driver"),
            });
            assert!(in_library, "{context}: {said:?}");
        }
    }
}

/// `vramshim top` names the layer in its line of the failure.
#[test]
fn top_names_the_layer_that_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let job = Job::new(member_client()).sim("4GiB", 1);
    let job = job.over(Form::Preloaded, "1GiB", &[("LAYER_REFUSAL", "-1")]);
    let mut member = Member::start(job.env("VRAMSHIM_DIR", folder.path()));
    assert_eq!(member.allocate(2 * GIB), 2);
    let page = vramshim_with(&["top", "--once", "--json"], [folder.path()]).ok().json();
    let refused = &page["events"][0]["refused_by"];
    assert_fields(refused, json!({"by": "layer", "result": -1}), &format!("{page:#}"));
    assert!(
        refused["file"]
            .as_str()
            .is_some_and(|file| file.ends_with("liblayer.so")),
        "{page:#}"
    );
    member.end();
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
        let used = |line: &Value| line["layer"]["used"][0].number();
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
            let figures = ["limit", "used"].map(|name| told["limit"][name].number());
            assert_eq!(figures, [GIB, 200 * MIB], "{form:?} {habits:?}");
            assert_fields(
                &told,
                json!({"total": GIB, "device_total": GIB}),
                &format!("{form:?} {habits:?}"),
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
