//! Every order of the steps of a few threads that use the table of pages (loom). The code is the real one, with loom's
//! atomics.

use loom::sync::atomic;
use loom::sync::{Arc, Mutex};
use loom::thread;

#[allow(dead_code)] // The model uses another size of a table than the library.
#[allow(clippy::duplicate_mod)] // The model is the file with other atomics.
#[path = "pages.rs"]
mod table;

use table::Page;

/// Two leaves of two pages each.
type Pages = table::Pages<Owner, 2, 2>;
const PAGE: u64 = Pages::PAGE_BYTES;

#[derive(Debug, PartialEq)]
struct Owner(u8);
static OWNERS: [Owner; 2] = [Owner(0), Owner(1)];

fn owner_of(page: Page<Owner>) -> Option<u8> {
    match page {
        Page::MaybeOf(owner) => Some(owner.0),
        Page::Unowned | Page::Shared => None,
    }
}

/// As `registry` does it: a page with another owner gets shared.
fn join(pages: &Pages, owner: &'static Owner, address: u64, size: u64) {
    pages.set(address, size, |before, _| match before {
        Page::Unowned => Page::MaybeOf(owner),
        Page::MaybeOf(other) if other == owner => Page::MaybeOf(other),
        Page::MaybeOf(_) | Page::Shared => Page::Shared,
    });
}

#[test]
fn who_gets_an_address_from_another_thread_finds_its_owner() {
    loom::model(|| {
        let pages = Arc::new(Pages::default());
        let handed_over = Arc::new(atomic::AtomicU64::new(0));
        let (its_pages, its_hand) = (pages.clone(), handed_over.clone());
        let maker = thread::spawn(move || {
            join(&its_pages, &OWNERS[0], 2 * PAGE, PAGE);
            its_hand.store(2 * PAGE, atomic::Ordering::Release);
        });
        match handed_over.load(atomic::Ordering::Acquire) {
            // The leaf may exist or not.
            0 => assert!(matches!(pages.at(2 * PAGE), Page::Unowned | Page::MaybeOf(Owner(0)))),
            address => assert_eq!(owner_of(pages.at(address)), Some(0)),
        }
        maker.join().unwrap();
        assert_eq!(owner_of(pages.at(2 * PAGE + 5)), Some(0));
        assert!(matches!(pages.at(3 * PAGE), Page::Unowned));
        assert!(matches!(pages.at(99 * PAGE), Page::Unowned));
    });
}

#[test]
fn a_page_that_gets_a_second_owner_never_loses_the_first() {
    loom::model(|| {
        let pages = Arc::new(Pages::default());
        join(&pages, &OWNERS[0], 0, 2 * PAGE);
        // loom tries no other order of a load and another thread's load that a store follows. It does try those of this
        // store, which tells a thread nothing: so the table is read before, between and after the second thread's steps.
        let turn = Arc::new(atomic::AtomicU64::new(0));
        let (its_pages, its_turn) = (pages.clone(), turn.clone());
        let second = thread::spawn(move || {
            join(&its_pages, &OWNERS[1], PAGE, 2 * PAGE);
            its_turn.store(1, atomic::Ordering::Relaxed);
        });
        turn.load(atomic::Ordering::Relaxed);
        assert!(matches!(pages.at(PAGE), Page::MaybeOf(Owner(0)) | Page::Shared));
        assert_eq!(owner_of(pages.at(0)), Some(0));
        second.join().unwrap();
        assert!(matches!(pages.at(PAGE), Page::Shared));
        assert_eq!(owner_of(pages.at(2 * PAGE)), Some(1));
    });
}

#[test]
fn two_threads_that_make_the_same_leaf_under_the_lock_keep_both_entries() {
    loom::model(|| {
        let pages = Arc::new(Pages::default());
        let list = Arc::new(Mutex::new(()));
        let threads = [0u8, 1].map(|number| {
            let (pages, list) = (pages.clone(), list.clone());
            thread::spawn(move || {
                let _locked = list.lock().unwrap();
                join(&pages, &OWNERS[usize::from(number)], u64::from(number) * PAGE, PAGE);
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!([0, PAGE].map(|address| owner_of(pages.at(address))), [Some(0), Some(1)]);
    });
}
