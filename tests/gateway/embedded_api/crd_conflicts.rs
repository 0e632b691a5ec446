//! CustomResourceDefinitions that want the same names, or those of built-in resources.

use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, request};
use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

fn crd(group: &str, plural: &str, kind: &str, short: &[&str]) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}"), "annotations": {"api-approved.kubernetes.io": "unapproved, a test"}},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": kind, "shortNames": short},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    })
}

async fn create(client: &Client, path: &str, object: &Value) {
    let created = send_json(client, Method::POST, path, object).await;
    assert_eq!(created.status, 201, "{}", created.text());
}

async fn delete(client: &Client, path: &str) {
    let deleted = client.send_and_read(request(Method::DELETE, path, &[], "")).await;
    assert_eq!(deleted.status, 200, "{}", deleted.text());
}

/// Waits until a condition has a status and reason; returns its message.
async fn condition(client: &Client, name: &str, condition: &str, status: &str, reason: &str) -> String {
    eventually(&format!("{name} to be {condition}={status} by {reason}"), async || {
        let crd = client.get(&format!("{CRDS}/{name}")).await.json();
        let conditions = crd["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let found = conditions.into_iter().find(|one| one["type"] == condition)?;
        let is_wanted = found["status"] == status && found["reason"] == reason;
        is_wanted.then(|| found["message"].as_str().unwrap().to_owned())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn crds_that_want_the_same_names_get_them_one_after_the_other() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let group = "fight.example.com";
    create(&client, CRDS, &crd(group, "foos", "Foo", &["f"])).await;
    condition(&client, "foos.fight.example.com", "Established", "True", "InitialNamesAccepted").await;
    // Another kind with the kind and the short name of the first.
    create(&client, CRDS, &crd(group, "bars", "Foo", &["f"])).await;
    let name = "bars.fight.example.com";
    let message = condition(&client, name, "NamesAccepted", "False", "ListKindConflict").await;
    assert_eq!(message, r#""FooList" is already in use"#);
    let message = condition(&client, name, "Established", "False", "NotAccepted").await;
    assert_eq!(message, "not all names are accepted");
    let bars = format!("/apis/{group}/v1/namespaces/default/bars");
    assert_eq!(client.get(&bars).await.status, 404);
    // One whose plural name is the singular name of another; names of other groups are free.
    create(&client, CRDS, &crd(group, "foo", "Other", &[])).await;
    let message = condition(&client, "foo.fight.example.com", "NamesAccepted", "False", "PluralConflict").await;
    assert_eq!(message, r#""foo" is already in use"#);
    create(&client, CRDS, &crd("peace.example.com", "foos", "Foo", &["f"])).await;
    condition(&client, "foos.peace.example.com", "Established", "True", "InitialNamesAccepted").await;

    // The first one goes: the second gets its names, also the singular one, then the third.
    delete(&client, &format!("{CRDS}/foos.fight.example.com")).await;
    condition(&client, name, "NamesAccepted", "True", "NoConflicts").await;
    condition(&client, name, "Established", "True", "InitialNamesAccepted").await;
    condition(&client, "foo.fight.example.com", "NamesAccepted", "False", "PluralConflict").await;
    eventually("the second to be served", async || (client.get(&bars).await.status == 200).then_some(())).await;
    let object = json!({"apiVersion": "fight.example.com/v1", "kind": "Foo", "metadata": {"name": "a"}});
    create(&client, &bars, &object).await;
    delete(&client, &format!("{CRDS}/{name}")).await;
    condition(&client, "foo.fight.example.com", "Established", "True", "InitialNamesAccepted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_in_builtin_group_takes_nothing_from_it() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let refused = send_json(&client, Method::POST, CRDS, &crd("apps", "deployments", "Deployment", &[])).await;
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("should be a domain with at least one dot"), "{}", refused.text());

    let lease = json!({"metadata": {"name": "a"}, "spec": {"holderIdentity": "me"}});
    create(&client, LEASES, &lease).await;
    create(&client, CONFIG_MAPS, &json!({"metadata": {"name": "a"}})).await;
    create(&client, CRDS, &crd("example.com", "others", "Other", &[])).await;
    let names = [
        ("coordination.k8s.io", "leases", "Lease"),
        ("coordination.k8s.io", "locks", "Lock"),
        ("apiregistration.k8s.io", "apiservices", "APIService"),
        ("apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition"),
    ];
    for (group, plural, kind) in names {
        create(&client, CRDS, &crd(group, plural, kind, &[])).await;
        condition(&client, &format!("{plural}.{group}"), "Established", "True", "InitialNamesAccepted").await;
    }
    assert_eq!(client.get("/apis/coordination.k8s.io/v1/namespaces/default/locks").await.status, 404);
    let resources = client.get("/apis/coordination.k8s.io/v1").await.json();
    assert_eq!(resources["resources"].as_array().unwrap().len(), 1, "{resources}");
    // The rules of the built-in kind hold.
    let wrong = json!({"metadata": {"name": "b"}, "spec": {"leaseDurationSeconds": 0}});
    assert_eq!(send_json(&client, Method::POST, LEASES, &wrong).await.status, 422);
    let services = client.get("/apis/apiregistration.k8s.io/v1/apiservices").await.json();

    for (group, plural, _) in names {
        let path = format!("{CRDS}/{plural}.{group}");
        delete(&client, &path).await;
        eventually("the CRD to be removed", async || (client.get(&path).await.status == 404).then_some(())).await;
    }
    assert_eq!(client.get(&format!("{LEASES}/a")).await.json()["spec"]["holderIdentity"], "me");
    assert_eq!(client.get(&format!("{CRDS}/others.example.com")).await.status, 200);
    let remaining = client.get("/apis/apiregistration.k8s.io/v1/apiservices").await.json();
    let count = |list: &Value| list["items"].as_array().unwrap().len();
    assert_eq!(count(&remaining), count(&services));
    assert_eq!(client.get("/apis/coordination.k8s.io/v1").await.status, 200);
    create(&client, LEASES, &json!({"metadata": {"name": "c"}})).await;
}
