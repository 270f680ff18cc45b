//! A request that finds no memory first gets what lies idle in the other processes of the account.

use std::time::{Duration, Instant};

use quota::reclaim::LONGEST_WAIT;
use support::layer::Form;
use support::member::{Host, Member};
use support::random::Random;
use support::{AUTO_GROWTH, Job, MIB, NAIVE_BEST_FIT, PASSTHROUGH, STRATEGIES, Strategy, inspect};

use super::{OUT_OF_MEMORY, signal};

/// What the layer gives to one process. Fewer than eight processes fill the account's limit.
const LAYER_LIMIT: &str = "400MiB";

/// A member with so many MiB of idle memory, as far as its strategy keeps any.
fn idle(job: Job, mib: u64) -> Member {
    let mut member = Member::start(job);
    assert_eq!(member.ask(&format!("a {}", mib * MIB)), "0 0");
    assert_eq!(member.ask("f 0"), "0");
    wait_until_it_listens(&member);
    member
}

fn keeper(host: &Host, strategy: Strategy) -> Member {
    idle(host.member("1GiB").strategy(strategy), 800)
}

/// Others can ask a process once its thread of low priority has run, which then sleeps.
fn wait_until_it_listens(member: &Member) {
    let (pid, begin) = (member.pid(), Instant::now());
    let sleeps = || {
        let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
        let mut others = threads.flatten().filter(|thread| thread.file_name() != pid.as_str());
        others.any(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" S"))
        })
    };
    while !sleeps() && begin.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn idle_memory_of_another_process_serves_a_request_under_the_limit() {
    for keeps in [AUTO_GROWTH, NAIVE_BEST_FIT] {
        for asks in [AUTO_GROWTH, NAIVE_BEST_FIT, PASSTHROUGH] {
            let host = Host::new("4GiB");
            let (mut one, mut two) = (keeper(&host, keeps), Member::start(host.member("1GiB").strategy(asks)));
            let context = format!("{} keeps, {} asks", keeps.name, asks.name);
            assert_eq!(allocate(&mut two, 800 * MIB), 0, "{context}");
            assert_eq!(one.allocate(800 * MIB), OUT_OF_MEMORY, "{context}");
            let errors = [one.end(), two.end()].concat();
            assert!(!errors.contains("cannot be started"), "{context}: {errors}");
        }
    }
}

const TRIES: u32 = 5;

/// What `f` returns, and whether it took so long that answers of other processes may have come too late: on a busy machine
/// a process may not run for 100 ms, and nobody waits longer for it.
fn timed<T>(f: impl FnOnce() -> T) -> (T, bool) {
    let begin = Instant::now();
    let result = f();
    (result, begin.elapsed() >= LONGEST_WAIT)
}

/// Asks again if the answers came late. A request that fails sooner has its answers, and must not fail.
fn allocate(member: &mut Member, bytes: u64) -> i32 {
    let mut result = OUT_OF_MEMORY;
    for _ in 0..TRIES {
        let late;
        (result, late) = timed(|| member.allocate(bytes));
        if result != OUT_OF_MEMORY || !late {
            break;
        }
    }
    result
}

/// The device is full, and no limit is set.
#[test]
fn idle_memory_of_another_process_serves_a_request_on_a_full_device() {
    let host = Host::new("1GiB");
    let job = |strategy| host.job().env("VRAMSHIM_ACCOUNTS", host.accounts()).strategy(strategy);
    let _one = idle(job(AUTO_GROWTH), 700);
    let mut two = Member::start(job(PASSTHROUGH));
    assert_eq!(allocate(&mut two, 700 * MIB), 0);
}

/// A pool of the driver keeps what was freed into it, as with PyTorch's backend cudaMallocAsync. The process need not have
/// a policy.
#[test]
fn idle_memory_of_a_drivers_pool_serves_another_process() {
    for keeps in [PASSTHROUGH, AUTO_GROWTH] {
        let host = Host::new("4GiB");
        let mut one = Member::start(host.member("1GiB").strategy(keeps));
        assert_eq!(one.ask(&format!("q {}", 800 * MIB)), "0", "{}", keeps.name);
        wait_until_it_listens(&one);
        let mut two = Member::start(host.member("1GiB"));
        assert_eq!(allocate(&mut two, 800 * MIB), 0, "{}", keeps.name);
        // The account has what both hold now.
        assert_eq!(two.information()["limit"]["used"], 800 * MIB, "{}", keeps.name);
        drop([one.end(), two.end()]);
    }
}

/// The same memory serves other requests of the process itself, small and large, under a limit of the process or of an
/// account. The job need not have waited for its free.
#[test]
fn idle_memory_of_a_drivers_pool_serves_the_process_itself() {
    let host = Host::new("4GiB");
    let of_process = || host.job().env("VRAMSHIM_MEMORY_LIMIT", "1GiB");
    let of_account = || host.member("1GiB");
    for strategy in STRATEGIES {
        for words in ["", "pending", "default", "default pending"] {
            for job in [of_process(), of_account()] {
                let mut member = Member::start(job.strategy(strategy));
                for size in [1, 400, 800, 1024] {
                    let context = format!("{strategy:?}, {size} MiB after q {words}");
                    assert_eq!(member.ask(&format!("q {} {words}", 1024 * MIB)), "0", "{context}");
                    assert_eq!(member.ask(&format!("a {}", size * MIB)), "0 0", "{context}");
                    assert_eq!(member.ask("f 0"), "0", "{context}");
                }
                drop(member.end());
            }
        }
    }
}

/// A stopped process answers nothing, and keeps nobody waiting for good.
#[test]
fn a_stopped_process_keeps_what_it_has() {
    let host = Host::new("4GiB");
    let (stopped, mut two) = (keeper(&host, AUTO_GROWTH), Member::start(host.member("1GiB")));
    signal(&stopped, libc::SIGSTOP);
    assert_eq!(two.allocate(800 * MIB), OUT_OF_MEMORY);
    signal(&stopped, libc::SIGCONT);
    // On a busy machine the process may run again only after the time that a request waits for its answer.
    let end = Instant::now() + Duration::from_secs(120);
    while two.allocate(800 * MIB) != 0 {
        assert!(Instant::now() < end, "the process runs again, and gives nothing back");
    }
}

/// Both journals count the requests and the bytes. Bytes that come late serve the request, but the journal of the process
/// that asked does not count them, so then other processes are tried.
#[test]
fn the_journals_tell_who_asked_and_who_gave() {
    for _ in 0..TRIES {
        if reclaims_are_told() {
            return;
        }
    }
    panic!("no process answered in time");
}

/// False if answers came late and are not in the journals for that.
fn reclaims_are_told() -> bool {
    let host = Host::new("4GiB");
    let folder = tempfile::tempdir().expect("a folder");
    let journal = |name: &str| folder.path().join(name);
    let job = |name, strategy| {
        let job = host.member("1GiB").strategy(strategy);
        job.env("VRAMSHIM_DIR", journal(name))
    };
    let one = idle(job("gives", AUTO_GROWTH), 800);
    let mut two = Member::start(job("asks", PASSTHROUGH));
    let (result, late) = timed(|| two.allocate(800 * MIB));
    drop([one.end(), two.end()]);
    let reclaims = |name| {
        let jobs = inspect(&journal(name));
        let device = &jobs[0]["devices"][0];
        ["asked", "from_others", "given", "for_others"]
            .map(|field| device["reclaims"][field].as_u64().unwrap_or_default())
    };
    let (asks, gives) = (reclaims("asks"), reclaims("gives"));
    let [asked, from_others, ..] = asks;
    let told = asked >= 1 && from_others >= 800 * MIB && asks[2..] == [0, 0];
    let as_told = result == 0 && told && gives == [0, 0, 1, from_others];
    assert!(late || as_told, "{result}: {asks:?}, {gives:?}");
    as_told
}

/// Eight processes share a gibibyte. One of them is stopped and one killed on the way. If a request fails, the running
/// processes are made to give all idle memory back, and the request must fail still, unless answers came late.
#[test]
fn no_request_fails_while_idle_memory_of_running_processes_would_serve_it() {
    random_requests(&|job| job);
}

/// Each process has a limit of the layer, too, which answers -1 in place of out of memory, as HAMi-core does. Idle memory of
/// the process itself then counts against the layer's limit.
#[test]
fn no_request_fails_over_a_layer_while_idle_memory_would_serve_it() {
    random_requests(&|job| job.over(Form::Preloaded, LAYER_LIMIT, &[("LAYER_REFUSAL", "-1")]));
}

/// Eight processes of one account allocate and free at random. One is stopped and one is killed meanwhile.
fn random_requests(placed: &dyn Fn(Job) -> Job) {
    let seed = match std::env::var("VRAMSHIM_TEST_SEED") {
        Ok(seed) => seed.parse().expect("VRAMSHIM_TEST_SEED"),
        Err(_) => {
            u64::from(std::process::id()) << 20 ^ std::time::UNIX_EPOCH.elapsed().expect("a clock").as_nanos() as u64
        }
    };
    println!("VRAMSHIM_TEST_SEED={seed}");
    let mut random = Random::new(seed);
    let host = Host::new("4GiB");
    let strategies = [AUTO_GROWTH, NAIVE_BEST_FIT, PASSTHROUGH];
    let start = |number: usize| Member::start(placed(host.member("1GiB").strategy(strategies[number % 3])));
    let mut members: Vec<Member> = (0..8).map(start).collect();
    let mut blocks: Vec<Vec<String>> = vec![Vec::new(); members.len()];
    let (mut refused, mut stopped, mut late_in_a_row) = (0, None, 0);
    for step in 0..400 {
        if step == 150 {
            // The first one keeps idle memory, which nobody gets.
            signal(&members[0], libc::SIGSTOP);
            stopped = Some(0);
        }
        if step == 250 {
            members.remove(4).kill();
            blocks.remove(4);
        }
        let chosen = random.below(members.len());
        if Some(chosen) == stopped {
            continue;
        }
        let own = &mut blocks[chosen];
        if !own.is_empty() && random.below(5) < 2 {
            let block = own.swap_remove(random.below(own.len()));
            assert_eq!(members[chosen].ask(&format!("f {block}")), "0", "seed {seed}");
            continue;
        }
        let size = (1 + random.number() % 150) * MIB + random.number() % 4096 * 256;
        let (answer, late) = timed(|| members[chosen].ask(&format!("a {size}")));
        if let Some(block) = answer.strip_prefix("0 ") {
            own.push(block.to_owned());
            continue;
        }
        let is_refused = |answer: &str| answer.starts_with(&format!("{OUT_OF_MEMORY} "));
        assert!(is_refused(&answer), "seed {seed}: {answer}");
        refused += 1;
        let others = (0..members.len()).filter(|&other| other != chosen && Some(other) != stopped);
        let running = others.chain([chosen]);
        let idle: Vec<_> = running.map(|other| (other, members[other].ask("t"))).collect();
        let again = members[chosen].ask(&format!("a {size}"));
        // A late answer is no fault. Processes that never answer make every refusal late.
        late_in_a_row = match again.strip_prefix("0 ") {
            Some(block) => {
                blocks[chosen].push(block.to_owned());
                late_in_a_row + 1
            }
            None if late => late_in_a_row,
            None => 0,
        };
        assert!(
            late_in_a_row == 0 || late && late_in_a_row < TRIES,
            "seed {seed}, step {step}: {size} bytes were refused to member {chosen}, while members had idle {idle:?}"
        );
        assert!(again.starts_with("0 ") || is_refused(&again), "seed {seed}: {again}");
    }
    assert!(refused > 10, "seed {seed}: only {refused} requests were refused");
    signal(&members[0], libc::SIGCONT);
}
