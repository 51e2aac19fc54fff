//! `egpu inspect` of a container that seemed to ask for a GPU and has none: its request, and why it
//! was ignored.

use std::path::Path;

use egpu_shim::{
    bundle::{Note, WithoutGpu},
    registry::Registry,
};
use ledger::{ContainerKey, ContainerName};
use runtime_config::request::PodContainer;
use serde::Serialize;

use super::output::printable;

/// A container without a grant, whose request was ignored.
#[derive(Debug, Serialize)]
pub(super) struct ContainerWithoutGpu {
    pub(super) container: ContainerKey,
    pub(super) pod: Option<PodContainer>,
    pub(super) asked: Vec<String>,
    pub(super) without_gpu: String,
}

/// Lists those of this node.
pub(super) fn list(state_dir: &Path) -> Vec<ContainerWithoutGpu> {
    Registry::at(state_dir.to_owned()).notes().filter_map(from_note).collect()
}

fn from_note(note: Note) -> Option<ContainerWithoutGpu> {
    let Note { id, namespace, containerd, without_gpu, .. } = note;
    let WithoutGpu { pod, asked, why } = without_gpu?;
    Some(ContainerWithoutGpu { container: ContainerKey { containerd, namespace, id }, pod, asked, without_gpu: why })
}

impl<'a> From<&'a ContainerWithoutGpu> for ContainerName<'a> {
    fn from(reported: &'a ContainerWithoutGpu) -> Self {
        Self { key: &reported.container, pod: reported.pod.as_ref() }
    }
}

/// Formats it for people, like a container with a grant.
pub(super) fn text(reported: &ContainerWithoutGpu) -> String {
    let ContainerWithoutGpu { container, pod, asked, without_gpu } = reported;
    let mut lines = vec![("container", container.to_string()), ("containerd", container.containerd.clone())];
    lines.extend(pod.iter().map(|pod| ("pod", pod.to_string())));
    lines.extend(asked.iter().map(|asked| ("asked", asked.clone())));
    lines.push(("no GPU", without_gpu.clone()));
    lines.iter().map(|(name, value)| format!("{name:<10}  {}\n", printable(value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ignored_requests_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let registry = Registry::at(directory.path().to_owned());
        let pod = PodContainer { namespace: "default".into(), pod: "web".into(), container: "side".into() };
        let asked = vec!["NVIDIA_VISIBLE_DEVICES=all".to_owned()];
        for (id, without_gpu) in
            [("side", Some(WithoutGpu { pod: Some(pod), asked, why: "why".into() })), ("plain", None)]
        {
            let note = Note {
                id: id.into(),
                namespace: "k8s.io".into(),
                containerd: "/c.sock".into(),
                bundle: "/b".into(),
                shim: None,
                runtime_root: "/r".into(),
                cgroups_path: None,
                systemd_cgroup: false,
                cgroup: None,
                init_pid: None,
                without_gpu,
                grant: egpu_shim::gpu::NotedGrant::Nothing,
                egpu_version: None,
            };
            registry.save_note(&note).unwrap();
        }
        let all = list(directory.path());
        let [reported] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(
            text(reported),
            "container   k8s.io/side\ncontainerd  /c.sock\npod         default/web/side\n\
             asked       NVIDIA_VISIBLE_DEVICES=all\nno GPU      why\n"
        );
        let mut hostile = all.into_iter().next().unwrap();
        hostile.asked = vec!["NVIDIA_REQUIRE_\u{202e}=a\n\u{1b}[2J".to_owned()];
        assert!(text(&hostile).contains("\nasked       NVIDIA_REQUIRE_?=a??[2J\n"), "{}", text(&hostile));
        assert_eq!(serde_json::to_value(hostile).unwrap()["without_gpu"], "why");
    }
}
