//! Tests of the watch cache: the tables of lists and watches, and random histories.

mod lists;
mod random_operations;
mod watches;

use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use kubeapi::{FieldSelector, LabelSelector};

use super::*;
use crate::{Key, LocalStoreSettings, MemoryStore, Prefix, Store};

/// A collection in memory whose clock stands still.
struct CacheFixture {
    store: MemoryStore,
    collections: Collections,
    things: ResourceCollection,
    notifier: Notifier,
}

fn things() -> CollectionSettings {
    let prefix = Prefix::parse("/registry/things/").unwrap();
    CollectionSettings {
        prefix,
        fields: Arc::new([DeclaredField::new("type", &["type"])]),
        upgrade: None,
        repair: None,
    }
}

fn collections(store: Arc<dyn Store>, limits: HistoryLimits) -> Collections {
    let now = AtomicU64::new(0);
    Collections::new(store, limits, Arc::new(move || now.load(std::sync::atomic::Ordering::SeqCst)))
}

impl CacheFixture {
    fn new(limits: HistoryLimits) -> CacheFixture {
        let store = MemoryStore::new();
        let collections = collections(Arc::new(store.clone()), limits);
        let (things, notifier) = (collections.collection(&things()), collections.notifier());
        CacheFixture { store, collections, things, notifier }
    }

    /// Creates or updates `ns/name` with a label `app` and a field `type`; returns the revision.
    async fn put(&self, path: &str, app: &str, kind: &str) -> Revision {
        put(&self.things, path, app, kind).await
    }

    async fn delete(&self, path: &str) -> Revision {
        let key = key(path);
        let revision = self.things.get(&key).unwrap().revision();
        self.things.delete(&key, revision).await.unwrap()
    }
}

async fn put(things: &ResourceCollection, path: &str, app: &str, kind: &str) -> Revision {
    things.ensure_loaded().await.unwrap();
    let key = key(path);
    let value = value(app, kind);
    let put = match things.get(&key) {
        Some(old) => things.update(&key, old.revision(), value, None).await,
        None => things.create(&key, value, None).await,
    };
    put.unwrap().revision()
}

fn key(path: &str) -> Key {
    Key::parse(&format!("/registry/things/{path}")).unwrap()
}

fn value(app: &str, kind: &str) -> Bytes {
    format!(r#"{{"metadata":{{"labels":{{"app":"{app}"}}}},"type":"{kind}"}}"#).into()
}

fn select(labels: &str, fields: &str) -> Selection {
    let (labels, fields) = (LabelSelector::parse(labels).unwrap(), FieldSelector::parse(fields).unwrap());
    Selection::new(labels, &fields, &things().fields).unwrap()
}

/// Runs with a clock that jumps to the next timer whenever nothing else can run.
fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(future)
}

#[test]
fn selection_refuses_undeclared_field() {
    let fields = FieldSelector::parse("spec.x=1").unwrap();
    let refused = Selection::new(LabelSelector::default(), &fields, &things().fields).unwrap_err();
    assert_eq!(refused.to_string(), "field label not supported: spec.x");
}

#[test]
fn collection_writes_compare_revisions() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits::default());
        let things = &fixture.things;
        let a = key("ns/a");
        let created = things.create(&a, value("x", ""), None).await.unwrap();
        assert_eq!(
            (created.revision(), created.created(), created.name(), created.label("app")),
            (2, 2, "a", Some("x"))
        );
        // The first use of a write does not load; a read does.
        assert!(things.get_latest(&a).await.unwrap().is_some());
        let Err(Error::Conflict { current: Some(current) }) = things.create(&a, value("y", ""), None).await else {
            panic!("created twice")
        };
        assert_eq!(current.revision(), 2);
        let updated = things.update(&a, 2, value("y", ""), None).await.unwrap();
        assert!(Arc::ptr_eq(&updated, &things.get(&a).unwrap()), "one copy of an object");
        assert_eq!((updated.revision(), updated.created()), (3, 2));
        assert!(matches!(things.update(&a, 2, value("z", ""), None).await, Err(Error::Conflict { current: Some(_) })));
        assert!(matches!(things.delete(&a, 2).await, Err(Error::Conflict { current: Some(_) })));
        assert_eq!(things.delete(&a, 3).await.unwrap(), 4);
        assert!(matches!(things.delete(&a, 3).await, Err(Error::Conflict { current: None })));
        assert!(things.get(&a).is_none());
        let large = things.create(&a, vec![b' '; 2 << 20].into(), None).await.unwrap_err();
        assert!(matches!(large, Error::Store(crate::Error::TooLarge { .. })));
    });
}

#[test]
fn collections_are_one_per_prefix() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits::default());
        fixture.put("ns/a", "x", "").await;
        let same = fixture.collections.collection(&things());
        assert_eq!((same.snapshot().len(), same.snapshot().bytes()), (1, value("x", "").len()));
        assert_eq!((fixture.collections.all().len(), fixture.collections.revision().await), (1, Ok(2)));
        fixture.collections.remove(same.prefix());
        assert!(fixture.collections.get(same.prefix()).is_none());
    });
}
