//! Which processes of a folder belong to one run of a job: those that ran at the same time, or at the same time as a
//! third one.

/// Sorts processes into runs, the newest run first. `span` gives when a process began and when it ended, in nanoseconds
/// since 1970.
pub fn runs<T>(mut processes: Vec<T>, span: impl Fn(&T) -> (u64, u64)) -> Vec<Vec<T>> {
    processes.sort_by_key(|process| std::cmp::Reverse(span(process).1));
    let mut runs: Vec<Vec<T>> = Vec::new();
    let mut begin_ns = 0;
    for process in processes {
        let (began_ns, ended_ns) = span(&process);
        match runs.last_mut() {
            // The processes come by their end, the last first: this one overlaps with the run, or is older than all of it.
            Some(run) if ended_ns >= begin_ns => {
                begin_ns = begin_ns.min(began_ns);
                run.push(process);
            }
            _ => {
                begin_ns = began_ns;
                runs.push(vec![process]);
            }
        }
    }
    runs
}

/// The median of several figures: of an even number, the mean of the two in the middle.
pub fn median(mut figures: Vec<u64>) -> u64 {
    figures.sort_unstable();
    let middle = figures.len() / 2;
    match (figures.get(middle), middle.checked_sub(1).map(|before| figures[before])) {
        (None, _) => 0,
        (Some(&upper), Some(lower)) if figures.len().is_multiple_of(2) => lower + (upper - lower) / 2,
        (Some(&upper), _) => upper,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_even_number_the_median_lies_in_the_middle() {
        assert_eq!(median(vec![270, 120, 270, 120]), 195);
        assert_eq!(median(vec![9, 1, 5]), 5);
        assert_eq!((median(vec![7]), median(vec![])), (7, 0));
    }

    #[test]
    fn processes_that_overlap_are_a_run_and_the_newest_run_comes_first() {
        // The last one overlaps with the second alone.
        let processes = vec![(100, 110), (105, 125), (200, 205), (10, 15), (120, 130)];
        let mut runs = runs(processes, |&span| span);
        runs.iter_mut().for_each(|run| run.sort_unstable());
        assert_eq!(
            runs,
            [
                vec![(200, 205)],
                vec![(100, 110), (105, 125), (120, 130)],
                vec![(10, 15)]
            ]
        );
    }
}
