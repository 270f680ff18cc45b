//! Which process of a job wrote a journal, as its launcher told it.

use journal::reader::Header;

/// The variables that launchers set.
const NAMES: [&str; 4] = ["RANK", "PADDLE_TRAINER_ID", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"];

/// The process's rank in its job, if a launcher gave it one. It is any text, so what shows it makes it printable.
pub fn rank(header: &Header) -> Option<String> {
    NAMES.iter().find_map(|name| header.variable(name)).map(str::to_owned)
}
