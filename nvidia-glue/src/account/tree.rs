//! The objects of all clients as trees: by name, with children and dependants.
//!
//! Freeing follows the driver (`serverFreeResourceTree` in src/nvidia/src/libraries/resserv/src/rs_server.c): with an object go its
//! children and its dependants, and theirs. Nothing recurses: a container chooses how deep its trees are.

use std::collections::BTreeSet;

use foldhash::HashMap;

use super::{Kind, ObjectName, charges::ChargeId};
use crate::rm::Handle;

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
    alive: bool,
}

/// Every object of every client. The root of a client's tree is an object too, named by the client's handle twice.
#[derive(Debug, Default)]
pub(super) struct Tree {
    slots: Vec<Object>,
    free: Vec<Index>,
    by_name: HashMap<ObjectName, Index>,
    /// (what is depended on, who depends on it).
    dependants: BTreeSet<(Index, Index)>,
    /// The same the other way round.
    dependencies: BTreeSet<(Index, Index)>,
}

impl Tree {
    pub(super) fn find(&self, name: ObjectName) -> Option<Index> {
        self.by_name.get(&name).copied()
    }

    pub(super) fn get(&self, index: Index) -> Option<&Object> {
        self.slots.get(index as usize).filter(|object| object.alive)
    }

    /// What an object is below.
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

    /// Adds an object. One that had the name stays where it is in the tree, but can no longer be named; `None` when there is no room.
    pub(super) fn add(
        &mut self,
        name: ObjectName,
        kind: Kind,
        parent: Option<Index>,
        charge: Option<ChargeId>,
    ) -> Option<Index> {
        let next = parent.and_then(|parent| self.get(parent)).and_then(|parent| parent.first_child);
        let object = Object { name, charge, parent, first_child: None, next, previous: None, kind, alive: true };
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

    /// `dependant` goes when `on` goes.
    pub(super) fn depend(&mut self, dependant: Index, on: Index) {
        if dependant != on {
            self.dependants.insert((on, dependant));
            self.dependencies.insert((dependant, on));
        }
    }

    /// Takes out an object and all that goes with it; calls `gone` for each.
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
            while let Some(&edge) = self.dependants.range((index, 0)..=(index, Index::MAX)).next() {
                self.dependants.remove(&edge);
                self.dependencies.remove(&(edge.1, edge.0));
                doomed.push(edge.1);
            }
            while let Some(&edge) = self.dependencies.range((index, 0)..=(index, Index::MAX)).next() {
                self.dependencies.remove(&edge);
                self.dependants.remove(&(edge.1, edge.0));
            }
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

    /// Takes `object` out of its parent's list of children.
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
