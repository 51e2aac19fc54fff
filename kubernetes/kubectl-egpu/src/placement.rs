//! The search for cards, in the scheduler's order: the first that fit, all requests of a pod on
//! one node.

use k8s_openapi::api::resource::v1::{DeviceAttribute, DeviceConstraint, DeviceTaint, DeviceToleration};

use crate::{
    allocation::{self, Amounts, Shortage},
    inventory::Card,
    request::{Alternative, Count, Wish},
    selector::{Outcome, Selectors},
};

/// The reason why a request cannot have a card.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Lack {
    Room(Shortage),
    /// A claim has the card to itself.
    Dedicated,
    Taint(DeviceTaint),
    NotChosen {
        expression: String,
    },
    /// An expression that cannot be evaluated here.
    Unknown {
        expression: String,
        reason: String,
    },
}

/// Returns why a request cannot have a card by itself; nothing: it can.
pub(crate) fn lacks(wanted: &Alternative, card: &Card, selectors: &Selectors) -> Vec<Lack> {
    let mut found = Vec::new();
    for expression in &wanted.selectors {
        match selectors.evaluate(expression, card) {
            Outcome::Chosen => {}
            Outcome::NotChosen => found.push(Lack::NotChosen { expression: expression.clone() }),
            Outcome::Unknown(reason) => found.push(Lack::Unknown { expression: expression.clone(), reason }),
        }
    }
    let untolerated = card.taints.iter().filter(|taint| !is_tolerated(taint, &wanted.tolerations));
    found.extend(untolerated.map(|taint| Lack::Taint(taint.clone())));
    if card.is_dedicated && !wanted.is_admin {
        found.push(Lack::Dedicated);
    }
    found.extend(allocation::shortages(&card.capacities, &card.held, &wanted.asked).into_iter().map(Lack::Room));
    found
}

fn is_tolerated(taint: &DeviceTaint, tolerations: &[DeviceToleration]) -> bool {
    let keeps_away = matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute");
    !keeps_away || tolerations.iter().any(|toleration| tolerates(toleration, taint))
}

fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let fits = |wanted: &Option<String>, value: &str| {
        wanted.as_deref().is_none_or(|wanted| wanted.is_empty() || wanted == value)
    };
    let value = || toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
    fits(&toleration.effect, &taint.effect)
        && fits(&toleration.key, &taint.key)
        && match toleration.operator.as_deref() {
            Some("Exists") => true,
            None | Some("" | "Equal") => value(),
            Some(_) => false,
        }
}

/// A card of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) claim: String,
    /// `gpu`, or `gpu/small` of several.
    pub(crate) request: String,
    pub(crate) card: String,
}

/// The outcome of the search on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Search {
    Found(Vec<Placed>),
    NotFound,
    /// Given up: too many ways to try.
    TooMany,
}

/// Steps after which the search gives up.
const MOST_STEPS: u32 = 100_000;

/// Searches a node's cards for all requests of a pod.
pub(crate) fn search(wishes: &[Wish], cards: &[&Card], selectors: &Selectors) -> Search {
    let mut state = State {
        wishes,
        cards,
        selectors,
        taken: vec![Amounts::new(); cards.len()],
        used: vec![false; cards.len()],
        placed: Vec::new(),
        steps: 0,
    };
    let found = state.claim(0, 0);
    if state.steps > MOST_STEPS {
        return Search::TooMany;
    }
    if found { Search::Found(state.named()) } else { Search::NotFound }
}

/// One card for one request, by position.
#[derive(Debug, Clone, Copy)]
struct Choice {
    claim: usize,
    request: usize,
    alternative: usize,
    card: usize,
}

struct State<'all> {
    wishes: &'all [Wish],
    cards: &'all [&'all Card],
    selectors: &'all Selectors,
    /// Amounts that the choices so far take of each card.
    taken: Vec<Amounts>,
    /// Cards that are not shared and taken by a choice.
    used: Vec<bool>,
    placed: Vec<Choice>,
    steps: u32,
}

impl<'all> State<'all> {
    fn alternative(&self, choice: Choice) -> Option<&'all Alternative> {
        self.wishes.get(choice.claim)?.requests.get(choice.request)?.alternatives.get(choice.alternative)
    }

    /// Places this request of this claim and all behind it.
    fn claim(&mut self, claim: usize, request: usize) -> bool {
        let Some(wish) = self.wishes.get(claim) else { return true };
        let Some(wanted) = wish.requests.get(request) else { return self.claim(claim + 1, 0) };
        (0..wanted.alternatives.len()).any(|alternative| {
            let Some(one) = wanted.alternatives.get(alternative) else { return false };
            let choice = Choice { claim, request, alternative, card: 0 };
            match one.count {
                Count::Exactly(count) => self.cards_of(choice, count),
                Count::All => self.all_cards(choice, one),
            }
        })
    }

    /// Places `count` more cards, from `next.card` on, and what follows.
    fn cards_of(&mut self, next: Choice, count: usize) -> bool {
        if count == 0 {
            return self.claim(next.claim, next.request + 1);
        }
        (next.card..self.cards.len()).any(|card| {
            let choice = Choice { card, ..next };
            self.take(choice) && {
                let done = self.cards_of(Choice { card: card + 1, ..next }, count - 1);
                if !done {
                    self.give_back();
                }
                done
            }
        })
    }

    /// Places every card that the request could have if it were empty.
    fn all_cards(&mut self, next: Choice, wanted: &Alternative) -> bool {
        let selected = |card: &&Card| {
            let chosen = |one: &String| self.selectors.evaluate(one, card) == Outcome::Chosen;
            wanted.selectors.iter().all(chosen)
                && allocation::shortages(&card.capacities, &Amounts::new(), &wanted.asked).is_empty()
        };
        let all: Vec<usize> =
            self.cards.iter().enumerate().filter(|(_, card)| selected(card)).map(|(at, _)| at).collect();
        let before = self.placed.len();
        let done = !all.is_empty()
            && all.iter().all(|card| self.take(Choice { card: *card, ..next }))
            && self.claim(next.claim, next.request + 1);
        while !done && self.placed.len() > before {
            self.give_back();
        }
        done
    }

    /// Takes a card, unless something is in the way.
    fn take(&mut self, choice: Choice) -> bool {
        self.steps += 1;
        let (Some(wanted), Some(card)) = (self.alternative(choice), self.cards.get(choice.card)) else { return false };
        let (Some(taken), Some(used)) = (self.taken.get(choice.card), self.used.get(choice.card)) else { return false };
        if self.steps > MOST_STEPS || (*used && !card.is_shared) {
            return false;
        }
        let mut tried = (*card).clone();
        allocation::add(&mut tried.held, taken);
        if !lacks(wanted, &tried, self.selectors).is_empty() || !self.constraints_hold(choice) {
            return false;
        }
        self.placed.push(choice);
        self.recount(choice.card);
        true
    }

    fn give_back(&mut self) {
        if let Some(choice) = self.placed.pop() {
            self.recount(choice.card);
        }
    }

    fn recount(&mut self, card: usize) {
        let mut taken = Amounts::new();
        let choices = self.placed.iter().filter(|choice| choice.card == card);
        for wanted in choices.clone().filter_map(|choice| self.alternative(*choice)) {
            if let Some(card) = self.cards.get(card).filter(|_| !wanted.is_admin) {
                allocation::add(&mut taken, &allocation::taken(&card.capacities, &wanted.asked));
            }
        }
        let is_used = choices.count() > 0;
        if let (Some(of_card), Some(used)) = (self.taken.get_mut(card), self.used.get_mut(card)) {
            (*of_card, *used) = (taken, is_used);
        }
    }

    /// Returns whether the claim's constraints hold with one more card.
    fn constraints_hold(&self, choice: Choice) -> bool {
        let constraints = self.wishes.get(choice.claim).map(|wish| wish.constraints.as_slice()).unwrap_or_default();
        constraints.iter().all(|constraint| self.constraint_holds(constraint, choice))
    }

    fn constraint_holds(&self, constraint: &DeviceConstraint, choice: Choice) -> bool {
        let names = constraint.requests.as_deref().unwrap_or_default();
        let is_for = |choice: Choice| self.alternative(choice).is_some_and(|wanted| wanted.is_named(names));
        if !is_for(choice) {
            return true;
        }
        let (name, is_match) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
            (Some(name), _) => (name, true),
            (None, Some(name)) => (name, false),
            (None, None) => return false,
        };
        let attribute = |choice: &Choice| self.cards.get(choice.card).and_then(|card| card.attribute(name));
        let Some(own) = attribute(&choice).filter(|one| is_comparable(one)) else { return false };
        let others = self.placed.iter().filter(|other| other.claim == choice.claim && is_for(**other));
        others.filter_map(attribute).all(|other| (own == other) == is_match)
    }

    fn named(&self) -> Vec<Placed> {
        let placed = self.placed.iter().filter_map(|choice| {
            let claim = self.wishes.get(choice.claim)?.claim.clone();
            let request = self.alternative(*choice)?.name.clone();
            Some(Placed { claim, request, card: self.cards.get(choice.card)?.name.clone() })
        });
        placed.collect()
    }
}

/// Lists are not compared.
fn is_comparable(attribute: &DeviceAttribute) -> bool {
    let DeviceAttribute { string, int, bool, version, .. } = attribute;
    string.is_some() || int.is_some() || bool.is_some() || version.is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        fixtures::{allocated, object, slice},
        inventory::Inventory,
        request::Classes,
    };

    fn classes() -> Classes {
        let expression = r#"device.driver == "gpu.egpu.io""#;
        let class =
            json!({"metadata": {"name": "gpu.egpu.io"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}});
        Classes::from([("gpu.egpu.io".to_owned(), object(class))])
    }

    fn request(name: &str, more: &Value) -> Value {
        let mut exactly = json!({"deviceClassName": "gpu.egpu.io"});
        exactly.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"name": name, "exactly": exactly})
    }

    fn memory(amount: &str) -> Value {
        json!({"capacity": {"requests": {"memory": amount}}})
    }

    /// Cards of a node with three, of which the first has 10Gi left.
    fn found(devices: Value) -> Option<Vec<(String, String)>> {
        let claims =
            [allocated("a", "gpu", "n1", "gpu-0", &[("memory", "70Gi"), ("compute", "5"), ("containers", "1")])];
        let inventory = Inventory::new(&[slice("n1", &["gpu-0", "gpu-1", "gpu-2"])], &claims, &[]);
        let wish = Wish::new("claim", &object(devices), &classes());
        match search(&[wish], &inventory.cards.iter().collect::<Vec<_>>(), &Selectors::default()) {
            Search::Found(placed) => Some(placed.into_iter().map(|one| (one.request, one.card)).collect()),
            Search::NotFound => None,
            Search::TooMany => panic!(),
        }
    }

    fn cards(expected: &[(&str, &str)]) -> Option<Vec<(String, String)>> {
        Some(expected.iter().map(|(request, card)| ((*request).to_owned(), (*card).to_owned())).collect())
    }

    #[test]
    fn the_first_card_that_fits_is_taken() {
        assert_eq!(found(json!({"requests": [request("gpu", &memory("10Gi"))]})), cards(&[("gpu", "gpu-0")]));
        assert_eq!(found(json!({"requests": [request("gpu", &memory("11Gi"))]})), cards(&[("gpu", "gpu-1")]));
        assert_eq!(found(json!({"requests": [request("gpu", &memory("81Gi"))]})), None);
        assert_eq!(
            found(json!({"requests": [request("gpu", &json!({}))]})),
            cards(&[("gpu", "gpu-1")]),
            "a whole card"
        );
    }

    #[test]
    fn several_of_one_request_are_different_cards_and_two_requests_may_share_one() {
        let two = json!({"count": 2, "capacity": {"requests": {"memory": "1Gi"}}});
        assert_eq!(found(json!({"requests": [request("gpu", &two)]})), cards(&[("gpu", "gpu-0"), ("gpu", "gpu-1")]));
        let four = json!({"count": 4, "capacity": {"requests": {"memory": "1Gi"}}});
        assert_eq!(found(json!({"requests": [request("gpu", &four)]})), None);
        let requests = json!([request("a", &memory("5Gi")), request("b", &memory("5Gi"))]);
        assert_eq!(found(json!({"requests": requests})), cards(&[("a", "gpu-0"), ("b", "gpu-0")]));
        let constraints = json!([{"distinctAttribute": "gpu.egpu.io/uuid"}]);
        let distinct = json!({"requests": requests, "constraints": constraints});
        assert_eq!(found(distinct), cards(&[("a", "gpu-0"), ("b", "gpu-1")]));
        let same = json!({"requests": [request("a", &memory("5Gi")), request("b", &memory("6Gi"))],
                          "constraints": [{"matchAttribute": "gpu.egpu.io/uuid"}]});
        assert_eq!(found(same), cards(&[("a", "gpu-1"), ("b", "gpu-1")]), "it goes back to the first");
    }

    #[test]
    fn alternatives_are_tried_in_their_order() {
        let sub = |name: &str, memory: &str| json!({"name": name, "deviceClassName": "gpu.egpu.io", "capacity": {"requests": {"memory": memory}}});
        let devices =
            json!({"requests": [{"name": "gpu", "firstAvailable": [sub("large", "90Gi"), sub("small", "8Gi")]}]});
        assert_eq!(found(devices), cards(&[("gpu/small", "gpu-0")]));
    }

    #[test]
    fn all_cards_are_all_that_could_do_it() {
        let all = |more: Value| {
            let mut more = more;
            more["allocationMode"] = json!("All");
            json!({"requests": [request("gpu", &more)]})
        };
        assert_eq!(found(all(memory("10Gi"))).map(|placed| placed.len()), Some(3));
        assert_eq!(found(all(memory("11Gi"))), None, "one of them is too full");
        assert_eq!(found(all(memory("81Gi"))), None, "none is large enough");
    }

    #[test]
    fn taints_want_a_toleration_of_their_key_value_and_effect() {
        let taint: DeviceTaint = object(json!({"key": "k", "value": "v", "effect": "NoExecute"}));
        for (toleration, tolerated) in [
            (json!({"key": "k", "operator": "Exists", "effect": "NoExecute"}), true),
            (json!({"key": "k", "operator": "Exists"}), true),
            (json!({"operator": "Exists"}), true),
            (json!({"key": "k", "value": "v"}), true),
            (json!({"key": "k", "operator": "Equal", "value": "w"}), false),
            (json!({"key": "k", "operator": "Exists", "effect": "NoSchedule"}), false),
            (json!({"key": "other", "operator": "Exists"}), false),
        ] {
            assert_eq!(is_tolerated(&taint, &[object(toleration.clone())]), tolerated, "{toleration}");
        }
        assert!(!is_tolerated(&taint, &[]));
        assert!(is_tolerated(&object(json!({"key": "k", "effect": "None"})), &[]), "it keeps nobody away");
    }

    #[test]
    fn a_card_lacks_all_that_is_in_the_way() {
        let mut slices = [slice("n1", &["gpu-0"])];
        slices[0].spec.devices.as_mut().unwrap()[0].taints =
            Some(vec![object(json!({"key": "k", "effect": "NoSchedule"}))]);
        let inventory = Inventory::new(&slices, &[], &[]);
        let chosen = json!({"capacity": {"requests": {"memory": "81Gi"}},
                            "selectors": [{"cel": {"expression": "false"}}, {"cel": {"expression": "1"}}]});
        let wish = Wish::new("claim", &object(json!({"requests": [request("gpu", &chosen)]})), &classes());
        let lacks = lacks(&wish.requests[0].alternatives[0], &inventory.cards[0], &Selectors::default());
        assert!(
            matches!(&lacks[..], [Lack::NotChosen { .. }, Lack::Unknown { .. }, Lack::Taint(_), Lack::Room(_)]),
            "{lacks:?}"
        );
    }
}
