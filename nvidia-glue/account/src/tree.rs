//! The objects of all clients as trees: by name, with children and dependants.
//!
//! Freeing follows the driver (`serverFreeResourceTree` in
//! src/nvidia/src/libraries/resserv/src/rs_server.c): with an object go its children and its
//! dependants, and theirs. Nothing recurses: a container chooses how deep its trees are.

use std::collections::BTreeSet;

use abi::Handle;
use base::Bytes;
use foldhash::{HashMap, HashSet};

use super::{Kind, ObjectName, charges::ChargeId};

/// A slot of the tree.
pub(super) type Index = u32;

#[derive(Debug, Clone, Copy)]
pub(super) struct Object {
    pub(super) name: ObjectName,
    pub(super) charge: Option<ChargeId>,
    parent: Option<Index>,
    first_child: Option<Index>,
    next: Option<Index>,
    previous: Option<Index>,
    pub(super) kind: Kind,
    /// Bytes of memory that it is; 0: none, or nobody has said.
    pub(super) length: Bytes,
    alive: bool,
}

/// Every object of every client. The root of a client's tree is an object too, named by the
/// client's handle twice.
#[derive(Debug, Default)]
pub(super) struct Tree {
    slots: Vec<Object>,
    free: Vec<Index>,
    by_name: HashMap<ObjectName, Index>,
    /// (what is depended on, who depends on it).
    dependants: BTreeSet<(Index, Index)>,
    /// The same the other way round.
    dependencies: BTreeSet<(Index, Index)>,
    /// (who is notified, of whose errors).
    notifiers: BTreeSet<(Index, Index)>,
    /// The same the other way round.
    notified: BTreeSet<(Index, Index)>,
}

/// Second members of the pairs whose first one is `index`.
fn of(pairs: &BTreeSet<(Index, Index)>, index: Index) -> impl Iterator<Item = Index> + '_ {
    pairs.range((index, 0)..=(index, Index::MAX)).map(|(_, second)| *second)
}

/// Removes each pair whose first member in `pairs` is `index` from both sets.
fn take_pairs(
    pairs: &mut BTreeSet<(Index, Index)>,
    reversed: &mut BTreeSet<(Index, Index)>,
    index: Index,
) -> Vec<Index> {
    let seconds: Vec<Index> = of(pairs, index).collect();
    for &second in &seconds {
        pairs.remove(&(index, second));
        reversed.remove(&(second, index));
    }
    seconds
}

impl Tree {
    pub(super) fn find(&self, name: ObjectName) -> Option<Index> {
        self.by_name.get(&name).copied()
    }

    pub(super) fn get(&self, index: Index) -> Option<&Object> {
        self.slots.get(index as usize).filter(|object| object.alive)
    }

    /// Every object.
    pub(super) fn objects(&self) -> impl Iterator<Item = (Index, &Object)> {
        (0..).zip(&self.slots).filter(|(_, object)| object.alive)
    }

    /// Parent of an object.
    pub(super) fn parent(&self, index: Index) -> Option<Index> {
        self.get(index)?.parent
    }

    fn get_mut(&mut self, index: Index) -> Option<&mut Object> {
        self.slots.get_mut(index as usize).filter(|object| object.alive)
    }

    pub(super) fn set_charge(&mut self, index: Index, charge: ChargeId) {
        if let Some(object) = self.get_mut(index) {
            object.charge = Some(charge);
        }
    }

    /// Adds an object. One that had the name stays where it is in the tree, but can no longer be
    /// named; `None` when there is no room.
    pub(super) fn add(
        &mut self,
        name: ObjectName,
        kind: Kind,
        parent: Option<Index>,
        charge: Option<ChargeId>,
    ) -> Option<Index> {
        let next = parent.and_then(|parent| self.get(parent)).and_then(|parent| parent.first_child);
        let object = Object {
            name,
            charge,
            parent,
            first_child: None,
            next,
            previous: None,
            kind,
            length: Bytes(0),
            alive: true,
        };
        let index = match self.free.pop() {
            Some(index) => {
                *self.slots.get_mut(index as usize)? = object;
                index
            }
            None => {
                let index = Index::try_from(self.slots.len()).ok()?;
                self.slots.push(object);
                index
            }
        };
        if let Some(next) = next.and_then(|next| self.get_mut(next)) {
            next.previous = Some(index);
        }
        if let Some(parent) = parent.and_then(|parent| self.get_mut(parent)) {
            parent.first_child = Some(index);
        }
        self.by_name.insert(name, index);
        Some(index)
    }

    /// Makes `dependant` go when `on` goes.
    pub(super) fn depend(&mut self, dependant: Index, on: Index) {
        if dependant != on {
            self.dependants.insert((on, dependant));
            self.dependencies.insert((dependant, on));
        }
    }

    /// Returns whether an object goes with another one, besides its parent.
    pub(super) fn has_dependencies(&self, index: Index) -> bool {
        of(&self.dependencies, index).next().is_some()
    }

    pub(super) fn set_length(&mut self, index: Index, length: Bytes) {
        if let Some(object) = self.get_mut(index) {
            object.length = length;
        }
    }

    /// Has `notifier` notified of the errors of `user`.
    pub(super) fn notify(&mut self, notifier: Index, user: Index) {
        self.notifiers.insert((notifier, user));
        self.notified.insert((user, notifier));
    }

    /// Returns whether something that would go with an object is notified of the errors of
    /// something that would not.
    pub(super) fn has_outside_notifiers(&self, index: Index) -> bool {
        if self.notifiers.is_empty() {
            return false;
        }
        let doomed: HashSet<Index> = self.goes_with(index).into_iter().map(|(index, _)| index).collect();
        doomed.iter().any(|index| of(&self.notifiers, *index).any(|user| !doomed.contains(&user)))
    }

    /// An object and all that goes with it, those first that go before others; each with what it
    /// goes with, but the last, which is the object itself.
    pub(super) fn goes_with(&self, index: Index) -> Vec<(Index, Option<Index>)> {
        // As most objects are.
        if self.is_alone(index) {
            return vec![(index, None)];
        }
        let (mut seen, mut order) = (HashSet::default(), Vec::new());
        // An object comes again once all that goes with it is listed.
        let mut stack = vec![(index, None, false)];
        while let Some((index, with, is_listed)) = stack.pop() {
            if is_listed {
                order.push((index, with));
                continue;
            }
            if !seen.insert(index) {
                continue;
            }
            stack.push((index, with, true));
            let mut child = self.get(index).and_then(|object| object.first_child);
            while let Some(at) = child {
                stack.push((at, Some(index), false));
                child = self.get(at).and_then(|object| object.next);
            }
            stack.extend(of(&self.dependants, index).map(|dependant| (dependant, Some(index), false)));
        }
        order
    }

    /// Returns whether nothing goes with it.
    fn is_alone(&self, index: Index) -> bool {
        self.get(index).is_none_or(|object| object.first_child.is_none())
            && of(&self.dependants, index).next().is_none()
    }

    /// Removes an object and all that goes with it; calls `gone` for each.
    pub(super) fn remove(&mut self, index: Index, mut gone: impl FnMut(Index, &Object)) {
        let mut doomed = vec![index];
        while let Some(index) = doomed.pop() {
            let Some(object) = self.get(index).copied() else { continue };
            self.unlink(&object);
            let mut child = object.first_child;
            while let Some(index) = child {
                doomed.push(index);
                let Some(object) = self.get_mut(index) else { break };
                child = object.next.take();
                (object.parent, object.previous) = (None, None);
            }
            doomed.extend(take_pairs(&mut self.dependants, &mut self.dependencies, index));
            take_pairs(&mut self.dependencies, &mut self.dependants, index);
            take_pairs(&mut self.notifiers, &mut self.notified, index);
            take_pairs(&mut self.notified, &mut self.notifiers, index);
            if self.by_name.get(&object.name) == Some(&index) {
                self.by_name.remove(&object.name);
            }
            if let Some(slot) = self.get_mut(index) {
                slot.alive = false;
            }
            self.free.push(index);
            gone(index, &object);
        }
    }

    /// Removes `object` from its parent's list of children.
    fn unlink(&mut self, object: &Object) {
        if let Some(next) = object.next.and_then(|next| self.get_mut(next)) {
            next.previous = object.previous;
        }
        match object.previous {
            Some(previous) => {
                if let Some(previous) = self.get_mut(previous) {
                    previous.next = object.next;
                }
            }
            None => {
                if let Some(parent) = object.parent.and_then(|parent| self.get_mut(parent)) {
                    parent.first_child = object.next;
                }
            }
        }
    }

    /// The root of `client`'s tree.
    pub(super) const fn root_name(client: Handle) -> ObjectName {
        ObjectName { client, object: client }
    }
}
