//! Answers HTTP requests for the metrics.
//!
//! hyper parses the requests: it is the parser that most Rust servers use, and its limits can be set. tiny_http has had no
//! release since 2022 and does not time out slow clients. One thread serves all connections. What a client can take is
//! bounded: connections at a time, bytes and number of headers, seconds. Each connection has one request. The path of a
//! request is compared with the paths that there are, and never reaches the file system.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base::sync::lock;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::address::{Address, Listener};
use super::end::End;
use super::metrics;
use super::node::Node;
use super::plain_text::from_open_metrics;
use super::token::Token;

/// The most connections at a time. More wait in the kernel's queue.
const CONNECTIONS: usize = 32;
/// How long a client may take to send its request.
const REQUEST_TIME: Duration = Duration::from_secs(5);
/// How long a connection may last.
const CONNECTION_TIME: Duration = Duration::from_secs(20);
/// The most bytes that are read of a request at once, its headers included.
const REQUEST_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;
/// Requests within this time get the same figures, so that many clients cost no more than one.
const FRESH: Duration = Duration::from_millis(500);
/// After an error of `accept`, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the connections share.
pub struct Server {
    pub node: Arc<Mutex<Node>>,
    pub token: Option<Token>,
    latest: Mutex<Option<(Instant, Bytes)>>,
}

impl Server {
    pub fn new(node: Node, token: Option<Token>) -> Server {
        Server {
            node: Arc::new(Mutex::new(node)),
            token,
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
        let text = Bytes::from(metrics::text(&self.node));
        *latest = Some((Instant::now(), text.clone()));
        text
    }

    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let header = |name| request.headers().get(name).map(HeaderValue::as_bytes);
        if let Some(token) = &self.token
            && !token.allows(header(AUTHORIZATION))
        {
            let mut refused = plain(StatusCode::UNAUTHORIZED, "a bearer token is needed\n");
            let bearer = HeaderValue::from_static("Bearer");
            refused.headers_mut().insert(WWW_AUTHENTICATE, bearer);
            return refused;
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD alone\n");
            refused
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match request.uri().path() {
            "/metrics" => {
                let accepted = String::from_utf8_lossy(header(ACCEPT).unwrap_or_default()).to_ascii_lowercase();
                let text = self.metrics();
                match accepted.contains("text/plain") && !accepted.contains("application/openmetrics-text") {
                    false => respond(StatusCode::OK, OPEN_METRICS, text),
                    true => {
                        let text = from_open_metrics(&String::from_utf8_lossy(&text));
                        respond(StatusCode::OK, PLAIN, text.into())
                    }
                }
            }
            "/" => plain(StatusCode::OK, "vramshim serve: the metrics are at /metrics\n"),
            _ => plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"),
        }
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", Bytes::from_static(text.as_bytes()))
}

fn respond(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
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
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
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
    let places = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS));
    let accept = async {
        loop {
            let Ok(place) = places.clone().acquire_owned().await else {
                return;
            };
            let server = server.clone();
            let accepted = match &sockets {
                Sockets::Tcp(listener) => listener.accept().await.map(|(socket, _)| {
                    tokio::spawn(connection(server, socket, place));
                }),
                Sockets::Unix(listener) => listener.accept().await.map(|(socket, _)| {
                    tokio::spawn(connection(server, socket, place));
                }),
            };
            if accepted.is_err() {
                tokio::time::sleep(PAUSE).await;
            }
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

/// Serves one connection. Its place is free again at the end.
async fn connection(
    server: Arc<Server>,
    socket: impl AsyncRead + AsyncWrite + Unpin,
    _place: tokio::sync::OwnedSemaphorePermit,
) {
    let answer = service_fn(move |request| {
        let response = server.answer(&request);
        async move { Ok::<_, Infallible>(response) }
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
