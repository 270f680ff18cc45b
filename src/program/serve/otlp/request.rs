//! The metrics of a node as a message of OTLP.
//!
//! Names and values are those of `/metrics`, so that a query does not depend on the way that the figures took. No counter says
//! when it began: that of a process may have begun before `serve`.

use base::identity::host_name;

use super::messages::*;
use crate::serve::metrics::each;
use crate::serve::node::{Node, now_ns};
use crate::serve::process::Labels;
use crate::serve::series::{self, Unit, Value};

/// The name of this program among the services.
const SERVICE: &str = "vramshim";
/// The label with the name of a job. Prometheus gives its own label `job` the name of the service, and renames that of a
/// series to this if it scrapes.
const JOB: (&str, &str) = ("job", "exported_job");

/// `more` are attributes of this machine, which replace those that are known here.
pub fn request(node: &Node, more: &[(String, String)]) -> ExportMetricsServiceRequest {
    let now = now_ns();
    let mut metrics = Vec::new();
    each(node, &mut |metric| {
        // A metric without series says nothing, so it is left out.
        if !metric.series.is_empty() {
            metrics.push(of(metric, now));
        }
    });
    let scope = InstrumentationScope {
        name: SERVICE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource {
                attributes: resource(more),
            }),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope),
                metrics,
            }],
        }],
    }
}

fn resource(more: &[(String, String)]) -> Vec<KeyValue> {
    let host = host_name();
    let known = [
        ("service.name", SERVICE),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", &host),
        ("host.name", &host),
    ];
    let is_replaced = |name: &str| more.iter().any(|(other, _)| other == name);
    let known = known.into_iter().filter(|(name, _)| !is_replaced(name));
    let more = more.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    known.chain(more).map(|(name, value)| attribute(name, value)).collect()
}

fn attribute(name: &str, value: &str) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue {
            string_value: Some(value.to_owned()),
        }),
    }
}

fn of(metric: series::Metric, now: u64) -> Metric {
    let data_points = metric.series.iter().map(|(labels, value)| point(labels, *value, now));
    let data_points = data_points.collect();
    Metric {
        name: metric.full_name(),
        // Codes of the UCUM, which OTLP asks for.
        unit: match metric.unit {
            Some(Unit::Bytes) => "By",
            Some(Unit::Seconds) => "s",
            Some(Unit::Ratio) => "1",
            None => "",
        }
        .to_owned(),
        data: Some(match metric.is_counter {
            true => Data::Sum(Sum {
                data_points,
                aggregation_temporality: CUMULATIVE,
                is_monotonic: true,
            }),
            false => Data::Gauge(Gauge { data_points }),
        }),
        description: metric.help,
    }
}

fn point(labels: &Labels, value: Value, now: u64) -> NumberDataPoint {
    let name = |name| if name == JOB.0 { JOB.1 } else { name };
    NumberDataPoint {
        time_unix_nano: now,
        value: Some(match value {
            Value::Whole(value) => Number::Whole(i64::try_from(value).unwrap_or(i64::MAX)),
            Value::Real(value) => Number::Real(value),
        }),
        attributes: (labels.iter().map(|(label, value)| attribute(name(label), value))).collect(),
    }
}
