//! Posts one message to a receiver.

use std::io::{self, Write};
use std::time::Duration;

use base::text::printable;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::TcpStream;

use super::messages::{ExportMetricsServiceRequest, ExportMetricsServiceResponse, Status};
use super::receiver::Receiver;

/// How long a receiver may take, from the connection to the end of its answer.
const LONGEST: Duration = Duration::from_secs(10);
/// The most bytes of an answer that are read.
const ANSWER_BYTES: usize = 64 << 10;
/// The most characters of a receiver's text in a message.
const LONGEST_TEXT: usize = 200;

/// Why the metrics were not taken.
#[derive(Debug, PartialEq)]
pub struct Refused {
    pub why: String,
    /// How long the receiver asks to wait.
    pub wait: Option<Duration>,
}

impl From<String> for Refused {
    fn from(why: String) -> Refused {
        Refused { why, wait: None }
    }
}

/// Sends the message. Returns what the receiver has to say of a message that it took.
pub async fn post(receiver: &Receiver, message: &ExportMetricsServiceRequest) -> Result<Option<String>, Refused> {
    let body = packed(&message.encode_to_vec()).map_err(|error| error.to_string())?;
    let answered = tokio::time::timeout(LONGEST, exchange(receiver, body)).await;
    answered.unwrap_or_else(|_| Err(format!("no answer within {} s", LONGEST.as_secs()).into()))
}

/// The series of a node have much in common: a tenth of the bytes is left.
fn packed(bytes: &[u8]) -> io::Result<Bytes> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes)?;
    packed.finish().map(Bytes::from)
}

async fn exchange(receiver: &Receiver, body: Bytes) -> Result<Option<String>, Refused> {
    let socket = TcpStream::connect((receiver.host.as_str(), receiver.port)).await;
    let socket = socket.map_err(|error| format!("no connection: {error}"))?;
    let broken = |error: hyper::Error| Refused::from(format!("the connection broke: {error}"));
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.map_err(broken)?;
    let connection = tokio::spawn(connection);
    let response = sender.send_request(request(receiver, body)?).await.map_err(broken)?;
    let status = response.status();
    let wait = response.headers().get(RETRY_AFTER).and_then(seconds);
    let answer = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
    connection.abort();
    let answer = answer.map(|answer| answer.to_bytes()).unwrap_or_default();
    match status {
        // A receiver may take the message without a word.
        StatusCode::OK => Ok(partly(&answer)),
        StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(None),
        status => Err(Refused {
            why: refusal(status, &answer),
            wait,
        }),
    }
}

fn request(receiver: &Receiver, body: Bytes) -> Result<Request<Full<Bytes>>, String> {
    let path = receiver.address.path_and_query().map_or("/", |path| path.as_str());
    let authority = receiver.address.authority().map_or("", |authority| authority.as_str());
    let mut request = Request::post(path)
        .body(Full::new(body))
        .map_err(|error| error.to_string())?;
    let headers = request.headers_mut();
    headers.extend(receiver.headers.clone());
    headers.insert(
        HOST,
        HeaderValue::from_str(authority).map_err(|error| error.to_string())?,
    );
    headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(concat!(
        "vramshim/",
        env!("CARGO_PKG_VERSION")
    )));
    for (name, value) in [
        (CONTENT_TYPE, "application/x-protobuf"),
        (CONTENT_ENCODING, "gzip"),
        (CONNECTION, "close"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(request)
}

fn seconds(value: &HeaderValue) -> Option<Duration> {
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// What the receiver left out, or a warning.
fn partly(answer: &[u8]) -> Option<String> {
    let partly = ExportMetricsServiceResponse::decode(answer).ok()?.partial_success?;
    let said = printable(&partly.error_message, LONGEST_TEXT);
    match partly.rejected_data_points {
        0 if said.is_empty() => None,
        0 => Some(format!("it says: {said}")),
        _ => Some(format!("it leaves out some series: {said}")),
    }
}

/// The status, and the text of the answer: a message of OTLP, or plain text.
fn refusal(status: StatusCode, answer: &[u8]) -> String {
    let said = match (Status::decode(answer), std::str::from_utf8(answer)) {
        (Ok(status), _) if !status.message.is_empty() => status.message,
        (_, Ok(text)) => text.to_owned(),
        _ => String::new(),
    };
    let said = printable(said.trim(), LONGEST_TEXT);
    match said.is_empty() {
        true => format!("it answers {status}"),
        false => format!("it answers {status}: {said}"),
    }
}
