//! Server of the scheduler's calls, over HTTP/1.1.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};

use crate::prioritize::{CallError, Scorer};

/// Connections at once. The scheduler needs one or two, and keeps them.
const CONNECTIONS: usize = 64;
/// Time limit for a request's head, and so for an idle connection.
const HEAD_LIMIT: Duration = Duration::from_secs(120);
/// Time limit for a request's body.
const BODY_LIMIT: Duration = Duration::from_secs(5);
/// Most bytes of a call: a pod and the names of all nodes.
const BODY_BYTES: usize = 8 << 20;
/// Pause after the kernel had no descriptor or memory for a connection.
const PAUSE: Duration = Duration::from_millis(100);

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Serves for ever.
pub(crate) async fn serve(listener: TcpListener, scorer: Arc<Scorer>) {
    let free = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // It is never closed.
        let Ok(slot) = Arc::clone(&free).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        let scorer = Arc::clone(&scorer);
        tokio::spawn(async move {
            converse(stream, scorer).await;
            drop(slot);
        });
    }
}

/// Answers the calls of a connection. Its errors are ignored: only the client could act on them.
async fn converse(stream: TcpStream, scorer: Arc<Scorer>) {
    // An answer is one small write.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| {
        let scorer = Arc::clone(&scorer);
        async move { Ok::<_, Infallible>(answer(&scorer, request).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT);
    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(scorer: &Scorer, request: Request<Incoming>) -> Response<Full<Bytes>> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/readyz") if scorer.is_ready() => say(StatusCode::OK, "ok\n"),
        (&Method::GET, "/readyz") => say(StatusCode::SERVICE_UNAVAILABLE, "the cluster is not known yet\n"),
        (&Method::POST, "/prioritize") => {
            let body = Limited::new(request.into_body(), BODY_BYTES).collect();
            let Ok(Ok(body)) = timeout(BODY_LIMIT, body).await else {
                return say(StatusCode::BAD_REQUEST, "the call is too long, or did not come in time\n");
            };
            prioritize(scorer, &body.to_bytes())
        }
        _ => say(StatusCode::NOT_FOUND, "POST /prioritize and GET /readyz are answered\n"),
    }
}

fn prioritize(scorer: &Scorer, body: &[u8]) -> Response<Full<Bytes>> {
    match scorer.prioritize(body) {
        Ok(scores) => {
            let mut response = Response::new(Full::new(Bytes::from(scores)));
            response.headers_mut().insert(CONTENT_TYPE, JSON);
            response
        }
        Err(error @ CallError::NotReady) => say(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
        Err(error) => say(StatusCode::BAD_REQUEST, format!("{}\n", base::error_chain(&error))),
    }
}

fn say(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, PLAIN);
    response
}
