//! The nodes that many pods come to, with a scheduler that takes the first node, and with a scorer
//! that sees late, or never, what was bound.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::{Duration, Instant},
};

use kubernetes_api::names::DRIVER;
use proptest::prelude::*;
use serde_json::json;

use super::objects::{allocated, bound, claim, class, pod, quarter, slice};
use crate::{
    cluster::{Cluster, EXPECTED},
    placement::{FIRST, Placement, Preference},
    request::PodRequest,
};

/// Quarters that fit on a node with two cards.
const PLACES: usize = 8;

/// A scheduler, which knows what it has bound; its scorer hears of it `lag` pods later.
struct Simulation {
    cluster: Cluster,
    nodes: Vec<String>,
    /// Quarters by node.
    used: BTreeMap<String, usize>,
    /// Pods that were bound and not seen yet: name, owner, node and card.
    unseen: VecDeque<(String, String, String, usize)>,
    lag: usize,
    now: Instant,
}

impl Simulation {
    fn new(nodes: usize, lag: usize) -> Self {
        let nodes: Vec<_> = (0..nodes).map(|number| format!("node-{number:03}")).collect();
        let mut cluster = Cluster::default();
        cluster.all_classes(&[class("gpu.egpu.io", DRIVER)]);
        cluster.all_slices(&nodes.iter().map(|node| slice(node, 2)).collect::<Vec<_>>());
        Self { cluster, nodes, used: BTreeMap::new(), unseen: VecDeque::new(), lag, now: Instant::now() }
    }

    /// Binds a pod to the node with the highest score, and returns that.
    fn bind(&mut self, name: &str, owner: &str, preference: Preference) -> String {
        self.cluster.claim(&claim(name, "gpu.egpu.io", &quarter()));
        let fits = |node: &&String| self.used.get(*node).copied().unwrap_or(0) < PLACES;
        let nodes: Vec<_> = self.nodes.iter().filter(fits).cloned().collect();
        let request = PodRequest::read(&pod(name, Some(owner)));
        let scores = self.cluster.score(request, &nodes, preference, self.now);
        let node = scores.iter().find(|(_, score)| *score == FIRST).unwrap().0.to_owned();
        let used = self.used.entry(node.clone()).or_default();
        self.unseen.push_back((name.to_owned(), owner.to_owned(), node.clone(), *used / 4));
        *used += 1;
        while self.unseen.len() > self.lag {
            self.see_one();
        }
        node
    }

    /// The API server tells of the oldest pod: first its claim, then itself.
    fn see_one(&mut self) {
        let Some((name, owner, node, card)) = self.unseen.pop_front() else { return };
        let taken = json!({"memory": "8Gi", "compute": "25", "containers": "1"});
        self.cluster.claim(&allocated(claim(&name, "gpu.egpu.io", &quarter()), &node, card, &taken));
        self.cluster.pod(&bound(pod(&name, Some(&owner)), &node));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn packing_needs_the_fewest_nodes_however_late_it_sees(pods in 1..100_usize, lag in 0..100_usize) {
        let mut simulation = Simulation::new(20, lag);
        let preference = Preference::new(Some(Placement::Binpack), Placement::Spread);
        let nodes: BTreeSet<_> =
            (0..pods).map(|number| simulation.bind(&format!("pod-{number}"), "set", preference)).collect();
        prop_assert_eq!(nodes.len(), pods.div_ceil(PLACES));
    }

    #[test]
    fn spreading_is_even_however_late_it_sees(pods in 1..100_usize, lag in 0..100_usize, owners in 1..5_usize) {
        let mut simulation = Simulation::new(20, lag);
        let preference = Preference::new(None, Placement::Spread);
        for number in 0..pods {
            // One owner after the other.
            simulation.bind(&format!("pod-{number}"), &format!("set-{}", number * owners / pods), preference);
        }
        let most = simulation.used.values().max().copied().unwrap();
        prop_assert_eq!(simulation.used.len(), pods.min(20));
        prop_assert!(most <= pods.div_ceil(20) + 1, "{:?}", simulation.used);
    }

    #[test]
    fn replicas_are_apart_however_late_they_are_seen(
        sets in 1..8_usize,
        replicas in 1..12_usize,
        lag in 0..100_usize,
        binpack in any::<bool>(),
    ) {
        let mut simulation = Simulation::new(12, lag);
        let preference = Preference::new(None, if binpack { Placement::Binpack } else { Placement::Spread });
        for set in 0..sets {
            let name = |number| format!("pod-{set}-{number}");
            let nodes: BTreeSet<_> =
                (0..replicas).map(|number| simulation.bind(&name(number), &format!("set-{set}"), preference)).collect();
            prop_assert_eq!(nodes.len(), replicas, "set {}", set);
        }
    }
}

#[test]
fn an_answer_counts_until_the_pod_is_seen_or_for_a_while() {
    let preference = Preference::new(None, Placement::Spread);
    let mut simulation = Simulation::new(2, usize::MAX);
    assert_eq!(simulation.bind("a", "one", preference), "node-000");
    assert_eq!(simulation.bind("b", "two", preference), "node-001", "the other is emptier now");
    assert_eq!(simulation.bind("c", "one", preference), "node-001", "a replica is on the first");
    simulation.now += EXPECTED + Duration::from_secs(1);
    assert_eq!(simulation.bind("d", "one", preference), "node-000", "nothing was bound in the meantime");
    // The scheduler had chosen otherwise, and then the pod ends.
    let elsewhere = bound(pod("d", Some("one")), "node-001");
    simulation.cluster.pod(&elsewhere);
    assert_eq!(simulation.bind("e", "one", preference), "node-000");
    simulation.cluster.pod_gone(&elsewhere);
    simulation.cluster.pod(&bound(pod("e", Some("one")), "node-000"));
    assert_eq!(simulation.bind("f", "one", preference), "node-001");
}
