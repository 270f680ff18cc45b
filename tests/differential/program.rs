//! A program: a list of steps and the switches that it is played with. It comes from a seed, can be made shorter, and
//! can be printed as C.

use std::fmt::Write as _;

use support::random::Random;

const STATE: &str = include_str!("state.h");
const MEMORY: &str = include_str!("memory.h");
const WORK: &str = include_str!("work.h");
const PLAYER: &str = include_str!("player.c");

const SLOW_MAPPING: &str = "cuMemCreate=100us,cuMemMap=50us";
const SLOW_ALLOC: &str = "cuMemAlloc=200us,cuMemFree=200us";
/// Switches of the simulator and of the library, one in `odds` programs each, with their values.
const SWITCHES: &[(&str, u32, &[&str])] = &[
    ("SIMGPU_DELAYED", 2, &["1"]),
    ("SIMGPU_VMM", 6, &["0"]),
    ("SIMGPU_ALIASES", 8, &["0"]),
    ("SIMGPU_HOLES", 8, &["0"]),
    ("SIMGPU_MAPPING_WAITS", 8, &["1"]),
    ("SIMGPU_UNMAP_WAITS", 8, &["1"]),
    ("SIMGPU_DRIVER_VERSION", 6, &["11040", "12000", "12040", "12080"]),
    ("SIMGPU_GRANULARITY", 8, &["64KiB", "4MiB", "16MiB"]),
    ("SIMGPU_PEERS", 6, &["0"]),
    ("SIMGPU_DEVICES", 8, &["1"]),
    ("SIMGPU_DMABUF", 8, &["0"]),
    ("SIMGPU_MEMORY", 6, &["256MiB", "512MiB", "1GiB"]),
    ("SIMGPU_LATENCY", 10, &[SLOW_MAPPING, SLOW_ALLOC, "prices"]),
    ("SIMGPU_FRESH", 8, &["0", "165"]),
    ("SIMGPU_CONTEXT_BYTES", 8, &["20MiB"]),
    ("SIMGPU_POOL_CHUNK", 8, &["2MiB"]),
    ("SIMGPU_MIG", 12, &["1"]),
    ("SIMGPU_WAITS_HOLD", 8, &["0"]),
    // Of the player: threads play without waiting for each other.
    ("PLAY_TOGETHER", 4, &["1"]),
    ("VRAMSHIM_IDLE_RELEASE", 8, &["2ms"]),
    ("VRAMSHIM_MEMORY_LIMIT", 8, &["4GiB"]),
    ("FLAGS_auto_growth_chunk_size_in_mb", 8, &["32"]),
    ("FLAGS_initial_gpu_memory_in_mb", 3, &["16", "64"]),
    ("FLAGS_reallocate_gpu_memory_in_mb", 3, &["8", "32"]),
];

#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub thread: usize,
    pub kind: String,
    pub numbers: [usize; 3],
}

#[derive(Clone, Debug)]
pub struct Program {
    pub seed: u64,
    pub switches: Vec<(&'static str, &'static str)>,
    pub steps: Vec<Step>,
}

/// The kinds of steps with their weights, in the order of the sources.
pub fn kinds() -> Vec<(&'static str, usize)> {
    let heads = [MEMORY, WORK, PLAYER].into_iter().flat_map(str::lines);
    let heads = heads.filter_map(|line| line.strip_prefix("KIND("));
    let kind = |head: &'static str| {
        let (name, rest) = head.split_once(", ").expect("a name");
        let (weight, _) = rest.split_once(", ").expect("a weight");
        (name, weight.parse().expect("a weight"))
    };
    heads.map(kind).collect()
}

impl Program {
    pub fn new(seed: u64, steps: usize) -> Program {
        let mut random = Random::new(seed.wrapping_add(0x5eed));
        (0..8).for_each(|_| _ = random.number());
        let mut switches = Vec::new();
        for (name, odds, values) in SWITCHES {
            if random.below(*odds as usize) == 0 {
                switches.push((*name, values[random.below(values.len())]));
            }
        }
        let kinds = kinds();
        // Each program prefers some kinds, so that rare ones meet each other.
        let weights: Vec<usize> = kinds
            .iter()
            .map(|(_, weight)| weight * [0, 1, 1, 1, 2, 2, 3, 6][random.below(8)])
            .collect();
        let all: usize = weights.iter().sum();
        let threads = 1 + random.below(3);
        let mut step = || {
            let mut choice = random.below(all);
            let kind = weights
                .iter()
                .position(|weight| choice.checked_sub(*weight).map(|rest| choice = rest).is_none());
            Step {
                thread: random.below(threads),
                kind: kinds[kind.expect("a kind")].0.to_owned(),
                numbers: [random.below(24), random.below(64), random.below(1 << 16)],
            }
        };
        let mut steps: Vec<Step> = (0..steps).map(|_| step()).collect();
        steps.push(Step {
            thread: 0,
            kind: "end".to_owned(),
            numbers: [seed as usize % 8, 0, 0],
        });
        let mut program = Program { seed, switches, steps };
        let together = program.has("PLAY_TOGETHER");
        let fills = program.steps.iter().any(|step| step.kind == "fill_device");
        program.switches.retain(|(name, _)| match *name {
            "SIMGPU_FRESH" => !fills || together, // it fills gigabytes
            // Who gets the last bytes, and who waits for whom, is then a matter of time.
            "SIMGPU_MEMORY" | "SIMGPU_WAITS_HOLD" => !together,
            _ => true,
        });
        if program.has("SIMGPU_MAPPING_WAITS") {
            // auto_growth maps in an allocation. Where that waits, no work may wait for a later call.
            let waits = ["waits", "collective"];
            program.steps.retain(|step| !waits.contains(&&*step.kind));
        }
        if together {
            program.switches.push(("SIMGPU_WAITS_HOLD", "0"));
            // A tensor that is freed beside a capture stays memory of the graph.
            let without = ["tensor", "begin_capture"][seed as usize % 2];
            program.steps.retain(|step| step.kind != without);
        }
        program
    }

    pub fn has(&self, switch: &str) -> bool {
        self.switches.iter().any(|(name, _)| *name == switch)
    }

    /// Whether the device has little memory, or was full.
    pub fn runs_short(&self) -> bool {
        self.has("SIMGPU_MEMORY") || self.steps.iter().any(|step| step.kind == "fill_device")
    }

    pub fn list(&self) -> String {
        let line =
            |step: &Step| format!("{} {} {:?}\n", step.thread, step.kind, step.numbers).replace(['[', ']', ','], "");
        self.steps.iter().map(line).collect()
    }

    /// The shortest program of this one's steps, switches and threads that `differs`.
    pub fn shrunk(mut self, mut differs: impl FnMut(&Program) -> bool) -> Program {
        let mut size = self.steps.len() / 2;
        while size > 0 {
            let (mut at, before) = (0, self.steps.len());
            while at < self.steps.len() {
                let mut shorter = self.clone();
                shorter.steps.drain(at..(at + size).min(self.steps.len()));
                if differs(&shorter) {
                    self = shorter;
                } else {
                    at += size;
                }
            }
            if size > 1 || self.steps.len() == before {
                size /= 2;
            }
        }
        for at in (0..self.switches.len()).rev() {
            let mut shorter = self.clone();
            shorter.switches.remove(at);
            if differs(&shorter) {
                self = shorter;
            }
        }
        let mut alone = self.clone();
        alone.steps.iter_mut().for_each(|step| step.thread = 0);
        if differs(&alone) { alone } else { self }
    }

    /// A C program that plays the steps. It has the text of the player, and of its kinds only those that the steps are of.
    pub fn as_c(&self, strategy: &str, difference: &str) -> String {
        let mut text = String::new();
        let switches = self.switches.iter().map(|(name, value)| format!("{name}={value} "));
        let switches: String = switches.collect();
        let of_comment = difference.replace("*/", "* /").replace('\n', "\n * ");
        let _ = writeln!(
            text,
            "/* Seed {}. Without the library, and with VRAMSHIM_STRATEGY={strategy}, this program ends differently:\n *\n * \
             {of_comment}\n *\n * Switches: {switches}\n *\n *   cc -std=gnu11 -D_GNU_SOURCE -pthread -I src/simgpu/include \
             -I tests/support/clients THIS.c target/simgpu/libcuda.so.1 -ldl */",
            self.seed
        );
        let row = |Step {
                       thread,
                       kind,
                       numbers: [a, b, c],
                   }: &Step| { format!("    {{{thread}, \"{kind}\", {a}, {b}, {c}}}, \\\n") };
        let rows: String = self.steps.iter().map(row).collect();
        let _ = writeln!(text, "#define LIST \\\n{rows}\n\n{STATE}");
        for source in [MEMORY, WORK] {
            let mut parts = source.split("\nKIND(");
            text.push_str(parts.next().unwrap_or_default());
            for part in parts {
                let name = part.split(',').next().unwrap_or_default();
                let head = part.lines().next().unwrap_or_default();
                // A kind ends with its line, or with the first brace at the beginning of a line.
                let end = if head.ends_with('}') {
                    head.len()
                } else {
                    part.find("\n}").map_or(part.len(), |at| at + 2)
                };
                if self.steps.iter().any(|step| step.kind == name) {
                    let _ = write!(text, "\nKIND({}", &part[..end]);
                }
                text.push_str(&part[end..]);
            }
        }
        text.push_str(PLAYER);
        let own = ["#include \"state", "#include \"memory", "#include \"work"];
        let lines = text.lines().filter(|line| !own.iter().any(|own| line.starts_with(own)));
        lines.map(|line| format!("{line}\n")).collect()
    }
}
