//! gRPC on a Unix socket: a hyper server whose methods are handlers by path.

use std::{
    convert::Infallible,
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

use futures_util::Stream;
use hyper::{Request, Response, body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::UnixListener, task::JoinHandle};
use tonic::{
    Status,
    body::Body,
    server::{Grpc, ServerStreamingService, UnaryService},
};
use tonic_prost::ProstCodec;

use crate::kubelet_api::Empty;

/// A future of a handler.
pub(crate) type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Handlers of one socket's methods.
pub(crate) trait Methods: Send + Sync + 'static {
    /// Answers one call.
    fn call(self: Arc<Self>, request: Request<Incoming>) -> Answer<Response<Body>>;
}

/// A socket that is served. Taken away when dropped, if it is still this one's.
#[derive(Debug)]
pub(crate) struct Server {
    path: PathBuf,
    inode: u64,
    task: JoinHandle<()>,
}

impl Server {
    /// Serves `methods` at `path`, in place of what an earlier instance may have left there. Its
    /// directory is made if it is missing.
    pub(crate) fn start(path: &Path, methods: Arc<impl Methods>) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::DirBuilder::new().recursive(true).mode(0o750).create(directory)?;
        }
        match fs::symlink_metadata(path) {
            Ok(found) if found.file_type().is_socket() => fs::remove_file(path)?,
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let inode = fs::symlink_metadata(path)?.ino();
        let task = tokio::spawn(accept(listener, methods));
        Ok(Self { path: path.to_owned(), inode, task })
    }

    /// Returns whether the socket is still where it was bound.
    pub(crate) fn is_there(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

async fn accept(listener: UnixListener, methods: Arc<impl Methods>) {
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: those who hold some may end meanwhile.
                tracing::warn!(%error, "a connection of the kubelet is not accepted");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let methods = Arc::clone(&methods);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let methods = Arc::clone(&methods);
                async move { Ok::<_, Infallible>(methods.call(request).await) }
            });
            let served = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
            if let Err(error) = served.await {
                tracing::debug!(%error, "a connection of the kubelet has ended");
            }
        });
    }
}

/// Answers a call of one message with one message.
pub(crate) fn unary<Req, Res, F>(request: Request<Incoming>, handle: F) -> Answer<Response<Body>>
where
    Req: prost::Message + Default + 'static,
    Res: prost::Message + 'static,
    F: FnOnce(Req) -> Answer<Res> + Send + 'static,
{
    Box::pin(async move { Grpc::new(ProstCodec::<Res, Req>::default()).unary(Unary(Some(handle)), request).await })
}

/// Answers a call of one message with a stream of them.
pub(crate) fn streaming<Res, S>(request: Request<Incoming>, stream: S) -> Answer<Response<Body>>
where
    Res: prost::Message + 'static,
    S: Stream<Item = Result<Res, Status>> + Send + 'static,
{
    let service = Streaming(Some(stream));
    Box::pin(async move { Grpc::new(ProstCodec::<Res, Empty>::default()).server_streaming(service, request).await })
}

/// Answers a call of a method that is not there.
pub(crate) fn unknown(request: &Request<Incoming>) -> Answer<Response<Body>> {
    let status = Status::unimplemented(format!("there is no method {}", request.uri().path()));
    Box::pin(async move { status.into_http() })
}

struct Unary<F>(Option<F>);

impl<F, Req, Res> UnaryService<Req> for Unary<F>
where
    F: FnOnce(Req) -> Answer<Res>,
    Res: Send + 'static,
{
    type Response = Res;
    type Future = Answer<Result<tonic::Response<Res>, Status>>;

    fn call(&mut self, request: tonic::Request<Req>) -> Self::Future {
        match self.0.take() {
            Some(handle) => {
                let answer = handle(request.into_inner());
                Box::pin(async move { Ok(tonic::Response::new(answer.await)) })
            }
            None => Box::pin(async { Err(Status::internal("answered already")) }),
        }
    }
}

struct Streaming<S>(Option<S>);

impl<S, Req, Res> ServerStreamingService<Req> for Streaming<S>
where
    S: Stream<Item = Result<Res, Status>> + Send + 'static,
{
    type Response = Res;
    type ResponseStream = S;
    type Future = Answer<Result<tonic::Response<S>, Status>>;

    fn call(&mut self, _: tonic::Request<Req>) -> Self::Future {
        let stream = self.0.take();
        Box::pin(async move { stream.map(tonic::Response::new).ok_or_else(|| Status::internal("answered already")) })
    }
}
