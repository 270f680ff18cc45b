//! Bounds how much memory the driver takes beyond the bytes that were obtained from it.
//!
//! The driver hands out physical memory in pages of 2 MiB, and the ledger counts the obtained bytes. The difference is
//! at most the uncovered bytes of pages that are covered in part. The addresses of the memory show which pages are
//! covered in part.

use std::collections::HashMap;

use foldhash::fast::RandomState;

/// The size of the driver's large page in bytes.
pub const PAGE: u64 = 2 << 20;

#[derive(Default)]
pub struct Slack {
    /// The pages that are covered in part, with the covered bytes of each.
    pages: HashMap<u64, u64, RandomState>,
    bytes: u64,
}

impl Slack {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Notes that memory at `address` was obtained (`comes` is true) or given back.
    pub fn change(&mut self, address: u64, length: u64, comes: bool) {
        for (page, part) in ends(address, length) {
            let covered = self.pages.entry(page).or_default();
            let before = left_of(*covered);
            *covered = if comes {
                covered.saturating_add(part)
            } else {
                covered.saturating_sub(part)
            };
            let now = left_of(*covered);
            if *covered == 0 {
                self.pages.remove(&page);
            }
            self.bytes = self.bytes.saturating_sub(before).saturating_add(now);
        }
    }

    /// The same for memory without a known address (an array). The bound assumes that no other memory lies on its last page.
    pub fn change_object(&mut self, length: u64, comes: bool) {
        let left = left_of(length % PAGE);
        self.bytes = if comes {
            self.bytes.saturating_add(left)
        } else {
            self.bytes.saturating_sub(left)
        };
    }
}

/// The uncovered bytes of a page; 0 if the page is not held at all.
fn left_of(covered: u64) -> u64 {
    match covered {
        0 => 0,
        covered => PAGE.saturating_sub(covered),
    }
}

/// The pages that a range covers in part (at most its first and its last), with the covered bytes of each.
fn ends(address: u64, length: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = address.saturating_add(length);
    let (first, last) = (address / PAGE, end / PAGE);
    let of_first = end.min((first + 1).saturating_mul(PAGE)) - address;
    let of_last = if last > first { end - last * PAGE } else { 0 };
    [(first, of_first), (last, of_last)]
        .into_iter()
        .filter(|&(_, part)| part > 0 && part < PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_left_of_pages_counts() {
        let mut slack = Slack::default();
        slack.change(0x4000_0000, 3 * PAGE, true);
        assert_eq!(slack.bytes(), 0);
        slack.change(0x5000_0000, PAGE + 512, true);
        assert_eq!(slack.bytes(), PAGE - 512);
        // Both allocations lie on the same page.
        slack.change(0x5000_0000 + PAGE + 512, 1024, true);
        assert_eq!(slack.bytes(), PAGE - 1536);
        slack.change(0x5000_0000, PAGE + 512, false);
        assert_eq!(slack.bytes(), PAGE - 1024);
        slack.change(0x5000_0000 + PAGE + 512, 1024, false);
        assert_eq!(slack.bytes(), 0);
        assert!(slack.pages.is_empty());
    }

    #[test]
    fn a_range_may_begin_and_end_within_pages() {
        let mut slack = Slack::default();
        slack.change(PAGE / 2, 2 * PAGE, true);
        assert_eq!(slack.bytes(), PAGE / 2 + PAGE / 2);
        slack.change(10 * PAGE + 256, 512, true);
        assert_eq!(slack.bytes(), PAGE + PAGE - 512);
        slack.change(u64::MAX - 10, 100, true);
        slack.change_object(100, true);
        slack.change_object(100, false);
        slack.change(u64::MAX - 10, 100, false);
        assert_eq!(slack.bytes(), PAGE + PAGE - 512);
    }
}
