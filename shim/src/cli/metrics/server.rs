//! Server of `GET /metrics` over HTTP/1.1.
//!
//! Clients cost little: a few connections at once, each for one request of a few KiB and for a
//! short while; and one snapshot of the node at a time, which serves all requests within half a
//! second.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    signal::unix::{SignalKind, signal},
    sync::{Mutex, Semaphore},
    time::{Instant, sleep, timeout},
};

use crate::cli::error::CliError;

const CONNECTIONS: usize = 16;
/// Time limits for a request's head, and for all of a connection.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
const CONNECTION_LIMIT: Duration = Duration::from_secs(20);
const HEAD_BYTES: usize = 16 << 10;
/// Time limit for a snapshot of the node: the driver may be asked.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(10);
/// Age up to which a snapshot is served again.
const FRESH: Duration = Duration::from_millis(500);
/// Pause after the kernel had no descriptor or memory for a connection.
const PAUSE: Duration = Duration::from_millis(100);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD");

/// Serves until SIGINT or SIGTERM.
pub(super) fn serve(address: SocketAddr) -> Result<(), CliError> {
    let failed = |source| CliError::Listen { address, source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let served = runtime.block_on(async {
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut terminated = signal(SignalKind::terminate())?;
        let listener = TcpListener::bind(address).await?;
        crate::cli::say(&format!("egpu: metrics at http://{}/metrics", listener.local_addr()?));
        tokio::select! {
            () = accept(listener, Arc::new(SnapshotCache::new(super::snapshot))) => {}
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
        Ok(())
    });
    // A snapshot that waits for the driver delays nothing.
    runtime.shutdown_background();
    served.map_err(failed)
}

async fn accept(listener: TcpListener, snapshots: Arc<SnapshotCache>) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // It is never closed.
        let Ok(slot) = Arc::clone(&free).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let snapshots = Arc::clone(&snapshots);
        tokio::spawn(async move {
            let _ = timeout(CONNECTION_LIMIT, converse(stream, snapshots)).await;
            drop(slot);
        });
    }
}

/// Serves one request. Errors of the connection are ignored: only the client could act on them.
async fn converse(stream: TcpStream, snapshots: Arc<SnapshotCache>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let snapshots = Arc::clone(&snapshots);
        async move { Ok::<_, Infallible>(answer(&snapshots, request.method(), request.uri().path()).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).max_buf_size(HEAD_BYTES).keep_alive(false);
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

/// Answers a request. For HEAD, hyper leaves the body out.
async fn answer(snapshots: &SnapshotCache, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let say = |status: StatusCode, text: &'static str| {
        let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, PLAIN);
        response
    };
    if path != "/metrics" {
        return say(StatusCode::NOT_FOUND, "the metrics are at /metrics\n");
    }
    if method != Method::GET && method != Method::HEAD {
        let mut response = say(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD are answered\n");
        response.headers_mut().insert(ALLOW, METHODS);
        return response;
    }
    match snapshots.get().await {
        Ok(text) => {
            let mut response = Response::new(Full::new(text));
            response.headers_mut().insert(CONTENT_TYPE, TEXT);
            response
        }
        Err(SnapshotError::Late) => say(StatusCode::SERVICE_UNAVAILABLE, "the node could not be read in time\n"),
        Err(SnapshotError::Failed) => {
            say(StatusCode::INTERNAL_SERVER_ERROR, "the node cannot be read; the stderr of egpu shows why\n")
        }
    }
}

/// Cache of the last snapshot, which takes one at a time.
struct SnapshotCache {
    snapshot: fn() -> Result<String, CliError>,
    last: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

/// Error of a snapshot.
#[derive(Debug, PartialEq, Eq)]
enum SnapshotError {
    Late,
    Failed,
}

impl SnapshotCache {
    fn new(snapshot: fn() -> Result<String, CliError>) -> Self {
        Self { snapshot, last: Arc::default() }
    }

    async fn get(&self) -> Result<Bytes, SnapshotError> {
        timeout(SNAPSHOT_LIMIT, self.take()).await.unwrap_or(Err(SnapshotError::Late))
    }

    async fn take(&self) -> Result<Bytes, SnapshotError> {
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some((_, text)) = last.as_ref().filter(|(taken, _)| taken.elapsed() < FRESH) {
            return Ok(text.clone());
        }
        let snapshot = self.snapshot;
        // A client may give up; the snapshot goes on, and the next one waits for it.
        let taken = tokio::task::spawn_blocking(move || match snapshot() {
            Ok(text) => {
                let text = Bytes::from(text);
                *last = Some((Instant::now(), text.clone()));
                Ok(text)
            }
            Err(error) => {
                crate::cli::say(&format!("egpu: {}", crate::cli::chain(&error)));
                Err(SnapshotError::Failed)
            }
        });
        taken.await.unwrap_or(Err(SnapshotError::Failed))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Returns the whole response to `request`.
    async fn ask(snapshots: fn() -> Result<String, CliError>, request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(accept(listener, Arc::new(SnapshotCache::new(snapshots))));
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The server may close before all of the request is sent.
        let _ = stream.write_all(request).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        server.abort();
        String::from_utf8(answer).unwrap()
    }

    fn some() -> Result<String, CliError> {
        Ok("a_total 1\n".to_owned())
    }

    fn failing() -> Result<String, CliError> {
        Err(CliError::NoSuchContainer { wanted: "x".to_owned() })
    }

    #[tokio::test]
    async fn figures_are_at_one_place() {
        let got = ask(some, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n"), "{got}");
        assert!(got.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{got}");
        assert!(got.contains("content-length: 10\r\n") && got.ends_with("\r\n\r\na_total 1\n"), "{got}");
        let got = ask(some, b"HEAD /metrics?a=b HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.ends_with("\r\n\r\n"), "{got}");
        assert!(got.contains("content-length: 10\r\n"), "{got}");
        let got = ask(some, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(got.starts_with("HTTP/1.1 404 "), "{got}");
        let got = ask(some, b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").await;
        assert!(got.starts_with("HTTP/1.1 405 ") && got.contains("allow: GET, HEAD\r\n"), "{got}");
        let got = ask(failing, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert!(got.starts_with("HTTP/1.1 500 "), "{got}");
    }

    #[tokio::test]
    async fn requests_are_bounded() {
        let long = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(10 * HEAD_BYTES));
        assert!(!ask(some, long.as_bytes()).await.starts_with("HTTP/1.1 200"));
        assert!(ask(some, b"\x16\x03\x01 no HTTP\r\n\r\n").await.starts_with("HTTP/1.1 400"));
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_hung_up_on() {
        // The paused clock advances while all tasks wait: this ends because the server ends it.
        assert_eq!(ask(some, b"GET /metrics").await, "");
    }

    #[tokio::test(start_paused = true)]
    async fn all_requests_within_half_a_second_get_the_same_snapshot() {
        static LOOKS: AtomicU32 = AtomicU32::new(0);
        let snapshots = SnapshotCache::new(|| Ok(format!("{}", LOOKS.fetch_add(1, Ordering::Relaxed))));
        let (one, other) = tokio::join!(snapshots.get(), snapshots.get());
        assert_eq!((one.unwrap(), other.unwrap()), ("0".into(), "0".into()));
        sleep(FRESH).await;
        assert_eq!(snapshots.get().await.unwrap(), "1");
    }
}
