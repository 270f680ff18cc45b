//! An adversary: searches sequences of requests for those that `auto_growth` serves worst, by hill climbing over the model
//! device of `vramshim replay`. `scripts/torture --adversary` runs it, and prints each sequence that it found.

use std::collections::VecDeque;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use policy::Settings;
use prices::Prices;
use program::replay::allocator;
use program::replay::device::{Doing, ModelDevice};
use program::replay::requests::{Allocator, TorchSettings, Way};
use support::random::Random;

const MIB: u64 = 1 << 20;
const DEVICE: u64 = 24 << 30;
/// Sequences hold at most this much, so that one large request could be served.
const MOST_LIVE: u64 = DEVICE / 4 * 3;
const MOST_REQUESTS: usize = 4000;
/// The time between two requests of the job, and how far the GPU is behind.
const STEP_NS: u64 = 20_000;
const LAG_NS: u64 = 1_000_000;
/// Changes in succession that find nothing worse, before the search begins anew.
const PATIENCE: u32 = 80;

/// A part of a sequence: so many `rounds`, each with a block that is freed and one that stays.
#[derive(Clone, Copy, Debug)]
struct Part {
    rounds: u64,
    /// In KiB; 0: none.
    freed_kib: u64,
    stays_kib: u64,
    /// By how many percent the sizes of the rounds differ.
    spread: u64,
    stream: u64,
    /// The block is freed in its round, not after the part.
    at_once: bool,
    /// After the part, every so many blocks that stayed are freed; 0: none.
    then_frees: u64,
}

impl Part {
    fn draw(random: &mut Random) -> Part {
        let mut below = |end: usize| random.below(end) as u64;
        let mut kib = || below(2) << below(20) | below(64);
        let (freed_kib, stays_kib) = (kib(), kib());
        Part {
            rounds: 1 + below(400),
            freed_kib,
            stays_kib,
            spread: below(3) * 5,
            stream: below(2),
            at_once: below(2) == 0,
            then_frees: below(4),
        }
    }

    fn change(&mut self, random: &mut Random) {
        let other = Part::draw(random);
        let moved = |number: u64, random: &mut Random| match random.below(4) {
            0 => number * 2,
            1 => number / 2,
            2 => number + 1 + number / 8,
            _ => number - number / 8,
        };
        match random.below(9) {
            0 => self.rounds = moved(self.rounds, random).clamp(1, 2000),
            1 => self.freed_kib = moved(self.freed_kib, random),
            2 => self.stays_kib = moved(self.stays_kib, random),
            3 => self.freed_kib = other.freed_kib,
            4 => self.stays_kib = other.stays_kib,
            5 => self.spread = other.spread,
            6 => self.stream = other.stream,
            7 => self.at_once = other.at_once,
            _ => self.then_frees = other.then_frees,
        }
    }
}

/// A sequence while it is played.
struct Played<'a> {
    device: &'a ModelDevice,
    allocator: Box<dyn Allocator + 'a>,
    requests: usize,
    live: u64,
    stays: VecDeque<(u64, u64, u64)>,
    longest_ns: u64,
}

impl Played<'_> {
    fn comes(&mut self, doing: Doing) -> bool {
        self.requests += 1;
        self.device.requested(doing, self.requests as u64 * STEP_NS);
        self.requests < MOST_REQUESTS
    }

    /// The handle, the bytes and the stream. `None` if the sequence asks for no more, or the request is refused.
    fn take(&mut self, bytes: u64, stream: u64) -> Option<(u64, u64, u64)> {
        if bytes == 0 || self.live + bytes > MOST_LIVE || !self.comes(Doing::Allocates) {
            return None;
        }
        let before = self.device.bill().total_ns();
        let handle = self.allocator.allocate(bytes, Way::Tensor(Some(stream))).ok()?;
        self.longest_ns = self.longest_ns.max(self.device.bill().total_ns() - before);
        self.live += bytes;
        Some((handle, bytes, stream))
    }

    fn free(&mut self, (handle, bytes, stream): (u64, u64, u64)) {
        self.comes(Doing::Frees);
        self.allocator.free(handle, Way::Tensor(Some(stream)).used_alone());
        self.live -= bytes;
    }

    fn part(&mut self, part: &Part) {
        let mut later = Vec::new();
        for round in 0..part.rounds {
            let sized = |kib: u64| (kib << 10) + (kib << 10) * part.spread * (round * 7 % 16) / 1600;
            let freed = self.take(sized(part.freed_kib), part.stream);
            let stays = self.take(sized(part.stays_kib), part.stream);
            self.stays.extend(stays);
            match freed {
                Some(block) if part.at_once => self.free(block),
                freed => later.extend(freed),
            }
        }
        later.into_iter().for_each(|block| self.free(block));
        if part.then_frees > 0 {
            for (number, block) in (0..).zip(std::mem::take(&mut self.stays)) {
                if number % part.then_frees == 0 {
                    self.free(block);
                } else {
                    self.stays.push_back(block);
                }
            }
        }
    }
}

fn played<T>(name: &str, parts: &[Part], look: impl FnOnce(&mut Played) -> T) -> T {
    static PRICES: LazyLock<Prices> =
        LazyLock::new(|| Prices::parse(include_str!("../gpu/h200.toml")).expect("prices"));
    let device = ModelDevice::new(DEVICE, *PRICES, LAG_NS);
    let torch = TorchSettings::default();
    let mut played = Played {
        device: &device,
        allocator: allocator(name, &device, &Settings::default(), &torch).expect("a strategy"),
        requests: 0,
        live: 0,
        stays: VecDeque::new(),
        longest_ns: 0,
    };
    parts.iter().for_each(|part| played.part(part));
    look(&mut played)
}

/// The largest share of the free memory that one request gets after the sequence, exact to 1%.
fn share(name: &str, parts: &[Part]) -> f64 {
    let (mut least, mut most) = (0, 101);
    while most - least > 1 {
        let percent = (least + most) / 2;
        let is_served = played(name, parts, |played| {
            let bytes = (DEVICE - played.live) / 100 * percent;
            played.comes(Doing::Allocates);
            played.allocator.allocate(bytes, Way::Tensor(Some(0))).is_ok()
        });
        if is_served { least = percent } else { most = percent }
    }
    least as f64 / 100.0
}

fn time_ns(name: &str, parts: &[Part]) -> u64 {
    played(name, parts, |played| played.device.bill().total_ns())
}

fn longest_ns(name: &str, parts: &[Part]) -> u64 {
    played(name, parts, |played| played.longest_ns)
}

/// The larger the figure of a sequence, the worse is `auto_growth`.
type Goal = fn(&[Part]) -> f64;

const GOALS: [(&str, Goal); 3] = [
    ("percent of the free memory that one request cannot have", |parts| {
        100.0 - 100.0 * share("auto_growth", parts)
    }),
    ("times the driver time of PyTorch's cache", |parts| {
        // The first calls of each are no difference.
        const FIRST_NS: u64 = 1_000_000;
        let [ours, torch] = ["auto_growth", "torch"].map(|name| time_ns(name, parts) + FIRST_NS);
        ours as f64 / torch as f64
    }),
    ("ms in the longest request", |parts| {
        longest_ns("auto_growth", parts) as f64 / 1e6
    }),
];

/// Climbs until `goes_on` says no. The worst sequence and its figure.
fn climb(goal: Goal, seed: u64, mut goes_on: impl FnMut() -> bool) -> (Vec<Part>, f64) {
    let mut random = Random::new(seed);
    let mut worst = (Vec::new(), 0.0);
    while goes_on() {
        let mut parts: Vec<Part> = (0..=random.below(3)).map(|_| Part::draw(&mut random)).collect();
        let (mut figure, mut left) = (goal(&parts), PATIENCE);
        while left > 0 && goes_on() {
            let mut other = parts.clone();
            let at = random.below(other.len());
            match random.below(12) {
                0 if other.len() < 6 => other.insert(at, Part::draw(&mut random)),
                1 if other.len() > 1 => drop(other.remove(at)),
                _ => other[at].change(&mut random),
            }
            let found = goal(&other);
            left = if found > figure { PATIENCE } else { left - 1 };
            if found >= figure {
                (parts, figure) = (other, found);
            }
        }
        if figure > worst.1 {
            worst = (parts, figure);
        }
    }
    worst
}

/// The driver itself gives all that is free, and a search finds no better sequence than it began with.
#[test]
fn the_adversary_measures_what_a_request_can_have() {
    let parts = [Part {
        rounds: 100,
        freed_kib: 60 << 10,
        stays_kib: 2 << 10,
        spread: 0,
        stream: 0,
        at_once: false,
        then_frees: 0,
    }];
    assert!(share("passthrough", &parts) >= 0.99);
    let live = played("torch", &parts, |played| played.live);
    assert_eq!(live, 200 * MIB);
    for (_, goal) in GOALS {
        let found = |looks: i32| {
            let mut looks = 0..looks;
            climb(goal, 7, || looks.next().is_some()).1
        };
        let (few, many) = (found(12), found(60));
        assert!(many >= few && many > 0.0, "{few} {many}");
    }
}

/// Blocks that stay keep little from a large request: so many rounds with a block that is freed, and one that stays.
#[test]
fn what_stays_of_a_mixture_pins_little() {
    for (rounds, freed_mib, stays_mib) in [
        (300, 60, 2),
        (600, 30, 2),
        (200, 60, 15),
        (600, 20, 5),
        (80, 200, 20),
        (250, 60, 17),
    ] {
        let parts = [Part {
            rounds,
            freed_kib: freed_mib << 10,
            stays_kib: stays_mib << 10,
            spread: 0,
            stream: 0,
            at_once: false,
            then_frees: 0,
        }];
        let share = share("auto_growth", &parts);
        assert!(share >= 0.95, "{rounds} x ({freed_mib}, {stays_mib}) MiB: {share}");
    }
}

#[test]
#[ignore = "minutes: scripts/torture --adversary"]
fn adversary() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seconds = number("VRAMSHIM_TEST_TORTURE").unwrap_or(60);
    let seed = number("VRAMSHIM_TEST_SEED").unwrap_or(1);
    for (what, goal) in GOALS {
        let end = Instant::now() + Duration::from_secs(seconds) / GOALS.len() as u32;
        let (parts, figure) = climb(goal, seed, || Instant::now() < end);
        println!("\n{figure:.1} {what}, on a device of {} MiB:", DEVICE / MIB);
        parts.iter().for_each(|part| println!("    {part:?}"));
        for name in ["auto_growth", "torch", "torch_expandable", "passthrough"] {
            println!(
                "    {name:17} one request gets {:3.0}% of what is free, driver time {:.1} ms, longest request {:.1} ms",
                100.0 * share(name, &parts),
                time_ns(name, &parts) as f64 / 1e6,
                longest_ns(name, &parts) as f64 / 1e6
            );
        }
    }
}
