//! Whether the live bytes of a device grow steadily, as with a leak.
//!
//! A job that repeats itself allocates and frees; how low its live bytes fall again and again is a *floor*. The events
//! of a device are divided into windows of equally many events, and each window has its floor. If the floors rise all
//! the time, live memory grows. There are at most `MOST` windows: then two become one. A leak may begin late: then the
//! floors of the last half rise. Frees count when a request follows them: those at the end of a job are its clean-up.

const MOST: usize = 64;
/// With fewer windows nothing is said.
const LEAST: usize = 16;
/// The first windows are those of a job that begins: one in four.
const WARM_UP: usize = 4;
/// Fewer windows that rise until the end tell nothing, nor does less than half of all of them: in the second step of a
/// training, the first half may be a third of the windows, and its live bytes rise.
const LEAST_RISING: usize = 8;
/// Of the calls of a job that repeats itself at least one in so many is a free. A job that only allocates, as when it loads
/// its data, does not repeat itself.
pub const CALLS_OF_A_FREE: u64 = 4;

#[derive(Clone, Copy, Debug)]
struct Window {
    floor: u64,
    floor_ns: u64,
    end_ns: u64,
    frees: u64,
}

const EMPTY: Window = Window {
    floor: u64::MAX,
    floor_ns: 0,
    end_ns: 0,
    frees: 0,
};

#[derive(Clone, Debug)]
pub struct Floors {
    windows: Vec<Window>,
    current: Window,
    /// Frees since the last allocation: the live bytes and the time of the last, and their number.
    freed: Option<(u64, u64, u64)>,
    events: u64,
    /// Events of a whole window.
    width: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Growth {
    pub bytes: u64,
    /// When the first and the last of the compared windows ended.
    pub from_ns: u64,
    pub to_ns: u64,
}

impl Growth {
    pub fn a_second(&self) -> u64 {
        let ns = self.to_ns.saturating_sub(self.from_ns).max(1);
        (self.bytes as f64 / (ns as f64 / 1e9)) as u64
    }
}

impl Default for Floors {
    fn default() -> Self {
        Floors {
            windows: Vec::new(),
            current: EMPTY,
            freed: None,
            events: 0,
            width: 4,
        }
    }
}

impl Floors {
    /// An allocation or a free was made, and `live` bytes are live now.
    pub fn note(&mut self, live: u64, time_ns: u64, is_free: bool) {
        if is_free {
            self.freed = Some((live, time_ns, self.freed.map_or(1, |(.., frees)| frees + 1)));
            return;
        }
        self.settle();
        self.add(live, time_ns, 1, 0);
    }

    /// A request follows the frees so far, so they are not those of the job's end.
    pub fn settle(&mut self) {
        if let Some((live, time_ns, frees)) = self.freed.take() {
            self.add(live, time_ns, frees, frees);
        }
    }

    fn add(&mut self, live: u64, time_ns: u64, events: u64, frees: u64) {
        let current = &mut self.current;
        if live < current.floor {
            (current.floor, current.floor_ns) = (live, time_ns);
        }
        current.end_ns = time_ns;
        current.frees += frees;
        self.events += events;
        if self.events < self.width {
            return;
        }
        self.windows.push(std::mem::replace(&mut self.current, EMPTY));
        self.events = 0;
        if self.windows.len() == MOST {
            self.windows = self.windows.chunks(2).map(joined).collect();
            self.width *= 2;
        }
    }

    /// When each window had its floor, in nanoseconds. A job that repeats itself has its steps between them.
    pub fn valleys(&self) -> impl Iterator<Item = u64> {
        self.windows.iter().map(|window| window.floor_ns)
    }

    /// `None` if the live bytes do not grow steadily until now, or if the job does not repeat itself.
    pub fn growth(&self) -> Option<Growth> {
        if self.windows.len() < LEAST {
            return None;
        }
        let begun = self.windows.len() / WARM_UP;
        let repeating = |rise: &Rise| rise.frees * CALLS_OF_A_FREE >= rise.steps * self.width;
        let rises = self.rises().filter(|rise| rise.from >= begun && repeating(rise));
        // All that a snapshot shows has one time, so windows of one time are one.
        let apart = |rise: &Rise| {
            self.windows[rise.from..]
                .chunk_by(|one, next| one.end_ns == next.end_ns)
                .count()
        };
        let rises = rises.filter(|rise| apart(rise) >= LEAST_RISING);
        let still = matches!(self.windows[..], [.., before, last] if last.floor > before.floor);
        let found = rises.last().filter(|_| still).map(|rise| rise.growth(self));
        // A step of the job may be longer than a window, and floors rise and fall within it.
        found.or_else(|| self.of_pairs().growth())
    }

    /// The same with windows of twice the width.
    fn of_pairs(&self) -> Floors {
        let odd = self.windows.len() % 2;
        Floors {
            windows: self.windows[odd..].chunks(2).map(joined).collect(),
            width: self.width * 2,
            ..Floors::default()
        }
    }

    /// The windows from which on the floors rise steadily until now, the last of them first.
    fn rises(&self) -> impl Iterator<Item = Rise> {
        let last = self.windows.last().copied().unwrap_or(EMPTY);
        let (mut rising, mut falling, mut frees) = (0, 0, last.frees);
        let pairs = self.windows.windows(2).enumerate().rev();
        pairs.filter_map(move |(from, pair)| {
            let (before, after) = (pair[0].floor, pair[1].floor);
            rising += u64::from(after > before);
            falling += u64::from(after < before);
            frees += pair[0].frees;
            let steps = (self.windows.len() - 1 - from) as u64;
            let steady = rising * 4 >= steps * 3 && falling * 20 <= steps;
            let least = LEAST_RISING.max(self.windows.len() / 2);
            let rises = steps as usize + 1 >= least && last.floor > before;
            (steady && rises).then_some(Rise { from, steps, frees })
        })
    }
}

/// Windows whose floors rise until the last.
struct Rise {
    /// The number of the first.
    from: usize,
    /// How many windows follow it.
    steps: u64,
    frees: u64,
}

impl Rise {
    fn growth(&self, of: &Floors) -> Growth {
        let (first, last) = (of.windows[self.from], of.windows[of.windows.len() - 1]);
        Growth {
            bytes: last.floor.saturating_sub(first.floor),
            from_ns: first.end_ns,
            to_ns: last.end_ns,
        }
    }
}

fn joined(pair: &[Window]) -> Window {
    let lowest = pair.iter().min_by_key(|window| window.floor).unwrap_or(&EMPTY);
    Window {
        end_ns: pair.iter().map(|window| window.end_ns).max().unwrap_or(0),
        frees: pair.iter().map(|window| window.frees).sum(),
        ..*lowest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of a job: each allocates `temporary` blocks of 10 bytes and frees them, and keeps `kept` bytes.
    fn after(steps: u64, temporary: u64, kept: impl Fn(u64) -> u64) -> Floors {
        let (mut floors, mut live, mut now) = (Floors::default(), 1000, 0);
        for step in 0..steps {
            for is_free in [false, true] {
                for _ in 0..temporary {
                    live = if is_free { live - 10 } else { live + 10 };
                    now += 1;
                    floors.note(live, now, is_free);
                }
            }
            live += kept(step);
            now += 1;
            floors.note(live, now, false);
        }
        floors
    }

    #[test]
    fn a_leak_that_begins_late_is_found() {
        let late = |step| if step < 400 { 0 } else { 5 };
        let growth = after(1000, 20, late).growth().expect("growth");
        assert!((2200..=3000).contains(&growth.bytes), "{growth:?}");
        let ended = |step| if (400..800).contains(&step) { 5 } else { 0 };
        assert_eq!(after(1000, 20, ended).growth(), None, "it is over");
        // With few steps a window is shorter than a step.
        let growth = after(40, 100, |_| 5).growth().expect("growth");
        assert!((80..=200).contains(&growth.bytes), "{growth:?}");
        assert_eq!(after(40, 100, |_| 0).growth(), None);
    }

    /// The second step of a training: its first half, in which more is allocated than freed, fails.
    #[test]
    fn half_of_a_second_step_is_no_leak() {
        let (mut floors, mut live, mut now) = (Floors::default(), 1000, 0);
        let halves = [[10, 10, 0], [0, 0, 30], [10, 10, 0]];
        for (half, layer) in halves.into_iter().flat_map(|half| [half; 200]).enumerate() {
            for bytes in layer {
                now += 1;
                live += bytes;
                floors.note(live, now, false);
            }
            now += 1;
            let frees = if half / 200 == 1 { 50 } else { 2 };
            live -= frees;
            floors.note(live, now, true);
        }
        assert_eq!(floors.growth(), None);
    }

    #[test]
    fn what_is_no_leak_is_not_called_one() {
        assert_eq!(after(1000, 20, |_| 0).growth(), None, "a steady job");
        let grows_at_first = |step| if step < 100 { 50 } else { 0 };
        assert_eq!(after(1000, 20, grows_at_first).growth(), None);
        assert_eq!(after(3, 2, |_| 5).growth(), None, "too short");
        let mut burst = Floors::default();
        for event in 0..1000 {
            burst.note(event * 10, 7, false);
            burst.note(event * 10 + 5, 7, true);
        }
        assert_eq!(burst.growth(), None, "one moment, as a snapshot shows it");
    }
}
