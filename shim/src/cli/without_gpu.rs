//! `egpu inspect` of a container that seemed to ask for a GPU and has none: what it asked, and why that was not believed.

use nvidia_glue::ledger::ContainerKey;
use runtime_config::request::PodContainer;
use serde::Serialize;

use crate::bundle::{Note, WithoutGpu};

/// What there is to tell of it. It holds no grant.
#[derive(Debug, Serialize)]
pub(super) struct Container {
    container: ContainerKey,
    pod: Option<PodContainer>,
    asked: Vec<String>,
    without_gpu: String,
}

/// The one whose id is `wanted`, or the only one whose id begins with it.
pub(super) fn find(notes: impl Iterator<Item = Note>, wanted: &str, namespace: Option<&str>) -> Option<Container> {
    let in_namespace = |note: &Note| namespace.is_none_or(|namespace| note.namespace == namespace);
    let begins = |note: &Note| !wanted.is_empty() && note.id.starts_with(wanted);
    let mut found: Vec<Container> = notes.filter(|note| in_namespace(note) && begins(note)).filter_map(told).collect();
    if found.iter().any(|told| told.container.id == wanted) {
        found.retain(|told| told.container.id == wanted);
    }
    if found.len() == 1 { found.pop() } else { None }
}

fn told(note: Note) -> Option<Container> {
    let Note { id, namespace, containerd, without_gpu, .. } = note;
    let WithoutGpu { pod, asked, why } = without_gpu?;
    Some(Container { container: ContainerKey { containerd, namespace, id }, pod, asked, without_gpu: why })
}

/// The same for people, as of a container with a grant.
pub(super) fn text(told: &Container) -> String {
    let Container { container, pod, asked, without_gpu } = told;
    let names = |pod: &PodContainer| format!("{}/{}/{}", pod.namespace, pod.pod, pod.container);
    let mut lines = vec![("container", container.to_string()), ("containerd", container.containerd.clone())];
    lines.extend(pod.iter().map(|pod| ("pod", names(pod))));
    lines.extend(asked.iter().map(|asked| ("asked", asked.clone())));
    lines.push(("no GPU", without_gpu.clone()));
    lines.iter().map(|(name, value)| format!("{name:<10}  {value}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(namespace: &str, id: &str, why: Option<&str>) -> Note {
        let pod = PodContainer { namespace: "default".into(), pod: "web".into(), container: "side".into() };
        let asked = vec!["NVIDIA_VISIBLE_DEVICES=all".to_owned()];
        Note {
            id: id.into(),
            namespace: namespace.into(),
            containerd: "/c.sock".into(),
            bundle: "/b".into(),
            shim: None,
            runtime_root: "/r".into(),
            cgroups_path: None,
            systemd_cgroup: false,
            cgroup: None,
            init_pid: None,
            without_gpu: why.map(|why| WithoutGpu { pod: Some(pod), asked, why: why.to_owned() }),
        }
    }

    #[test]
    fn an_id_or_an_unambiguous_beginning_finds_what_was_not_believed() {
        let notes = || {
            let told = [("k8s.io", "abc"), ("k8s.io", "abcd"), ("k8s.io", "xy"), ("other", "xy")];
            let told = told.into_iter().map(|(namespace, id)| note(namespace, id, Some("why")));
            told.chain([note("k8s.io", "plain", None)])
        };
        let found = |wanted, namespace| find(notes(), wanted, namespace).map(|told| told.container.id);
        for (wanted, namespace, id) in
            [("abc", None, Some("abc")), ("abcd", None, Some("abcd")), ("xy", Some("other"), Some("xy"))]
        {
            assert_eq!(found(wanted, namespace).as_deref(), id, "{wanted}");
        }
        for wanted in ["", "ab", "xy", "plain", "z"] {
            assert_eq!(found(wanted, None), None, "{wanted}");
        }
        let told = find(notes(), "abcd", None).unwrap();
        assert_eq!(
            text(&told),
            "container   k8s.io/abcd\ncontainerd  /c.sock\npod         default/web/side\n\
             asked       NVIDIA_VISIBLE_DEVICES=all\nno GPU      why\n"
        );
        assert_eq!(serde_json::to_value(&told).unwrap()["without_gpu"], "why");
    }
}
