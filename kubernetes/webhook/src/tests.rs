//! The server as the API server meets it: TLS, HTTP, admission reviews.

use std::{fs, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use http_body_util::Full;
use hyper::{Request, Response, body::Bytes};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::core::admission::AdmissionReview;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{oneshot, watch},
    time::{Instant, sleep, timeout},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};

use crate::{
    api::Api,
    own_certificate::{Issued, issue},
    review,
    server::Server,
    settings::Settings,
    tls::{self, KeyPair},
};

const NAME: &str = "egpu-webhook.egpu.svc";
/// Longest wait of a test.
const PATIENCE: Duration = Duration::from_secs(30);

fn issued() -> Issued {
    issue(&[NAME.to_owned()], Timestamp::now() + SignedDuration::from_hours(24)).unwrap()
}

fn pair(issued: &Issued) -> KeyPair {
    KeyPair { certificate: issued.certificate.clone().into_bytes(), key: issued.key.clone().into_bytes() }
}

/// Sends one request to a server whose authority is known; returns all of the answer.
async fn ask(address: SocketAddr, authority: &str, request: &str) -> Result<String, std::io::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.as_bytes()).unwrap()).unwrap();
    let versions = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = versions.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let connector = TlsConnector::from(Arc::new(config.with_no_client_auth()));
    let stream = TcpStream::connect(address).await?;
    let mut stream = connector.connect(ServerName::try_from(NAME).unwrap(), stream).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\n\r\n")
}

fn post(body: &str) -> String {
    let head = format!("POST /mutate HTTP/1.1\r\nHost: {NAME}\r\nConnection: close\r\nContent-Length: {}", body.len());
    format!("{head}\r\n\r\n{body}")
}

/// A review of a pod whose container has these limits.
fn review(limits: &Value, dry_run: bool) -> String {
    let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    });
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "6918e837", "kind": kind, "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "p", "namespace": "team", "operation": "CREATE", "userInfo": {}, "object": object, "dryRun": dry_run,
        },
    })
    .to_string()
}

struct Running {
    address: SocketAddr,
    end: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

async fn running(tls: watch::Receiver<Arc<ServerConfig>>) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (end, ended) = oneshot::channel();
    let server = Arc::new(Server { settings: Settings::default(), api: Api::nowhere() });
    let task = tokio::spawn(server.run(listener, tls, async { ended.await.unwrap_or_default() }));
    Running { address, end, task }
}

#[tokio::test]
async fn reviews_are_answered() {
    let issued = issued();
    let (_served, tls) = watch::channel(pair(&issued).server_config().unwrap());
    let running = running(tls).await;
    let ask = async |request: String| ask(running.address, &issued.authority, &request).await.unwrap();
    assert!(ask(get("/readyz")).await.starts_with("HTTP/1.1 200"));
    assert!(ask(get("/mutate")).await.starts_with("HTTP/1.1 405"));
    assert!(ask(get("/")).await.starts_with("HTTP/1.1 404"));
    assert!(ask(post("{}")).await.starts_with("HTTP/1.1 400"));
    let answered = async |limits: Value, dry_run| {
        let answer = ask(post(&review(&limits, dry_run))).await;
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str::<Value>(body).unwrap()["response"].clone()
    };
    let nothing = answered(json!({"cpu": "1"}), false).await;
    assert_eq!((&nothing["uid"], &nothing["allowed"], nothing.get("patch")), (&json!("6918e837"), &json!(true), None));
    let share = json!({"nvidia.com/gpumem": "1024"});
    let tried = answered(share.clone(), true).await;
    assert!(tried["allowed"] == true && tried["patchType"] == "JSONPatch", "a dry run asks nobody: {tried}");
    // Without its template the pod would wait for ever.
    let made = answered(share, false).await;
    assert_eq!(made["allowed"], false);
    let message = made["status"]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("the pod's claim template cannot be made: "), "{message}");
    running.end.send(()).unwrap();
    timeout(PATIENCE, running.task).await.unwrap().unwrap();
}

/// An API server that answers each call in time, and has nothing.
fn slow_api() -> Api {
    let nothing = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
    let service = tower::service_fn(move |_: Request<kube::client::Body>| {
        let body = Full::new(Bytes::from(nothing.to_string()));
        async move {
            sleep(Duration::from_secs(3)).await;
            Response::builder().status(404).body(body)
        }
    });
    Api::of_client(kube::Client::new(service, "egpu"))
}

#[tokio::test(start_paused = true)]
async fn slow_answers_of_the_api_server_do_not_add_up() {
    let review: AdmissionReview<Pod> =
        serde_json::from_str(&review(&json!({"nvidia.com/gpumem": "1024"}), false)).unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    let response = review::answer(&review.try_into().unwrap(), &Settings::default(), &slow_api(), end).await;
    assert_eq!((response.allowed, Instant::now()), (false, end));
    assert!(response.result.message.contains("answers too slowly"), "{:?}", response.result);
}

#[tokio::test]
async fn a_certificate_is_served_anew_when_its_files_change() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["tls.crt", "tls.key"].map(|name| folder.path().join(name));
    let write = |issued: &Issued| {
        let parts = [&issued.certificate, &issued.key];
        paths.iter().zip(parts).for_each(|(path, text): (_, &String)| fs::write(path, text).unwrap());
    };
    let [first, second] = [issued(), issued()];
    write(&first);
    let [certificate, key]: [&Path; 2] = [&paths[0], &paths[1]];
    let serving = KeyPair::read(certificate, key).await.unwrap();
    let (served, mut tls) = watch::channel(serving.server_config().unwrap());
    let running = running(tls.clone()).await;
    let pause = Duration::from_millis(10);
    let following = tokio::spawn(tls::follow(certificate.to_owned(), key.to_owned(), serving, served, pause));
    assert!(ask(running.address, &first.authority, &get("/readyz")).await.is_ok());
    write(&second);
    timeout(PATIENCE, tls.changed()).await.unwrap().unwrap();
    assert!(ask(running.address, &second.authority, &get("/readyz")).await.is_ok());
    assert!(ask(running.address, &first.authority, &get("/readyz")).await.is_err());
    following.abort();
}
