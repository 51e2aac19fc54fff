//! A stand-in for the API server: objects by path, versions, watches, and the ways in which a real
//! one rewrites what it is given.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::stream;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};

/// Collection of slices.
pub(super) const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
/// Collection of nodes.
pub(super) const NODES: &str = "/api/v1/nodes";

type Body = BoxBody<Bytes, Infallible>;

/// One change of an object.
#[derive(Clone)]
struct Changed {
    collection: String,
    kind: &'static str,
    object: Value,
}

#[derive(Default)]
struct Objects {
    by_path: BTreeMap<String, Value>,
    /// The n-th is the change to version n + 1.
    changes: Vec<Changed>,
    /// Keys that are taken out of what is written.
    dropped: Vec<&'static str>,
    requests: Vec<String>,
}

/// The stand-in.
pub(super) struct ApiServer {
    objects: Arc<Mutex<Objects>>,
    version: watch::Sender<usize>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ApiServer {
    pub(super) async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (version, _) = watch::channel(0);
        let objects: Arc<Mutex<Objects>> = Arc::default();
        let inner = Arc::new((Arc::clone(&objects), version.clone()));
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let inner = Arc::clone(&inner);
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let inner = Arc::clone(&inner);
                        async move { Ok::<_, Infallible>(answer(&inner.0, &inner.1, request).await) }
                    });
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Arc::new(Self { objects, version, address, task })
    }

    /// Writes a kubeconfig that leads here.
    pub(super) fn write_kubeconfig(&self, path: &Path) {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", self.address)}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
        });
        fs::write(path, config.to_string()).unwrap();
    }

    /// Drops a key of what is written from now on, as a server without its feature does.
    pub(super) fn drop_key(&self, key: &'static str) {
        self.objects.lock().unwrap().dropped.push(key);
    }

    /// Stores an object as somebody else than the plugin does.
    pub(super) fn put(&self, path: &str, object: Value) -> Value {
        store(&self.objects, &self.version, path, object)
    }

    pub(super) fn delete(&self, path: &str) {
        remove(&self.objects, &self.version, path).unwrap();
    }

    pub(super) fn get(&self, path: &str) -> Option<Value> {
        self.objects.lock().unwrap().by_path.get(path).cloned()
    }

    /// Objects of a collection.
    pub(super) fn list(&self, collection: &str) -> Vec<Value> {
        let objects = self.objects.lock().unwrap();
        let in_it = objects.by_path.iter().filter(|(path, _)| parent(path) == collection);
        in_it.map(|(_, object)| object.clone()).collect()
    }

    /// Number of requests whose method and path begin so.
    pub(super) fn count(&self, beginning: &str) -> usize {
        self.objects.lock().unwrap().requests.iter().filter(|request| request.starts_with(beginning)).count()
    }

    /// Waits for the server to be as it should.
    pub(super) async fn wait<T>(&self, what: &str, seen: impl Fn(&Self) -> Option<T>) -> T {
        for _ in 0..500 {
            if let Some(found) = seen(self) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{what} has not come to be; slices: {:#?}", self.list(SLICES));
    }
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').unwrap().0
}

fn store(objects: &Mutex<Objects>, version: &watch::Sender<usize>, path: &str, mut object: Value) -> Value {
    let mut objects = objects.lock().unwrap();
    for key in objects.dropped.clone() {
        drop_key(&mut object, key);
    }
    rewrite(&mut object);
    let number = objects.changes.len() + 1;
    let metadata = &mut object["metadata"];
    metadata["resourceVersion"] = json!(number.to_string());
    if metadata["uid"].is_null() {
        metadata["uid"] = json!(format!("00000000-0000-0000-0000-{number:012}"));
    }
    let before = objects.by_path.insert(path.to_owned(), object.clone());
    let kind = if before.is_some() { "MODIFIED" } else { "ADDED" };
    objects.changes.push(Changed { collection: parent(path).to_owned(), kind, object: object.clone() });
    version.send_replace(number);
    object
}

fn remove(objects: &Mutex<Objects>, version: &watch::Sender<usize>, path: &str) -> Option<Value> {
    let mut objects = objects.lock().unwrap();
    let object = objects.by_path.remove(path)?;
    let collection = parent(path).to_owned();
    objects.changes.push(Changed { collection, kind: "DELETED", object: object.clone() });
    version.send_replace(objects.changes.len());
    Some(object)
}

fn drop_key(value: &mut Value, key: &str) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| name != key);
            fields.values_mut().for_each(|value| drop_key(value, key));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| drop_key(value, key)),
        _ => {}
    }
}

/// Quantities in another form, and times of taints, as the real one has them.
fn rewrite(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("effect").is_some() && fields.get("timeAdded").is_none_or(Value::is_null) {
                fields.insert("timeAdded".to_owned(), json!("2026-11-23T10:00:00Z"));
            }
            for (name, value) in fields {
                if name == "value" && value == "80Gi" {
                    *value = json!("81920Mi");
                }
                rewrite(value);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(rewrite),
        _ => {}
    }
}

async fn answer(
    objects: &Arc<Mutex<Objects>>,
    version: &watch::Sender<usize>,
    request: Request<Incoming>,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let query = parts.uri.query().unwrap_or_default().replace("%3D", "=");
    let body: Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap_or_default();
    objects.lock().unwrap().requests.push(format!("{} {path}?{query}", parts.method));
    let found = objects.lock().unwrap().by_path.get(&path).cloned();
    let is_collection = ["resourceslices", "nodes", "events"].iter().any(|name| path.ends_with(name));
    match (parts.method, found) {
        (Method::GET, _) if is_collection && query.contains("watch=true") => stream_of(objects, version, &path, &query),
        (Method::GET, _) if is_collection => {
            let objects = objects.lock().unwrap();
            let items = objects.by_path.iter().filter(|(known, _)| parent(known) == path);
            let items: Vec<&Value> =
                items.map(|(_, object)| object).filter(|object| is_selected(object, &query)).collect();
            let version = objects.changes.len().to_string();
            reply(StatusCode::OK, &json!({"kind": "List", "metadata": {"resourceVersion": version}, "items": items}))
        }
        (Method::GET, Some(object)) => reply(StatusCode::OK, &object),
        (Method::POST, _) => {
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
            if objects.lock().unwrap().by_path.contains_key(&path) {
                return failure(StatusCode::CONFLICT, "AlreadyExists");
            }
            reply(StatusCode::CREATED, &store(objects, version, &path, body))
        }
        (Method::PUT, Some(object)) if object["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] => {
            failure(StatusCode::CONFLICT, "Conflict")
        }
        (Method::PUT, Some(_)) => reply(StatusCode::OK, &store(objects, version, &path, body)),
        (Method::PATCH, Some(mut object)) => {
            for (name, value) in body.as_object().unwrap() {
                object[name] = value.clone();
            }
            reply(StatusCode::OK, &store(objects, version, &path, object))
        }
        (Method::DELETE, Some(_)) => reply(StatusCode::OK, &remove(objects, version, &path).unwrap()),
        _ => failure(StatusCode::NOT_FOUND, "NotFound"),
    }
}

fn stream_of(objects: &Arc<Mutex<Objects>>, version: &watch::Sender<usize>, path: &str, query: &str) -> Response<Body> {
    let from = query.split('&').find_map(|part| part.strip_prefix("resourceVersion=")).unwrap_or("0");
    let state = (from.parse::<usize>().unwrap(), version.subscribe(), Arc::clone(objects));
    let (path, query) = (path.to_owned(), query.to_owned());
    let events = stream::unfold(state, move |(mut from, mut version, objects)| {
        let (path, query) = (path.clone(), query.clone());
        async move {
            loop {
                let next = objects.lock().unwrap().changes.get(from).cloned();
                let Some(changed) = next else {
                    version.changed().await.ok()?;
                    continue;
                };
                from += 1;
                if changed.collection == path && is_selected(&changed.object, &query) {
                    let line = format!("{}\n", json!({"type": changed.kind, "object": changed.object}));
                    return Some((Ok(Frame::data(Bytes::from(line))), (from, version, objects)));
                }
            }
        }
    });
    Response::new(BoxBody::new(StreamBody::new(events)))
}

fn is_selected(object: &Value, query: &str) -> bool {
    let selector = query.split('&').find_map(|part| part.strip_prefix("fieldSelector="));
    let Some((field, value)) = selector.and_then(|selector| selector.split_once('=')) else { return true };
    field.split('.').fold(object, |object, field| &object[field]) == value
}

fn reply(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(value.to_string())).boxed());
    *response.status_mut() = status;
    response
}

fn failure(status: StatusCode, reason: &str) -> Response<Body> {
    let code = status.as_u16();
    reply(status, &json!({"kind": "Status", "status": "Failure", "message": reason, "reason": reason, "code": code}))
}
