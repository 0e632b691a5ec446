//! The garbage collector above a store in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use store::watch_cache::{Collections, HistoryLimits};
use store::{
    ChangeSink, CommitCondition, CommitOutcome, Error, Expect, Key, Loaded, MemoryStore, Mutation, Prefix, Progress,
    RecordPage, Revision, Store, StoreFuture,
};
use tokio::task::LocalSet;

use super::GarbageCollector;
use crate::observe::metrics::WorkQueueRegistry;
use crate::process::Published;
use crate::rest::ApiServer;
use crate::rest::test_support::{keys, server};
use crate::route::RouteTable;

/// A store whose Secrets cannot be read for some time.
struct HeldStore {
    inner: MemoryStore,
    is_held: Arc<AtomicBool>,
}

impl Store for HeldStore {
    fn load(&self, prefix: &Prefix) -> StoreFuture<Loaded> {
        match prefix.as_str() == "/registry/secrets/" && self.is_held.load(Ordering::Relaxed) {
            true => StoreFuture::ready(Err(Error::Unavailable("held".into()))),
            false => self.inner.load(prefix),
        }
    }

    fn commit_if(
        &self,
        key: &Key,
        expect: Expect,
        mutation: Mutation,
        conditions: Vec<CommitCondition>,
    ) -> StoreFuture<CommitOutcome> {
        self.inner.commit_if(key, expect, mutation, conditions)
    }

    fn follow(&self, prefix: &Prefix, after: Revision, sink: Box<dyn ChangeSink>) -> StoreFuture<Progress> {
        self.inner.follow(prefix, after, sink)
    }

    fn at(&self, prefix: &Prefix, from: Option<&str>, limit: usize, revision: Revision) -> StoreFuture<RecordPage> {
        self.inner.at(prefix, from, limit, revision)
    }

    fn current(&self) -> StoreFuture<Revision> {
        self.inner.current()
    }
}

/// Runs the garbage collector while `check` runs.
async fn run_while(api: &ApiServer, check: impl Future<Output = ()>) {
    let collector =
        std::rc::Rc::new(GarbageCollector::new(api, WorkQueueRegistry::default().register("garbage_collector")));
    let mut routes = RouteTable::default();
    routes.complete = true;
    api.set_routes(Published::fixed(routes));
    let run = async {
        let notifier = api.collections().notifier();
        tokio::task::spawn_local({
            let notifier = notifier.clone();
            async move { notifier.run().await }
        });
        tokio::task::spawn_local(collector.run(notifier));
        check.await;
    };
    LocalSet::new().run_until(run).await;
}

fn map(name: &str, owners: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "ns", "uid": name, "ownerReferences": owners}})
}

fn owner(api_version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": name})
}

/// The names of the ConfigMaps, when they have not changed for some time.
async fn settled_names(store: &MemoryStore) -> Vec<String> {
    tokio::time::sleep(Duration::from_secs(600)).await;
    let keys = keys(store, "/registry/configmaps/ns/").await;
    keys.iter().map(|key| key.rsplit_once('/').unwrap().1.to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn garbage_stays_until_all_collections_are_loaded() {
    let (inner, is_held) = (MemoryStore::new(), Arc::new(AtomicBool::new(true)));
    let key = Key::parse("/registry/configmaps/ns/a").unwrap();
    let value = map("a", &json!([owner("v1", "ConfigMap", "none")])).to_string();
    inner.commit(&key, Expect::Absent, Mutation::put(value)).await.unwrap();
    let store = HeldStore { inner: inner.clone(), is_held: is_held.clone() };
    let collections = Collections::new(Arc::new(store), HistoryLimits::default(), Arc::new(|| 0));
    let (_, api) = server(&[]).await;
    let api = ApiServer::new(collections, api.settings().clone(), api.drain().clone());
    run_while(&api, async {
        assert_eq!(settled_names(&inner).await, ["a"]);
        is_held.store(false, Ordering::Relaxed);
        assert_eq!(settled_names(&inner).await, [""; 0]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn owners_decide_whether_an_object_is_garbage() {
    let repeated: Vec<Value> = (0..2_000)
        .map(|number| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": format!("n{number}"), "uid": "same"}))
        .collect();
    let rows = [
        ("no-owner", json!([])),
        ("solid", json!([owner("v1", "ConfigMap", "no-owner")])),
        ("absent", json!([owner("v1", "ConfigMap", "none")])),
        ("of-absent", json!([owner("v1", "ConfigMap", "absent")])),
        ("one-of-two", json!([owner("v1", "ConfigMap", "none"), owner("v1", "ConfigMap", "no-owner")])),
        ("other-kind", json!([owner("v1", "Secret", "no-owner")])),
        ("other-uid", json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "no-owner", "uid": "former"}])),
        ("unknown-kind", json!([owner("v1", "Widget", "w")])),
        ("unknown-version", json!([owner("v7", "ConfigMap", "none")])),
        ("unknown-group", json!([owner("example.com/v1", "Widget", "w"), owner("v1", "ConfigMap", "none")])),
        ("bad-name", json!([owner("v1", "ConfigMap", "a/b")])),
        ("cluster-scoped-owner", json!([owner("v1", "Node", "none")])),
        ("repeated", Value::from(repeated)),
        ("defect", Value::from("x")),
    ];
    let records: Vec<(String, Value)> =
        rows.iter().map(|(name, owners)| (format!("/registry/configmaps/ns/{name}"), map(name, owners))).collect();
    let records: Vec<(&str, Value)> = records.iter().map(|(key, value)| (&**key, value.clone())).collect();
    let (store, api) = server(&records).await;
    run_while(&api, async {
        let expected =
            ["defect", "no-owner", "one-of-two", "solid", "unknown-group", "unknown-kind", "unknown-version"];
        assert_eq!(settled_names(&store).await, expected);
        let maps = api.builtin_collection("", "configmaps").unwrap();
        let key = Key::parse("/registry/configmaps/ns/one-of-two").unwrap();
        let object = maps.get(&key).unwrap();
        let owners = &object.metadata().owner_references;
        assert_eq!(owners.iter().map(|owner| &*owner.name).collect::<Vec<_>>(), ["no-owner"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn interrupted_foreground_deletion_of_a_store_goes_on() {
    let marked = |name: &str, owners: Value| {
        let mut object = map(name, &owners);
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        object["metadata"]["finalizers"] = json!(["foregroundDeletion"]);
        object
    };
    let blocking = |name: &str| {
        let mut reference = owner("v1", "ConfigMap", name);
        reference["blockOwnerDeletion"] = json!(true);
        json!([reference])
    };
    let mut held = map("held", &blocking("c"));
    held["metadata"]["finalizers"] = json!(["x/y"]);
    let (store, api) = server(&[
        ("/registry/configmaps/ns/a", marked("a", json!([]))),
        ("/registry/configmaps/ns/b", map("b", &blocking("a"))),
        ("/registry/configmaps/ns/c", marked("c", json!([]))),
        ("/registry/configmaps/ns/held", held),
        // A cycle that was deleted by clients.
        ("/registry/configmaps/ns/x", marked("x", blocking("y"))),
        ("/registry/configmaps/ns/y", marked("y", blocking("x"))),
    ])
    .await;
    run_while(&api, async {
        assert_eq!(settled_names(&store).await, ["c", "held"]);
    })
    .await;
}
