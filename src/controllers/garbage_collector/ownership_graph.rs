//! The ownership graph: which objects have an owner reference with a uid.

use std::collections::BTreeSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::ops::Bound;

use store::watch_cache::OwnerReference;
use store::{Key, Prefix};

/// Bit of an [`OwnerHash`] that an edge has which does not block the deletion of the owner.
const NON_BLOCKING: u64 = 1;

/// The uid of an owner as 127 bits, and whether the dependent blocks its deletion: edges that do are first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OwnerHash([u64; 2]);

impl OwnerHash {
    fn is_of(self, owner: OwnerHash) -> bool {
        (self.0[0], self.0[1] | NON_BLOCKING) == (owner.0[0], owner.0[1] | NON_BLOCKING)
    }

    fn is_blocking(self) -> bool {
        self.0[1] & NON_BLOCKING == 0
    }
}

/// An edge from an owner to a dependent. As a position, it is before the edges that follow in the graph.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Edge {
    owner: OwnerHash,
    /// None only of the position before the edges of an owner.
    dependent: Option<Key>,
}

impl Edge {
    /// The key of the dependent.
    pub(super) fn dependent(&self) -> Option<&Key> {
        self.dependent.as_ref()
    }

    /// Whether the dependent blocks the foreground deletion of the owner.
    pub(super) fn is_blocking(&self) -> bool {
        self.owner.is_blocking()
    }
}

/// Keys of dependents, by the uid of their owners. It says where to look: what a dependent refers to is in its metadata.
///
/// Uids are hashed with random keys, which makes an edge as large as two texts. One that two uids share costs a look at an
/// object.
#[derive(Default)]
pub(super) struct OwnershipGraph {
    edges: BTreeSet<Edge>,
    hashers: [RandomState; 2],
}

/// Owners of an object in the graph, in order, each once.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Owners(Vec<OwnerHash>);

/// An edge of an object that comes or goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EdgeChange {
    owner: OwnerHash,
    is_added: bool,
}

impl Owners {
    /// Brings the owners into order. One of several references to an owner that blocks is enough.
    pub(super) fn sort(&mut self) {
        self.0.sort_unstable();
        self.0.dedup_by(|next, first| next.is_of(*first));
    }

    /// What makes `new` of these owners; what comes is first.
    pub(super) fn changes(&self, new: &Owners) -> Vec<EdgeChange> {
        let missing_in = |owners: &Owners, owner: &OwnerHash| owners.0.binary_search(owner).is_err();
        let added = new.0.iter().filter(|owner| missing_in(self, owner));
        let removed = self.0.iter().filter(|owner| missing_in(new, owner));
        let added = added.map(|owner| EdgeChange { owner: *owner, is_added: true });
        added.chain(removed.map(|owner| EdgeChange { owner: *owner, is_added: false })).collect()
    }
}

/// Whether an object waits before the owner with this reference can be deleted in the foreground.
pub(super) fn is_blocking(reference: &OwnerReference) -> bool {
    reference.block_owner_deletion == Some(true)
}

impl OwnershipGraph {
    /// How many edges there are.
    pub(super) fn len(&self) -> usize {
        self.edges.len()
    }

    /// Adds the owners of some references to `owners`, which have to be sorted then.
    pub(super) fn add_owners(&self, references: &[OwnerReference], owners: &mut Owners) {
        owners.0.extend(references.iter().map(|reference| self.hash(&reference.uid, is_blocking(reference))));
    }

    /// Applies changes of the edges of a dependent.
    pub(super) fn apply(&mut self, dependent: &Key, changes: &[EdgeChange]) {
        for EdgeChange { owner, is_added } in changes {
            let edge = Edge { owner: *owner, dependent: Some(dependent.clone()) };
            match is_added {
                true => self.edges.insert(edge),
                false => self.edges.remove(&edge),
            };
        }
    }

    /// Whether an object has an owner with this uid.
    pub(super) fn has_dependents(&self, uid: &str) -> bool {
        self.first(uid).is_some()
    }

    /// Whether an object blocks the foreground deletion of the owner with this uid.
    pub(super) fn has_blocking_dependents(&self, uid: &str) -> bool {
        self.first(uid).is_some_and(Edge::is_blocking)
    }

    /// The next edges of an owner after a position, in order, those that block first.
    pub(super) fn dependents(&self, uid: &str, after: Option<&Edge>, limit: usize) -> Vec<Edge> {
        let owner = self.hash(uid, true);
        let start = Edge { owner, dependent: None };
        let range = (Bound::Excluded(after.unwrap_or(&start)), Bound::Unbounded);
        self.edges.range::<Edge, _>(range).take_while(|edge| edge.owner.is_of(owner)).take(limit).cloned().collect()
    }

    /// Removes the edges of the dependents below `prefix` among the next `limit` edges after a position; returns the last
    /// of these, none at the end.
    pub(super) fn remove_below(&mut self, prefix: &Prefix, after: Option<&Edge>, limit: usize) -> Option<Edge> {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let next: Vec<&Edge> = self.edges.range::<Edge, _>(range).take(limit).collect();
        let last = next.last().map(|last| Edge::clone(last));
        let is_below = |edge: &&Edge| edge.dependent.as_ref().is_some_and(|key| prefix.contains(key));
        let removed: Vec<Edge> = next.into_iter().filter(is_below).cloned().collect();
        for edge in removed {
            self.edges.remove(&edge);
        }
        last
    }

    fn first(&self, uid: &str) -> Option<&Edge> {
        let owner = self.hash(uid, true);
        let start = Edge { owner, dependent: None };
        self.edges.range(start..).next().filter(|edge| edge.owner.is_of(owner))
    }

    fn hash(&self, uid: &str, is_blocking: bool) -> OwnerHash {
        let [first, second] = &self.hashers;
        let flag = if is_blocking { 0 } else { NON_BLOCKING };
        OwnerHash([first.hash_one(uid), second.hash_one(uid) & !NON_BLOCKING | flag])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(uid: &str, block_owner_deletion: Option<bool>) -> OwnerReference {
        OwnerReference { uid: uid.into(), block_owner_deletion, ..OwnerReference::default() }
    }

    fn key(name: &str) -> Key {
        Key::parse(&format!("/registry/configmaps/{name}")).unwrap()
    }

    fn owners(graph: &OwnershipGraph, references: &[OwnerReference]) -> Owners {
        let mut owners = Owners::default();
        graph.add_owners(references, &mut owners);
        owners.sort();
        owners
    }

    fn replace(graph: &mut OwnershipGraph, name: &str, old: &[OwnerReference], new: &[OwnerReference]) {
        let changes = owners(graph, old).changes(&owners(graph, new));
        graph.apply(&key(name), &changes);
    }

    fn names(edges: &[Edge]) -> Vec<&str> {
        edges.iter().map(|edge| edge.dependent().unwrap().as_str().rsplit_once('/').unwrap().1).collect()
    }

    #[test]
    fn ownership_graph_has_each_dependent_once_and_those_that_block_first() {
        let mut graph = OwnershipGraph::default();
        for (name, references) in [
            ("a", vec![reference("u", None), reference("u", Some(false))]),
            ("b", vec![reference("u", None), reference("v", None), reference("u", Some(true))]),
            ("c", vec![reference("v", Some(false))]),
        ] {
            replace(&mut graph, name, &[], &references);
            replace(&mut graph, name, &references, &references);
        }
        assert_eq!(graph.len(), 4);
        assert_eq!(names(&graph.dependents("u", None, 9)), ["b", "a"]);
        let first = graph.dependents("u", None, 1);
        assert_eq!(names(&graph.dependents("u", first.last(), 1)), ["a"]);
        assert_eq!(names(&graph.dependents("v", None, 9)), ["b", "c"]);
        assert!(graph.has_blocking_dependents("u") && !graph.has_blocking_dependents("v"));
        assert!(graph.has_dependents("v") && !graph.has_dependents("w"));
        // It does not block any more.
        let (old, new) = ([reference("u", Some(true)), reference("v", None)], [reference("u", None)]);
        replace(&mut graph, "b", &old, &new);
        assert!(!graph.has_blocking_dependents("u"));
        assert_eq!(names(&graph.dependents("u", None, 9)), ["a", "b"]);
        assert_eq!(names(&graph.dependents("v", None, 9)), ["c"]);
    }

    #[test]
    fn ownership_graph_forgets_a_collection_in_steps() {
        let mut graph = OwnershipGraph::default();
        for number in 0..100 {
            let name = if number % 2 == 0 { format!("ns/{number}") } else { format!("other/{number}") };
            replace(&mut graph, &name, &[], &[reference(&format!("u{}", number % 7), None)]);
        }
        let prefix = Prefix::parse("/registry/configmaps/ns/").unwrap();
        let mut position = None;
        while let Some(next) = graph.remove_below(&prefix, position.as_ref(), 9) {
            position = Some(next);
        }
        assert_eq!(graph.len(), 50);
    }
}
