//! Whole numbers as options take them. Another text is refused with what is wanted.

use std::fmt::Display;
use std::str::FromStr;

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
