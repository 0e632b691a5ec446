//! The garbage collector of the embedded API server: scenarios of upstream's
//! `test/integration/garbagecollector/garbage_collector_test.go`, and what it leaves open.

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

const CORE: &str = "/api/v1/namespaces/default";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

/// One client of a server with a garbage collector.
struct Api {
    fixture: EmbeddedApiFixture,
    client: Client,
}

impl Api {
    async fn start() -> Api {
        let fixture = EmbeddedApiFixture::start(&[]);
        let client = fixture.http2().await;
        Api { fixture, client }
    }

    /// Creates an object; returns it as it was stored.
    async fn create(&self, collection: &str, object: &Value) -> Value {
        let response = send_json(&self.client, Method::POST, collection, object).await;
        assert_eq!(response.status, 201, "{collection}: {}", response.text());
        response.json()
    }

    async fn create_map(&self, name: &str, owners: &[Value]) -> Value {
        self.create(&format!("{CORE}/configmaps"), &json!({"metadata": {"name": name, "ownerReferences": owners}}))
            .await
    }

    async fn delete(&self, path: &str, options: &Value) {
        let response = send_json(&self.client, Method::DELETE, path, options).await;
        assert_eq!(response.status, 200, "{path}: {}", response.text());
    }

    async fn patch(&self, path: &str, patch: &Value) -> Value {
        let headers = [("content-type", "application/merge-patch+json")];
        let response = self.client.send_and_read(request(Method::PATCH, path, &headers, &patch.to_string())).await;
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        response.json()
    }

    async fn exists(&self, path: &str) -> bool {
        self.client.get(path).await.status == 200
    }

    async fn wait_until_gone(&self, path: &str) {
        eventually(path, async || (self.client.get(path).await.status == 404).then_some(())).await;
    }

    /// Names of the objects of a collection.
    async fn names(&self, collection: &str) -> Vec<String> {
        let list = self.client.get(collection).await.json();
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Waits until the collector has seen what was written before: an object whose owner does not exist is gone.
    async fn wait_for_collector(&self) {
        let name = format!("probe-{}", fastrand::u64(..));
        let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": name});
        self.create_map(&name, &[owner]).await;
        self.wait_until_gone(&format!("{CORE}/configmaps/{name}")).await;
    }
}

/// A reference to an object.
fn owner(object: &Value) -> Value {
    json!({"apiVersion": object["apiVersion"], "kind": object["kind"], "name": object["metadata"]["name"],
        "uid": object["metadata"]["uid"]})
}

/// A reference that blocks the deletion of its owner.
fn blocking(object: &Value) -> Value {
    let mut reference = owner(object);
    reference["blockOwnerDeletion"] = json!(true);
    reference
}

fn controller(name: &str, finalizers: &[&str]) -> Value {
    let template = json!({"metadata": {"labels": {"name": "test"}}, "spec": pod_spec()});
    json!({"metadata": {"name": name, "finalizers": finalizers},
        "spec": {"replicas": 0, "selector": {"name": "test"}, "template": template}})
}

fn pod_spec() -> Value {
    json!({"containers": [{"name": "fake-name", "image": "fakeimage"}]})
}

fn pod(name: &str, owners: &[Value], finalizers: &[&str]) -> Value {
    json!({"metadata": {"name": name, "ownerReferences": owners, "finalizers": finalizers}, "spec": pod_spec()})
}

fn crd() -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": schema}]);
    json!({"metadata": {"name": "widgets.example.com"}, "spec": {"group": "example.com", "scope": "Namespaced",
        "names": {"plural": "widgets", "kind": "Widget"}, "versions": versions}})
}

async fn establish(api: &Api) {
    api.create(CRDS, &crd()).await;
    eventually("widgets", async || api.exists(WIDGETS).await.then_some(())).await;
}

fn widget(name: &str, owners: &[Value]) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name, "ownerReferences": owners}})
}

fn policy(name: &str) -> Value {
    json!({"propagationPolicy": name})
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_without_other_owners_is_deleted() {
    let api = Api::start().await;
    let controllers = format!("{CORE}/replicationcontrollers");
    let deleted = api.create(&controllers, &controller("deleted", &[])).await;
    let remaining = api.create(&controllers, &controller("remaining", &[])).await;
    let pods = format!("{CORE}/pods");
    api.create(&pods, &pod("owned", &[owner(&deleted)], &[])).await;
    api.create(&pods, &pod("shared", &[owner(&deleted), owner(&remaining)], &[])).await;
    api.create(&pods, &pod("independent", &[], &[])).await;
    // ReplicationControllers orphan by default.
    api.delete(&format!("{controllers}/deleted"), &json!({"orphanDependents": false})).await;
    api.wait_until_gone(&format!("{pods}/owned")).await;
    let owners = eventually("the reference to be removed", async || {
        let shared = api.client.get(&format!("{pods}/shared")).await.json();
        let owners = shared["metadata"]["ownerReferences"].clone();
        (owners.as_array()?.len() == 1).then_some(owners)
    })
    .await;
    assert_eq!(owners[0]["uid"], remaining["metadata"]["uid"]);
    assert_eq!(api.names(&pods).await, ["independent", "shared"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_of_an_owner_that_never_existed_is_deleted() {
    let api = Api::start().await;
    let first = api.create_map("first", &[]).await;
    let mut other_uid = owner(&first);
    other_uid["uid"] = json!("d0e5e5a8-0000-4000-8000-000000000000");
    // The owner was deleted and created again.
    api.create_map("of-another", &[other_uid]).await;
    api.create_map("of-first", &[owner(&first)]).await;
    api.wait_for_collector().await;
    api.wait_until_gone(&format!("{CORE}/configmaps/of-another")).await;
    assert!(api.exists(&format!("{CORE}/configmaps/of-first")).await);
    // Its chain goes as well.
    let mut last = first.clone();
    for number in 0..20 {
        last = api.create_map(&format!("chain-{number}"), &[owner(&last)]).await;
    }
    api.delete(&format!("{CORE}/configmaps/first"), &json!({})).await;
    eventually("the chain to be gone", async || {
        (api.names(&format!("{CORE}/configmaps")).await == ["kube-root-ca.crt"; 0]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dependents_are_orphaned_on_request() {
    let api = Api::start().await;
    let parent = api.create(&format!("{CORE}/replicationcontrollers"), &controller("parent", &[])).await;
    for number in 0..3 {
        api.create(&format!("{CORE}/pods"), &pod(&format!("p{number}"), &[owner(&parent)], &[])).await;
    }
    let path = format!("{CORE}/replicationcontrollers/parent");
    api.delete(&path, &policy("Orphan")).await;
    api.wait_until_gone(&path).await;
    api.wait_for_collector().await;
    let pods = api.client.get(&format!("{CORE}/pods")).await.json();
    let pods = pods["items"].as_array().unwrap();
    assert_eq!(pods.len(), 3);
    assert!(pods.iter().all(|pod| pod["metadata"].get("ownerReferences").is_none()), "{pods:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn foreground_deletion_does_not_wait_for_a_dependent_with_another_owner() {
    let api = Api::start().await;
    let (deleted, remaining) = (api.create_map("deleted", &[]).await, api.create_map("remaining", &[]).await);
    api.create_map("shared", &[blocking(&deleted), owner(&remaining)]).await;
    api.delete(&format!("{CORE}/configmaps/deleted"), &policy("Foreground")).await;
    api.wait_until_gone(&format!("{CORE}/configmaps/deleted")).await;
    let shared = api.client.get(&format!("{CORE}/configmaps/shared")).await.json();
    assert_eq!(shared["metadata"]["ownerReferences"], json!([owner(&remaining)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn foreground_deletion_waits_for_dependents_that_block_it_only() {
    let api = Api::start().await;
    let held = |name: &str, owners: &[Value]| json!({"metadata": {"name": name, "ownerReferences": owners, "finalizers": ["x/y"]}});
    let maps = format!("{CORE}/configmaps");
    let (free, blocked) = (api.create_map("free", &[]).await, api.create_map("blocked", &[]).await);
    let mut not_blocking = owner(&free);
    not_blocking["blockOwnerDeletion"] = json!(false);
    api.create(&maps, &held("a", &[owner(&free)])).await;
    api.create(&maps, &held("b", &[not_blocking])).await;
    api.create(&maps, &held("c", &[blocking(&blocked)])).await;
    api.delete(&format!("{maps}/free"), &policy("Foreground")).await;
    api.delete(&format!("{maps}/blocked"), &policy("Foreground")).await;
    api.wait_until_gone(&format!("{maps}/free")).await;
    eventually("the dependent to be marked", async || {
        let c = api.client.get(&format!("{maps}/c")).await.json();
        c["metadata"]["deletionTimestamp"].is_string().then_some(())
    })
    .await;
    api.wait_for_collector().await;
    assert_eq!(api.names(&maps).await, ["a", "b", "blocked", "c"]);
    // The last dependent goes, and its owner with it.
    api.patch(&format!("{maps}/c"), &json!({"metadata": {"finalizers": null}})).await;
    api.wait_until_gone(&format!("{maps}/blocked")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreground_deletion_of_a_tree_deletes_the_leaves_first() {
    let api = Api::start().await;
    let root = api.create_map("root", &[]).await;
    let child = api.create_map("child", &[blocking(&root)]).await;
    let leaf = json!({"metadata": {"name": "leaf", "ownerReferences": [blocking(&child)], "finalizers": ["x/y"]}});
    api.create(&format!("{CORE}/configmaps"), &leaf).await;
    api.delete(&format!("{CORE}/configmaps/root"), &policy("Foreground")).await;
    eventually("the child to wait", async || {
        let child = api.client.get(&format!("{CORE}/configmaps/child")).await.json();
        (child["metadata"]["finalizers"] == json!(["foregroundDeletion"])).then_some(())
    })
    .await;
    api.wait_for_collector().await;
    assert_eq!(api.names(&format!("{CORE}/configmaps")).await, ["child", "leaf", "root"]);
    api.patch(&format!("{CORE}/configmaps/leaf"), &json!({"metadata": {"finalizers": null}})).await;
    api.wait_until_gone(&format!("{CORE}/configmaps/root")).await;
    assert_eq!(api.names(&format!("{CORE}/configmaps")).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn second_deletion_in_the_foreground_leaves_other_finalizers() {
    let api = Api::start().await;
    let pod_path = format!("{CORE}/pods/lucy");
    api.create(&format!("{CORE}/pods"), &pod("lucy", &[], &["x/y"])).await;
    for _ in 0..2 {
        api.delete(&pod_path, &policy("Foreground")).await;
        eventually("the finalizer to be removed", async || {
            let pod = api.client.get(&pod_path).await.json();
            (pod["metadata"]["finalizers"] == json!(["x/y"])).then_some(())
        })
        .await;
    }
    api.patch(&pod_path, &json!({"metadata": {"finalizers": null}})).await;
    api.wait_until_gone(&pod_path).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cycles_of_owners_are_deleted_in_the_foreground() {
    let api = Api::start().await;
    let maps = format!("{CORE}/configmaps");
    let own = async |name: &str, owner: &Value| {
        let references = json!({"metadata": {"ownerReferences": [blocking(owner)]}});
        api.patch(&format!("{maps}/{name}"), &references).await
    };
    // It owns itself.
    let own_owner = api.create_map("self", &[]).await;
    own("self", &own_owner).await;
    // One of a cycle is deleted.
    let (a, b) = (api.create_map("a", &[]).await, api.create_map("b", &[]).await);
    own("a", &b).await;
    own("b", &a).await;
    // All of a cycle are deleted.
    let all: Vec<Value> = join_all(["x", "y", "z"].map(|name| api.create_map(name, &[]))).await;
    for (name, owner) in [("x", &all[1]), ("y", &all[2]), ("z", &all[0])] {
        own(name, owner).await;
    }
    for name in ["self", "a", "x", "y", "z"] {
        let path = format!("{maps}/{name}");
        let deleted = send_json(&api.client, Method::DELETE, &path, &policy("Foreground")).await;
        // The collector may have deleted it for the ones before.
        assert!([200, 404].contains(&deleted.status.as_u16()), "{path}: {}", deleted.text());
    }
    eventually("all to be gone", async || api.names(&maps).await.is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_and_core_resources_own_each_other() {
    let api = Api::start().await;
    establish(&api).await;
    let maps = format!("{CORE}/configmaps");
    let custom_owner = api.create(WIDGETS, &widget("owner", &[])).await;
    api.create(WIDGETS, &widget("custom-of-custom", &[blocking(&custom_owner)])).await;
    api.create_map("core-of-custom", &[blocking(&custom_owner)]).await;
    let core_owner = api.create_map("core-owner", &[]).await;
    api.create(WIDGETS, &widget("custom-of-core", &[blocking(&core_owner)])).await;
    api.delete(&format!("{WIDGETS}/owner"), &policy("Foreground")).await;
    api.wait_until_gone(&format!("{WIDGETS}/owner")).await;
    assert_eq!(api.names(WIDGETS).await, ["custom-of-core"]);
    assert_eq!(api.names(&maps).await, ["core-owner"]);
    api.delete(&format!("{maps}/core-owner"), &policy("Foreground")).await;
    api.wait_until_gone(&format!("{maps}/core-owner")).await;
    assert_eq!(api.names(WIDGETS).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_of_a_crd_deletes_what_its_objects_own() {
    let api = Api::start().await;
    for _ in 0..2 {
        establish(&api).await;
        let names: Vec<String> = (0..30).map(|number| format!("w{number:02}")).collect();
        for name in &names {
            let owner_object = api.create(WIDGETS, &widget(name, &[])).await;
            api.create_map(name, &[owner(&owner_object)]).await;
        }
        api.delete(&format!("{CRDS}/widgets.example.com"), &json!({})).await;
        api.wait_until_gone(&format!("{CRDS}/widgets.example.com")).await;
        eventually("the dependents to be gone", async || {
            api.names(&format!("{CORE}/configmaps")).await.is_empty().then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_that_does_not_answer_stops_nothing() {
    let api = Api::start().await;
    establish(&api).await;
    let held = api.create(WIDGETS, &widget("owner", &[])).await;
    api.create(WIDGETS, &widget("dependent", &[owner(&held)])).await;
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version =
        |name: &str, storage: bool| json!({"name": name, "served": true, "storage": storage, "schema": schema});
    let client_config = json!({"url": "https://127.0.0.1:1/convert"});
    let conversion = json!({"strategy": "Webhook",
        "webhook": {"clientConfig": client_config, "conversionReviewVersions": ["v1"]}});
    let spec = json!({"versions": [version("v2", true), version("v1", false)], "conversion": conversion});
    api.patch(&format!("{CRDS}/widgets.example.com"), &json!({ "spec": spec })).await;
    eventually("the webhook to be called", async || {
        (!api.exists(&format!("{}/owner", WIDGETS.replace("v1", "v2"))).await).then_some(())
    })
    .await;
    // Stored as v1, with owners of other kinds and of its own.
    let parent = api.create_map("parent", &[]).await;
    api.create_map("child", &[owner(&parent)]).await;
    api.delete(&format!("{CORE}/configmaps/parent"), &json!({})).await;
    api.wait_until_gone(&format!("{CORE}/configmaps/child")).await;
    api.delete(&format!("{WIDGETS}/owner"), &json!({})).await;
    api.wait_until_gone(&format!("{WIDGETS}/dependent")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_in_other_namespaces_are_absent_and_reported() {
    let api = Api::start().await;
    for name in ["a", "b"] {
        api.create("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await;
    }
    let parent = api.create("/api/v1/namespaces/b/configmaps", &json!({"metadata": {"name": "parent"}})).await;
    let secrets = |namespace: &str| format!("/api/v1/namespaces/{namespace}/secrets");
    let child = |name: &str, owners: &[Value]| json!({"metadata": {"name": name, "ownerReferences": owners}});
    for number in 0..10 {
        api.create(&secrets("b"), &child(&format!("child-{number}"), &[owner(&parent)])).await;
    }
    // Of kinds that do not exist, or by another name.
    let mut invalid: Vec<Value> = (0..25)
        .map(|number| {
            json!({"apiVersion": "test/v1", "kind": format!("invalid{number}"), "name": "invalid",
            "uid": format!("invalid-{number}")})
        })
        .collect();
    let wrong = json!({"apiVersion": "v1", "kind": "Pod", "name": "invalid", "uid": parent["metadata"]["uid"]});
    invalid.push(wrong.clone());
    for number in 0..5 {
        api.create(&secrets("a"), &child(&format!("unknown-{number}"), &invalid)).await;
        api.create(&secrets("a"), &child(&format!("bad-{number}"), std::slice::from_ref(&wrong))).await;
    }
    // By its name, from the other namespace, and from none.
    api.create(&secrets("a"), &child("foreign", &[owner(&parent)])).await;
    let class = json!({"metadata": {"name": "outside", "ownerReferences": [owner(&parent)]}, "value": 7});
    api.create("/apis/scheduling.k8s.io/v1/priorityclasses", &class).await;
    eventually("invalid children to be deleted", async || {
        let names = api.names(&secrets("a")).await;
        names.iter().all(|name| name.starts_with("unknown-")).then_some(())
    })
    .await;
    api.wait_for_collector().await;
    assert_eq!(api.names(&secrets("a")).await.len(), 5);
    assert_eq!(api.names(&secrets("b")).await.len(), 10);
    assert!(api.exists("/apis/scheduling.k8s.io/v1/priorityclasses/outside").await);
    for (namespace, name, shown) in [("a", "foreign", "a"), ("default", "outside", "")] {
        let events = format!("/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name%3D{name}");
        let event =
            eventually("the Event", async || api.client.get(&events).await.json()["items"].get(0).cloned()).await;
        let uid = parent["metadata"]["uid"].as_str().unwrap();
        let message = format!(
            "ownerRef [v1/ConfigMap, namespace: {shown}, name: parent, uid: {uid}] does not exist in namespace \"{shown}\""
        );
        assert_eq!((&event["reason"], &event["type"]), (&json!("OwnerRefInvalidNamespace"), &json!("Warning")));
        assert_eq!((event["message"].as_str(), &event["count"]), (Some(&*message), &json!(1)));
        assert_eq!(event["source"], json!({"component": "garbage-collector-controller"}));
    }
    // Nothing is said of owners that are nowhere.
    let events = api.client.get("/api/v1/namespaces/default/events").await.json();
    assert_eq!(events["items"].as_array().unwrap().len(), 1, "{events}");
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_that_an_extension_api_server_has_do_not_count_as_absent() {
    let fixture = EmbeddedApiFixture::start_with(|environment| {
        environment.register_apiservice("example.com", "v1", &[]);
        Vec::new()
    });
    let client = fixture.http2().await;
    let api = Api { fixture, client };
    // Its objects are those of the other server.
    api.create(CRDS, &crd()).await;
    eventually("the CRD to be established", async || {
        let crd = api.client.get(&format!("{CRDS}/widgets.example.com")).await.json();
        let conditions = crd["status"]["conditions"].as_array()?.clone();
        conditions.iter().any(|one| one["type"] == "Established" && one["status"] == "True").then_some(())
    })
    .await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "u"});
    api.create_map("of-widget", &[widget]).await;
    api.wait_for_collector().await;
    assert!(api.exists(&format!("{CORE}/configmaps/of-widget")).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_owners_are_deleted_and_orphaned_at_a_time() {
    let api = Api::start().await;
    let controllers = format!("{CORE}/replicationcontrollers");
    let groups: [(&[&str], Value); 5] = [
        (&[], json!({})),
        (&["orphan"], json!({})),
        (&["orphan"], json!({"orphanDependents": false})),
        (&[], json!({"orphanDependents": true})),
        (&[], policy("Orphan")),
    ];
    let work = groups.iter().enumerate().flat_map(|(group, (finalizers, options))| {
        let (api, controllers) = (&api, &controllers);
        (0..10).map(move |number| async move {
            let name = format!("g{group}-{number}");
            let parent = api.create(controllers, &controller(&name, finalizers)).await;
            for index in 0..3 {
                let pod = pod(&format!("{name}-{index}"), &[owner(&parent)], &[]);
                api.create(&format!("{CORE}/pods"), &pod).await;
            }
            api.delete(&format!("{controllers}/{name}"), options).await;
        })
    });
    join_all(work).await;
    eventually("all ReplicationControllers and a fifth of the Pods to be gone", async || {
        let is_done = api.names(&controllers).await.is_empty() && api.names(&format!("{CORE}/pods")).await.len() == 120;
        is_done.then_some(())
    })
    .await;
    api.wait_for_collector().await;
    let pods = api.names(&format!("{CORE}/pods")).await;
    assert!(pods.len() == 120 && !pods.iter().any(|name| name.starts_with("g2-")), "{pods:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn collection_goes_on_after_the_process_was_killed() {
    let mut api = Api::start().await;
    let parent = api.create_map("parent", &[]).await;
    let held = api.create_map("held", &[]).await;
    for chunk in 0..20 {
        let creations = (0..50).map(|number| {
            let api = &api;
            let (parent, held) = (owner(&parent), blocking(&held));
            async move {
                api.create_map(&format!("p{chunk}-{number}"), &[parent]).await;
                api.create_map(&format!("h{chunk}-{number}"), &[held]).await;
            }
        });
        join_all(creations).await;
    }
    api.delete(&format!("{CORE}/configmaps/parent"), &json!({})).await;
    api.delete(&format!("{CORE}/configmaps/held"), &policy("Foreground")).await;
    api.fixture.gateway.signal("KILL");
    api.fixture.gateway.wait_for_exit().await;
    api.fixture.restart();
    api.client = api.fixture.http2().await;
    let left = api.names(&format!("{CORE}/configmaps")).await.len();
    eventually(&format!("{left} objects to be collected"), async || {
        api.names(&format!("{CORE}/configmaps")).await.is_empty().then_some(())
    })
    .await;
}
