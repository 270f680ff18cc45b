//! What the library says and does over a layer's limit: whose refusal it was, a layer in front, the inherited limit, and a
//! layer's answers for NVML.

use serde_json::{Value, json};
use support::layer::{Form, Habits};
use support::member::{Host, Member, member_client};
use support::{AUTO_GROWTH, Fields, Job, MIB, THREE, assert_fields, assert_says, client, inspect, vramshim_with};

use super::{GIB, WELL_BEHAVED, over_both, quota};

/// Job, layer or not; who refused, with which result, verdict, and words of the explanation. The journal has them, and what
/// the driver itself had. The library says the same.
#[test]
fn the_verdict_names_who_refused_and_with_what() {
    const OWN_RESULT: Habits = &[("LAYER_REFUSAL", "-1")];
    const OF_TGS: Habits = &[("LAYER_REFUSAL", "1")];
    const SAME_FREE: Habits = &[("LAYER_LINEAR", "managed")];
    let path = client("support/clients/quota.c", "quota-dlopen", &["-DDLOPEN"]);
    let device = || Job::new(&path).sim("1GiB", 1).args(["tensors"]);
    let limited = || device().env("VRAMSHIM_MEMORY_LIMIT", "512MiB");
    let over = |form, habits| quota(form, habits, &["tensors"]);
    let layer = |habits| over(Form::Preloaded, habits);
    let replacing = || over(Form::Replacing, WELL_BEHAVED);
    for strategy in THREE {
        let table = [
            (device(), "driver", 2, "refused by the driver itself at "),
            (limited(), "limit", 0, "refused by the limit at "),
            (
                layer(WELL_BEHAVED),
                "layer",
                2,
                "liblayer.so, a layer before the driver",
            ),
            (replacing(), "layer", 2, "libcuda.so.1, a layer before the driver"),
            (layer(OWN_RESULT), "layer", -1, "with its own result -1"),
            (layer(OF_TGS), "layer", 1, "with its own result 1"),
            (layer(SAME_FREE), "layer", 2, "liblayer.so, a layer before the driver"),
        ];
        for (job, by, result, words) in table {
            let (verdict, said) = match by {
                "limit" => ("limit", "Refused by: the limit of this process"),
                "driver" => ("live_set", "Refused by: the driver itself"),
                _ => ("layer_limit", "a layer before the driver"),
            };
            let finished = job.strategy(strategy).run().ok();
            let (text, page) = (finished.told(&["why"]).text, finished.told(&["why", "--json"]).json());
            let context = format!("{words}, {}: {text}\n{page:#}", strategy.name);
            assert!(text.contains(words), "{context}");
            // The figures of the journal are said to be the layer's.
            let of_layer = text.contains("total and free are what a layer showed, ");
            assert_eq!(of_layer, by == "layer", "{context}");
            // A reservation leaves a piece that would have served, given back in time.
            let is_in_cache = strategy.name == "naive_best_fit" && page["why"]["verdict"] == "cached_but_unusable";
            assert!(is_in_cache || page["why"]["verdict"] == verdict, "{context}");
            let refused = &page["why"]["failure"]["refused_by"];
            assert_eq!(refused["by"], by, "{context}");
            assert_eq!(refused["result"].as_i64(), (result != 0).then_some(result), "{context}");
            assert!(refused["shown"]["free"].is_number(), "{context}");
            let driver_has_plenty = refused["driver"]["free"].as_u64() >= Some(GIB);
            let of_layer = [refused["file"].is_string(), driver_has_plenty];
            assert_eq!(of_layer, [by == "layer"; 2], "{context}");
            assert_says(&finished.stderr, said);
        }
    }
}

#[test]
fn the_limit_of_a_group_is_named() {
    let host = Host::new("4GiB");
    let [mut one, mut two] = [(); 2].map(|()| Member::start(host.member("1GiB")));
    assert_eq!((one.allocate(700 * MIB), two.allocate(700 * MIB)), (0, 2));
    one.end();
    let said = two.end();
    assert_says(&said, "Refused by: the limit of this group (VRAMSHIM_MEMORY_LIMIT).");
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
    assert_says(refused["file"].text(), "liblayer.so");
    member.end();
}

/// Tensors are requested through the layer, so that it charges them. 1 GiB holds 21 tensors of 48 MiB.
#[test]
fn a_layer_in_front_counts_tensors_too() {
    let path = client("support/clients/quota.c", "quota-dlopen", &["-DDLOPEN"]);
    for strategy in THREE {
        let job = Job::new(&path).sim("2GiB", 1).under("1GiB", WELL_BEHAVED);
        let finished = job.args(["tensors"]).strategy(strategy).run().ok();
        let (context, errors) = (strategy.name, &finished.stderr);
        let lines = finished.json();
        let used = |line: &Value| line["layer"]["used"][0].number();
        let ledger = |line: &Value| line["account"]["totals"][0]["requested"]["current"].as_u64();
        assert_eq!(lines.len(), 3, "{context}");
        for (line, expected) in lines.iter().zip([0, 21 * 48 * MIB, 0]) {
            assert_eq!([ledger(line).unwrap_or(0), used(line)], [expected; 2], "{context}");
        }
        let told = errors.matches("tensors are requested through ").count();
        assert_eq!(told, 1, "{context}: {errors}");
        assert_says(errors, "liblayer.so, a layer in front of the library");
    }
}

/// nvshare hooks `cuMemGetInfo` alone, so `cuDeviceTotalMem` shows the whole device there.
#[test]
fn the_inherited_limit_is_what_the_layer_shows_by_either_function() {
    const ONE: Habits = &[("LAYER_TOTAL", "device")];
    for (form, habits) in over_both(&[WELL_BEHAVED, ONE]) {
        let context = format!("{form:?} {habits:?}");
        let job = Job::new(client("support/clients/member.c", "member-linked", &["libcuda.so.1"])).sim("2GiB", 1);
        let mut member = Member::start(job.over(form, "1GiB", habits).env("VRAMSHIM_MEMORY_LIMIT", "inherit"));
        assert_eq!(member.allocate(200 * MIB), 0, "{context}");
        let told = member.information();
        assert_fields(&told, json!({"total": GIB, "device_total": GIB}), &context);
        assert_fields(&told["limit"], json!({"limit": GIB, "used": 200 * MIB}), &context);
        let errors = member.end();
        let differ = errors.contains("the total that the next layer's cuMemGetInfo shows");
        assert_eq!(differ, !habits.is_empty(), "{context}: {errors}");
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
        let job = job.env("SIMGPU_CONTEXT_BYTES", "300MiB");
        let folder = tempfile::tempdir().expect("a folder");
        let job = job.env("VRAMSHIM_MEMORY_LIMIT", "1GiB");
        let mut member = Member::start(job.env("VRAMSHIM_DIR", folder.path()));
        assert_eq!(member.allocate(100 * MIB), 0, "{habits:?}");
        assert_eq!(member.information()["limit"]["context"], 300 * MIB, "{habits:?}");
        member.end();
        assert_says(inspect(folder.path())[0]["software"]["layer"].text(), "liblayer.so");
    }
}
