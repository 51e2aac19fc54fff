//! Server of `GET /metrics`, and where it is asked for of the node's page, over HTTP/1.1.
//!
//! Clients cost little: a few connections at once, each for one request of a few KiB and for a
//! short while; and one snapshot of the node at a time, which serves all requests within half a
//! second.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{
        ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
        HeaderValue, REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
    },
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

use super::page::{Page, PageReader, Token};
use crate::error::CliError;

/// Connections at most. A silent one, as browsers open them ahead, costs a descriptor.
const CONNECTIONS: usize = 128;
/// Connections with a request at most.
const REQUESTS: usize = 16;
/// Time limits for a connection's first byte, for a request's head, and for all of a connection.
const SILENCE_LIMIT: Duration = Duration::from_secs(1);
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
const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const METHODS: HeaderValue = HeaderValue::from_static("GET, HEAD");
const CHALLENGE: HeaderValue = HeaderValue::from_static("Basic realm=\"egpu: any name, and the token as password\"");
/// Headers of each answer about the page.
const GUARDS: [(HeaderName, HeaderValue); 4] = [
    (CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// Everything that is served.
pub(super) struct Site {
    metrics: SnapshotCache,
    page: Option<PageSite>,
}

/// The page and its data.
struct PageSite {
    page: Page,
    data: SnapshotCache,
    /// Without one, the page is for whoever is on this machine.
    token: Option<Token>,
}

impl Site {
    pub(super) fn new() -> Self {
        Self { metrics: SnapshotCache::new(super::snapshot), page: None }
    }

    /// Serves the page, too.
    pub(super) fn with_page(self, token: Option<Token>) -> Self {
        let reader = PageReader::default();
        let data = SnapshotCache::new(move || reader.read());
        Self { page: Some(PageSite { page: Page::new(), data, token }), ..self }
    }
}

/// Serves until SIGINT or SIGTERM.
pub(super) fn serve(address: SocketAddr, site: Site) -> Result<(), CliError> {
    let failed = |source| CliError::Listen { address, source };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let served = runtime.block_on(async {
        let mut interrupted = signal(SignalKind::interrupt())?;
        let mut terminated = signal(SignalKind::terminate())?;
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let page = site.page.as_ref().map_or_else(String::new, |_| format!(", the page at http://{address}/"));
        crate::output::say(&format!("egpu: metrics at http://{address}/metrics{page}"));
        tokio::select! {
            () = accept(listener, Arc::new(site)) => {}
            _ = interrupted.recv() => {}
            _ = terminated.recv() => {}
        }
        Ok(())
    });
    // A snapshot that waits for the driver delays nothing.
    runtime.shutdown_background();
    served.map_err(failed)
}

async fn accept(listener: TcpListener, site: Arc<Site>) {
    let (places, slots) = (Arc::new(Semaphore::new(CONNECTIONS)), Arc::new(Semaphore::new(REQUESTS)));
    loop {
        // It is never closed.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let (site, slots) = (Arc::clone(&site), Arc::clone(&slots));
        tokio::spawn(async move {
            let _ = timeout(CONNECTION_LIMIT, converse(stream, site, &slots)).await;
            drop(place);
        });
    }
}

/// Serves one request, once a part of it is there and a slot is free. Errors of the connection are
/// ignored: only the client could act on them.
async fn converse(stream: TcpStream, site: Arc<Site>, slots: &Semaphore) {
    let Ok(Ok(1)) = timeout(SILENCE_LIMIT, stream.peek(&mut [0])).await else { return };
    // It is never closed.
    let Ok(_slot) = slots.acquire().await else { return };
    let service = service_fn(move |request: Request<Incoming>| {
        let site = Arc::clone(&site);
        async move { Ok::<_, Infallible>(answer(&site, &request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT).max_buf_size(HEAD_BYTES).keep_alive(false);
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

/// Answers a request. For HEAD, hyper leaves the body out.
async fn answer<B>(site: &Site, request: &Request<B>) -> Response<Full<Bytes>> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    match (request.uri().path(), &site.page) {
        ("/metrics", _) if is_read => snapshot(&site.metrics, TEXT).await,
        ("/" | "/data.json", Some(page)) if is_read => {
            let mut response = match refusal(page, request.headers()) {
                Some(refusal) => refusal,
                None if request.uri().path() == "/data.json" => snapshot(&page.data, JSON).await,
                None => html(&page.page),
            };
            response.headers_mut().extend(GUARDS);
            response
        }
        ("/metrics", _) | ("/" | "/data.json", Some(_)) => {
            let mut response = say(StatusCode::METHOD_NOT_ALLOWED, "GET and HEAD are answered\n");
            response.headers_mut().insert(ALLOW, METHODS);
            response
        }
        _ => say(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"),
    }
}

fn say(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, PLAIN);
    response
}

async fn snapshot(cache: &SnapshotCache, content: HeaderValue) -> Response<Full<Bytes>> {
    match cache.get().await {
        Ok(text) => {
            let mut response = Response::new(Full::new(text));
            response.headers_mut().insert(CONTENT_TYPE, content);
            response
        }
        Err(SnapshotError::Late) => say(StatusCode::SERVICE_UNAVAILABLE, "the node could not be read in time\n"),
        Err(SnapshotError::Failed) => {
            say(StatusCode::INTERNAL_SERVER_ERROR, "the node cannot be read; the stderr of egpu shows why\n")
        }
    }
}

fn html(page: &Page) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(page.html.clone())));
    response.headers_mut().insert(CONTENT_TYPE, HTML);
    // Made of fixed text and base64 alone.
    if let Ok(policy) = HeaderValue::from_str(&page.content_security_policy) {
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// Returns the answer to who may not see the page.
fn refusal(page: &PageSite, headers: &HeaderMap) -> Option<Response<Full<Bytes>>> {
    match &page.token {
        Some(token) if headers.get(AUTHORIZATION).is_some_and(|given| token.is_in(given.as_bytes())) => None,
        Some(_) => {
            let mut response = say(StatusCode::UNAUTHORIZED, "the page needs its token\n");
            response.headers_mut().insert(WWW_AUTHENTICATE, CHALLENGE);
            Some(response)
        }
        // A site whose name somebody has pointed at this machine is not to read the page in its
        // visitors' browsers.
        None if headers.get(HOST).is_some_and(is_this_machine) => None,
        None => {
            Some(say(StatusCode::MISDIRECTED_REQUEST, "the page is at an address, such as 127.0.0.1, or localhost\n"))
        }
    }
}

fn is_this_machine(host: &HeaderValue) -> bool {
    let Ok(host) = host.to_str() else { return false };
    let is_localhost = host.split(':').next().is_some_and(|name| name.eq_ignore_ascii_case("localhost"));
    is_localhost || host.parse::<SocketAddr>().is_ok() || host.parse::<std::net::IpAddr>().is_ok()
}

/// Cache of the last snapshot, which takes one at a time.
struct SnapshotCache {
    snapshot: Arc<dyn Fn() -> Result<String, CliError> + Send + Sync>,
    last: Arc<Mutex<Option<(Instant, Bytes)>>>,
}

#[derive(Debug, PartialEq, Eq)]
enum SnapshotError {
    Late,
    Failed,
}

impl SnapshotCache {
    fn new(snapshot: impl Fn() -> Result<String, CliError> + Send + Sync + 'static) -> Self {
        Self { snapshot: Arc::new(snapshot), last: Arc::default() }
    }

    async fn get(&self) -> Result<Bytes, SnapshotError> {
        timeout(SNAPSHOT_LIMIT, self.take()).await.unwrap_or(Err(SnapshotError::Late))
    }

    async fn take(&self) -> Result<Bytes, SnapshotError> {
        let mut last = Arc::clone(&self.last).lock_owned().await;
        if let Some((_, text)) = last.as_ref().filter(|(taken, _)| taken.elapsed() < FRESH) {
            return Ok(text.clone());
        }
        let snapshot = Arc::clone(&self.snapshot);
        // A client may give up; the snapshot goes on, and the next one waits for it.
        let taken = tokio::task::spawn_blocking(move || match snapshot() {
            Ok(text) => {
                let text = Bytes::from(text);
                *last = Some((Instant::now(), text.clone()));
                Ok(text)
            }
            Err(error) => {
                crate::output::say(&format!("egpu: {}", base::error_chain(&error)));
                Err(SnapshotError::Failed)
            }
        });
        taken.await.unwrap_or(Err(SnapshotError::Failed))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::ErrorKind,
        sync::atomic::{AtomicU32, Ordering},
    };

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Returns the whole response to `request`.
    async fn ask(snapshots: fn() -> Result<String, CliError>, request: &[u8]) -> String {
        ask_site(Site { metrics: SnapshotCache::new(snapshots), page: None }, request).await
    }

    async fn ask_site(site: Site, request: &[u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(accept(listener, Arc::new(site)));
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
        for part in [&b""[..], b"GET /metrics"] {
            assert_eq!(ask(some, part).await, "");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connections_keep_no_request_waiting() {
        // The paused clock stands still meanwhile, so that nobody is hung up on.
        let (done, running) = std::sync::mpsc::channel::<()>();
        let standing = tokio::task::spawn_blocking(move || running.recv_timeout(Duration::from_secs(30)));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let site = Site { metrics: SnapshotCache::new(some), page: None };
        let server = tokio::spawn(accept(listener, Arc::new(site)));
        let mut silent = Vec::new();
        for _ in 0..2 * REQUESTS {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        for stream in &silent {
            let read = stream.try_read(&mut [0]);
            assert!(read.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock), "ended first: {read:?}");
        }
        drop(done);
        let _ = standing.await;
        server.abort();
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

    /// A site with a page whose data is `{}`.
    fn site(token: Option<&str>) -> Site {
        let token = token.map(|token| {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("token");
            std::fs::write(&path, token).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
            Token::read(&path).unwrap()
        });
        let page = PageSite { page: Page::new(), data: SnapshotCache::new(|| Ok("{}".to_owned())), token };
        Site { metrics: SnapshotCache::new(some), page: Some(page) }
    }

    async fn get(site: Site, path: &str, headers: &str) -> String {
        ask_site(site, format!("GET {path} HTTP/1.1\r\n{headers}\r\n").as_bytes()).await
    }

    #[tokio::test]
    async fn a_page_is_there_for_this_machine_if_it_is_asked_for() {
        let got = get(site(None), "/", "Host: 127.0.0.1:9402\r\n").await;
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n") && got.contains("<!DOCTYPE html>"), "{got}");
        for header in [
            "content-type: text/html; charset=utf-8",
            "content-security-policy: default-src 'none'; ",
            "cache-control: no-store",
        ] {
            assert!(got.contains(header), "{header}: {got}");
        }
        let got = get(site(None), "/data.json", "Host: localhost:9402\r\n").await;
        assert!(got.contains("content-type: application/json\r\n") && got.ends_with("\r\n\r\n{}"), "{got}");
        for host in ["Host: evil.example\r\n", "Host: 127.0.0.1.evil.example:9402\r\n"] {
            assert!(get(site(None), "/data.json", host).await.starts_with("HTTP/1.1 421 "), "{host}");
        }
        let got = ask_site(site(None), b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n").await;
        assert!(got.starts_with("HTTP/1.1 405 "), "it is read only: {got}");
        assert!(get(site(None), "/../etc/passwd", "Host: 127.0.0.1\r\n").await.starts_with("HTTP/1.1 404 "));
    }

    #[tokio::test]
    async fn a_page_with_a_token_is_for_who_has_it() {
        const TOKEN: &str = "0123456789abcdef";
        let right = format!("Host: node.example\r\nAuthorization: Bearer {TOKEN}\r\n");
        for path in ["/", "/data.json"] {
            assert!(get(site(Some(TOKEN)), path, &right).await.starts_with("HTTP/1.1 200 OK\r\n"), "{path}");
            for wrong in ["", "Authorization: Bearer 0123456789abcdee\r\n"] {
                let got = get(site(Some(TOKEN)), path, &format!("Host: 127.0.0.1\r\n{wrong}")).await;
                assert!(
                    got.starts_with("HTTP/1.1 401 ") && got.contains("www-authenticate: Basic realm="),
                    "{path}: {got}"
                );
                assert!(!got.contains("<html") && !got.ends_with("{}"), "{got}");
            }
        }
        let got = get(site(Some(TOKEN)), "/metrics", "Host: x\r\n").await;
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n"), "Prometheus needs none: {got}");
    }
}
