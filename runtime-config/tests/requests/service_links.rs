//! Variables that Kubernetes gives each container for the Services of its namespace.

use runtime_config::Config;

use crate::golden::check;

/// The kubelet's, of a Service with one named port.
fn links(service: &str) -> Vec<String> {
    let name = service.replace('-', "_").to_ascii_uppercase();
    let tcp = format!("{name}_PORT_80_TCP");
    let (host, port) = ("10.96.7.1", "80");
    [
        (format!("{name}_SERVICE_HOST"), host),
        (format!("{name}_SERVICE_PORT"), port),
        (format!("{name}_SERVICE_PORT_WEB_UI"), port),
        (format!("{name}_PORT"), "tcp://10.96.7.1:80"),
        (tcp.clone(), "tcp://10.96.7.1:80"),
        (format!("{tcp}_PROTO"), "tcp"),
        (format!("{tcp}_PORT"), port),
        (format!("{tcp}_ADDR"), host),
    ]
    .map(|(name, value)| format!("{name}={value}"))
    .to_vec()
}

#[test]
fn links_are_no_request_whatever_the_services_name() {
    let services = [
        "egpu-demo",
        "egpu-webhook",
        "egpu-memory",
        "egpu-compute",
        "egpu-cards-api",
        "egpu-policy-server",
        "egpu-claim-gpu",
        "egpu",
        "egpu-port",
        "nvidia-visible-devices",
        "nvidia-require-cuda",
        "nvidia-mig-config",
        "aliyun-com-gpu-mem-dev",
        "cuda-device-memory-limit",
        "cuda-device-sm-limit",
        "nvidia-gpu-memory-limit",
        "amp-vgpu",
        "gpu-portion",
    ];
    let requests = [
        (&[][..], "nothing"),
        (&["EGPU_MEMORY=1GiB"], "any 1 mem 1GiB time free"),
        (&["EGPU_PRIORITY=low"], "nothing"),
        (&["CUDA_DEVICE_MEMORY_LIMIT=1g"], "any 1 mem 1GiB time free low"),
    ];
    for service in services {
        let links = links(service);
        for (asked, outcome) in requests {
            let env: Vec<&str> = links.iter().map(String::as_str).chain(asked.iter().copied()).collect();
            check(&Config::default(), &[(&env, outcome)]);
        }
    }
}

#[test]
fn names_that_only_look_like_links_are_refused() {
    let host = "EGPU_DEMO_SERVICE_HOST=10.96.7.1";
    let port = "EGPU_DEMO_SERVICE_PORT=80";
    for (name, beside) in [
        ("EGPU_DEMO_PORT", [port, ""]),
        ("EGPU_DEMO_PORT", [host, ""]),
        ("EGPU_MEMORY_PORT", [host, port]),
        ("EGPU_MEMROY", [host, port]),
        ("EGPU_DEMO_MEMORY", [host, port]),
        ("EGPU_DEMO_PORT_80", [host, port]),
        ("EGPU_DEMO_PORT_99999_TCP", [host, port]),
        ("EGPU_DEMO_PORT_80_TCP_NAME", [host, port]),
    ] {
        let variable = format!("{name}=1GiB");
        let mut env = vec!["EGPU_MEMORY=1GiB", variable.as_str()];
        env.extend(beside.iter().filter(|other| !other.is_empty()));
        check(&Config::default(), &[(&env, "refused: there is no ")]);
    }
}
