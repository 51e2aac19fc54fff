//! containerd's configuration among the examples: containerd is started with that very file,
//! changed only in its paths. And the commands of the services that tell Prometheus.

use std::path::Path;

use integration::{Node, Setup, containerd::DaemonConfig, cri::PodContainerConfig, exposition};

use crate::{
    case::{Case, Skip},
    metrics::Server,
};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("examples::config_1x", pod_gets_what_it_asks).needing(the_examples).on(config_1x),
        Case::egpu("examples::config_2x", pod_gets_what_it_asks)
            .needing(the_examples)
            .on(config_2x)
            .on_containerd(&["2"]),
        Case::egpu("examples::drop_in_17", pod_gets_what_it_asks)
            .needing(the_examples)
            .on(drop_in_17)
            .on_containerd(&["1.7", "2"]),
        Case::egpu("examples::drop_in_2x", pod_gets_what_it_asks)
            .needing(the_examples)
            .on(drop_in_2x)
            .on_containerd(&["2"]),
        Case::egpu("examples::metrics_to_a_textfile", metrics_to_a_textfile).needing(the_examples).once(),
        Case::egpu("examples::metrics_over_http", metrics_over_http).needing(the_examples).once(),
    ]
}

/// A binary that was carried to another machine has left them behind.
fn the_examples() -> Skip {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/containerd");
    if folder.is_dir() { Ok(()) } else { Err("the repository's examples are not on this machine".to_owned()) }
}

/// Returns the arguments of a systemd service among the examples, `from` replaced, without the
/// program.
fn executed(unit: &str, from: &str, to: &str) -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/metrics").join(unit);
    let text = std::fs::read_to_string(path).unwrap();
    let command = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/egpu ")).unwrap();
    assert!(command.contains(from), "{command}");
    command.replace(from, to).split(' ').map(str::to_owned).collect()
}

fn metrics_to_a_textfile(node: &Node) {
    let directory = node.directory().join("textfiles");
    std::fs::create_dir(&directory).unwrap();
    let command = executed("egpu-metrics.service", "/var/lib/prometheus/node-exporter", directory.to_str().unwrap());
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    // The timer starts it again and again.
    for _ in 0..2 {
        let output = node.egpu(&command);
        assert!(output.status.success() && output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = std::fs::read_to_string(directory.join("egpu.prom")).unwrap();
        assert!(exposition::parse(&text).iter().any(|sample| sample.name == "egpu_card_usable"), "{text}");
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    }
}

fn metrics_over_http(node: &Node) {
    let command = executed("egpu-metrics-http.service", ":9402", ":0");
    let server = Server::start(node, &command.iter().map(String::as_str).collect::<Vec<_>>());
    let (head, body) = server.ask("GET");
    assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
    assert!(exposition::parse(&body).iter().any(|sample| sample.name == "egpu_card_usable"), "{body}");
    server.end();
}

fn example(name: &'static str) -> Setup {
    let containerd = DaemonConfig { cri: true, example: Some(name), ..DaemonConfig::default() };
    Setup { containerd, images: true, ..Setup::default() }
}

fn config_1x() -> Setup {
    example("config-1.x.toml")
}

fn config_2x() -> Setup {
    example("config-2.x.toml")
}

fn drop_in_17() -> Setup {
    example("drop-in-1.7.toml")
}

fn drop_in_2x() -> Setup {
    example("drop-in-2.x.toml")
}

fn pod_gets_what_it_asks(node: &Node) {
    let pod = node.pod("p", &[("egpu.io/memory", "3GiB")]).unwrap();
    let config = PodContainerConfig { command: &["sleep", "infinity"], ..PodContainerConfig::default() };
    let container = pod.start("a", &config).unwrap();
    assert_eq!(node.grant(&container.id).expect("the pod's annotation arrives").memory_mib(), [3072]);
    assert_eq!(container.exec(&["sh", "-c", "ls /dev | grep -c '^nvidia[0-9]'"]).stdout, b"1\n");
    let own: &[(&str, &str)] = &[("egpu.io/memory", "1GiB")];
    let second = pod.start("b", &PodContainerConfig { annotations: own, ..config }).unwrap();
    assert_eq!(node.grant(&second.id).expect("the container's annotation arrives").memory_mib(), [1024]);
    pod.remove();
}
