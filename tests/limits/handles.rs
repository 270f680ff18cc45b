//! Memory whose handles were exported counts as long as anybody is known to refer to it (`handles.c`).

use support::member::{Host, Member};
use support::{Job, MIB, OUT_OF_MEMORY, assert_says, client};

fn numbers(answer: &str) -> (i32, u64, u64) {
    let mut words = answer.split(' ').map(|word| word.parse::<u64>().unwrap());
    let mut next = || words.next().unwrap();
    (next() as i32, next(), next())
}

fn job(host: &Host) -> Job {
    let path = client("limits/handles.c", "handles", &["-DDLOPEN"]);
    let job = Job::new(path).args([host.folder.path().join("socket")]);
    let job = job.sim(host.memory, 1);
    job.env("SIMGPU_STATE", host.folder.path().join("state"))
        .env("VRAMSHIM_MEMORY_LIMIT", "1GiB")
}

fn ask(member: &mut Member, order: &str) -> (i32, u64, u64) {
    numbers(&member.ask(order))
}

#[test]
fn what_exported_descriptors_hold_counts_until_the_last_is_closed() {
    let host = Host::new("4GiB");
    let mut process = Member::start(job(&host));
    let create = format!("c {}", 512 * MIB);
    let mut descriptors = vec![];
    for _ in 0..2 {
        let (result, handle, descriptor) = ask(&mut process, &create);
        assert_eq!((result, ask(&mut process, &format!("r {handle}")).0), (0, 0));
        descriptors.push(descriptor);
    }
    assert_eq!(ask(&mut process, &create).0, OUT_OF_MEMORY);
    // A handle that comes back through its descriptor holds the memory as well.
    let (result, again, _) = ask(&mut process, &format!("i {}", descriptors[0]));
    assert_eq!(result, 0);
    for descriptor in descriptors {
        process.ask(&format!("z {descriptor}"));
    }
    let (result, handle, _) = ask(&mut process, &create);
    assert_eq!((result, ask(&mut process, &create).0), (0, OUT_OF_MEMORY));
    assert_eq!(ask(&mut process, &format!("r {again}")).0, 0);
    assert_eq!(ask(&mut process, &create).0, 0);
    assert_eq!(ask(&mut process, &format!("r {handle}")).0, 0);
    assert_says(&process.end(), "released 512.0 MiB that exported descriptors hold");
}

/// The process that obtained the memory pays for it until the process that imported it lets it go, or is killed.
#[test]
fn memory_that_was_handed_over_counts_once() {
    for is_killed in [false, true] {
        let host = Host::new("4GiB");
        let mut owner = Member::start(job(&host).env("VRAMSHIM_ACCOUNTS", host.accounts()));
        let mut user = Member::start(job(&host).env("VRAMSHIM_ACCOUNTS", host.accounts()));
        let mut third = Member::start(host.member("1GiB"));
        let (_, handle, descriptor) = ask(&mut owner, &format!("c {}", 700 * MIB));
        user.tell("g");
        owner.ask(&format!("s {descriptor}"));
        owner.ask(&format!("z {descriptor}"));
        assert_eq!(ask(&mut owner, &format!("r {handle}")).0, 0);
        let received = user.answer();
        assert_eq!(third.allocate(400 * MIB), OUT_OF_MEMORY);
        let (result, handle, _) = ask(&mut user, &format!("i {received}"));
        user.ask(&format!("z {received}"));
        assert_eq!((result, third.allocate_mib([300, 400])), (0, [0, OUT_OF_MEMORY]));
        if is_killed {
            user.kill();
        } else {
            assert_eq!(ask(&mut user, &format!("r {handle}")).0, 0);
            user.end();
        }
        // The owner's keeper answers within 100 ms, unless the machine is busy.
        assert!((0..50).any(|_| third.allocate(400 * MIB) == 0));
        third.end();
        owner.end();
    }
}
