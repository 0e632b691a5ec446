//! All APIServices with their conditions, and their recent changes.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::object::ApiServiceObject;
use crate::availability::{AvailabilityCondition, AvailabilityMap};
use crate::process::{Drain, Published, Publisher, ShardedMap, ShutdownPhase};
use crate::registry::{Registry, Revision};

/// An immutable snapshot of all objects.
#[derive(Clone)]
pub struct ApiServiceView {
    /// The latest version. Versions of a later process are greater than those of an earlier one, so that a client that
    /// resumes a watch is told to list again instead of waiting.
    pub(super) version: u64,
    /// Objects by name.
    pub(super) objects: ShardedMap<Arc<ApiServiceObject>>,
    /// Recent changes, oldest first, in chunks; all but the last are full.
    pub(super) changes: VecDeque<Arc<Vec<ViewChange>>>,
    /// The version before the oldest recorded change.
    pub(super) compacted_version: u64,
}

/// One object added, changed or deleted.
#[derive(Clone)]
pub(super) struct ViewChange {
    pub(super) version: u64,
    pub(super) before: Option<Arc<ApiServiceObject>>,
    pub(super) after: Option<Arc<ApiServiceObject>>,
}

/// Number of chunks kept. A watch that falls further behind has to list again.
const MAX_CHUNKS: usize = 32;
/// Changes per chunk; adding a change copies at most this many.
const CHUNK_SIZE: usize = 32;

impl ApiServiceView {
    /// An empty view at `now`.
    pub fn empty(now: SystemTime) -> ApiServiceView {
        let version = now.duration_since(UNIX_EPOCH).map_or(1, |since| since.as_millis() as u64);
        ApiServiceView { version, objects: ShardedMap::default(), changes: VecDeque::new(), compacted_version: version }
    }

    /// The object of the APIService `name`.
    pub(super) fn object(&self, name: &str) -> Option<&Arc<ApiServiceObject>> {
        self.objects.get(name)
    }

    /// All objects sorted by name. Sorts on each call.
    pub(super) fn objects(&self) -> Vec<&Arc<ApiServiceObject>> {
        let mut all: Vec<_> = self.objects.values().collect();
        all.sort_unstable_by(|a, b| a.api_service.name.cmp(&b.api_service.name));
        all
    }

    /// Changes after `version`, oldest first.
    pub(super) fn changes_since(&self, version: u64) -> impl Iterator<Item = &ViewChange> {
        let late = move |piece: &&Arc<Vec<ViewChange>>| piece.last().is_some_and(|last| last.version > version);
        // Searched from the end, as most callers are close to it.
        let pieces = self.changes.iter().rev().take_while(late).count();
        let changes = self.changes.range(self.changes.len() - pieces..).flat_map(|piece| piece.iter());
        changes.filter(move |change| change.version > version)
    }

    /// The view after an update; `None` if nothing changed.
    pub fn updated(
        &self,
        registry: &Registry,
        condition: impl Fn(&str) -> Arc<AvailabilityCondition>,
    ) -> Option<ApiServiceView> {
        let all = registry.api_services().map(|one| one.name.as_str()).chain(self.objects.names());
        self.updated_names(all.collect(), registry, condition)
    }

    /// As [`ApiServiceView::updated`] when only `names` can have changed.
    pub fn updated_names(
        &self,
        names: BTreeSet<&str>,
        registry: &Registry,
        condition: impl Fn(&str) -> Arc<AvailabilityCondition>,
    ) -> Option<ApiServiceView> {
        let mut next = self.clone();
        for name in names {
            let before = self.objects.get(name);
            let Some(api_service) = registry.api_service(name) else {
                if let Some(gone) = before {
                    next.objects.remove(name);
                    next.record(Some(gone.clone()), None);
                }
                continue;
            };
            let condition = condition(name);
            let same = |before: &&Arc<ApiServiceObject>| {
                Arc::ptr_eq(&before.api_service, api_service) && is_same_to_clients(&before.condition, &condition)
            };
            if before.filter(same).is_none() {
                let version = next.version + 1;
                let object = Arc::new(ApiServiceObject { api_service: api_service.clone(), condition, version });
                next.objects.insert(name, object.clone());
                next.record(before.cloned(), Some(object));
            }
        }
        (next.version != self.version).then_some(next)
    }

    fn record(&mut self, before: Option<Arc<ApiServiceObject>>, after: Option<Arc<ApiServiceObject>>) {
        self.version += 1;
        let change = ViewChange { version: self.version, before, after };
        match self.changes.back_mut().filter(|piece| piece.len() < CHUNK_SIZE) {
            Some(piece) => Arc::make_mut(piece).push(change),
            None => self.changes.push_back(Arc::new(vec![change])),
        }
        if self.changes.len() > MAX_CHUNKS
            && let Some(oldest) = self.changes.pop_front()
        {
            self.compacted_version = oldest.last().map_or(self.compacted_version, |last| last.version);
        }
    }
}

/// Whether clients see both conditions as the same: `detail` is not shown to them.
fn is_same_to_clients(a: &AvailabilityCondition, b: &AvailabilityCondition) -> bool {
    (a.status, &a.reason, &a.message, a.since) == (b.status, &b.reason, &b.message, b.since)
}

/// Publishes a new view whenever the registry or a condition changes, until the process ends.
pub async fn publish_views(
    mut registry: Published<Registry>,
    board: AvailabilityMap,
    publisher: Publisher<ApiServiceView>,
    mut drain: Drain,
) {
    let mut changes = board.changes();
    let reader = publisher.reader();
    let mut seen: Option<(Revision, u64)> = None;
    loop {
        let known = registry.get();
        let since = seen.as_ref().map(|(mark, version)| (known.changes_since(mark), board.changed_since(*version)));
        let condition = |name: &str| board.get_or_insert(name).condition();
        let next = match &since {
            Some((Some(registered), (_, Some(judged)))) => {
                // The object of an APIService does not depend on its endpoints.
                let names = registered.api_services.iter().copied().chain(judged.iter().map(AsRef::as_ref)).collect();
                reader.get().updated_names(names, &known, condition)
            }
            _ => {
                seen = Some((known.revision(), board.changed_since(0).0));
                reader.get().updated(&known, condition)
            }
        };
        if let Some((_, (version, _))) = since {
            seen = Some((known.revision(), version));
        }
        if let Some(next) = next {
            publisher.publish(Arc::new(next));
        }
        tokio::select! {
            () = registry.changed() => {}
            Ok(()) = changes.changed() => {}
            () = drain.wait_for(ShutdownPhase::Ending) => return,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::availability::ConditionStatus;
    use crate::registry::snapshot::tests::{api_service, registry};

    pub(crate) fn registry_of(names: &[&str]) -> Registry {
        let text: String = names
            .iter()
            .map(|name| {
                api_service(name, "groupPriorityMinimum: 1, versionPriority: 1")
                    .replace("metadata: {", "metadata: {labels: {team: blue}, ")
            })
            .collect();
        registry(&text)
    }

    pub(crate) fn condition_of(status: ConditionStatus) -> impl Fn(&str) -> Arc<AvailabilityCondition> {
        move |name| {
            let unknown = AvailabilityMap::default().get_or_insert(name).condition();
            Arc::new(AvailabilityCondition { status, since: UNIX_EPOCH, ..AvailabilityCondition::clone(&unknown) })
        }
    }

    #[test]
    fn view_version_advances_once_per_change() {
        let view = ApiServiceView::empty(UNIX_EPOCH);
        let two = registry_of(&["v1.a.io", "v1.b.io"]);
        let view = view.updated(&two, condition_of(ConditionStatus::Unknown)).unwrap();
        assert_eq!((view.version, view.object("v1.b.io").unwrap().version), (2, 2));
        assert!(view.updated(&two, condition_of(ConditionStatus::Unknown)).is_none());
        let view = view.updated(&two, condition_of(ConditionStatus::True)).unwrap();
        assert_eq!((view.version, view.object("v1.a.io").unwrap().version), (4, 3));
        let view = view.updated(&Registry::default(), condition_of(ConditionStatus::True)).unwrap();
        assert!(view.objects().is_empty());
        let changes: Vec<_> = view.changes_since(0).collect();
        assert_eq!(changes.len(), 6);
        assert!(changes[5].after.is_none());
        assert_eq!(view.changes_since(view.version - 2).count(), 2);
    }

    #[test]
    fn view_drops_oldest_changes() {
        let registry = registry_of(&["v1.a.io"]);
        let mut view = ApiServiceView::empty(UNIX_EPOCH);
        for n in 0..MAX_CHUNKS * CHUNK_SIZE + 10 {
            let status = if n % 2 == 0 { ConditionStatus::True } else { ConditionStatus::False };
            view = view.updated(&registry, condition_of(status)).unwrap();
        }
        let (count, forgotten) = (view.changes_since(0).count() as u64, view.compacted_version);
        assert_eq!((count + forgotten, forgotten), (view.version, CHUNK_SIZE as u64));
        assert_eq!(view.changes_since(0).next().unwrap().version, forgotten + 1);
        assert_eq!(
            view.changes_since(forgotten + CHUNK_SIZE as u64 + 3).next().unwrap().version,
            forgotten + CHUNK_SIZE as u64 + 4
        );
    }
}
