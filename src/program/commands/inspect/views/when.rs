//! The moments and groupings that the options of `inspect` name.

use std::str::FromStr;

use base::units::parse_time;
use journal::format::MarkKind;
use journal::reader::Stacks;

use crate::analysis::holdings::At;
use crate::analysis::landmarks::Landmarks;
use crate::analysis::live_set::By;
use crate::number::at_least;
use crate::render::format::duration;

/// A moment as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    Start,
    Time(u64),
    Peak,
    OutOfMemory,
    End,
    /// The last mark of this name.
    Mark(String),
}

const ACCEPTED: &str = "a time such as 90s, 1.5ms or 2min, or start, peak, oom, end, or mark:NAME";

impl FromStr for When {
    type Err = String;

    fn from_str(text: &str) -> Result<When, String> {
        match text {
            "start" => return Ok(When::Start),
            "peak" => return Ok(When::Peak),
            "oom" => return Ok(When::OutOfMemory),
            "end" => return Ok(When::End),
            _ => {}
        }
        if let Some(name) = text.strip_prefix("mark:").filter(|name| !name.is_empty()) {
            return Ok(When::Mark(name.to_owned()));
        }
        parse_time(text)
            .map(When::Time)
            .ok_or_else(|| format!("give {ACCEPTED}"))
    }
}

impl When {
    /// What the moment is called.
    pub fn words(&self) -> String {
        match self {
            When::Start => "the start".into(),
            When::Time(_) => "this time".into(),
            When::Peak => "the peak".into(),
            When::OutOfMemory => "the last failure for lack of memory".into(),
            When::End => "the end".into(),
            When::Mark(name) => format!("the mark {}", crate::render::format::printable(name, 80)),
        }
    }

    /// When this was in a job that ended, or ran so far, at `ended_ns`. The error says why the job has no such moment.
    pub fn find(&self, landmarks: &Landmarks, stacks: Option<&Stacks>, ended_ns: u64) -> Result<At, String> {
        let after = |time_ns| At {
            time_ns,
            event: u64::MAX,
        };
        match self {
            // Before the first record.
            When::Start => Ok(At { time_ns: 0, event: 0 }),
            When::Time(time_ns) if *time_ns > ended_ns => Err(format!(
                "{} is after the end of the job, {}",
                duration(*time_ns),
                duration(ended_ns)
            )),
            When::Time(time_ns) => Ok(after(*time_ns)),
            When::End => Ok(after(u64::MAX)),
            When::Peak => landmarks
                .peak(None)
                .map(|peak| peak.at)
                .ok_or_else(|| "the job allocated nothing on a device".into()),
            When::OutOfMemory => landmarks
                .failure
                .map(|failure| failure.at)
                .ok_or_else(|| "no request failed for lack of memory".into()),
            When::Mark(name) => {
                let is_it = |text: u64| stacks.and_then(|stacks| stacks.text(text)) == Some(name);
                let mut marks = landmarks.marks.iter().rev();
                marks
                    .find(|mark| mark.kind != MarkKind::End && is_it(mark.text))
                    .map(|mark| mark.at)
                    .ok_or_else(|| no_mark(name, landmarks, stacks))
            }
        }
    }
}

/// Says that a mark is missing, and which marks there are.
fn no_mark(name: &str, landmarks: &Landmarks, stacks: Option<&Stacks>) -> String {
    let name = crate::render::format::printable(name, 80);
    if landmarks.marks.is_empty() {
        return format!("no mark {name}: the job set no marks (vramshim_mark or NVTX ranges)");
    }
    let mut known: Vec<&str> = (landmarks.marks.iter())
        .filter_map(|mark| stacks?.text(mark.text))
        .collect();
    known.sort_unstable();
    known.dedup();
    let more = known.len().saturating_sub(8);
    known.truncate(8);
    let known: Vec<String> = known
        .iter()
        .map(|name| crate::render::format::printable(name, 40))
        .collect();
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    format!("no mark {name}: there are {}{more}", known.join(", "))
}

/// Two moments, the first before the second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window(pub When, pub When);

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Window, String> {
        // The name of a mark may have dots.
        let cuts = text.match_indices("..").map(|(place, _)| place);
        let ends = |place: usize| Some(Window(text[..place].parse().ok()?, text[place + 2..].parse().ok()?));
        let mut windows = cuts.filter_map(ends);
        windows
            .next()
            .ok_or_else(|| format!("give two moments with .. between them, such as 10s..peak; a moment is {ACCEPTED}"))
    }
}

/// A value of `--top`: how many entries, or what to group by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Top {
    Entries(usize),
    By(By),
}

impl FromStr for Top {
    type Err = String;

    fn from_str(text: &str) -> Result<Top, String> {
        Ok(match text {
            "stack" => Top::By(By::Stack),
            "size" => Top::By(By::Size),
            "api" => Top::By(By::Api),
            "thread" => Top::By(By::Thread),
            "stream" => Top::By(By::Stream),
            number => {
                Top::Entries(at_least(1, usize::MAX)(number).map_err(|_| {
                    "give a number of entries from 1 on, or stack, size, api, thread or stream".to_owned()
                })?)
            }
        })
    }
}

/// A share, given as a percentage such as 5%.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        let number = text
            .strip_suffix('%')
            .and_then(|number| number.trim().parse::<f64>().ok());
        match number.filter(|number| number.is_finite() && *number >= 0.0) {
            Some(percent) => Ok(Share(percent / 100.0)),
            None => Err("give a percentage such as 5%".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_have_units_and_names() {
        let read = |text: &str| text.parse::<When>();
        assert_eq!(read("90s"), Ok(When::Time(90_000_000_000)));
        assert_eq!(read("1.5ms"), Ok(When::Time(1_500_000)));
        assert_eq!(read("2min"), Ok(When::Time(120_000_000_000)));
        assert_eq!(read("2m"), read("2min"));
        assert_eq!(read("mark:a..b"), Ok(When::Mark("a..b".into())));
        for wrong in ["", "5", "s", "..s", "mark:", "-1s", "1 day", "peaks", "1e400h"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let window = |text: &str| text.parse::<Window>();
        assert_eq!(window("start..end"), Ok(Window(When::Start, When::End)));
        assert_eq!(window("mark:a..b..oom").unwrap().1, When::OutOfMemory);
        assert!(window("10s").is_err() && window("10s...").is_err());
        assert!("5".parse::<Share>().is_err() && "-5%".parse::<Share>().is_err());
        assert_eq!("5%".parse(), Ok(Share(0.05)));
    }
}
