//! All APIServices with their conditions, and how they lately changed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::object::Object;
use crate::availability::{Board, Condition};
use crate::process::{Drain, Phase, Published, Publisher};
use crate::registry::Registry;

/// A snapshot of all objects; immutable.
#[derive(Clone)]
pub struct View {
    /// The latest version handed out. Versions are greater in a later life of the process than in an earlier
    /// one, so that a watch that outlived it is told to begin again and not left waiting.
    pub(super) version: u64,
    /// By name.
    pub(super) objects: BTreeMap<String, Arc<Object>>,
    /// The latest changes, oldest first.
    pub(super) changes: VecDeque<Change>,
    /// The version before the oldest change we still know.
    pub(super) forgotten: u64,
}

/// One object that came, changed or went.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) before: Option<Arc<Object>>,
    pub(super) after: Option<Arc<Object>>,
}

/// A watch that falls further behind has to list again.
const MOST_CHANGES: usize = 1000;

impl View {
    /// The view of nothing, at `now`.
    pub fn empty(now: SystemTime) -> View {
        let version = now.duration_since(UNIX_EPOCH).map_or(1, |since| since.as_millis() as u64);
        View { version, objects: BTreeMap::new(), changes: VecDeque::new(), forgotten: version }
    }

    /// The view after this, or nothing when it would be the same.
    pub fn next(&self, registry: &Registry, condition: impl Fn(&str) -> Arc<Condition>) -> Option<View> {
        let mut next = self.clone();
        for api_service in &registry.api_services {
            let condition = condition(&api_service.name);
            let before = self.objects.get(&api_service.name);
            let same = |before: &&Arc<Object>| {
                Arc::ptr_eq(&before.api_service, api_service) && same_to_clients(&before.condition, &condition)
            };
            if before.filter(same).is_none() {
                let version = next.version + 1;
                let object = Arc::new(Object { api_service: api_service.clone(), condition, version });
                next.objects.insert(api_service.name.clone(), object.clone());
                next.record(before.cloned(), Some(object));
            }
        }
        let gone = self.objects.values().filter(|object| registry.api_service(&object.api_service.name).is_none());
        for object in gone {
            next.objects.remove(&object.api_service.name);
            next.record(Some(object.clone()), None);
        }
        (next.version != self.version).then_some(next)
    }

    fn record(&mut self, before: Option<Arc<Object>>, after: Option<Arc<Object>>) {
        self.version += 1;
        self.changes.push_back(Change { version: self.version, before, after });
        if self.changes.len() > MOST_CHANGES {
            self.forgotten = self.changes.pop_front().map_or(self.forgotten, |oldest| oldest.version);
        }
    }
}

/// The private detail alone is no change that a client could see.
fn same_to_clients(a: &Condition, b: &Condition) -> bool {
    (a.status, &a.reason, &a.message, a.since) == (b.status, &b.reason, &b.message, b.since)
}

/// Publishes the view anew whenever the registry or a condition changes, until the process ends.
pub async fn follow(mut registry: Published<Registry>, board: Board, publisher: Publisher<View>, mut drain: Drain) {
    let mut changes = board.changes();
    let reader = publisher.reader();
    let mut look = true;
    loop {
        let known = registry.get();
        if look && let Some(next) = reader.get().next(&known, |name| board.of(name).condition()) {
            publisher.publish(Arc::new(next));
        }
        look = true;
        tokio::select! {
            // Where its endpoints are, an APIService does not say.
            () = registry.changed() => look = registry.load().only_endpoints_since(&known.mark()).is_none(),
            Ok(()) = changes.changed() => {}
            () = drain.reached(Phase::Ending) => return,
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

    pub(crate) fn known(status: ConditionStatus) -> impl Fn(&str) -> Arc<Condition> {
        move |name| {
            let unknown = Board::default().of(name).condition();
            Arc::new(Condition { status, since: UNIX_EPOCH, ..Condition::clone(&unknown) })
        }
    }

    #[test]
    fn every_change_has_a_version_and_no_change_has_none() {
        let view = View::empty(UNIX_EPOCH);
        let two = registry_of(&["v1.a.io", "v1.b.io"]);
        let view = view.next(&two, known(ConditionStatus::Unknown)).unwrap();
        assert_eq!((view.version, view.objects["v1.b.io"].version), (2, 2));
        assert!(view.next(&two, known(ConditionStatus::Unknown)).is_none());
        let view = view.next(&two, known(ConditionStatus::True)).unwrap();
        assert_eq!((view.version, view.objects["v1.a.io"].version), (4, 3));
        let view = view.next(&Registry::default(), known(ConditionStatus::True)).unwrap();
        assert!(view.objects.is_empty());
        assert_eq!(view.changes.len(), 6);
        assert!(view.changes[5].after.is_none());
    }

    #[test]
    fn old_changes_are_forgotten() {
        let registry = registry_of(&["v1.a.io"]);
        let mut view = View::empty(UNIX_EPOCH);
        for n in 0..MOST_CHANGES + 10 {
            let status = if n % 2 == 0 { ConditionStatus::True } else { ConditionStatus::False };
            view = view.next(&registry, known(status)).unwrap();
        }
        assert_eq!((view.changes.len(), view.forgotten), (MOST_CHANGES, 10));
        assert_eq!(view.changes[0].version, 11);
    }
}
