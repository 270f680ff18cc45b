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

    /// Notes that memory was obtained at `address`.
    pub fn add(&mut self, address: u64, length: u64) {
        for (page, part) in ends(address, length) {
            self.change(page, |covered| covered.saturating_add(part));
        }
    }

    pub fn remove(&mut self, address: u64, length: u64) {
        for (page, part) in ends(address, length) {
            self.change(page, |covered| covered.saturating_sub(part));
        }
    }

    /// Notes memory without a known address (an array). The bound assumes that no other memory lies on its last page.
    pub fn add_object(&mut self, length: u64) {
        self.bytes = self.bytes.saturating_add(left_of(length % PAGE));
    }

    pub fn remove_object(&mut self, length: u64) {
        self.bytes = self.bytes.saturating_sub(left_of(length % PAGE));
    }

    fn change(&mut self, page: u64, by: impl FnOnce(u64) -> u64) {
        let covered = self.pages.entry(page).or_default();
        let before = left_of(*covered);
        *covered = by(*covered);
        let now = left_of(*covered);
        if *covered == 0 {
            self.pages.remove(&page);
        }
        self.bytes = self.bytes.saturating_sub(before).saturating_add(now);
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
        slack.add(0x4000_0000, 3 * PAGE);
        assert_eq!(slack.bytes(), 0);
        slack.add(0x5000_0000, PAGE + 512);
        assert_eq!(slack.bytes(), PAGE - 512);
        // Both allocations lie on the same page.
        slack.add(0x5000_0000 + PAGE + 512, 1024);
        assert_eq!(slack.bytes(), PAGE - 1536);
        slack.remove(0x5000_0000, PAGE + 512);
        assert_eq!(slack.bytes(), PAGE - 1024);
        slack.remove(0x5000_0000 + PAGE + 512, 1024);
        assert_eq!(slack.bytes(), 0);
        assert!(slack.pages.is_empty());
    }

    #[test]
    fn a_range_may_begin_and_end_within_pages() {
        let mut slack = Slack::default();
        slack.add(PAGE / 2, 2 * PAGE);
        assert_eq!(slack.bytes(), PAGE / 2 + PAGE / 2);
        slack.add(10 * PAGE + 256, 512);
        assert_eq!(slack.bytes(), PAGE + PAGE - 512);
        slack.add(u64::MAX - 10, 100);
        slack.add_object(100);
        slack.remove_object(100);
        slack.remove(u64::MAX - 10, 100);
        assert_eq!(slack.bytes(), PAGE + PAGE - 512);
    }
}
