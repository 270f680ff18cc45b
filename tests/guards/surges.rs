//! Surges: memory that grows faster than `VRAMSHIM_SURGE` is marked and counted.

use base::api::Api;
use base::cuda::HOST_DEVICE;
use journal::format::{Event, HostMemory};
use support::made::Made;
use support::{Fields, Finished, Job, assert_says, client, vramshim_with};

fn job(scene: &str, surge: &str) -> Job {
    let job = Job::new(client("guards/surges.c", "guard-surges", &["-DDLOPEN", "-rdynamic"])).sim("4GiB", 1);
    job.env("VRAMSHIM_SURGE", surge).args([scene])
}

fn marks(finished: &Finished) -> String {
    finished.told(&["inspect", "--leaks", "--json"]).text
}

#[test]
fn fast_growth_on_a_device_is_marked_with_the_stack_of_the_largest_request() {
    for surge in ["50%/60s", "2GiB/60s", "10%..70%/60s"] {
        // A look may see the memory of the last request before the request is noted. Such a job is run again.
        let asked_for_all = |finished: &Finished| {
            let largest = &finished.inspect()["largest_surges"][0];
            largest["responsible"][0]["asked"].as_u64() == Some(3 << 30) && largest["grown"].as_u64() >= Some(3 << 30)
        };
        let mut runs = (0..5).map(|_| job("device", surge).env("VRAMSHIM_STACKS", "native").run().ok());
        let finished = runs.find(asked_for_all).expect("a run that is seen whole");
        assert_eq!(finished.json()[0]["device"], 1, "{surge}");
        let page = finished.inspect();
        assert!(page["surges"].number() >= 1, "{surge}");
        let largest = &page["largest_surges"][0];
        assert_eq!(largest["device"], 0, "{page}");
        // The first request of 1 MiB may count too; it has another stack.
        let responsible = largest["responsible"].list();
        assert_eq!(responsible[0]["asked"], 3u64 << 30, "{largest}");
        assert!(responsible[0]["place"].text().contains("take_a_lot"), "{largest}");
        assert_says(&marks(&finished), "surge device 0: 3.00 GiB in ");
        assert_says(&finished.stderr, "surge device 0: 3.00 GiB in ");
        assert_says(&finished.told(&["why"]).text, "Memory grew faster than VRAMSHIM_SURGE");
    }
}

#[test]
fn fast_growth_of_resident_memory_is_marked_and_in_the_journal() {
    let finished = job("host", "128MiB/60s").run().ok();
    assert!(finished.json()[0]["host"].number() >= 1, "{:?}", finished.json());
    assert_says(&marks(&finished), "surge host: ");
    let host = finished.inspect()["host_memory"]["of_process"].clone();
    let resident = |at: &str| host[at]["resident"].number();
    assert!(resident("last") >= resident("first") + (250 << 20), "{host}");
    assert!(resident("highest") >= resident("last"), "{host}");
    assert!(host["last"]["pinned"].is_u64(), "{host}");
}

#[test]
fn why_tells_the_hosts_memory_of_a_killed_process() {
    for (exit, is_told) in [(None, true), (Some(1), false)] {
        let folder = tempfile::tempdir().unwrap();
        let mut made = Made::new(folder.path(), 1, 1).unwrap();
        made.alloc(0, 1 << 20, 0).unwrap();
        for gib in [1, 24, 23] {
            let resident = gib << 30;
            let memory = HostMemory { resident, pinned: 0 };
            made.happened(HOST_DEVICE, Api::Policy, Event::Host(memory)).unwrap();
        }
        let text = vramshim_with(&["why"], [made.end(exit).unwrap()]).text;
        assert_eq!(text.contains("at most 24.0 GiB at "), is_told, "{text}");
    }
}
