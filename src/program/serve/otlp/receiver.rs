//! Where the metrics are sent, and what is said of this machine: from the options, and from the variables of
//! OpenTelemetry's specification.

use std::fmt;
use std::str::FromStr;

use base::text::printable;
use hyper::Uri;
use hyper::header::{CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

/// Without an address anywhere: a collector on this machine.
const USUAL: &str = "http://localhost:4318";
const PATH: &str = "/v1/metrics";
/// What the request itself sets.
const OWN: [HeaderName; 6] = [
    CONNECTION,
    CONTENT_ENCODING,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    HOST,
    TRANSFER_ENCODING,
];

#[derive(Debug)]
pub struct Receiver {
    pub address: Uri,
    pub host: String,
    pub port: u16,
    pub headers: HeaderMap,
    /// Attributes of this machine.
    pub attributes: Vec<(String, String)>,
}

impl fmt::Display for Receiver {
    /// Without what follows the path, which may have a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.address.authority().map_or("", |authority| authority.as_str());
        write!(f, "http://{authority}{}", self.address.path())
    }
}

impl Receiver {
    /// `url` and `headers` are those of the options. `variable` gives the value of a variable.
    pub fn new(
        url: Option<&str>,
        headers: &[String],
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Receiver, String> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let (from, url) = match url {
            Some(url) => ("--otlp", url.to_owned()),
            None => match variable("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") {
                Some(url) => ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", url),
                None => {
                    // This one is for all signals, and gets the path of each.
                    let url = variable("OTEL_EXPORTER_OTLP_ENDPOINT").unwrap_or_else(|| USUAL.to_owned());
                    (
                        "OTEL_EXPORTER_OTLP_ENDPOINT",
                        format!("{}{PATH}", url.trim_end_matches('/')),
                    )
                }
            },
        };
        let (address, host, port) = address(&url).map_err(|why| format!("{from} {}: {why}", printable(&url, 200)))?;
        let mut receiver = Receiver {
            address,
            host,
            port,
            headers: HeaderMap::new(),
            attributes: Vec::new(),
        };
        for name in ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS"] {
            for pair in list(&variable(name).unwrap_or_default()) {
                let (header, value) = pair.map_err(|why| format!("{name}: {why}"))?;
                receiver
                    .header(&header, &value)
                    .map_err(|why| format!("{name}: {why}"))?;
            }
        }
        for text in headers {
            let pair = text.split_once('=').ok_or("give NAME=VALUE");
            pair.map_err(str::to_owned)
                .and_then(|(name, value)| receiver.header(name, value))
                .map_err(|why| format!("--otlp-header: {why}"))?;
        }
        let name = "OTEL_RESOURCE_ATTRIBUTES";
        for pair in list(&variable(name).unwrap_or_default()) {
            receiver.attributes.push(pair.map_err(|why| format!("{name}: {why}"))?);
        }
        if let Some(service) = variable("OTEL_SERVICE_NAME") {
            receiver.attributes.retain(|(name, _)| name != "service.name");
            receiver.attributes.push(("service.name".to_owned(), service));
        }
        Ok(receiver)
    }

    /// No message shows the value: it may be a password.
    fn header(&mut self, name: &str, value: &str) -> Result<(), String> {
        let shown = printable(name.trim(), 100);
        let name = HeaderName::from_str(name.trim()).map_err(|_| format!("\"{shown}\" is no name of a header"))?;
        if OWN.contains(&name) {
            return Err(format!("{shown}: serve sets this header itself"));
        }
        let mut value = HeaderValue::from_str(value.trim())
            .map_err(|_| format!("{shown}: the value has characters that no header can have"))?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        Ok(())
    }
}

/// The address with a path, its host and its port.
fn address(url: &str) -> Result<(Uri, String, u16), String> {
    let usual = "give http://HOST:PORT/PATH, such as http://localhost:4318/v1/metrics";
    let parsed = Uri::from_str(url).map_err(|_| usual.to_owned())?;
    match parsed.scheme_str() {
        Some("http") => {}
        Some("https") => {
            return Err(
                "https is not supported; give the http address of a collector on this machine, which sends the \
                        metrics on with TLS"
                    .to_owned(),
            );
        }
        _ => return Err(usual.to_owned()),
    }
    let authority = parsed.authority().ok_or(usual)?;
    if authority.as_str().contains('@') {
        return Err("give user and password as a header: --otlp-header 'Authorization=Basic ...'".to_owned());
    }
    let host = authority
        .host()
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    let port = match authority.as_str().rsplit_once(':') {
        Some((_, port)) if !port.ends_with(']') => port.parse().map_err(|_| usual.to_owned())?,
        _ => 80,
    };
    if host.is_empty() {
        return Err(usual.to_owned());
    }
    let with_path = match parsed.path_and_query().is_none_or(|path| path.as_str() == "/") {
        true => Uri::from_str(&format!("http://{authority}{PATH}")).map_err(|_| usual.to_owned())?,
        false => parsed,
    };
    Ok((with_path, host, port))
}

/// The pairs of `name=value,name=value`, whose names and values may be percent-encoded.
fn list(text: &str) -> impl Iterator<Item = Result<(String, String), String>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    parts.map(|part| {
        let decoded = |text: &str| Some(percent_decode_str(text.trim()).decode_utf8().ok()?.into_owned());
        let pair = part
            .split_once('=')
            .and_then(|(name, value)| Some((decoded(name)?, decoded(value)?)));
        let pair = pair.filter(|(name, _)| !name.is_empty());
        pair.ok_or_else(|| "give name=value,name=value; values may be percent-encoded".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(url: Option<&str>, headers: &[&str], variables: &[(&str, &str)]) -> Result<Receiver, String> {
        let headers: Vec<String> = headers.iter().map(|&header| header.to_owned()).collect();
        Receiver::new(url, &headers, |name| {
            let found = variables.iter().find(|(one, _)| *one == name);
            found.map(|&(_, value)| value.to_owned())
        })
    }

    #[test]
    fn the_option_comes_before_the_variables_and_each_address_has_a_path() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4318/otlp/");
        let metrics = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://metrics:1/here");
        for (url, variables, expected) in [
            (None, &[][..], "http://localhost:4318/v1/metrics"),
            (None, &[all][..], "http://all:4318/otlp/v1/metrics"),
            (None, &[all, metrics][..], "http://metrics:1/here"),
            (
                None,
                &[("OTEL_EXPORTER_OTLP_ENDPOINT", "")][..],
                "http://localhost:4318/v1/metrics",
            ),
            (
                Some("http://h:9090/api/v1/otlp/v1/metrics"),
                &[all][..],
                "http://h:9090/api/v1/otlp/v1/metrics",
            ),
            (Some("http://h:4318"), &[][..], "http://h:4318/v1/metrics"),
            (Some("http://[::1]:4318/"), &[][..], "http://[::1]:4318/v1/metrics"),
        ] {
            let receiver = with(url, &[], variables).unwrap();
            assert_eq!(receiver.address.to_string(), expected, "{url:?} {variables:?}");
        }
        let receiver = with(Some("http://[::1]"), &[], &[]).unwrap();
        assert_eq!((receiver.host.as_str(), receiver.port), ("::1", 80));
        let receiver = with(Some("http://h/v1/metrics?key=secret"), &[], &[]).unwrap();
        assert_eq!(receiver.to_string(), "http://h/v1/metrics");
    }

    #[test]
    fn a_wrong_address_is_refused_with_the_place_it_came_from() {
        for (url, expected) in [
            ("https://h:4318", "--otlp https://h:4318: https is not supported"),
            ("http://user:secret@h", "--otlp-header"),
            ("localhost:4318", "give http://HOST:PORT/PATH"),
            ("http://", "give http://HOST:PORT/PATH"),
            ("http://h:99999/", "give http://HOST:PORT/PATH"),
            ("http://h:/", "give http://HOST:PORT/PATH"),
            ("a b", "give http://HOST:PORT/PATH"),
            ("", "give http://HOST:PORT/PATH"),
        ] {
            let why = with(Some(url), &[], &[]).unwrap_err();
            assert!(why.contains(expected), "{url}: {why}");
        }
        let why = with(None, &[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://h")]).unwrap_err();
        assert!(why.starts_with("OTEL_EXPORTER_OTLP_ENDPOINT https://h"), "{why}");
    }

    #[test]
    fn headers_and_attributes_come_from_the_variables_too() {
        let variables = [
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "Authorization=Basic%20dTpw, x-scope = one",
            ),
            ("OTEL_EXPORTER_OTLP_METRICS_HEADERS", "x-scope=two"),
            ("OTEL_RESOURCE_ATTRIBUTES", "k8s.node.name=n1,service.name=a"),
            ("OTEL_SERVICE_NAME", "b"),
        ];
        let receiver = with(None, &["X-Own=a=b"], &variables).unwrap();
        for (name, value) in [("authorization", "Basic dTpw"), ("x-scope", "two"), ("x-own", "a=b")] {
            assert_eq!(receiver.headers[name], value);
        }
        assert!(!format!("{receiver:?}").contains("dTpw"));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            receiver.attributes,
            [pair("k8s.node.name", "n1"), pair("service.name", "b")]
        );
        for (headers, list, expected) in [
            (&["secret"][..], "", "--otlp-header: give NAME=VALUE"),
            (&["a b=secret"][..], "", "--otlp-header: \"a b\" is no name of a header"),
            (&["Content-Length=0"][..], "", "serve sets this header itself"),
            (&["a=secret\n"][..], "a", "OTEL_EXPORTER_OTLP_HEADERS: give name=value"),
            (&["a=se\ncret"][..], "", "--otlp-header: a: the value has characters"),
        ] {
            let why = with(None, headers, &[("OTEL_EXPORTER_OTLP_HEADERS", list)]).unwrap_err();
            assert!(why.contains(expected) && !why.contains("secret"), "{headers:?}: {why}");
        }
    }
}
