//! `egpu inspect` of a container that seemed to ask for a GPU and has none: what it asked, and why that was not believed.

use std::path::Path;

use nvidia_glue::ledger::{ContainerKey, ContainerName};
use runtime_config::request::PodContainer;
use serde::Serialize;

use super::output::printable;
use crate::{
    bundle::{Note, WithoutGpu},
    registry::Registry,
};

/// What there is to tell of it. It holds no grant.
#[derive(Debug, Serialize)]
pub(super) struct Container {
    pub(super) container: ContainerKey,
    pub(super) pod: Option<PodContainer>,
    pub(super) asked: Vec<String>,
    pub(super) without_gpu: String,
}

/// All of this node.
pub(super) fn list(state_dir: &Path) -> Vec<Container> {
    Registry::at(state_dir.to_owned()).notes().filter_map(told).collect()
}

fn told(note: Note) -> Option<Container> {
    let Note { id, namespace, containerd, without_gpu, .. } = note;
    let WithoutGpu { pod, asked, why } = without_gpu?;
    Some(Container { container: ContainerKey { containerd, namespace, id }, pod, asked, without_gpu: why })
}

impl<'a> From<&'a Container> for ContainerName<'a> {
    fn from(told: &'a Container) -> Self {
        Self { key: &told.container, pod: told.pod.as_ref() }
    }
}

/// The same for people, as of a container with a grant.
pub(super) fn text(told: &Container) -> String {
    let Container { container, pod, asked, without_gpu } = told;
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
    fn only_what_was_not_believed_is_told() {
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
            };
            registry.lock().unwrap().save_note(&note).unwrap();
        }
        let all = list(directory.path());
        let [told] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(
            text(told),
            "container   k8s.io/side\ncontainerd  /c.sock\npod         default/web/side\n\
             asked       NVIDIA_VISIBLE_DEVICES=all\nno GPU      why\n"
        );
        let mut hostile = all.into_iter().next().unwrap();
        hostile.asked = vec!["NVIDIA_REQUIRE_\u{202e}=a\n\u{1b}[2J".to_owned()];
        assert!(text(&hostile).contains("\nasked       NVIDIA_REQUIRE_?=a??[2J\n"), "{}", text(&hostile));
        assert_eq!(serde_json::to_value(hostile).unwrap()["without_gpu"], "why");
    }
}
