//! `egpu metrics` gives Prometheus the node's figures.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use integration::{
    Node, eventually,
    exposition::{self, Sample, value},
    hostile::MIB,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    case::Case,
    memory::{fill, idle},
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("metrics::of_a_container", of_a_container).needing(integration::hostile::available).once(),
        Case::egpu("metrics::while_containers_come_and_go", churn).once(),
    ]
}

#[track_caller]
pub(crate) fn scrape(node: &Node) -> Vec<Sample> {
    let output = node.egpu(&["metrics"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    exposition::parse(&String::from_utf8(output.stdout).unwrap())
}

fn of_a_container(node: &Node) {
    node.container("big").env("EGPU_MEMORY", "64GiB").create().unwrap_err();
    let container = idle(node, "a", 256);
    fill(&container);
    let hog = container.exec("hog", &["hostile", "hold", "64"]).start().unwrap();
    assert_eq!(hog.stdio.value("status"), 0);
    let own = [("id", "a"), ("namespace", node.namespace())];
    let samples = eventually("its figures are reported", || {
        let samples = scrape(node);
        let denials = value(&samples, "egpu_container_denials_total", &[own[0], ("kind", "memory")])?;
        let used = value(&samples, "egpu_container_memory_used_bytes", &own)?;
        #[expect(clippy::cast_precision_loss, reason = "64 MiB")]
        let is_told = denials >= 1.0 && used >= (64 * MIB) as f64;
        is_told.then_some(samples)
    });
    let of = |name: &str| value(&samples, name, &own);
    assert_eq!(of("egpu_container_memory_limit_bytes"), Some(256.0 * 1024.0 * 1024.0));
    assert_eq!(of("egpu_container_info"), Some(1.0));
    assert!(of("egpu_container_memory_peak_bytes") >= of("egpu_container_memory_used_bytes"));
    assert_eq!(of("egpu_container_kills_total"), Some(0.0));
    assert_eq!(value(&samples, "egpu_card_containers", &[("card", "0")]), Some(1.0));
    assert_eq!(value(&samples, "egpu_card_simulated", &[("card", "3")]), Some(1.0));
    assert_eq!(value(&samples, "egpu_grants", &[("state", "bound")]), Some(1.0));
    for (kind, count) in [("refused", 1.0), ("admitted", 1.0), ("stalled", 0.0)] {
        assert_eq!(value(&samples, "egpu_events_total", &[("kind", kind)]), Some(count), "{kind}");
    }
    hog.end();
    container.end();
    eventually("the container's figures end with it", || {
        (value(&scrape(node), "egpu_container_info", &own).is_none()).then_some(())
    });
}

/// `egpu metrics --listen`, and where.
pub(crate) struct Server {
    process: Child,
    address: String,
}

impl Server {
    pub(crate) fn start(node: &Node, arguments: &[&str]) -> Self {
        let mut process = node.egpu_command(arguments).stderr(Stdio::piped()).spawn().expect("run egpu");
        let mut line = String::new();
        BufReader::new(process.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split_once("http://").and_then(|(_, rest)| rest.split_once("/metrics"));
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}")).0.to_owned();
        Self { process, address }
    }

    /// Its address and port.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns its answer about the metrics, head and body.
    pub(crate) fn ask(&self, method: &str) -> (String, String) {
        self.ask_for(method, "/metrics")
    }

    pub(crate) fn ask_for(&self, method: &str, path: &str) -> (String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
        (head.to_owned(), body.to_owned())
    }

    pub(crate) fn end(mut self) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).unwrap()), Signal::SIGTERM).unwrap();
        assert!(self.process.wait().unwrap().success());
    }
}

fn churn(node: &Node) {
    let server = Server::start(node, &["metrics", "--listen", "127.0.0.1:0"]);
    let is_over = AtomicBool::new(false);
    let scrapes = std::thread::scope(|scope| {
        let creates = scope.spawn(|| {
            for round in 0..8 {
                let id = format!("c{round}");
                let mut container = node.container(&id).env("EGPU_MEMORY", "1GiB").start().unwrap();
                let _ = node.container("refused").env("EGPU_MEMORY", "nonsense").create();
                container.kill(Signal::SIGKILL).unwrap();
                container.wait().unwrap();
                container.delete().unwrap();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let mut scrapes = 0;
        while !is_over.load(Ordering::Relaxed) && !creates.is_finished() {
            scrape(node);
            let (head, body) = server.ask("GET");
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(exposition::parse(&body).iter().any(|sample| sample.name == "egpu_card_usable"), "{body}");
            scrapes += 1;
        }
        creates.join().unwrap();
        scrapes
    });
    assert!(scrapes > 0);
    let (head, body) = server.ask("HEAD");
    assert!(head.contains("content-length: ") && body.is_empty(), "{head} {body}");
    assert!(server.ask("DELETE").0.starts_with("HTTP/1.1 405 "));
    server.end();
    let events = scrape(node);
    assert_eq!(value(&events, "egpu_events_total", &[("kind", "admitted")]), Some(8.0));
}
