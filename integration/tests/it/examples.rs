//! containerd's configuration among the examples: containerd is started with that very file, changed only in its paths.

use std::path::Path;

use integration::{Node, Setup, containerd::DaemonConfig, cri::PodContainerConfig};

use crate::case::{Case, Skip};

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
    ]
}

/// A binary that was carried to another machine has left them behind.
fn the_examples() -> Skip {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/containerd");
    if folder.is_dir() { Ok(()) } else { Err("the repository's examples are not on this machine".to_owned()) }
}

fn example(name: &'static str) -> Setup {
    let containerd = DaemonConfig { cri: true, example: Some(name) };
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
