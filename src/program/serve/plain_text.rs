//! OpenMetrics text as the older text format of Prometheus (version 0.0.4), which node_exporter's textfile collector and
//! `promtool check metrics` read. The older format has no units, no end mark, and names a counter with its `_total`.

use std::fmt::Write;

pub fn from_open_metrics(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("# UNIT ") || line == "# EOF" {
            continue;
        }
        // The line of the type follows that of the help text.
        let counter = |line: &str| {
            let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
            (kind == "counter").then(|| name.to_owned())
        };
        if let Some(rest) = line.strip_prefix("# HELP ")
            && let Some((name, help)) = rest.split_once(' ')
            && lines.peek().and_then(|next| counter(next)).as_deref() == Some(name)
        {
            let _ = writeln!(plain, "# HELP {name}_total {help}");
        } else if let Some(name) = counter(line) {
            let _ = writeln!(plain, "# TYPE {name}_total counter");
        } else {
            let _ = writeln!(plain, "{line}");
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_named_with_their_ending() {
        let open = "# HELP a_bytes Some text.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total{x=\"# EOF\"} 1\n\
                    # HELP b Other.\n# TYPE b gauge\nb 2\n# EOF\n";
        let plain = "# HELP a_bytes_total Some text.\n# TYPE a_bytes_total counter\na_bytes_total{x=\"# EOF\"} 1\n\
                     # HELP b Other.\n# TYPE b gauge\nb 2\n";
        assert_eq!(from_open_metrics(open), plain);
    }
}
