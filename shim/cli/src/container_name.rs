//! Names of a container on the command line: its id or enough of its beginning, containerd's
//! NAMESPACE/ID, and for a pod's container POD, NAMESPACE/POD and NAMESPACE/POD/CONTAINER.
//!
//! A name that fits several containers is refused with the candidates. A whole id goes before
//! everything else.

use std::collections::{BTreeMap, BTreeSet};

use ledger::{ContainerName, event_log::Entry};
use runtime_config::request::PodContainer;

use super::{error::CliError, output::printable};

/// All names of a container.
#[derive(Debug, Clone, Copy)]
struct Names<'a> {
    /// containerd's.
    namespace: &'a str,
    id: &'a str,
    pod: Option<&'a PodContainer>,
}

impl Names<'_> {
    fn is_whole(&self, wanted: &str) -> bool {
        wanted.split_once('/') == Some((self.namespace, self.id))
    }

    fn begins_with(&self, wanted: &str) -> bool {
        let (namespace, beginning) = wanted.split_once('/').unwrap_or((self.namespace, wanted));
        namespace == self.namespace && !beginning.is_empty() && self.id.starts_with(beginning)
    }

    fn is_in_pod(&self, wanted: &str) -> bool {
        let Some(PodContainer { namespace, pod, container }) = self.pod else { return false };
        match *wanted.split('/').collect::<Vec<_>>() {
            [name] => name == pod,
            [in_namespace, name] => (in_namespace, name) == (namespace, pod),
            [in_namespace, name, its] => (in_namespace, name, its) == (namespace, pod, container),
            _ => false,
        }
    }
}

/// Kind of match with containerd's names. If one fits, those before it do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    /// An id's beginning, or a pod.
    Prefix,
    /// NAMESPACE/ID, which is not meant as the beginning of longer ids, but may be NAMESPACE/POD.
    Whole,
    /// An id alone.
    Exact,
}

impl Match {
    /// Returns the closest match among all names.
    fn closest<'a>(mut names: impl Iterator<Item = Names<'a>> + Clone, wanted: &str) -> Self {
        if names.clone().any(|names| names.id == wanted) {
            Self::Exact
        } else if names.any(|names| names.is_whole(wanted)) {
            Self::Whole
        } else {
            Self::Prefix
        }
    }

    fn fits(self, names: Names<'_>, wanted: &str) -> bool {
        match self {
            Self::Exact => names.id == wanted,
            Self::Whole => names.is_whole(wanted) || names.is_in_pod(wanted),
            Self::Prefix => names.begins_with(wanted) || names.is_in_pod(wanted),
        }
    }
}

/// Finds the one of `all` that is called `wanted`, in this namespace of containerd or Kubernetes.
pub(super) fn find<'a, T>(all: &'a [T], wanted: &str, namespace: Option<&str>) -> Result<&'a T, CliError>
where
    &'a T: Into<ContainerName<'a>>,
{
    let is_in = |container: &'a T, namespace: &str| {
        let ContainerName { key, pod } = container.into();
        key.namespace == namespace || pod.is_some_and(|pod| pod.namespace == namespace)
    };
    let all = all.iter().filter(|container| namespace.is_none_or(|namespace| is_in(container, namespace)));
    let names = |container: &'a T| {
        let ContainerName { key, pod } = container.into();
        Names { namespace: &key.namespace, id: &key.id, pod }
    };
    let closest = Match::closest(all.clone().map(names), wanted);
    match *all.filter(|container| closest.fits(names(container), wanted)).collect::<Vec<_>>() {
        [] => Err(CliError::NoSuchContainer { wanted: wanted.to_owned() }),
        [container] => Ok(container),
        ref several => Err(CliError::Ambiguous {
            wanted: wanted.to_owned(),
            candidates: several
                .iter()
                .map(|container| {
                    let name: ContainerName<'_> = (*container).into();
                    printable(&format!("{name} ({})", name.key.containerd))
                })
                .collect(),
        }),
    }
}

/// The events about the container of one name, however often it was restarted.
#[derive(Debug)]
pub(super) struct ContainerEvents<'a> {
    wanted: &'a str,
    /// The closest match among the events so far: a container that was found by its id is not
    /// another one later, whose id is longer.
    closest: Match,
    /// The containers of the events so far, by containerd's NAMESPACE/ID.
    containers: BTreeMap<String, Option<PodContainer>>,
}

impl<'a> ContainerEvents<'a> {
    pub(super) fn new(wanted: &'a str) -> Self {
        Self { wanted, closest: Match::Prefix, containers: BTreeMap::new() }
    }

    /// Keeps the events about the container.
    ///
    /// `events` must be all that there are, so that the name is not guessed. Fails once there were
    /// events of several containers that the name fits.
    pub(super) fn choose<T>(&mut self, events: Vec<T>, entry: impl Fn(&T) -> &Entry) -> Result<Vec<T>, CliError> {
        let names = |event| {
            let Entry { namespace, container, pod, .. } = entry(event);
            Some(Names { namespace: namespace.as_deref()?, id: container.as_deref()?, pod: pod.as_ref() })
        };
        self.closest = self.closest.max(Match::closest(events.iter().filter_map(names), self.wanted));
        let fits = |names: &Names<'_>| self.closest.fits(*names, self.wanted);
        let mut chosen = BTreeSet::new();
        for (position, event) in events.iter().enumerate() {
            let Some(names) = names(event).filter(fits) else { continue };
            chosen.insert(position);
            let pod = self.containers.entry(format!("{}/{}", names.namespace, names.id)).or_default();
            // An event need not name the pod of its container: an earlier version of egpu may have
            // written it.
            *pod = pod.take().or_else(|| names.pod.cloned());
        }
        let name = |(key, pod): (&String, &Option<PodContainer>)| {
            pod.as_ref().map_or_else(|| key.clone(), PodContainer::to_string)
        };
        let candidates: BTreeSet<String> = self.containers.iter().map(name).collect();
        if candidates.len() > 1 {
            let candidates = candidates.iter().map(|name| printable(name)).collect();
            return Err(CliError::Ambiguous { wanted: self.wanted.to_owned(), candidates });
        }
        Ok(events
            .into_iter()
            .enumerate()
            .filter(|(position, _)| chosen.contains(position))
            .map(|(_, event)| event)
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use ledger::{Record, event_log::Kind};

    use super::*;
    use crate::{exit::Exit, test_support};

    /// `namespace/id`, or `namespace/id=pod's namespace/pod/container`.
    fn record(text: &str) -> Record {
        let mut record = test_support::node().records.remove(0);
        let (key, pod) = text.split_once('=').map_or((text, None), |(key, pod)| (key, Some(pod)));
        let (namespace, id) = key.split_once('/').unwrap();
        (record.container.namespace, record.container.id) = (namespace.to_owned(), id.to_owned());
        record.request.pod = pod.map(|pod| {
            let names: Vec<String> = pod.split('/').map(str::to_owned).collect();
            let [namespace, pod, container] = names.try_into().unwrap();
            PodContainer { namespace, pod, container }
        });
        record
    }

    const ALL: [&str; 9] = [
        "default/web",
        "default/web-2",
        "moby/web-2",
        "k8s.io/aa11=team/train-0/main",
        "k8s.io/ab22=team/train-0/side",
        "k8s.io/ac33=team/train-1/main",
        "k8s.io/bd44=other/train-1/main",
        "k8s.io/be55=default/web/main",
        "k8s.io/train-1=team/unlucky/main",
    ];

    #[test]
    fn a_container_is_found_by_each_of_its_names_and_never_guessed() {
        let records: Vec<Record> = ALL.iter().map(|text| record(text)).collect();
        for (wanted, namespace, found) in [
            ("aa11", None, "aa11"),
            ("aa", None, "aa11"),
            ("k8s.io/aa11", None, "aa11"),
            ("k8s.io/aa", None, "aa11"),
            ("team/train-0/main", None, "aa11"),
            ("team/train-1", None, "ac33"),
            ("unlucky", None, "train-1"),
            ("train-1", None, "train-1"),
            ("train-1", Some("other"), "bd44"),
            ("web", None, "web"),
            ("default/web-2", None, "web-2"),
            ("web-2", Some("moby"), "web-2"),
        ] {
            assert_eq!(find(&records, wanted, namespace).unwrap().container.id, found, "{wanted} {namespace:?}");
        }
        for (wanted, namespace, candidates) in [
            ("team/train-0", None, &["team/train-0/main [k8s.io/aa11]", "team/train-0/side [k8s.io/ab22]"][..]),
            ("train-0", None, &["/main [k8s.io/aa11]", "/side [k8s.io/ab22]"]),
            ("a", None, &["[k8s.io/aa11]", "[k8s.io/ab22]", "[k8s.io/ac33]"]),
            ("web-2", None, &["default/web-2 (/run/a.sock)", "moby/web-2 (/run/a.sock)"]),
            ("default/web", None, &["default/web (/run/a.sock)", "default/web/main [k8s.io/be55] (/run/a.sock)"]),
            ("we", Some("default"), &["default/web (", "default/web-2 ("]),
        ] {
            let error = find(&records, wanted, namespace).unwrap_err();
            assert_eq!(error.exit(), Exit::NotFound);
            let CliError::Ambiguous { candidates: reported, .. } = &error else { panic!("{wanted}: {error}") };
            assert_eq!(reported.len(), candidates.len(), "{error}");
            assert!(candidates.iter().zip(reported).all(|(part, reported)| reported.contains(part)), "{error}");
        }
        for wanted in ["", "x", "/", "default/", "team/train", "team/train-0/mai", "team/train-0/main/x", "main"] {
            assert!(matches!(find(&records, wanted, None), Err(CliError::NoSuchContainer { .. })), "{wanted}");
        }
        assert!(find(&records, "web-2", Some("docker")).is_err_and(|error| error.exit() == Exit::NotFound));
    }

    #[test]
    fn names_of_two_namespaces_are_not_guessed() {
        let records: Vec<Record> = ["k8s.io/aa=one/web/main", "k8s.io/bb=two/web/main"].map(record).into();
        assert!(matches!(find(&records, "web", None), Err(CliError::Ambiguous { .. })));
        assert_eq!(find(&records, "two/web", None).unwrap().container.id, "bb");
    }

    #[test]
    fn events_are_those_of_one_container_with_its_restarts() {
        let entries =
            |all: &[&str]| -> Vec<Entry> { all.iter().map(|text| Entry::new(Kind::Admitted, &record(text))).collect() };
        let mut all = entries(&ALL);
        all.extend(entries(&["k8s.io/cc66=team/train-1/main", "k8s.io/cc66"]));
        all.push(Entry::about_card(Kind::Policy, None));
        let ids = |wanted: &str| -> Result<Vec<String>, CliError> {
            let chosen = ContainerEvents::new(wanted).choose(all.clone(), |entry| entry)?;
            Ok(chosen.into_iter().filter_map(|entry| entry.container).collect())
        };
        assert_eq!(ids("team/train-1").unwrap(), ["ac33", "cc66"], "the same container, restarted");
        assert_eq!(ids("cc66").unwrap(), ["cc66", "cc66"], "an earlier version does not name pods");
        assert_eq!(ids("web").unwrap(), ["web"]);
        assert_eq!(ids("nobody").unwrap(), [""; 0]);
        let error = ids("team/train-0").unwrap_err().to_string();
        assert!(error.contains("team/train-0/main, team/train-0/side"), "{error}");

        let mut followed = ContainerEvents::new("web");
        assert_eq!(followed.choose(entries(&["k8s.io/aa=one/web/main"]), |entry| entry).unwrap().len(), 1);
        assert_eq!(followed.choose(entries(&["k8s.io/ab=one/web/main"]), |entry| entry).unwrap().len(), 1);
        assert!(followed.choose(entries(&["k8s.io/bb=two/web/main"]), |entry| entry).is_err(), "it fits another, too");

        for wanted in ["web", "default/web"] {
            let mut followed = ContainerEvents::new(wanted);
            let mut count = |texts: &[&str]| followed.choose(entries(texts), |entry| entry).unwrap().len();
            assert_eq!(count(&["default/web-2", "default/web"]), 1, "{wanted}");
            assert_eq!(count(&["default/web-2"]), 0, "{wanted}: its id was found, so nothing longer is meant");
            assert_eq!(count(&["default/web"]), 1, "{wanted}");
        }
    }
}
