//! A metric as data: `metrics` makes them of a node, `open_metrics` writes them as text, and `otlp` sends them.

use super::process::Labels;

/// What a metric counts. Its name ends with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Bytes,
    Seconds,
    Ratio,
}

impl Unit {
    pub fn ending(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Seconds => "seconds",
            Unit::Ratio => "ratio",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Value {
        Value::Whole(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Value {
        Value::Real(value)
    }
}

/// One metric with all its series.
pub struct Metric {
    /// Without the endings of the unit and of a counter.
    pub name: String,
    pub help: String,
    pub unit: Option<Unit>,
    /// It only grows. Otherwise it is a gauge.
    pub is_counter: bool,
    pub series: Vec<(Labels, Value)>,
}

impl Metric {
    /// The name as it is served.
    pub fn full_name(&self) -> String {
        let unit = self.unit.map_or(String::new(), |unit| format!("_{}", unit.ending()));
        format!("{}{unit}{}", self.name, if self.is_counter { "_total" } else { "" })
    }
}
