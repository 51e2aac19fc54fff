//! Distributions that cannot be run here: the layout of their files, with a containerd that reads
//! what they would render.

use integration::ContainerdRelease;

use super::{SIMULATED, V2, V3, host::Host};

/// Files of one distribution.
struct Layout {
    name: &'static str,
    /// Its containerd.
    program: &'static str,
    files: Vec<(&'static str, String)>,
    /// The file that is written, and a line of it.
    written: (&'static str, String),
}

const K3S: &str = "/var/lib/rancher/k3s/agent/etc/containerd";

fn rendered(version: u32, imports: &str) -> String {
    let cri = if version == 3 { V3 } else { V2 };
    format!(
        "version = {version}\n{imports}[plugins.'{cri}'.containerd.runtimes.runc]\nruntime_type = \"io.containerd.runc.v2\"\n\
         [plugins.'{cri}'.containerd.runtimes.runc.options]\nSystemdCgroup = true\n"
    )
}

fn layouts(major: &str) -> Vec<Layout> {
    let version = if major == "2" { 3 } else { 2 };
    let table = |version| format!("[plugins.\"{}\".containerd.runtimes.egpu]", if version == 3 { V3 } else { V2 });
    let k3s = |files, written| Layout {
        name: "k3s",
        program: "/var/lib/rancher/k3s/data/current/bin/containerd",
        files,
        written,
    };
    let config = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";
    let (v2, v3) = (
        "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.tmpl",
        "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.tmpl",
    );
    let new = if version == 3 { v3 } else { v2 };
    let mut all = vec![
        // No template: one that has all that the built-in one has.
        k3s(vec![(config, rendered(version, ""))], (new, "{{ template \"base\" . }}\n".to_owned())),
        // The administrator's own.
        k3s(
            vec![(config, rendered(2, "")), (v2, "{{ template \"base\" . }}\n# mine\n".to_owned())],
            (v2, "# mine\n\n# egpu install: begin runtime egpu".to_owned()),
        ),
        Layout {
            name: "rke2",
            program: "/var/lib/rancher/rke2/bin/containerd",
            files: vec![("/var/lib/rancher/rke2/agent/etc/containerd/config.toml", rendered(version, ""))],
            written: (
                if version == 3 {
                    "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.tmpl"
                } else {
                    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.tmpl"
                },
                table(version),
            ),
        },
        Layout {
            name: "microk8s",
            program: "/snap/microk8s/current/bin/containerd",
            files: vec![
                ("/var/snap/microk8s/current/args/containerd.toml", rendered(2, "")),
                ("/var/snap/microk8s/current/args/containerd-template.toml", rendered(2, "")),
            ],
            written: ("/var/snap/microk8s/current/args/containerd-template.toml", table(2)),
        },
        Layout {
            name: "k0s",
            program: "/var/lib/k0s/bin/containerd",
            files: vec![("/etc/k0s/containerd.toml", format!("# k0s_managed=true\n{}", rendered(version, "")))],
            written: ("/etc/k0s/containerd.d/99-egpu.toml", format!("version = {version}\n\n{}", table(version))),
        },
    ];
    if version == 3 {
        let imports = format!("imports = [\"{K3S}/config-v3.toml.d/*.toml\"]\n");
        let drop_in = "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/99-egpu.toml";
        all.push(k3s(vec![(config, rendered(3, &imports))], (drop_in, table(3))));
    }
    all
}

pub(super) fn all(release: &ContainerdRelease) {
    for layout in layouts(release.major()) {
        let files: Vec<(&str, &str)> = layout.files.iter().map(|(path, text)| (*path, text.as_str())).collect();
        let host = Host::with(release, &files);
        let program = host.path(layout.program);
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/usr/local/bin/containerd", program).unwrap();
        let listing = host.listing();
        let only = ["--only", layout.name];
        if layout.name == "k0s" {
            let refused = host.egpu(&[&["install"], &only[..]].concat());
            assert_eq!(refused.status.code(), Some(5), "k0s restarts containerd by itself: {refused:#?}");
            assert_eq!(host.listing(), listing);
        }
        host.egpu_ok(&[&["install", "--restart", "--config", SIMULATED], &only[..]].concat());
        let (path, line) = &layout.written;
        let text = host.read(path);
        assert!(text.contains(line) && text.contains(release_form(release)), "{}: {text}", layout.name);
        assert!(release.version == "1.6" || text.contains("SystemdCgroup = true"), "{}: {text}", layout.name);
        let again = host.egpu_ok(&[&["install", "--dry-run"], &only[..]].concat());
        assert!(!again.contains("would"), "{again}");
        host.egpu_ok(&["uninstall", "--restart"]);
        assert_eq!(host.listing(), listing, "{}", layout.name);
    }
}

fn release_form(release: &ContainerdRelease) -> &'static str {
    if release.version == "1.6" { "io.containerd.egpu.v1" } else { "runtime_path" }
}
