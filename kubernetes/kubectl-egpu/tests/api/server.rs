//! A stand-in for the API server: objects by path, patches merged, discovery from what there is.

use std::{
    convert::Infallible,
    fs,
    net::SocketAddr,
    process::Command,
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpListener, runtime::Builder, sync::oneshot};

use crate::objects::Objects;

/// A request that changes something.
#[derive(Debug, Clone)]
pub(crate) struct Wrote {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) body: Value,
}

#[derive(Default)]
struct State {
    objects: Objects,
    written: Vec<Wrote>,
}

/// The stand-in, until it is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    end: Option<oneshot::Sender<()>>,
}

/// The end of the program.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Server {
    pub(crate) fn start(objects: Objects) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { objects, written: Vec::new() }));
        let (end, ended) = oneshot::channel();
        let served = Arc::clone(&state);
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = serve(listener, served) => {}
                    _ = ended => {}
                }
            });
        });
        Self { address, state, end: Some(end) }
    }

    /// Ends the stand-in; its address answers no more.
    pub(crate) fn stopped(mut self) -> Self {
        self.end.take();
        // Gone once nobody listens.
        while std::net::TcpStream::connect(self.address).is_ok() {
            thread::yield_now();
        }
        self
    }

    /// Runs the program against the stand-in.
    pub(crate) fn run(&self, arguments: &[&str]) -> Done {
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("config");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", self.address)}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
        });
        fs::write(&kubeconfig, config.to_string()).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-egpu"));
        let output = command.env("KUBECONFIG", &kubeconfig).args(arguments).output().unwrap();
        Done {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// All that was written, in order.
    pub(crate) fn written(&self) -> Vec<Wrote> {
        self.state().written.clone()
    }

    pub(crate) fn object(&self, path: &str) -> Value {
        self.state().objects.get(path).unwrap().clone()
    }
}

async fn serve(listener: std::net::TcpListener, state: Arc<Mutex<State>>) {
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let state = Arc::clone(&state);
                async move { Ok::<_, Infallible>(answer(&state, request).await) }
            });
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(state: &Mutex<State>, request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (parts, body) = request.into_parts();
    let body: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap_or_default();
    let (path, query) = (parts.uri.path().to_owned(), parts.uri.query().unwrap_or_default().replace("%3D", "="));
    let mut state = state.lock().unwrap();
    if parts.method != Method::GET {
        state.written.push(Wrote { method: parts.method.to_string(), path: path.clone(), body: body.clone() });
    }
    let is_new = path.contains("/devicetaintrules/") || path.ends_with("/eviction");
    match (parts.method, state.objects.get(&path).cloned()) {
        (Method::POST, Some(object)) if object["budget"] == true => {
            failure(StatusCode::TOO_MANY_REQUESTS, "the disruption budget needs it")
        }
        (_, Some(object)) if object["forbidden"] == true => failure(StatusCode::FORBIDDEN, "forbidden"),
        (Method::GET, _) if is_discovery(&path) => discovery(&state.objects, &path),
        (Method::GET, Some(Value::Null)) | (Method::GET, None) if is_collection(&path) => {
            list(&state.objects, &path, &query)
        }
        (Method::GET, Some(object)) => reply(StatusCode::OK, &object),
        (Method::PATCH, found) if found.is_some() || is_new => {
            let mut object = found.unwrap_or_default();
            merge(&mut object, &body);
            object["metadata"]["name"] = json!(path.rsplit('/').next());
            state.objects.insert(path, object.clone());
            reply(StatusCode::OK, &object)
        }
        (Method::DELETE, Some(object)) => {
            state.objects.remove(&path);
            reply(StatusCode::OK, &object)
        }
        (Method::POST, None) if is_new => reply(StatusCode::CREATED, &json!({"kind": "Status", "status": "Success"})),
        _ if !path.starts_with("/api/") && !has_group(&state.objects) => {
            failure(StatusCode::NOT_FOUND, "the server could not find the requested resource")
        }
        _ => failure(StatusCode::NOT_FOUND, "not found"),
    }
}

fn is_discovery(path: &str) -> bool {
    path.starts_with("/apis/") && path.matches('/').count() == 3
}

fn has_group(objects: &Objects) -> bool {
    objects.keys().any(|path| path.starts_with("/apis/resource.k8s.io"))
}

/// Kinds of a version: DeviceTaintRule, where the collection is there.
fn discovery(objects: &Objects, path: &str) -> Response<Full<Bytes>> {
    if !objects.keys().any(|known| known.starts_with(path)) {
        return failure(StatusCode::NOT_FOUND, "the server could not find the requested resource");
    }
    let served = objects.contains_key(&format!("{path}/devicetaintrules"));
    let rule = json!({"kind": "DeviceTaintRule", "name": "devicetaintrules", "namespaced": false,
                      "singularName": "", "verbs": []});
    let resources = if served { vec![rule] } else { Vec::new() };
    let version = path.trim_start_matches("/apis/");
    reply(StatusCode::OK, &json!({"kind": "APIResourceList", "groupVersion": version, "resources": resources}))
}

fn is_collection(path: &str) -> bool {
    let names = ["resourceslices", "resourceclaims", "deviceclasses", "nodes", "events", "devicetaintrules"];
    names.iter().any(|name| path.ends_with(name))
}

/// Objects of a collection, of all namespaces where none is named.
fn list(objects: &Objects, path: &str, query: &str) -> Response<Full<Bytes>> {
    if path.starts_with("/apis/") && !has_group(objects) {
        return failure(StatusCode::NOT_FOUND, "the server could not find the requested resource");
    }
    let (group, kind) = path.rsplit_once('/').unwrap();
    let is_in = |known: &str| {
        let Some((collection, _)) = known.rsplit_once('/') else { return false };
        collection == path || (collection.starts_with(group) && collection.ends_with(&format!("/{kind}")))
    };
    let items = objects.iter().filter(|(known, object)| is_in(known) && is_selected(object, query));
    let items: Vec<&Value> = items.map(|(_, object)| object).collect();
    reply(StatusCode::OK, &json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}))
}

fn is_selected(object: &Value, query: &str) -> bool {
    let selector = query.split('&').find_map(|part| part.strip_prefix("fieldSelector="));
    let Some((field, value)) = selector.and_then(|selector| selector.split_once('=')) else { return true };
    field.split('.').fold(object, |object, field| &object[field]) == value
}

/// A merge patch: null takes away.
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *object = patch.clone();
        return;
    };
    for (name, value) in fields {
        if value.is_null() {
            object.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut object[name], value);
        }
    }
}

fn reply(status: StatusCode, value: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())));
    *response.status_mut() = status;
    response
}

fn failure(status: StatusCode, message: &str) -> Response<Full<Bytes>> {
    let code = status.as_u16();
    reply(status, &json!({"kind": "Status", "status": "Failure", "message": message, "reason": "", "code": code}))
}
