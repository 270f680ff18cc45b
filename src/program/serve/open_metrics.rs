//! The metrics of a node as OpenMetrics text.

use std::fmt;
use std::sync::{Arc, Mutex};

use base::sync::lock;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::metrics::each;
use super::node::Node;
use super::series::{Metric, Value};

pub fn text(node: &Arc<Mutex<Node>>) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Metrics(node.clone())));
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

struct Metrics(Arc<Mutex<Node>>);

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let mut result = Ok(());
        each(&lock(&self.0), &mut |metric| {
            result = result.and_then(|()| write(&mut encoder, &metric));
        });
        result
    }
}

/// The encoder gives the name the endings of the unit and of a counter.
fn write(encoder: &mut DescriptorEncoder, metric: &Metric) -> fmt::Result {
    let unit = metric.unit.map(|unit| Unit::Other(unit.ending().to_owned()));
    let kind = match metric.is_counter {
        true => MetricType::Counter,
        false => MetricType::Gauge,
    };
    let mut written = encoder.encode_descriptor(&metric.name, &metric.help, unit.as_ref(), kind)?;
    for (labels, value) in &metric.series {
        // A family without labels would have empty braces.
        match labels.is_empty() {
            true => sample(&mut written, metric.is_counter, *value)?,
            false => sample(&mut written.encode_family(labels)?, metric.is_counter, *value)?,
        }
    }
    Ok(())
}

fn sample(series: &mut MetricEncoder, is_counter: bool, value: Value) -> fmt::Result {
    match (is_counter, value) {
        (true, Value::Whole(value)) => series.encode_counter::<NoLabelSet, _, u64>(&value, None),
        (true, Value::Real(value)) => series.encode_counter::<NoLabelSet, _, u64>(&value, None),
        (false, Value::Whole(value)) => series.encode_gauge(&value),
        (false, Value::Real(value)) => series.encode_gauge(&value),
    }
}
