//! Docker's `daemon.json`: one runtime more, by text.

use integration::ContainerdRelease;

use super::{SIMULATED, host::Host};

const CONFIG: &str = "/etc/docker/daemon.json";

pub(super) fn runtime(release: &ContainerdRelease) {
    let mine = "{\n\t\"log-level\": \"warn\",\n\t\"runtimes\": { \"kata\": { \"runtimeType\": \"io.containerd.kata.v2\" } }\n}";
    let host = Host::with(release, &[(CONFIG, mine)]);
    let only = |command| [&[command][..], &["--only", "docker"]].concat();
    let install = [only("install"), vec!["--config", SIMULATED]].concat();
    host.program("dockerd", "#!/bin/sh\necho Docker version 20.10.24, build 297e128\n");
    let refused = host.egpu(&install);
    assert!(!refused.status.success(), "before 23 a runtime cannot be a shim of containerd's: {refused:#?}");
    host.program("dockerd", "#!/bin/sh\necho Docker version 26.1.5+dfsg1, build a72d7cd\n");
    let listing = host.listing();
    host.egpu_ok(&[&install[..], &["--restart"]].concat());
    assert_eq!(host.read("/var/log/systemctl.log"), "reload docker.service\n");
    let config: serde_json::Value = serde_json::from_str(&host.read(CONFIG)).unwrap();
    assert_eq!(config["runtimes"]["egpu"]["runtimeType"], "io.containerd.egpu.v1");
    assert_eq!(config["runtimes"]["kata"]["runtimeType"], "io.containerd.kata.v2");
    let again = host.egpu_ok(&[&install[..], &["--dry-run"]].concat());
    assert!(!again.contains("would"), "{again}");
    let with = host.read(CONFIG);
    host.write(CONFIG, &with.replacen('{', "{ \"default-runtime\": \"egpu\",", 1));
    let refused = host.egpu(&only("uninstall"));
    assert_eq!(refused.status.code(), Some(5), "Docker would not start: {refused:#?}");
    host.write(CONFIG, &with);
    host.egpu_ok(&["uninstall"]);
    assert_eq!(host.listing(), listing);
}
