//! Random programs over the whole driver API end alike without the library and under each strategy, while the switches of
//! the simulated GPU are drawn at random: result codes, bytes, what waits for what, what is live, and the journal's sums.
//! Only the rules of `rules.rs` may differ. A program that differs is made as short as it can be, and printed as C.
//!
//! `scripts/torture --differential` plays more of them, and `--mutants` shows that planted faults are found.

mod program;
mod rules;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use program::{Program, kinds};
use rules::{Pair, accepting};
use serde_json::Value;
use support::{
    AUTO_GROWTH, Finished, Job, NAIVE_BEST_FIT, PASSTHROUGH, Strategy, Totals, assert_whole, client, scratch, totals,
};

const STRATEGIES: [Strategy; 3] = [PASSTHROUGH, NAIVE_BEST_FIT, AUTO_GROWTH];
/// How often each rule has accepted a difference.
static ACCEPTED: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());
/// Chooses a planted fault (src/base/mutant.rs).
const MUTANT: &str = "VRAMSHIM_TEST_MUTANT";
const MUTANTS: u32 = 10;
const SHRINKING: Duration = Duration::from_secs(180);
const LENGTH: usize = 250;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// Plays a program on the simulated GPU, or on the GPU of this machine with VRAMSHIM_TEST_GPU.
fn run(program: &Program, strategy: Option<Strategy>, mutant: u32) -> Finished {
    let real = number("VRAMSHIM_TEST_GPU").is_some();
    let job = Job::new(client("differential/player.c", "player", &["libcuda.so.1"])).on_one_host();
    let mut job = job.limit(Duration::from_secs(60)).envs(&program.switches);
    job = match strategy {
        None => job.alone(),
        Some(strategy) => job.strategy(strategy),
    };
    if real {
        job = job.without("LD_LIBRARY_PATH");
    }
    if mutant > 0 {
        job = job.env(MUTANT, mutant.to_string());
    }
    job.input(&program.list()).run()
}

fn lines(finished: &Finished) -> Vec<&str> {
    finished.stdout.lines().filter(|line| !line.starts_with('{')).collect()
}

fn first_difference(program: &Program, alone: &[&str], under: &[&str], strategy: Strategy) -> Result<bool, String> {
    for at in 0..alone.len().max(under.len()) {
        let [one, other] = [alone, under].map(|lines| lines.get(at).copied().unwrap_or("nothing"));
        if one == other {
            continue;
        }
        let parts = |line| str::split_once(line, ':').unwrap_or((line, ""));
        let ((head, one), (same, other)) = (parts(one), parts(other));
        let kind = head.split(' ').next_back().unwrap_or_default();
        let pair = Pair {
            kind,
            alone: one,
            under: other,
            strategy,
            program,
        };
        match accepting(&pair).filter(|_| head == same) {
            Some(rule) if rule.kinds.is_empty() => return Ok(true),
            Some(rule) => *ACCEPTED.lock().unwrap().entry(rule.name).or_default() += 1,
            None => {
                return Err(format!(
                    "{head}: without the library{one}; under {}{other}",
                    strategy.name
                ));
            }
        }
    }
    Ok(false)
}

/// What a check that panics says, which is not printed.
fn said_by(check: impl FnOnce()) -> Result<(), String> {
    thread_local!(static QUIET: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                before(panic);
            }
        }));
    });
    QUIET.set(true);
    let end = catch_unwind(AssertUnwindSafe(check));
    QUIET.set(false);
    end.map_err(|said| match said.downcast::<String>() {
        Ok(text) => *text,
        Err(said) => said.downcast_ref::<&str>().unwrap_or(&"a check failed").to_string(),
    })
}

/// Without the library the program's own count equals the simulator's table.
fn sound(finished: &Finished) -> Result<(), String> {
    let end = finished.status;
    if !end.success() {
        return Err(format!(
            "without the library: {end}, {:?}\n{}",
            lines(finished).last(),
            finished.stderr
        ));
    }
    said_by(|| {
        for line in finished.json().iter().filter(|line| line["truth"].is_object()) {
            let own = totals(&line["own"], |row| &row["requested"]);
            let truth = totals(&line["truth"]["totals"], |row| &row["requested"]);
            assert_eq!(truth, own, "the program's own count");
        }
    })
}

/// How a program under a strategy differs from the same without the library.
fn difference(program: &Program, alone: &Finished, strategy: Strategy, mutant: u32) -> Option<String> {
    let under = run(program, Some(strategy), mutant);
    let end = under.status;
    let compared = first_difference(program, &lines(alone), &lines(&under), strategy);
    let books = |ends: bool| {
        if !end.success() {
            return Err(format!("{end}\n{}", under.stderr));
        }
        let printed = under.json();
        // A tensor is linear memory of a policy, and stream-ordered memory without one.
        let own = |lines: &[Value]| -> Vec<Totals> {
            let rows = lines.iter().filter_map(|line| line.get("own"));
            let merged = |rows| {
                let mut sums = Totals::new();
                for ((device, class), bytes) in totals(rows, |row| &row["requested"]) {
                    let class = if class == "async" { "linear".to_owned() } else { class };
                    *sums.entry((device, class)).or_default() += bytes;
                }
                sums
            };
            rows.map(merged).collect()
        };
        if !ends && own(&printed) != own(&alone.json()) {
            return Err("what is live differs".to_owned());
        }
        // A program without memory leaves no journal.
        if under.journals().is_empty() && own(&printed).iter().all(Totals::is_empty) {
            return Ok(());
        }
        said_by(|| {
            let jobs = under.inspect_all();
            let holds = |job: &&Value| !job["live"].as_array().is_some_and(Vec::is_empty) || jobs.len() == 1;
            let longest = || jobs.iter().max_by_key(|job| job["events"].as_u64());
            let job = jobs.iter().find(holds).or_else(longest).expect("a journal");
            assert_whole(&printed, job, strategy, strategy.name);
        })
    };
    compared
        .and_then(books)
        .err()
        .map(|text| format!("{}: {text}", strategy.name))
}

struct Found {
    program: Program,
    strategy: Option<Strategy>,
    what: String,
}

fn check(program: &Program, strategies: &[Strategy], mutant: u32) -> Option<Found> {
    let found = |strategy, what| Found {
        program: program.clone(),
        strategy,
        what,
    };
    let alone = run(program, None, mutant);
    if let Err(what) = sound(&alone) {
        return Some(found(None, what));
    }
    let differing = |&strategy: &Strategy| Some(found(Some(strategy), difference(program, &alone, strategy, mutant)?));
    let found = strategies.iter().find_map(differing)?;
    // A program that does not end alike twice without the library says nothing.
    (lines(&run(program, None, mutant)) == lines(&alone)).then_some(found)
}

/// When to stop.
#[derive(Clone, Copy)]
enum Budget {
    Steps(u64),
    Time(Duration),
}

/// Plays programs from a seed on, several at a time. Returns the first one that differs, and the number of steps played.
fn search(seed: u64, budget: Budget, mutant: u32) -> (Option<Found>, u64) {
    let [next, steps] = [seed, 0].map(AtomicU64::new);
    let (stop, begin) = (AtomicBool::new(false), Instant::now());
    let first = Mutex::new(None);
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let before = steps.fetch_add(LENGTH as u64, Ordering::Relaxed);
            let spent = match budget {
                Budget::Steps(most) => before >= most,
                Budget::Time(most) => begin.elapsed() > most,
            };
            if spent {
                break;
            }
            let program = Program::new(next.fetch_add(1, Ordering::Relaxed), LENGTH);
            // What a repetition does not show is no difference of the library's.
            let found = check(&program, &STRATEGIES, mutant).and_then(|_| check(&program, &STRATEGIES, mutant));
            if let Some(found) = found {
                stop.store(true, Ordering::Relaxed);
                first.lock().unwrap().get_or_insert(found);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        (0..threads).for_each(|_| drop(scope.spawn(work)));
    });
    (first.into_inner().unwrap(), steps.into_inner())
}

/// Writes a program as C, makes it as short as it gets within minutes, and says where it is.
fn told(found: Found, mutant: u32, folder: &Path) -> String {
    let strategies: Vec<Strategy> = found.strategy.into_iter().collect();
    let strategy = found.strategy.map_or("none", |strategy| strategy.name);
    let path = folder.join(format!("differs-{}.c", found.program.seed));
    std::fs::create_dir_all(folder).expect("a folder");
    let write = |program: &Program, what: &str| std::fs::write(&path, program.as_c(strategy, what)).expect("a file");
    write(&found.program, &found.what);
    println!(
        "seed {}: {}\nshorter: {}",
        found.program.seed,
        found.what,
        path.display()
    );
    let end = Instant::now() + SHRINKING;
    let short = found.program.shrunk(|program| {
        let again = || check(program, &strategies, mutant);
        Instant::now() < end && again().is_some_and(|again| again.strategy == found.strategy)
    });
    let what = check(&short, &strategies, mutant).map_or(found.what, |again| again.what);
    write(&short, &what);
    let (seed, switches) = (short.seed, &short.switches);
    format!("seed {seed}: {what}\n{switches:?}\n{}{}", short.list(), path.display())
}

fn play(seed: u64, budget: Budget) {
    let (found, steps) = search(seed, budget, 0);
    println!("{steps} steps from seed {seed} on, {} kinds", kinds().len());
    for (rule, times) in &*ACCEPTED.lock().unwrap() {
        println!("accepted {times} times: {rule}");
    }
    if let Some(found) = found {
        panic!("{}", told(found, 0, &scratch("differential")));
    }
}

/// A text that only a library with planted faults has.
fn has_mutants() -> bool {
    let library = std::fs::read(support::library()).expect("the library");
    library.windows(MUTANT.len()).any(|part| part == MUTANT.as_bytes())
}

#[test]
fn random_programs_end_alike_without_the_library_and_under_each_strategy() {
    assert!(kinds().len() >= 60);
    assert!(!has_mutants(), "a library with planted faults");
    play(number("VRAMSHIM_TEST_SEED").unwrap_or(1), Budget::Steps(4_000));
}

/// As many steps as VRAMSHIM_TEST_STEPS says, or for VRAMSHIM_TEST_TORTURE seconds.
#[test]
#[ignore = "takes minutes: scripts/torture --differential"]
fn differential() {
    let seconds = Duration::from_secs(number("VRAMSHIM_TEST_TORTURE").unwrap_or(60));
    let budget = number("VRAMSHIM_TEST_STEPS").map_or(Budget::Time(seconds), Budget::Steps);
    play(number("VRAMSHIM_TEST_SEED").unwrap_or(1), budget);
}

/// Each planted fault is found within VRAMSHIM_TEST_TORTURE seconds.
#[test]
#[ignore = "needs a library with planted faults: scripts/torture --mutants"]
fn planted_faults_are_found() {
    assert!(has_mutants());
    let seed = number("VRAMSHIM_TEST_SEED").unwrap_or(1);
    let seconds = number("VRAMSHIM_TEST_TORTURE").unwrap_or(60);
    let mut missed = Vec::new();
    for mutant in 1..=MUTANTS {
        let (found, steps) = search(seed, Budget::Time(Duration::from_secs(seconds)), mutant);
        let Some(found) = found else {
            missed.push(mutant);
            continue;
        };
        let (what, by) = (found.what.lines().next().unwrap_or_default(), found.program.seed);
        println!("mutant {mutant}: found by seed {by} after {steps} steps: {what}");
    }
    assert_eq!(
        missed, [0; 0],
        "not found from seed {seed} on, in {seconds} seconds each"
    );
}
