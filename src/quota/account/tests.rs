use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

fn account() -> Box<Account> {
    // SAFETY: an account may be all zero; no process holds bytes of it then.
    unsafe { Box::new_zeroed().assume_init() }
}

fn held_by_all(account: &Account) -> u64 {
    (0..SEATS).map(|seat| account.held(seat)).sum()
}

/// Runs one operation that stops for good before step `last`, as if its process was killed. Before each earlier step it
/// calls `meanwhile` with the step's number. Returns whether the operation finished.
fn operate_until(
    account: &Account,
    handle: SeatHandle,
    change: i64,
    last: u32,
    mut meanwhile: impl FnMut(u32),
) -> bool {
    let mut step = 0;
    let mut handle = handle;
    let mut steps = || {
        step += 1;
        if step == last {
            std::panic::resume_unwind(Box::new(()));
        }
        meanwhile(step);
    };
    let becomes = |used: u64| used.checked_add_signed(change);
    catch_unwind(AssertUnwindSafe(|| {
        account.operate(&mut handle, &becomes, change, &mut steps)
    }))
    .is_ok()
}

const DEAD: usize = 3;
const ALIVE: usize = 7;

/// Kills a process at every step, while another process operates on the account. Afterwards the bytes that the dead
/// process held are known exactly. All of them go back, even if processes that give them back are killed as well.
#[test]
fn what_a_dead_process_had_is_known_wherever_it_died() {
    let mut died = 0;
    for change in [30, -30] {
        for last in 1..40 {
            for at in 0..last.min(20) {
                for others in [vec![5], vec![5, -5], vec![5, 7, -2], vec![1; 3000]] {
                    died += u32::from(!dies(change, last, at, &others));
                }
            }
        }
    }
    assert!(died > 300, "{died}");
}

/// Kills a process that adds `change` bytes before its step `last`. At step `at` another process does the operations
/// `others`. Returns whether the operation of the first process finished.
fn dies(change: i64, last: u32, at: u32, others: &[i64]) -> bool {
    let account = account();
    let (mut dead, mut alive) = (account.handle(DEAD), account.handle(ALIVE));
    account.take(&mut dead, 100, MAX_BYTES).unwrap();
    account.take(&mut alive, 50, MAX_BYTES).unwrap();
    let mut expected = 50;
    let lived = operate_until(&account, dead, change, last, |step| {
        if step == at {
            for &other in others {
                expected += other;
                match u64::try_from(other) {
                    Ok(bytes) => account.take(&mut alive, bytes, MAX_BYTES).unwrap(),
                    Err(_) => account.give(&mut alive, other.unsigned_abs()),
                }
            }
        }
    });
    let left = account.handle(DEAD);
    let context = format!("{change:+} until step {last}, {others:?} at {at}");
    let after = 100u64.wrapping_add_signed(change);
    assert!([100, after].contains(&left.held), "{context}: {left:?}");
    assert!(!lived || left.held == after, "{context}");
    assert_eq!(account.used(), held_by_all(&account), "{context}");
    // The processes that give the bytes back are killed as well, each one step later, until one of them finishes.
    for step in 1.. {
        let handle = account.handle(DEAD);
        assert!(
            [0, left.held].contains(&handle.held),
            "{context}, next process until step {step}"
        );
        if handle.held == 0 || operate_until(&account, handle, -(handle.held as i64), step, |_| {}) {
            break;
        }
    }
    assert_eq!(account.held(DEAD), 0, "{context}");
    let expected = expected as u64;
    assert_eq!((account.used(), alive.held), (expected, expected), "{context}");
    lived
}

/// A process is stopped before one of its steps while another does as many operations as make the same word again. The
/// other then dies, and what it held is known.
#[test]
fn the_same_word_never_comes_again_while_a_process_expects_it() {
    const ROUND: i64 = 1 << NUMBER_BITS;
    for at in 1..12 {
        let about_a_round = ROUND - 2..=ROUND + 2;
        for count in about_a_round.chain([1, 2, 2 * ROUND, 5 * ROUND]) {
            // The last operation leaves 5 bytes more than the one that the first process saw, or as many.
            for odd in [0, 1] {
                let account = account();
                let (mut first, mut other) = (account.handle(ALIVE), account.handle(DEAD));
                account.take(&mut first, 50, MAX_BYTES).unwrap();
                account.take(&mut other, 100, MAX_BYTES).unwrap();
                let mut held = 100;
                let finished = operate_until(&account, first, 30, u32::MAX, |step| {
                    if step == at {
                        for operation in 0..count {
                            if (operation + odd) % 2 == 0 {
                                account.give(&mut other, 5);
                                held -= 5;
                            } else {
                                account.take(&mut other, 5, MAX_BYTES).unwrap();
                                held += 5;
                            }
                        }
                    }
                });
                let context = format!("{count} operations before step {at}, {odd}");
                assert!(finished, "{context}");
                assert_eq!((account.held(DEAD), account.held(ALIVE)), (held, 80), "{context}");
                assert_eq!(account.used(), held + 80, "{context}");
            }
        }
    }
}

#[test]
fn many_at_once_keep_within_the_limit_and_lose_nothing() {
    const LIMIT: u64 = 1000;
    let account = account();
    std::thread::scope(|scope| {
        for seat in 0..8 {
            let account = &account;
            scope.spawn(move || {
                let mut handle = account.handle(seat);
                let mut random = seat as u64 + 1;
                for _ in 0..20_000 {
                    random = random
                        .wrapping_mul(6364136223846793005)
                        .wrapping_add(1442695040888963407);
                    let bytes = random >> 40 & 0xff;
                    if random >> 62 == 0 {
                        account.give(&mut handle, bytes);
                    } else if account.take(&mut handle, bytes, LIMIT).is_err() {
                        let held = handle.held;
                        account.give(&mut handle, held / 2);
                    }
                    assert!(account.used() <= LIMIT);
                }
                assert_eq!(account.held(seat), handle.held);
            });
        }
    });
    assert_eq!(account.used(), held_by_all(&account));
}

#[test]
fn nothing_is_booked_that_cannot_be_counted() {
    let account = account();
    let mut handle = account.handle(0);
    assert_eq!(account.take(&mut handle, 11, 10), Err(Refused { used: 0 }));
    assert_eq!(account.add(&mut handle, u64::MAX), Err(Refused { used: 0 }));
    assert_eq!(account.add(&mut handle, MAX_BYTES), Ok(()));
    assert_eq!(account.add(&mut handle, 1), Err(Refused { used: MAX_BYTES }));
    account.give(&mut handle, u64::MAX);
    assert_eq!((account.used(), handle.held), (0, 0));
}
