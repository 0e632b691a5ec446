//! The controllers above a store in memory.

use std::time::Duration;

use serde_json::{Value, json};
use store::watch_cache::ResourceCollection;
use store::{Key, MemoryStore};
use tokio::task::LocalSet;

use super::{Controllers, EnabledControllers};
use crate::kubeclient::election::Leadership;
use crate::observe::metrics::WorkQueueRegistry;
use crate::process::Published;
use crate::rest::test_support::{CRD, keys, object, server, server_with};
use crate::rest::{ApiServer, ApiServerSettings};

/// Runs the controllers until `is_done`, at most a minute.
async fn run_until(api: &ApiServer, is_done: impl AsyncFn() -> bool) {
    let controllers =
        Controllers::start(api, None, EnabledControllers::default(), &WorkQueueRegistry::default()).await.unwrap();
    let notifier = api.collections().notifier();
    let run = async {
        tokio::task::spawn_local({
            let notifier = notifier.clone();
            async move { notifier.run().await }
        });
        tokio::task::spawn_local(controllers.run(notifier, Published::fixed(Leadership::without_election())));
        wait_until(is_done).await;
    };
    LocalSet::new().run_until(run).await;
}

async fn wait_until(is_done: impl AsyncFn() -> bool) {
    let wait = async {
        while !is_done().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.expect("not done after a minute");
}

async fn has_key(store: &MemoryStore, key: &str) -> bool {
    let (prefix, _) = key.rsplit_once('/').unwrap();
    keys(store, &format!("{prefix}/")).await.iter().any(|one| one == key)
}

async fn delete(collection: &ResourceCollection, name: &str) {
    let key = collection.prefix().key("", name).unwrap();
    let current = collection.get_latest(&key).await.unwrap().unwrap();
    collection.delete(&key, current.revision()).await.unwrap();
}

/// The value of an object and its revision.
fn get(collection: &ResourceCollection, name: &str) -> Option<Value> {
    let key = collection.prefix().key("", name).unwrap();
    collection.get(&key).map(|stored| serde_json::from_slice(stored.bytes()).unwrap())
}

fn crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "foos.example.com", "uid": "foos"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
        "status": {},
    })
}

#[tokio::test(start_paused = true)]
async fn namespace_is_not_removed_before_objects_of_resources_that_are_not_served() {
    let (time, uid) = ("2026-01-01T00:00:00Z", "held");
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "spec": {"finalizers": ["kubernetes"]},
        "metadata": {"name": "held", "uid": uid, "deletionTimestamp": time}, "status": {"phase": "Terminating"}});
    let (store, api) = server(&[
        ("/registry/namespaces/held", namespace),
        (CRD, object("foos.example.com")),
        ("/registry/example.com/foos/held/a", object("a")),
    ])
    .await;
    run_until(&api, async || !has_key(&store, "/registry/namespaces/held").await).await;
    assert_eq!(keys(&store, "/registry/example.com/").await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn system_namespace_that_is_deleted_is_created_again() {
    let (_, api) = server(&[]).await;
    let namespaces = api.builtin_collection("", "namespaces").unwrap();
    let is_created_again = async || {
        let Some(before) = get(&namespaces, "kube-node-lease") else { return false };
        delete(&namespaces, "kube-node-lease").await;
        wait_until(async || get(&namespaces, "kube-node-lease").is_some_and(|now| now != before)).await;
        true
    };
    run_until(&api, is_created_again).await;
    let mut names: Vec<String> =
        namespaces.snapshot().range(namespaces.prefix(), None).map(|one| one.name().to_owned()).collect();
    names.sort();
    assert_eq!(names, ["default", "kube-node-lease", "kube-public", "kube-system"]);
}

#[tokio::test(start_paused = true)]
async fn local_api_service_of_a_crd_is_kept_and_one_of_a_built_in_group_is_written_at_start() {
    const BUILT_IN: &str = "v1.coordination.k8s.io";
    let managed = |name: &str, label: &str| {
        let (version, group) = name.split_once('.').unwrap();
        let labels = json!({"kube-aggregator.kubernetes.io/automanaged": label});
        json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": name, "uid": name, "labels": labels}, "spec": {"group": group, "version": version}})
    };
    let (_, api) = server(&[
        (CRD, crd()),
        ("/registry/apiregistration.k8s.io/apiservices/v1.gone.example.com", managed("v1.gone.example.com", "true")),
        ("/registry/apiregistration.k8s.io/apiservices/v1.old.k8s.io", managed("v1.old.k8s.io", "onstart")),
        ("/registry/apiregistration.k8s.io/apiservices/v1.mine.io", managed("v1.mine.io", "no")),
        (&format!("/registry/apiregistration.k8s.io/apiservices/{BUILT_IN}"), managed(BUILT_IN, "onstart")),
    ])
    .await;
    let services = api.builtin_collection("apiregistration.k8s.io", "apiservices").unwrap();
    let run = async || {
        wait_until(async || get(&services, "v1.example.com").is_some()).await;
        assert_eq!(get(&services, BUILT_IN).unwrap()["spec"]["groupPriorityMinimum"], 16_500);
        let before = get(&services, "v1.example.com").unwrap();
        assert_eq!(before["spec"]["groupPriorityMinimum"], 1_000);
        delete(&services, BUILT_IN).await;
        delete(&services, "v1.example.com").await;
        wait_until(async || get(&services, "v1.example.com").is_some_and(|now| now != before)).await;
        // A user may add one, with any label.
        let key = Key::parse("/registry/apiregistration.k8s.io/apiservices/v1.new.io").unwrap();
        services.create(&key, managed("v1.new.io", "onstart").to_string().into(), None).await.unwrap();
        let key = Key::parse("/registry/apiregistration.k8s.io/apiservices/v1.new.com").unwrap();
        services.create(&key, managed("v1.new.com", "true").to_string().into(), None).await.unwrap();
        wait_until(async || get(&services, "v1.new.com").is_none()).await;
        true
    };
    run_until(&api, run).await;
    let has = |name: &str| get(&services, name).is_some();
    assert!(!has(BUILT_IN), "managed at start only");
    assert_eq!(
        ["v1.gone.example.com", "v1.old.k8s.io", "v1.mine.io", "v1.new.io"].map(has),
        [false, false, true, true]
    );
}

#[tokio::test(start_paused = true)]
async fn crd_that_is_marked_is_removed_with_its_objects() {
    let mut marked = crd();
    marked["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    marked["metadata"]["finalizers"] = json!(["customresourcecleanup.apiextensions.k8s.io"]);
    marked["status"] = json!({"acceptedNames": {"plural": "foos", "kind": "Foo", "listKind": "FooList", "singular": "foo"},
        "storedVersions": ["v1"],
        "conditions": [{"type": "Established", "status": "True"}, {"type": "NamesAccepted", "status": "True"}]});
    let foo = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "a", "namespace": "default", "uid": "a"}});
    let (store, api) = server(&[(CRD, marked), ("/registry/example.com/foos/default/a", foo)]).await;
    run_until(&api, async || !has_key(&store, CRD).await).await;
    assert_eq!(keys(&store, "/registry/example.com/").await, [""; 0]);
    assert!(api.catalog().get().find("example.com", "v1", "foos").is_none());
}

/// A server that listens.
async fn listening_server() -> (MemoryStore, ApiServer) {
    server_with(&[], |settings| settings.services.listener = Some("192.0.2.1:6443".parse().unwrap())).await
}

fn get_default(collection: &ResourceCollection) -> Option<Value> {
    let key = collection.prefix().key("default", "kubernetes").unwrap();
    collection.get(&key).map(|stored| serde_json::from_slice(stored.bytes()).unwrap())
}

#[tokio::test]
async fn service_kubernetes_and_its_endpoints_exist_and_come_back() {
    let (_, api) = listening_server().await;
    let services = api.builtin_collection("", "services").unwrap();
    let endpoints = api.builtin_collection("", "endpoints").unwrap();
    let slices = api.builtin_collection("discovery.k8s.io", "endpointslices").unwrap();
    let cidrs = api.builtin_collection("networking.k8s.io", "servicecidrs").unwrap();
    run_until(&api, async || {
        let service = get_default(&services).unwrap();
        assert_eq!(service["metadata"]["labels"], json!({"component": "apiserver", "provider": "kubernetes"}));
        assert_eq!(
            service["spec"],
            json!({
                "type": "ClusterIP", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"],
                "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
                "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}],
            })
        );
        let port = json!([{"name": "https", "port": 6443, "protocol": "TCP"}]);
        let found = get_default(&endpoints).unwrap();
        assert_eq!(found["metadata"]["labels"], json!({"endpointslice.kubernetes.io/skip-mirror": "true"}));
        assert_eq!(found["subsets"], json!([{"addresses": [{"ip": "192.0.2.1"}], "ports": port}]));
        let slice = get_default(&slices).unwrap();
        assert_eq!(slice["metadata"]["labels"], json!({"kubernetes.io/service-name": "kubernetes"}));
        assert_eq!((&slice["addressType"], &slice["ports"]), (&json!("IPv4"), &port));
        assert_eq!(slice["endpoints"], json!([{"addresses": ["192.0.2.1"], "conditions": {"ready": true}}]));
        let cidr = get(&cidrs, "kubernetes").unwrap();
        assert_eq!(cidr["spec"], json!({"cidrs": ["10.0.0.0/24"]}));
        assert_eq!(cidr["status"]["conditions"][0]["status"], "True");
        // They come back, and the endpoints stay those of this server.
        for collection in [&services, &endpoints, &slices] {
            let before = get_default(collection).unwrap();
            let key = collection.prefix().key("default", "kubernetes").unwrap();
            let stored = collection.get_latest(&key).await.unwrap().unwrap();
            collection.delete(&key, stored.revision()).await.unwrap();
            wait_until(async || get_default(collection).is_some_and(|now| now["metadata"] != before["metadata"])).await;
            assert_eq!(get_default(collection).unwrap()["spec"], before["spec"]);
        }
        let key = endpoints.prefix().key("default", "kubernetes").unwrap();
        let stored = endpoints.get_latest(&key).await.unwrap().unwrap();
        let mut changed = get_default(&endpoints).unwrap();
        changed["subsets"][0]["addresses"] = json!([{"ip": "192.0.2.9"}]);
        endpoints.update(&key, stored.revision(), changed.to_string().into(), None).await.unwrap();
        wait_until(async || get_default(&endpoints).unwrap()["subsets"][0]["addresses"][0]["ip"] == "192.0.2.1").await;
        delete(&cidrs, "kubernetes").await;
        wait_until(async || {
            get(&cidrs, "kubernetes").is_some_and(|cidr| cidr["status"]["conditions"][0]["status"] == "True")
        })
        .await;
        true
    })
    .await;
}

#[tokio::test]
async fn service_cidr_gets_a_second_range_and_is_not_changed_otherwise() {
    let two =
        |settings: &mut ApiServerSettings| settings.services.secondary_range = Some("fd00::/108".parse().unwrap());
    for (stored, expected) in [
        (json!(["10.0.0.0/24"]), json!(["10.0.0.0/24", "fd00::/108"])),
        (json!(["10.1.0.0/24"]), json!(["10.1.0.0/24"])),
    ] {
        let cidr = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "kubernetes", "uid": "a"},
            "spec": {"cidrs": stored},
        });
        let (_, api) = server_with(&[("/registry/servicecidrs/kubernetes", cidr)], two).await;
        Controllers::start(&api, None, EnabledControllers::default(), &WorkQueueRegistry::default()).await.unwrap();
        let cidrs = api.builtin_collection("networking.k8s.io", "servicecidrs").unwrap();
        assert_eq!(get(&cidrs, "kubernetes").unwrap()["spec"]["cidrs"], expected);
    }
}
