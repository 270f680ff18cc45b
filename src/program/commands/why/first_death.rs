//! Which processes of a folder belong together, and which of them died first.

use journal::reader::State;

use crate::analysis::job::Job;
use crate::analysis::runs::runs;

/// The last sign of life of a killed process can be so much earlier than its death.
const BETWEEN_SIGNS_NS: u64 = 500_000_000;

/// The processes of one run of a job.
pub struct Run {
    /// In the order of their deaths.
    pub jobs: Vec<Job>,
    /// Processes of earlier runs, which are left out.
    pub older: usize,
    /// Of these the last that died of a failed request.
    pub died_before: Option<Job>,
}

impl Run {
    /// The newest run: the process that began last, and all whose time overlaps with it or with another one of the run.
    /// `jobs` must not be empty.
    pub fn newest(jobs: Vec<Job>) -> Run {
        let all = jobs.len();
        let mut runs = runs(jobs, |job| job.span()).into_iter();
        let mut jobs = runs.next().unwrap_or_default();
        sort_by_death(&mut jobs);
        let died = runs.flatten().filter(|job| job.finding().fatal);
        Run {
            older: all - jobs.len(),
            died_before: died.max_by_key(began_ns),
            jobs,
        }
    }

    /// All processes, for journals that the user named one by one. `jobs` must not be empty.
    pub fn of_all(mut jobs: Vec<Job>) -> Run {
        sort_by_death(&mut jobs);
        Run {
            jobs,
            older: 0,
            died_before: None,
        }
    }

    /// The first process that died for lack of memory, or else the first that died. If none died, the one that is fullest.
    pub fn first(&self) -> &Job {
        let fullest = || {
            let used = self.jobs.iter().filter_map(|job| Some((job, job.finding().distance?)));
            let fullest = used.max_by(|(_, one), (_, other)| one.compare(other));
            fullest.map(|(job, _)| job)
        };
        // A launcher may kill processes before the one that lacks memory has ended.
        let lacked_memory = self.jobs.iter().find(|job| job.finding().fatal);
        let first = self.jobs.first().filter(|job| died_ns(job).is_some());
        lacked_memory.or(first).or_else(fullest).unwrap_or(&self.jobs[0])
    }
}

fn sort_by_death(jobs: &mut [Job]) {
    jobs.sort_by_key(|job| (died_ns(job).unwrap_or(u64::MAX), began_ns(job)));
}

fn began_ns(job: &Job) -> u64 {
    job.header.wall_start_ns
}

fn ended_ns(job: &Job) -> u64 {
    began_ns(job).saturating_add(job.duration_ns)
}

/// When a process died: at the failure that ended it, or else when it was killed or ended with an error. In nanoseconds
/// since 1970; `None` if it runs or ended well.
pub fn died_ns(job: &Job) -> Option<u64> {
    let finding = job.finding();
    match (&finding.failure, job.state) {
        (Some(failure), state) if finding.fatal && !matches!(state, State::Running | State::Dumped) => {
            Some(began_ns(job).saturating_add(failure.scene.time_ns))
        }
        (_, State::Killed) => Some(ended_ns(job).saturating_add(BETWEEN_SIGNS_NS)),
        (_, State::Exited(status)) if status != 0 => Some(ended_ns(job)),
        _ => None,
    }
}
