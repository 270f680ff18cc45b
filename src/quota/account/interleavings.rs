//! Every interleaving of a few operations on an account, with at most so many switches away from a process that could
//! go on. Processes die before each of their steps, and their heirs die too. The code is the real one: a thread runs
//! each process, and stops before each step that others can see until it is its turn.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex};

use super::*;

/// A is killed. B lives.
const A: usize = 3;
const B: usize = 7;
const LIMIT: u64 = 32;

/// Who waits for a turn, and who has it.
#[derive(Default)]
struct Turns {
    waiting: [bool; ACTORS],
    over: [bool; ACTORS],
    turn: Option<usize>,
}

/// A, B, and the process that inherits A's seat.
const ACTORS: usize = 3;

#[derive(Default)]
struct Baton {
    turns: Mutex<Turns>,
    changed: Condvar,
}

impl Baton {
    /// Waits until it is the actor's turn.
    fn wait(&self, actor: usize) {
        let mut turns = self.turns.lock().unwrap();
        turns.waiting[actor] = true;
        turns.turn = turns.turn.filter(|&turn| turn != actor);
        self.changed.notify_all();
        let mut turns = self
            .changed
            .wait_while(turns, |turns| turns.turn != Some(actor))
            .unwrap();
        turns.waiting[actor] = false;
    }

    fn end(&self, actor: usize) {
        let mut turns = self.turns.lock().unwrap();
        turns.over[actor] = true;
        turns.turn = turns.turn.filter(|&turn| turn != actor);
        self.changed.notify_all();
    }

    /// The actors that can go on, when nobody runs. The heir begins when A is dead.
    fn ready(&self) -> Vec<usize> {
        let runs =
            |turns: &mut Turns| turns.turn.is_some() || (0..ACTORS).any(|one| !turns.waiting[one] && !turns.over[one]);
        let turns = self.changed.wait_while(self.turns.lock().unwrap(), runs).unwrap();
        (0..ACTORS)
            .filter(|&one| !turns.over[one] && (one != 2 || turns.over[0]))
            .collect()
    }

    fn give(&self, actor: usize) {
        self.turns.lock().unwrap().turn = Some(actor);
        self.changed.notify_all();
    }
}

/// Runs the three actors in the order that `path` chooses, and then always goes on with the same. Adds to `path` what
/// could be chosen, as pairs of a choice and the number of choices.
fn run(path: &mut Vec<(usize, usize)>, most_switches: usize, a_dies: u32, heir_dies: u32) {
    // SAFETY: an account may be all zero; no process holds bytes of it then.
    let account: Box<Account> = unsafe { Box::new_zeroed().assume_init() };
    let baton = Baton::default();
    let (a, b) = (account.handle(A), account.handle(B));
    let act = |actor: usize, dies: u32, play: &dyn Fn(&mut dyn FnMut())| {
        let mut left = dies;
        let mut step = || {
            baton.wait(actor);
            left -= 1;
            if left == 0 {
                resume_unwind(Box::new(()));
            }
        };
        let _ = catch_unwind(AssertUnwindSafe(|| play(&mut step)));
        baton.end(actor);
    };
    let operate = |handle: &mut SeatHandle, change: i64, step: &mut dyn FnMut()| {
        let becomes = |used: u64| used.checked_add_signed(change).filter(|&used| used <= LIMIT);
        account.operate(handle, &becomes, change, &mut || step()).is_ok()
    };
    let inherit = |step: &mut dyn FnMut()| {
        let mut handle = account.handle(A);
        if handle.held > 0 {
            let held = handle.held as i64;
            operate(&mut handle, -held, step);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            act(0, a_dies, &|step| {
                let mut handle = a;
                operate(&mut handle, 20, step);
                operate(&mut handle, 10, step);
            });
        });
        scope.spawn(|| {
            act(1, u32::MAX, &|step| {
                let mut handle = b;
                let taken = operate(&mut handle, 5, step);
                if taken {
                    operate(&mut handle, -2, step);
                }
                assert_eq!(account.held(B), handle.held);
            });
        });
        scope.spawn(|| {
            act(2, heir_dies, &|step| {
                step();
                inherit(step);
            });
        });
        let (mut at, mut last, mut switches) = (0, None, 0);
        loop {
            let ready = baton.ready();
            if ready.is_empty() {
                break;
            }
            assert!(account.used() <= LIMIT);
            // The first choice is to go on with the same actor.
            let goes_on = last.filter(|one| ready.contains(one));
            let mut choices: Vec<usize> = goes_on.into_iter().collect();
            if goes_on.is_none() || switches < most_switches {
                choices.extend(ready.iter().filter(|&&one| Some(one) != goes_on));
            }
            if at == path.len() {
                path.push((0, choices.len()));
            }
            let chosen = choices[path[at].0];
            switches += usize::from(goes_on.is_some_and(|one| one != chosen));
            (at, last) = (at + 1, Some(chosen));
            baton.give(chosen);
        }
    });
    // Another heir gives back what the dead ones have left.
    inherit(&mut || {});
    let context = format!("A dies before step {a_dies}, its heir before step {heir_dies}, {path:?}");
    assert_eq!(account.held(A), 0, "{context}");
    assert_eq!(account.used(), account.held(B), "{context}");
    assert!([0, 3].contains(&account.held(B)), "{context}");
}

/// The next path in the order of a depth-first search; `None` after the last.
fn next(mut path: Vec<(usize, usize)>) -> Option<Vec<(usize, usize)>> {
    loop {
        let (choice, choices) = path.pop()?;
        if choice + 1 < choices {
            path.push((choice + 1, choices));
            return Some(path);
        }
    }
}

/// Returns the number of interleavings.
fn explore(most_switches: usize) -> u32 {
    let mut runs = 0;
    for a_dies in 1..=18 {
        for heir_dies in [u32::MAX, 4, 8] {
            let mut path = Some(Vec::new());
            while let Some(mut one) = path {
                run(&mut one, most_switches, a_dies, heir_dies);
                runs += 1;
                path = next(one);
            }
        }
    }
    println!("{runs} interleavings");
    runs
}

#[test]
fn what_the_dead_held_is_known_in_every_interleaving_with_a_switch() {
    assert!(explore(1) > 1000);
}

#[test]
#[ignore = "takes a minute: scripts/torture"]
fn what_the_dead_held_is_known_in_every_interleaving_with_two_switches() {
    assert!(explore(2) > 10_000);
}
