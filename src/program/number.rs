//! Numbers, sizes and times as options take them. Another text is refused with what is wanted: the text of an error is for
//! clap, which names option and value.

use std::fmt::Display;
use std::str::FromStr;

use base::units::{lacks_unit, parse_size, parse_time};

/// Reads a whole number from `least` to `most`.
pub fn number<N>(least: N, most: N) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static
where
    N: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    move |text| {
        let given = text.trim().parse().ok();
        let given = given.filter(|given| (least..=most).contains(given));
        given.ok_or_else(|| format!("give a whole number from {least} to {most}"))
    }
}

/// Reads a whole number from `least` on. No one needs the most that fits.
pub fn at_least<N>(least: N, most: N) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static
where
    N: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    let read = number(least, most);
    move |text| read(text).map_err(|_| format!("give a whole number from {least} on"))
}

/// Reads a size in bytes. A small number without a unit is refused.
pub fn size(text: &str) -> Result<u64, String> {
    let no_size = || "no size; give bytes or a unit, such as 24GiB".to_owned();
    lacks_unit(text).map_or_else(|| parse_size(text).ok_or_else(no_size), Err)
}

pub fn time_ns(text: &str) -> Result<u64, &'static str> {
    parse_time(text).ok_or("no time; give one with a unit, such as 500us, 20ms or 1s")
}
