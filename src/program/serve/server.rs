//! Answers HTTP requests for the metrics and for pages.
//!
//! hyper parses the requests: it is the parser that most Rust servers use, and its limits can be set. tiny_http has had no
//! release since 2022 and does not time out slow clients. One thread serves all connections, and others read journals. What a
//! client can take is bounded: connections at a time, bytes and number of headers, seconds. Each connection has one request.
//! The path of a request is compared with the paths that there are, and never reaches the file system.

use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::sync::lock;
use base::text::printable;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, AGE, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderValue,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::address::{Address, Listener};
use super::end::End;
use super::found::{Found, found};
use super::frame;
use super::jobs;
use super::node::Node;
use super::open_metrics;
use super::places::{Asked, Places};
use super::plain_text::from_open_metrics;
use super::ranks;
use super::reports::{Kind, Made, Reports};
use super::token::TokenFile;
use crate::report;

/// The most connections at a time. With more, the oldest that has sent no request is closed, or else they wait.
const CONNECTIONS: usize = 32;
/// How long a client may take to send its request.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// How long a connection may last. A page is waited for twice as long as `reports` says, and then it is sent.
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// The most bytes that are read of a request at once, its headers included.
const REQUEST_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;
/// Requests within this time get the same figures, so that many clients cost no more than one.
const FRESH: Duration = Duration::from_millis(500);
/// The most threads that read journals. One of them may make a page.
const THREADS: usize = 8;
/// After an error of `accept`, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether there are pages about processes besides the metrics. They have command lines and stacks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    None,
    /// For whoever may ask.
    All,
    /// Only if the request names this machine by its address or as localhost. Else a page of another site could read these:
    /// its name would lead to this machine by then.
    OfThisHost,
}

/// What the connections share.
pub struct Server {
    pub node: Arc<Mutex<Node>>,
    pub token: Option<TokenFile>,
    pages: Pages,
    reports: Arc<Reports>,
    latest: Mutex<Option<(Instant, Bytes)>>,
}

type Answer = Response<Full<Bytes>>;

impl Server {
    pub fn new(node: Node, token: Option<TokenFile>, pages: Pages) -> Server {
        Server {
            node: Arc::new(Mutex::new(node)),
            token,
            pages,
            reports: Arc::default(),
            latest: Mutex::default(),
        }
    }

    fn metrics(&self) -> Bytes {
        let mut latest = lock(&self.latest);
        if let Some((at, text)) = &*latest
            && at.elapsed() < FRESH
        {
            return text.clone();
        }
        lock(&self.node).collect();
        let text = Bytes::from(open_metrics::text(&self.node));
        *latest = Some((Instant::now(), text.clone()));
        text
    }

    /// Looks in the folders. Reads files.
    fn list(&self, asked: PageOf) -> Listed {
        self.metrics();
        let (found, problems) = {
            let node = lock(&self.node);
            (found(&node), node.problems())
        };
        match asked {
            PageOf::Jobs => Listed::Page(jobs::list(found, &problems)),
            PageOf::Job(name) => {
                ranks::ranks(found, &name).map_or(Listed::Nothing("no such job; all are at /\n"), Listed::Page)
            }
            PageOf::Process(name, kind) => match found.into_iter().find(|found| found.name == name) {
                Some(found) => Listed::Process(found, kind),
                None => Listed::Nothing("no such process; all are at /\n"),
            },
        }
    }

    async fn answer(self: Arc<Server>, request: Request<Incoming>) -> Answer {
        let header = |name| request.headers().get(name).map(HeaderValue::as_bytes);
        if let Some(token) = &self.token
            && !token.allows(header(AUTHORIZATION))
        {
            let mut refused = plain(StatusCode::UNAUTHORIZED, "a token is needed\n");
            // A browser asks for the password, and shows it to no other server.
            for scheme in ["Bearer", "Basic realm=\"vramshim\", charset=\"UTF-8\""] {
                let scheme = HeaderValue::from_static(scheme);
                refused.headers_mut().append(WWW_AUTHENTICATE, scheme);
            }
            return refused;
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD alone\n");
            refused
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        let path = request.uri().path();
        if path == "/metrics" {
            let accepted = String::from_utf8_lossy(header(ACCEPT).unwrap_or_default()).to_ascii_lowercase();
            let is_plain = accepted.contains("text/plain") && !accepted.contains("application/openmetrics-text");
            return off_thread(move || match (self.metrics(), is_plain) {
                (text, false) => respond(StatusCode::OK, OPEN_METRICS, text),
                (text, true) => {
                    let text = from_open_metrics(&String::from_utf8_lossy(&text));
                    respond(StatusCode::OK, PLAIN, text.into())
                }
            })
            .await;
        }
        match self.pages {
            Pages::None if path == "/" => {
                let text = "vramshim serve: the metrics are at /metrics. Pages about processes need --token-file, a Unix \
                            socket, or --pages\n";
                plain(StatusCode::OK, text)
            }
            Pages::None => plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"),
            Pages::OfThisHost if !names_this_host(header(HOST)) => plain(
                StatusCode::MISDIRECTED_REQUEST,
                "name this machine by its address or as localhost\n",
            ),
            _ => self.clone().page(path).await,
        }
    }

    /// The page at a path: a list, or a page about one process.
    async fn page(self: Arc<Server>, path: &str) -> Answer {
        let Some(asked) = PageOf::of(path) else {
            return plain(StatusCode::NOT_FOUND, "no such page; the processes are at /\n");
        };
        let server = self.clone();
        let list = tokio::task::spawn_blocking(move || server.list(asked));
        let (found, kind) = match list.await {
            Ok(Listed::Page(page)) => {
                let policy = format!(
                    "default-src 'none'; style-src '{}'; img-src data:; base-uri 'none'; form-action 'none'",
                    report::digest(frame::STYLE)
                );
                return html(page.into(), &policy);
            }
            Ok(Listed::Process(found, kind)) => (found, kind),
            Ok(Listed::Nothing(why)) => return plain(StatusCode::NOT_FOUND, why),
            Err(_) => return plain(StatusCode::INTERNAL_SERVER_ERROR, "the page could not be made\n"),
        };
        match self.reports.clone().page(found.path, kind).await {
            Made::Page(page) => {
                let mut answer = html(page.body.clone(), &report::policy());
                let headers = answer.headers_mut();
                headers.insert(AGE, page.age().as_secs().into());
                headers.insert("x-vramshim-made", page.made_ms.into());
                answer
            }
            Made::Busy => {
                let mut busy = plain(StatusCode::SERVICE_UNAVAILABLE, "the page is being made; ask again\n");
                for name in ["refresh", "retry-after"] {
                    busy.headers_mut().insert(name, HeaderValue::from_static("5"));
                }
                busy
            }
            Made::None(why) => {
                let text = Bytes::from(format!("there is no page: {}\n", printable(&why, 2000)));
                respond(StatusCode::NOT_FOUND, TEXT, text)
            }
        }
    }
}

/// What a path asks for.
enum PageOf {
    Jobs,
    /// The job of this name.
    Job(String),
    /// A page about the process of this name.
    Process(String, Kind),
}

impl PageOf {
    fn of(path: &str) -> Option<PageOf> {
        let named = |folder| path.strip_prefix(folder).map(str::to_owned);
        let job = named("/job/").map(PageOf::Job);
        let report = || named("/report/").map(|name| PageOf::Process(name, Kind::Report));
        let live = || named("/live/").map(|name| PageOf::Process(name, Kind::Live));
        job.or_else(report)
            .or_else(live)
            .or_else(|| (path == "/").then_some(PageOf::Jobs))
    }
}

/// What the list of the journals has for a path.
enum Listed {
    Page(String),
    Process(Found, Kind),
    Nothing(&'static str),
}

/// An answer that reads files takes a thread of its own.
async fn off_thread(answer: impl FnOnce() -> Answer + Send + 'static) -> Answer {
    let answer = tokio::task::spawn_blocking(answer).await;
    answer.unwrap_or_else(|_| plain(StatusCode::INTERNAL_SERVER_ERROR, "failed\n"))
}

/// Whether the header `Host` has an IP address, or localhost.
fn names_this_host(host: Option<&[u8]>) -> bool {
    let Some(authority) = host.and_then(|host| Authority::try_from(host).ok()) else {
        return false;
    };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

fn plain(status: StatusCode, text: &'static str) -> Answer {
    respond(status, TEXT, Bytes::from_static(text.as_bytes()))
}

/// A page. No other site may show it in a frame.
fn html(body: Bytes, policy: &str) -> Answer {
    let mut response = respond(StatusCode::OK, "text/html; charset=utf-8", body);
    let policy = format!("{policy}; frame-ancestors 'none'");
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

fn respond(status: StatusCode, kind: &'static str, body: Bytes) -> Answer {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    response
}

/// Listens until `end` says that a signal came. Calls `ready` with the address once requests are answered.
pub fn serve(server: Server, address: &Address, end: End, ready: impl FnOnce(&Address)) -> Result<(), String> {
    // `main` gives SIGPIPE its default action. A client that hangs up must not end this program. SAFETY: no other thread
    // runs yet, and to ignore a signal needs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let listener = Listener::bind(address)?;
    let removed = match address {
        Address::Unix(path) => Some(Removed(path.clone())),
        Address::Tcp(_) => None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(THREADS)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| format!("cannot serve: {error}"))?;
    let address = listener.address(address);
    let served = runtime.block_on(run(Arc::new(server), listener, end, || ready(&address)));
    // Answers that are being made must not hold up the end.
    runtime.shutdown_background();
    drop(removed);
    served.map_err(|error| format!("cannot serve at {address}: {error}"))
}

/// Removes the socket at the end.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn run(server: Arc<Server>, listener: Listener, end: End, ready: impl FnOnce()) -> std::io::Result<()> {
    let end = tokio::net::UnixStream::from_std(end.into_socket()?)?;
    enum Sockets {
        Tcp(tokio::net::TcpListener),
        Unix(tokio::net::UnixListener),
    }
    let sockets = match listener {
        Listener::Tcp(listener) => Sockets::Tcp(tokio::net::TcpListener::from_std(listener)?),
        Listener::Unix(listener) => Sockets::Unix(tokio::net::UnixListener::from_std(listener)?),
    };
    ready();
    let mut places = Places::new(CONNECTIONS);
    let accept = async {
        loop {
            let server = server.clone();
            match &sockets {
                Sockets::Tcp(listener) => {
                    if let Ok((socket, _)) = listener.accept().await {
                        places.serve(|asked| connection(server, socket, asked)).await;
                        continue;
                    }
                }
                Sockets::Unix(listener) => {
                    if let Ok((socket, _)) = listener.accept().await {
                        places.serve(|asked| connection(server, socket, asked)).await;
                        continue;
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    // Whichever comes first ends the program.
    let mut accept = std::pin::pin!(accept);
    let mut ended = std::pin::pin!(end.readable());
    std::future::poll_fn(|context| {
        match ended.as_mut().poll(context).is_ready() || accept.as_mut().poll(context).is_ready() {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    Ok(())
}

/// Serves one connection.
async fn connection(server: Arc<Server>, socket: impl AsyncRead + AsyncWrite + Unpin, asked: Asked) {
    let answer = service_fn(move |request| {
        asked.note();
        let answer = server.clone().answer(request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIME)
        .max_buf_size(REQUEST_BYTES)
        .max_headers(HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(socket), answer);
    // A client that is slow, hangs up or sends no HTTP is the client's matter.
    let _ = tokio::time::timeout(CONNECTION_TIME, served).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_sites_are_not_this_host() {
        for host in [
            "localhost",
            "LocalHost:9087",
            "127.0.0.1:9087",
            "[::1]:9087",
            "10.0.0.7",
        ] {
            assert!(names_this_host(Some(host.as_bytes())), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:9087",
            "a@b:c",
            "",
        ] {
            assert!(!names_this_host(Some(host.as_bytes())), "{host}");
        }
        assert!(!names_this_host(None));
    }
}
