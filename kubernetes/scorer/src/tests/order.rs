//! The order of nodes for one pod.

use proptest::prelude::*;

use crate::placement::{Candidate, FIRST, FULL, Placement, Preference};

const APART: [bool; 2] = [true, false];
const BOTH: [Placement; 2] = [Placement::Binpack, Placement::Spread];

/// Nodes `n00`, `n01`, ... with these loads and replicas.
fn scores(preference: Preference, nodes: &[(u64, usize)]) -> Vec<usize> {
    let names: Vec<_> = (0..nodes.len()).map(|number| format!("n{number:02}")).collect();
    let candidates: Vec<_> =
        names.iter().zip(nodes).map(|(node, &(load, replicas))| Candidate { node, load, replicas }).collect();
    preference.scores(&candidates)
}

fn first(preference: Preference, nodes: &[(u64, usize)]) -> usize {
    scores(preference, nodes).iter().position(|score| *score == FIRST).unwrap()
}

#[test]
fn the_fullest_or_the_emptiest_comes_first() {
    let nodes = [(0, 0), (FULL / 2, 0), (FULL / 4, 0), (FULL / 2, 0)];
    for keeps_apart in APART {
        assert_eq!(scores(Preference { placement: Placement::Binpack, keeps_apart }, &nodes), [2, 10, 3, 5]);
        assert_eq!(scores(Preference { placement: Placement::Spread, keeps_apart }, &nodes), [10, 3, 4, 3]);
    }
}

#[test]
fn replicas_come_to_different_nodes_while_there_are_some() {
    let nodes = [(FULL / 2, 1), (FULL / 4, 0), (0, 0)];
    assert_eq!(first(Preference::new(None, Placement::Binpack), &nodes), 1);
    assert_eq!(first(Preference::new(None, Placement::Spread), &nodes), 2);
    let everywhere = [(FULL / 2, 1), (FULL * 3 / 4, 3), (FULL / 4, 2)];
    assert_eq!(first(Preference::new(None, Placement::Binpack), &everywhere), 1, "then they are packed");
    assert_eq!(first(Preference::new(None, Placement::Spread), &everywhere), 0, "then the fewest");
}

#[test]
fn a_pod_that_asks_for_packing_itself_has_its_replicas_packed() {
    let nodes = [(FULL / 2, 1), (FULL / 4, 0)];
    for default in BOTH {
        assert_eq!(first(Preference::new(Some(Placement::Binpack), default), &nodes), 0);
        assert_eq!(first(Preference::new(Some(Placement::Spread), default), &nodes), 1);
    }
}

#[test]
fn no_node_is_no_score() {
    assert_eq!(scores(Preference::new(None, Placement::Binpack), &[]), [0_usize; 0]);
}

fn nodes() -> impl Strategy<Value = Vec<(u64, usize)>> {
    prop::collection::vec((0..=8_u64, 0..3_usize), 1..40)
}

proptest! {
    #[test]
    fn one_is_first_and_nobody_is_better(nodes in nodes(), binpack in any::<bool>(), keeps_apart in any::<bool>()) {
        let placement = if binpack { Placement::Binpack } else { Placement::Spread };
        let scores = scores(Preference { placement, keeps_apart }, &nodes);
        prop_assert!(scores.iter().all(|score| (0..=FIRST).contains(score)), "{scores:?}");
        prop_assert_eq!(scores.iter().filter(|score| **score == FIRST).count(), 1);
        for (one, &(load, replicas)) in scores.iter().zip(&nodes) {
            for (other, &(its_load, its_replicas)) in scores.iter().zip(&nodes) {
                let has_fewer = keeps_apart && if binpack { replicas == 0 && its_replicas > 0 } else { replicas < its_replicas };
                let has_more = keeps_apart && if binpack { replicas > 0 && its_replicas == 0 } else { replicas > its_replicas };
                let is_preferred = if binpack { load > its_load } else { load < its_load };
                if has_fewer || !has_more && is_preferred {
                    prop_assert!(one >= other, "{load} {replicas}: {one}, {its_load} {its_replicas}: {other}");
                    prop_assert!(*other < FIRST);
                }
            }
        }
    }

    #[test]
    fn the_order_of_names_in_the_call_does_not_matter(nodes in nodes(), binpack in any::<bool>()) {
        let preference = Preference::new(None, if binpack { Placement::Binpack } else { Placement::Spread });
        let names: Vec<_> = (0..nodes.len()).map(|number| format!("n{number:02}")).collect();
        let mut candidates: Vec<_> =
            names.iter().zip(&nodes).map(|(node, &(load, replicas))| Candidate { node, load, replicas }).collect();
        let mut scores = preference.scores(&candidates);
        candidates.reverse();
        scores.reverse();
        prop_assert_eq!(scores, preference.scores(&candidates));
    }
}
