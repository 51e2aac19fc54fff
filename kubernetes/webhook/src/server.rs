//! The HTTPS server that the API server asks.

use std::{convert::Infallible, io, sync::Arc, time::Duration};

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode, Uri, body::Bytes, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use k8s_openapi::api::core::v1::Pod;
use kube::core::admission::{AdmissionRequest, AdmissionReview};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{Instant, timeout_at},
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};

use crate::{api::Api, review, settings::Settings};

/// Path of admission reviews.
const MUTATE: &str = "/mutate";
/// Path for probes.
const READY: &str = "/readyz";
/// Most connections at a time. The API server has a few, and anybody of the cluster may connect.
const MOST_CONNECTIONS: usize = 32;
/// Longest body; the API server's objects have 3 MiB at the most. All connections' together are
/// half of what the manifest lets the program have.
const LONGEST_BODY: usize = 4 << 20;
/// Longest wait for a client's side of TLS.
const PATIENCE: Duration = Duration::from_secs(10);
/// The API server's timeout of a webhook where it names none, and the longest that there is.
const USUAL_TIMEOUT_S: u64 = 10;
const LONGEST_TIMEOUT_S: u64 = 30;
/// Time for the way there and back. The API server rounds what it has left up to whole seconds.
const MARGIN: Duration = Duration::from_secs(2);
/// Longest wait for the next request of a connection: the API server keeps idle ones for 90 s.
const IDLE: Duration = Duration::from_secs(100);
/// Time for what is under way at the end.
const END: Duration = Duration::from_secs(5);
/// Pause after the system has refused a connection, for lack of files for instance.
const PAUSE: Duration = Duration::from_millis(100);

/// The server's parts that each request needs.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) settings: Settings,
    pub(crate) api: Api,
}

impl Server {
    /// Serves until `ended`, then ends what is under way.
    pub(crate) async fn run(
        self: Arc<Self>,
        listener: TcpListener,
        tls: watch::Receiver<Arc<ServerConfig>>,
        ended: impl Future<Output = ()>,
    ) {
        let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let (ending, end) = watch::channel(());
        let mut connections = JoinSet::new();
        tokio::pin!(ended);
        loop {
            let accepted = tokio::select! {
                () = &mut ended => break,
                accepted = accept(&listener, &places) => accepted,
            };
            while connections.try_join_next().is_some() {}
            match accepted {
                Ok((stream, place)) => {
                    let (server, config, end) = (Arc::clone(&self), Arc::clone(&tls.borrow()), end.clone());
                    connections.spawn(async move {
                        server.connection(stream, config, end).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        ending.send_replace(());
        let _ = tokio::time::timeout(END, connections.join_all()).await;
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, config: Arc<ServerConfig>, mut end: watch::Receiver<()>) {
        let handshake = tokio::time::timeout(PATIENCE, TlsAcceptor::from(config).accept(stream)).await;
        let stream = match handshake {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return tracing::debug!(%error, "a client does not get through TLS"),
            Err(_) => return,
        };
        let service = service_fn(move |request| {
            let server = Arc::clone(&self);
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(IDLE);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let served = tokio::select! {
            served = connection.as_mut() => served,
            _ = end.changed() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%error, "a connection broke");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        match (request.method(), request.uri().path()) {
            (&Method::POST, MUTATE) => {
                let end = Instant::now() + time_to_answer(request.uri());
                self.mutate(request.into_body(), end).await
            }
            (_, MUTATE) => plain(StatusCode::METHOD_NOT_ALLOWED, "POST is accepted"),
            (&Method::GET, READY) => plain(StatusCode::OK, "ok"),
            _ => plain(StatusCode::NOT_FOUND, "there are /mutate and /readyz"),
        }
    }

    async fn mutate(&self, body: Incoming, end: Instant) -> Response<Full<Bytes>> {
        let body = match timeout_at(end, Limited::new(body, LONGEST_BODY).collect()).await {
            Ok(Ok(body)) => body.to_bytes(),
            Ok(Err(error)) => return plain(StatusCode::BAD_REQUEST, &error.to_string()),
            Err(_) => return plain(StatusCode::REQUEST_TIMEOUT, "the body does not come"),
        };
        let review = match request(&body) {
            Ok(request) => review::answer(&request, &self.settings, &self.api, end).await.into_review(),
            Err(reason) => {
                tracing::warn!(reason, "a request is no review of a pod");
                return plain(StatusCode::BAD_REQUEST, &reason);
            }
        };
        match serde_json::to_vec(&review) {
            Ok(text) => response(StatusCode::OK, "application/json", text),
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }
}

/// Waits for a free place, then for a connection.
async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, place))
}

/// The time for all of a review: the API server's own timeout, which it names in the query, less a
/// margin.
fn time_to_answer(uri: &Uri) -> Duration {
    let mut named = uri.query().into_iter().flat_map(|query| query.split('&'));
    let seconds = named.find_map(|pair| pair.strip_prefix("timeout=")?.strip_suffix('s')?.parse().ok());
    let timeout = Duration::from_secs(seconds.unwrap_or(USUAL_TIMEOUT_S).min(LONGEST_TIMEOUT_S));
    timeout.saturating_sub(MARGIN).max(timeout / 2)
}

fn request(body: &[u8]) -> Result<AdmissionRequest<Pod>, String> {
    let review: AdmissionReview<Pod> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    review.try_into().map_err(|_| "an AdmissionReview with a request is accepted".to_owned())
}

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    response(status, "text/plain", format!("{text}\n").into_bytes())
}

fn response(status: StatusCode, kind: &'static str, body: Vec<u8>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_due_before_the_api_server_gives_up() {
        for (query, milliseconds) in [
            ("?timeout=10s", 8000),
            ("?timeout=30s&x=1", 28000),
            ("?timeout=3s", 1500),
            ("?timeout=1s", 500),
            ("", 8000),
            ("?timeout=soon", 8000),
            ("?timeout=86400s", 28000),
        ] {
            let uri = format!("{MUTATE}{query}").parse().unwrap();
            assert_eq!(time_to_answer(&uri), Duration::from_millis(milliseconds), "{query}");
        }
    }
}
