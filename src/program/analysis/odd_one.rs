//! The process whose peak is farthest from that of the others, such as one rank of a job.

use super::runs::median;

/// A process whose peak differs by more than this from the median is odd.
const ODD_SHARE: f64 = 0.05;

/// `who` says which process it is.
pub struct Odd<T> {
    pub who: T,
    pub peak: u64,
    pub median: u64,
    pub processes: usize,
}

/// `None` if there are fewer than three processes, if all are alike, or if several differ as much.
pub fn odd_one<T>(mut peaks: Vec<(T, u64)>) -> Option<Odd<T>> {
    if peaks.len() < 3 {
        return None;
    }
    let processes = peaks.len();
    let median = median(peaks.iter().map(|(_, peak)| *peak).collect());
    peaks.sort_by_key(|(_, peak)| std::cmp::Reverse(peak.abs_diff(median)));
    let as_far = peaks[1].1.abs_diff(median);
    let (who, peak) = peaks.swap_remove(0);
    let far = peak.abs_diff(median);
    (far > as_far && far as f64 / median.max(1) as f64 > ODD_SHARE).then_some(Odd {
        who,
        peak,
        median,
        processes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_three_or_more_is_odd_if_it_alone_differs() {
        let odd = |peaks: &[u64]| {
            let named = peaks.iter().copied().enumerate().collect();
            odd_one(named).map(|odd| odd.who)
        };
        assert_eq!(odd(&[100, 130, 100]), Some(1));
        assert_eq!(odd(&[100, 100, 60, 100]), Some(2));
        assert_eq!(odd(&[100, 104, 100]), None, "within a twentieth");
        assert_eq!(odd(&[100, 130]), None, "of two, either could be the odd one");
        assert_eq!(odd(&[100, 130, 100, 70, 100]), None, "two differ as much");
    }
}
