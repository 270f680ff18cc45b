//! Processes that share one account on a device. Memory that one process holds counts against the limit of all. Memory
//! of a dead process is available to the others, and all processes read the same figures.

mod file_systems;
mod files;
mod reclaim;

use std::path::Path;
use std::time::Duration;

use base::uuid::parse_uuid;
use quota::file::SharedAccount;
use serde_json::{Value, json};
use support::member::{Host, Member};
use support::{AUTO_GROWTH, Fields, GIB, MIB, NAIVE_BEST_FIT, OUT_OF_MEMORY, PASSTHROUGH, assert_fields, client};

/// The account in a file, which is named by the UUID of its device.
pub fn account_at(file: &Path) -> Option<SharedAccount> {
    let uuid = parse_uuid(file.file_stem()?.to_str()?)?;
    SharedAccount::find(file.parent()?, uuid).ok()
}

fn look(host: &Host) -> SharedAccount {
    account_at(&host.account_file()).expect("an account")
}

fn used(account: &SharedAccount) -> u64 {
    account.reap();
    account.account().used()
}

/// Two members that ask for as many MiB, one after the other, get these results.
fn assert_answers(mut members: [&mut Member; 2], mib: [u64; 2], results: [i32; 2]) {
    let [first, second] = &mut members;
    assert_eq!([first.allocate(mib[0] * MIB), second.allocate(mib[1] * MIB)], results);
}

/// Of two members that ask for as many MiB, the first gets them alone.
fn assert_one_fits(first: &mut Member, second: &mut Member, mib: u64) {
    assert_answers([first, second], [mib, mib], [0, OUT_OF_MEMORY]);
}

/// Sends a signal. Waits until all threads of a process that is stopped have stopped: until then one may still answer.
fn signal(member: &Member, signal: i32) {
    let pid = member.child.id() as i32;
    // SAFETY: `kill` touches no memory. The child was not waited for, so its process id is still its own.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    if signal == libc::SIGSTOP {
        // SAFETY: a null pointer asks for no status. A stop does not end the child, so its process id stays its own.
        let stopped = unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WUNTRACED) };
        assert_eq!(stopped, pid);
    }
}

#[test]
fn of_two_that_race_for_the_last_gibibyte_one_wins() {
    let host = Host::new("4GiB");
    let mut members = [(); 2].map(|()| Member::start(host.member("1GiB")));
    for _ in 0..50 {
        for member in &mut members {
            member.tell(&format!("a {}", 600 * MIB));
        }
        let results = members.each_mut().map(|member| member.answer());
        let won: Vec<&String> = results.iter().filter(|result| result.starts_with("0 ")).collect();
        assert_eq!(won.len(), 1, "{results:?}");
        for (member, result) in members.iter_mut().zip(&results) {
            let block = result.strip_prefix("0 ");
            assert!(block.is_some() || result.starts_with("2 "), "{results:?}");
            if let Some(block) = block {
                assert_eq!(member.ask(&format!("f {block}")), "0");
            }
        }
    }
    let account = look(&host);
    members.into_iter().for_each(|member| drop(member.end()));
    assert_eq!(used(&account), 0);
}

#[test]
fn memory_of_a_killed_process_is_available_to_the_others() {
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH] {
        let host = Host::new("4GiB");
        let start = || Member::start(host.member("1GiB").strategy(strategy));
        let (mut first, mut second) = (start(), start());
        assert_answers([&mut first, &mut second], [700, 500], [0, OUT_OF_MEMORY]);
        first.kill();
        assert_eq!(second.allocate(500 * MIB), 0, "{}", strategy.name);
        let mut third = start();
        assert_eq!(third.allocate(600 * MIB), OUT_OF_MEMORY);
        let account = look(&host);
        second.kill();
        assert_eq!(third.allocate(600 * MIB), 0, "{}", strategy.name);
        third.kill();
        assert_eq!(used(&account), 0, "{}", strategy.name);
    }
}

/// A process that is stopped in the middle of a call keeps its bytes, and no other process waits for it.
#[test]
fn a_stopped_process_blocks_no_other() {
    let host = Host::new("8GiB");
    // Each process has a simulated host of its own. A shared host has a lock, which the stopped process could hold.
    let start = || Member::start(host.member("4GiB").without("SIMGPU_STATE"));
    let mut members: Vec<Member> = (0..4).map(|_| start()).collect();
    for round in 0..30 {
        members[0].tell(&format!("r {round} 2000"));
        std::thread::sleep(Duration::from_millis(round % 7));
        signal(&members[0], libc::SIGSTOP);
        for member in &mut members[1..] {
            member.ask(&format!("r {round} 50"));
        }
        start().end();
        signal(&members[0], libc::SIGCONT);
        members[0].answer();
    }
    let account = look(&host);
    assert!(used(&account) > 0);
    members.into_iter().for_each(|member| drop(member.end()));
    assert_eq!(used(&account), 0);
}

#[test]
fn all_are_told_the_same_and_it_is_true() {
    for strategy in [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH] {
        let host = Host::new("16GiB");
        let job = || host.member("12GiB").strategy(strategy);
        let mut members = [(); 3].map(|()| Member::start(job().env("SIMGPU_CONTEXT_BYTES", "300MiB")));
        for member in &mut members {
            assert_eq!(member.allocate(MIB), 0);
        }
        for moment in 0..40 {
            let mover = &mut members[moment % 3];
            mover.ask(&format!("r {moment} 60"));
            let told = members.each_mut().map(Member::information);
            let truth = 16 * GIB - told[0]["truth"]["devices"][0]["free"].number();
            for one in &told {
                let context = format!("{} at {moment}: {one}", strategy.name);
                let nvml = json!({"used": truth, "total": 12 * GIB, "free": 12 * GIB - truth});
                assert_fields(&one["nvml"], nvml, &context);
                assert_eq!(one["nvml"]["v2"]["used"], truth, "{context}");
                let wanted = json!({"total": 12 * GIB, "free": 12 * GIB - truth + free_inside(one)});
                assert_fields(one, wanted, &context);
                assert_eq!(one["nvml"]["processes"].list().len(), 3, "{context}");
                for other in &told {
                    let mut listed = one["nvml"]["processes"].list().iter();
                    let listed = listed.find(|process| process["pid"] == other["pid"]).unwrap();
                    let own = &other["truth"]["devices"][0]["used_by_process"];
                    assert_eq!(&listed["used"], own, "{context}");
                }
            }
        }
        members.into_iter().for_each(|member| drop(member.end()));
    }
}

/// The free bytes in the segments of the process that printed `told`. Only that process can use these bytes.
fn free_inside(told: &Value) -> u64 {
    let rows = told["account"]["totals"].list();
    let of = |row: &Value, kind: &str| row[kind]["current"].number();
    rows.iter()
        .filter(|row| row["class"] == "linear")
        .map(|row| of(row, "reserved") - of(row, "allocated"))
        .sum()
}

/// The end of a forked child releases no lock of its parent. A child that uses CUDA takes a seat of its own.
#[test]
fn forks_neither_give_up_a_seat_nor_share_one() {
    let host = Host::new("4GiB");
    let mut parent = Member::start(host.member("1GiB"));
    assert_eq!(parent.allocate(700 * MIB), 0);
    let account = look(&host);
    for _ in 0..3 {
        assert_eq!(parent.ask("k"), "0");
        assert_eq!(used(&account), 700 * MIB);
    }
    let mut child = Member::start(host.member("1GiB").args(["forked"]));
    assert_eq!(child.allocate_mib([400, 200]), [OUT_OF_MEMORY, 0]);
    assert_eq!(account.holders().len(), 2);
    let told = child.information();
    assert_eq!(told["nvml"]["used"], 900 * MIB);
    assert_eq!(told["free"], 124 * MIB);
    child.end();
    assert_eq!(used(&account), 700 * MIB);
    parent.end();
    assert_eq!(used(&account), 0);
}

#[test]
fn many_processes_start_at_once() {
    const COUNT: usize = 150;
    let host = Host::new("64GiB");
    let start = |_| Member::start(host.member("60GiB").env("VRAMSHIM_JOURNAL_MAX", "0"));
    let mut members: Vec<Member> = (0..COUNT).map(start).collect();
    for member in &mut members {
        member.tell("a 1048576");
    }
    for member in &mut members {
        assert_eq!(member.answer(), "0 0");
    }
    let account = look(&host);
    let holders = account.holders();
    assert_eq!((holders.len(), used(&account)), (COUNT, COUNT as u64 * MIB));
    for member in &members {
        let pid = member.child.id();
        let is_told = holders.iter().any(|holder| holder.pid == pid && holder.held == MIB);
        assert!(is_told, "{pid}");
    }
    members.into_iter().for_each(Member::kill);
    assert_eq!(used(&account), 0);
}

/// Threads of one process reap an account at the same time. Record locks exclude other processes, but no threads of the
/// same process. Still, the bytes of a dead process are given back only once, and no living process is taken for dead.
#[test]
fn threads_that_look_at_once_give_back_once() {
    const THREADS: usize = 8;
    let host = Host::new("4GiB");
    let mut living = Member::start(host.member("4GiB"));
    assert_eq!(living.allocate(2 * GIB), 0);
    let account = look(&host);
    for round in 0..30 {
        let mut dead = Member::start(host.member("4GiB"));
        assert_eq!(dead.allocate(100 * MIB), 0);
        dead.kill();
        let start = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    start.wait();
                    account.reap();
                });
            }
        });
        assert_eq!(used(&account), 2 * GIB, "round {round}");
    }
    living.end();
}

/// A process holds two seats. Neither this process nor another takes one of them for the seat of a dead process.
#[test]
fn a_process_never_takes_itself_for_dead() {
    let host = Host::new("4GiB");
    let mut other = Member::start(host.member("4GiB"));
    assert_eq!(other.allocate(MIB), 0);
    let account = look(&host);
    let mut places = [(); 2].map(|()| account.take_seat().expect("a seat"));
    for place in &mut places {
        account.account().take(place, 10 * MIB, GIB).unwrap();
    }
    account.reap();
    assert_eq!(account.account().used(), 21 * MIB);
    // To another process both seats are alive too, because this process still holds their locks.
    assert_eq!(other.information()["nvml"]["used"], 21 * MIB);
    other.end();
}

/// What a job may do to descriptors, and what it must not change.
fn seats_outlast(host: &Host, spoil: &dyn Fn(&mut Member)) {
    let start = || Member::start(host.member("1GiB"));
    let (mut first, mut second) = (start(), start());
    assert_eq!(first.allocate(700 * MIB), 0);
    assert_eq!(second.allocate(100 * MIB), 0);
    spoil(&mut first);
    spoil(&mut second);
    let mut third = start();
    for (member, mib) in [(&mut second, 700), (&mut first, 300), (&mut third, 300)] {
        let result = member.allocate(mib * MIB);
        assert_eq!(result, OUT_OF_MEMORY, "a living process was taken for dead");
    }
    first.kill();
    assert_eq!(second.allocate(700 * MIB), 0, "a dead process keeps its bytes");
    second.kill();
    assert_eq!(third.allocate(GIB), 0, "a dead process keeps its bytes");
    third.end();
}

#[test]
fn a_job_that_closes_descriptors_keeps_its_seat() {
    let host = Host::new("4GiB");
    seats_outlast(&host, &|member| assert_eq!(member.ask("x"), "0"));
    // Closing any descriptor of a file drops the record locks that the process has on it.
    let opens = format!("o {}", host.account_file().display());
    seats_outlast(&host, &|member| assert_eq!(member.ask(&opens), "0"));
}

/// The forked child of a member outlives it, and never calls CUDA. It has no part in the seat of its parent.
fn outlives(host: &Host, mut parent: Member, child: &str) {
    let mut other = Member::start(host.member("1GiB"));
    let child: i32 = child.parse().unwrap();
    // SAFETY: the child waits for the end of its input, so the process id is still its own.
    let lives = || unsafe { libc::kill(child, 0) } == 0;
    let stdin = parent.child.stdin.take();
    parent.kill();
    assert!(lives());
    assert_eq!(other.allocate(700 * MIB), 0);
    assert!(lives());
    drop(stdin);
    other.end();
}

#[test]
fn a_child_that_outlives_its_parent_keeps_no_seat() {
    let host = Host::new("4GiB");
    let mut parent = Member::start(host.member("1GiB"));
    assert_eq!(parent.allocate(700 * MIB), 0);
    let child = parent.ask("l");
    outlives(&host, parent, &child);
}

#[test]
fn a_child_that_is_forked_while_its_parent_takes_a_seat_keeps_none() {
    let host = Host::new("4GiB");
    let forks = client("accounts/forks.c", "libforks_with_a_seat.so", &["-shared", "-fPIC"]);
    let mut parent = Member::start(host.member("1GiB").preload_in_front(forks));
    let child = parent.ask(&format!("a {}", 700 * MIB));
    assert_eq!(parent.answer(), "0 0");
    outlives(&host, parent, &child);
}

#[test]
fn an_account_without_a_limit_refuses_nothing() {
    let host = Host::new("4GiB");
    let start = || Member::start(host.job().env("VRAMSHIM_ACCOUNTS", host.accounts()));
    let (mut first, mut second) = (start(), start());
    assert_eq!((first.allocate(2 * GIB), second.allocate(GIB)), (0, 0));
    let told = second.information();
    assert_fields(&told, json!({"total": 4 * GIB, "free": GIB}), "");
    assert_eq!(told["nvml"]["used"], 3 * GIB);
    assert_eq!(used(&look(&host)), 3 * GIB);
    first.end();
    second.end();
}
