//! The moments and groupings that the options of `inspect` name.

use std::str::FromStr;

use base::units::parse_time;

use crate::analysis::live_set::By;
use crate::number::at_least;
use crate::render::format::printable;

/// A moment as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum When {
    Time(u64),
    Peak,
    OutOfMemory,
    End,
    /// The last mark of this name.
    Mark(String),
}

const MOMENTS: &str = "give a time such as 90s, 1.5ms or 2min, or peak, oom, end, or mark:NAME";

impl FromStr for When {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<When, &'static str> {
        match (text, text.strip_prefix("mark:")) {
            ("peak", _) => Ok(When::Peak),
            ("oom", _) => Ok(When::OutOfMemory),
            ("end", _) => Ok(When::End),
            (_, Some(name)) if !name.is_empty() => Ok(When::Mark(name.to_owned())),
            _ => parse_time(text).map(When::Time).ok_or(MOMENTS),
        }
    }
}

impl When {
    pub fn words(&self) -> String {
        match self {
            When::Time(_) => "this time".into(),
            When::Peak => "the peak".into(),
            When::OutOfMemory => "the last failure for lack of memory".into(),
            When::End => "the end".into(),
            When::Mark(name) => format!("the mark {}", printable(name, 80)),
        }
    }
}

/// A value of `--top`: how many entries, or what to group by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Top {
    Entries(usize),
    By(By),
}

const WANTED: &str = "give a number of entries from 1 on, or stack, size, api, thread or stream";

impl FromStr for Top {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Top, &'static str> {
        if let Some(by) = By::parse(text) {
            return Ok(Top::By(by));
        }
        at_least(1, usize::MAX)(text).map(Top::Entries).map_err(|_| WANTED)
    }
}

/// A share, given as a percentage such as 5%.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Share, &'static str> {
        let number = text
            .strip_suffix('%')
            .and_then(|number| number.trim().parse::<f64>().ok());
        let percent = number.filter(|number| number.is_finite() && *number >= 0.0);
        percent
            .map(|percent| Share(percent / 100.0))
            .ok_or("give a percentage such as 5%")
    }
}
