//! Whether the live bytes of a device grow steadily, as with a leak.
//!
//! A job that repeats itself allocates and frees; how low its live bytes fall again and again is a *floor*. The events
//! of a device are divided into windows of equally many events, and each window has its floor. If the floors rise all
//! the time, live memory grows. There are at most `MOST` windows: then two become one.

const MOST: usize = 64;
/// With fewer windows nothing is said.
const LEAST: usize = 16;
/// The first windows are those of a job that begins: one in four.
const WARM_UP: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Window {
    floor: u64,
    /// The time of its last event.
    end_ns: u64,
    frees: u64,
}

const EMPTY: Window = Window {
    floor: u64::MAX,
    end_ns: 0,
    frees: 0,
};

#[derive(Clone, Debug)]
pub struct Floors {
    windows: Vec<Window>,
    current: Window,
    events: u64,
    /// Events of a whole window.
    width: u64,
}

/// Live bytes that came steadily.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    pub bytes: u64,
    /// When the first and the last of the compared windows ended.
    pub from_ns: u64,
    pub to_ns: u64,
}

impl Default for Floors {
    fn default() -> Self {
        Floors {
            windows: Vec::new(),
            current: EMPTY,
            events: 0,
            width: 4,
        }
    }
}

impl Floors {
    /// An allocation or a free was made, and `live` bytes are live now.
    pub fn note(&mut self, live: u64, time_ns: u64, is_free: bool) {
        let current = &mut self.current;
        current.floor = current.floor.min(live);
        current.end_ns = time_ns;
        current.frees += u64::from(is_free);
        self.events += 1;
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

    /// `None` if the live bytes do not grow steadily, or if the job does not repeat itself. A job that only allocates,
    /// as when it loads its data, does not repeat itself.
    pub fn growth(&self) -> Option<Growth> {
        if self.windows.len() < LEAST {
            return None;
        }
        let windows = &self.windows[self.windows.len() / WARM_UP..];
        let (first, last) = (windows.first()?, windows.last()?);
        let steps = windows.len() - 1;
        let count = |wanted: fn(u64, u64) -> bool| {
            let pairs = windows.windows(2);
            pairs.filter(|pair| wanted(pair[0].floor, pair[1].floor)).count()
        };
        let frees: u64 = windows.iter().map(|window| window.frees).sum();
        let repeats = frees * 4 >= windows.len() as u64 * self.width;
        let steady = count(|before, after| after > before) * 4 >= steps * 3
            && count(|before, after| after < before) * 20 <= steps;
        let bytes = last.floor.checked_sub(first.floor)?;
        (repeats && steady && bytes > 0).then_some(Growth {
            bytes,
            from_ns: first.end_ns,
            to_ns: last.end_ns,
        })
    }
}

fn joined(pair: &[Window]) -> Window {
    pair.iter().fold(EMPTY, |sum, window| Window {
        floor: sum.floor.min(window.floor),
        end_ns: window.end_ns,
        frees: sum.frees + window.frees,
    })
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
    fn a_leak_is_found_and_measured() {
        for steps in [100, 1000, 50_000] {
            let growth = after(steps, 20, |_| 5).growth().expect("growth");
            let all = steps * 5;
            assert!((all / 2..=all).contains(&growth.bytes), "{steps}: {growth:?}");
        }
    }

    #[test]
    fn what_is_no_leak_is_not_called_one() {
        assert_eq!(after(1000, 20, |_| 0).growth(), None, "a steady job");
        assert_eq!(after(1000, 0, |_| 5).growth(), None, "a job that loads its data");
        let grows_at_first = |step| if step < 100 { 50 } else { 0 };
        assert_eq!(after(1000, 20, grows_at_first).growth(), None);
        assert_eq!(after(3, 2, |_| 5).growth(), None, "too short");
    }
}
