//! Answers HTTP requests for the metrics.
//!
//! hyper parses the requests: it is the parser that most Rust servers use, and its limits can be set. tiny_http has had no
//! release since 2022 and does not time out slow clients. One thread serves all connections, and others read journals. What a
//! client can take is bounded: connections at a time, bytes and number of headers, seconds. Each connection has one request.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use base::sync::lock;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderName, HeaderValue, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};

use super::address::{Address, Listener, Socket, bind};
use super::end::End;
use super::metrics::text;
use super::node::Node;
use super::places::{Asked, Places};
use super::token::TokenFile;

/// The most connections at a time. With more, the oldest that has sent no request is closed, or else they wait.
const CONNECTIONS: usize = 32;
/// How long a client may take to send its request.
const REQUEST_TIME: Duration = Duration::from_secs(5);
const CONNECTION_TIME: Duration = Duration::from_secs(30);
/// The most bytes that are read of a request at once, its headers included.
const REQUEST_BYTES: usize = 16 << 10;
const HEADERS: usize = 64;
/// Requests within this time get the same figures, so that many clients cost no more than one.
const FRESH: Duration = Duration::from_millis(500);
/// The most threads that read journals and write answers.
const THREADS: usize = 4;
/// After an error of `accept`, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

const TEXT: &str = "text/plain; charset=utf-8";
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";

pub struct Server {
    pub node: Mutex<Node>,
    pub token: Option<TokenFile>,
}

type Answer = Response<Full<Bytes>>;

impl Server {
    async fn answer(self: Arc<Server>, request: Request<Incoming>) -> Answer {
        // Of two hosts, what stands in front of this server may have looked at the other one.
        if request.headers().get_all(HOST).iter().nth(1).is_some() {
            return respond(StatusCode::BAD_REQUEST, TEXT, "more than one Host header\n");
        }
        if let Some(token) = &self.token
            && !token.allows(request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes))
        {
            let refused = respond(StatusCode::UNAUTHORIZED, TEXT, "a token is needed\n");
            return with(refused, WWW_AUTHENTICATE, "Bearer");
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            let refused = respond(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET and HEAD alone\n");
            return with(refused, ALLOW, "GET, HEAD");
        }
        if request.uri().path() != "/metrics" {
            return respond(StatusCode::NOT_FOUND, TEXT, "the metrics are at /metrics\n");
        }
        // What reads files takes a thread of its own.
        let answer = tokio::task::spawn_blocking(move || {
            let mut node = lock(&self.node);
            node.collect_anew(FRESH);
            respond(StatusCode::OK, METRICS, text(&node))
        });
        let failed = |_| respond(StatusCode::INTERNAL_SERVER_ERROR, TEXT, "failed\n");
        answer.await.unwrap_or_else(failed)
    }
}

fn respond(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let response = with(response, CONTENT_TYPE, kind);
    let response = with(response, CACHE_CONTROL, "no-store");
    with(response, X_CONTENT_TYPE_OPTIONS, "nosniff")
}

fn with(mut answer: Answer, name: HeaderName, value: &'static str) -> Answer {
    answer.headers_mut().insert(name, HeaderValue::from_static(value));
    answer
}

/// Listens until `end` says that a signal came. Calls `ready` with the address once requests are answered.
pub fn serve(server: Server, address: &Address, end: End, ready: impl FnOnce(&Address)) -> Result<(), String> {
    // `main` gives SIGPIPE its default action. A client that hangs up must not end this program. SAFETY: no other thread
    // runs yet, and to ignore a signal needs no handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    let unserved = |problem: io::Error| format!("cannot serve at {address}: {problem}");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(THREADS)
        .enable_all()
        .build()
        .map_err(unserved)?;
    let bound = {
        let _runtime = runtime.enter();
        bind(address)
    };
    let (listener, bound) = bound.map_err(|problem| format!("cannot listen at {address}: {problem}"))?;
    let _removed = match address {
        Address::Unix(path) => Some(Removed(path.clone())),
        Address::Tcp(_) => None,
    };
    let served = runtime.block_on(run(Arc::new(server), listener, end, || ready(&bound)));
    // Answers that are being made must not hold up the end.
    runtime.shutdown_background();
    served.map_err(unserved)
}

struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn run(server: Arc<Server>, listener: Listener, end: End, ready: impl FnOnce()) -> io::Result<()> {
    let end = tokio::net::UnixStream::from_std(end.into_socket()?)?;
    ready();
    let mut places = Places::new(CONNECTIONS);
    let accept = async {
        loop {
            match listener.accept().await {
                Ok(socket) => {
                    let server = server.clone();
                    places.serve(|asked| connection(server, socket, asked)).await;
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    };
    // Whichever comes first ends the program.
    let (mut accept, mut ended) = (pin!(accept), pin!(end.readable()));
    std::future::poll_fn(|context| {
        if ended.as_mut().poll(context).is_ready() || accept.as_mut().poll(context).is_ready() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    Ok(())
}

async fn connection(server: Arc<Server>, socket: Box<dyn Socket>, asked: Asked) {
    let answer = service_fn(move |request| {
        asked.store(true, Relaxed);
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
