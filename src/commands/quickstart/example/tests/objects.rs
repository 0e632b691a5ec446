//! Tests of all verbs except watch, and of the documents.

use http::Method;
use serde_json::{Value, json};

use super::{DOORS, ExampleServer, GREETINGS, TABLE};

const APPLY: &str = "apply-patch+yaml";

#[tokio::test]
async fn initial_objects_listed_and_read() {
    let world = ExampleServer::new();
    let list = world.get(GREETINGS).await;
    assert_eq!((list.code, &list.body["kind"]), (200, &json!("GreetingList")));
    assert_eq!(list.names(), ["hello", "kalimera", "moin"]);
    assert_eq!(list.body["metadata"]["resourceVersion"], "1005");
    assert_eq!(world.get(DOORS).await.names(), ["nave", "street"]);
    assert_eq!(world.get("/apis/example.narthex.dev/v1/greetings").await.names().len(), 3);
    assert!(world.get("/apis/example.narthex.dev/v1/namespaces/other/greetings").await.names().is_empty());
    let hello = world.get(&format!("{GREETINGS}/hello")).await.body;
    assert_eq!((&hello["kind"], &hello["spec"]["language"]), (&json!("Greeting"), &json!("en")));
}

#[tokio::test]
async fn list_filtered_by_selectors() {
    let world = ExampleServer::new();
    let list = async |query: &str| world.get(&format!("{GREETINGS}?{query}")).await;
    assert_eq!(list("labelSelector=tone%3Dwarm").await.names(), ["hello", "kalimera"]);
    assert_eq!(list("labelSelector=tone+notin+(warm)").await.names(), ["moin"]);
    assert_eq!(list("fieldSelector=metadata.name%3Dmoin").await.names(), ["moin"]);
    let refused = list("fieldSelector=spec.message%3Dx").await;
    assert_eq!((refused.code, refused.message()), (400, "field label not supported: spec.message"));
}

#[tokio::test]
async fn list_pages_are_consistent_snapshot() {
    let world = ExampleServer::new();
    let first = world.get(&format!("{GREETINGS}?limit=2")).await;
    assert_eq!(first.names(), ["hello", "kalimera"]);
    assert_eq!(first.body["metadata"]["remainingItemCount"], 1);
    world.delete(&format!("{GREETINGS}/moin"), "").await;
    let token = first.body["metadata"]["continue"].as_str().unwrap();
    let second = world.get(&format!("{GREETINGS}?limit=2&continue={token}")).await;
    assert_eq!(second.names(), ["moin"], "as at the revision of the first page");
    assert_eq!(second.body["metadata"].get("continue"), None);
    assert_eq!(world.get(&format!("{GREETINGS}?continue=x")).await.code, 400);
}

#[tokio::test]
async fn list_at_resource_version() {
    let world = ExampleServer::with(2, std::time::Duration::from_secs(60));
    let list = async |query: &str| world.get(&format!("{GREETINGS}?{query}")).await;
    assert_eq!(list("resourceVersion=0").await.code, 200);
    assert_eq!(list("resourceVersion=900").await.code, 200);
    let old = list("resourceVersion=900&resourceVersionMatch=Exact").await;
    assert_eq!((old.code, &old.body["reason"]), (410, &json!("Expired")));
    let future = list("resourceVersion=5000").await;
    assert_eq!((future.code, future.message()), (504, "Timeout: Too large resource version: 5000, current: 1005"));
    assert_eq!(future.body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
}

#[tokio::test]
async fn create_sets_server_fields() {
    let world = ExampleServer::new();
    let body = json!({"metadata": {"name": "hi", "uid": "mine", "generation": 7}, "status": {"createdBy": "forged"}});
    let made = world.post(GREETINGS, body.clone()).await;
    assert_eq!(made.code, 201);
    let metadata = &made.body["metadata"];
    assert_eq!((&metadata["generation"], &metadata["resourceVersion"]), (&json!(1), &json!("1006")));
    assert_eq!((&metadata["namespace"], metadata["uid"] == "mine"), (&json!("default"), false));
    assert_eq!(made.body["status"]["createdBy"], "ann");
    let again = world.post(GREETINGS, body).await;
    assert_eq!((again.code, again.message()), (409, "greetings.example.narthex.dev \"hi\" already exists"));
    assert_eq!(again.body["reason"], "AlreadyExists");
    let generated = world.post(GREETINGS, json!({"metadata": {"generateName": "hey-"}})).await;
    assert!(generated.body["metadata"]["name"].as_str().unwrap().starts_with("hey-"));
    let yaml = "kind: Door\nmetadata: {name: cellar}\nspec:\n  open: yes\n";
    let made = world.call(Method::POST, DOORS, &[("content-type", "application/yaml")], yaml).await;
    assert_eq!((made.code, &made.body["spec"]["open"]), (201, &json!(true)));
}

#[tokio::test]
async fn create_rejects_invalid_bodies() {
    let world = ExampleServer::new();
    let code = async |body: Value| world.post(GREETINGS, body).await.code;
    assert_eq!(code(json!({})).await, 422);
    assert_eq!(code(json!({"metadata": {"name": "Bad_Name"}})).await, 422);
    assert_eq!(code(json!({"metadata": {"name": "a"}, "spec": {"message": 1}})).await, 400);
    assert_eq!(code(json!({"metadata": {"name": "a", "resourceVersion": "1"}})).await, 400);
    assert_eq!(code(json!({"metadata": {"name": "a", "namespace": "other"}})).await, 400);
    assert_eq!(code(json!({"kind": "Door", "metadata": {"name": "a"}})).await, 400);
    assert_eq!(world.post(DOORS, json!({"metadata": {"name": "a", "namespace": "b"}})).await.code, 422);
    assert_eq!(world.call(Method::POST, DOORS, &[("content-type", "text/plain")], "{}").await.code, 415);
    let nonsense = world.call(Method::POST, DOORS, &[("content-type", "application/json")], "{").await;
    assert_eq!(nonsense.code, 400);
    let form = [("content-type", "application/yaml")];
    for nonsense in ["{", "- a", "a: [", "\u{0}", "a: *b", "--- {}\n--- {}\n"] {
        assert_eq!(world.call(Method::POST, DOORS, &form, nonsense).await.code, 400, "{nonsense}");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(world.call(Method::POST, DOORS, &form, &deep).await.code, 400);
    let laughs: String = (1..20).map(|n| format!("a{n}: &a{n} [*a{0}, *a{0}, *a{0}, *a{0}]\n", n - 1)).collect();
    assert_eq!(world.call(Method::POST, DOORS, &form, &format!("a0: &a0 [x]\n{laughs}")).await.code, 400);
    let huge = "x".repeat(3 * 1024 * 1024 + 1);
    assert_eq!(world.call(Method::POST, DOORS, &[("content-type", "application/json")], &huge).await.code, 413);
    assert_eq!(world.get(DOORS).await.names().len(), 2);
}

#[tokio::test]
async fn field_validation_ignore_warn_strict() {
    let world = ExampleServer::new();
    let body = json!({"metadata": {"name": "hi"}, "spec": {"volume": 11}});
    let strict = world.post(&format!("{GREETINGS}?fieldValidation=Strict"), body.clone()).await;
    assert_eq!(
        (strict.code, strict.message()),
        (
            400,
            "Greeting in version \"v1\" cannot be handled as a Greeting: strict decoding error: unknown field \"spec.volume\""
        )
    );
    let warned = world.post(GREETINGS, body).await;
    assert_eq!((warned.code, &warned.body["spec"]), (201, &json!({})));
    assert_eq!(warned.headers["warning"], r#"299 - "unknown field \"spec.volume\"""#);
    let patch = json!({"spec": {"volume": 12}});
    let strict =
        world.patch(&format!("{GREETINGS}/hi?fieldValidation=Strict"), "merge-patch+json", patch.clone()).await;
    assert_eq!(strict.code, 422);
    assert!(strict.message().ends_with("strict decoding error: unknown field \"spec.volume\""), "{}", strict.message());
    let ignored = world.patch(&format!("{GREETINGS}/hi?fieldValidation=Ignore"), "merge-patch+json", patch).await;
    assert_eq!((ignored.code, ignored.headers.get("warning")), (200, None));
}

#[tokio::test]
async fn update_conflicts_on_stale_resource_version() {
    let world = ExampleServer::new();
    let path = format!("{GREETINGS}/hello");
    let mut object = world.get(&path).await.body;
    object["spec"]["message"] = json!("Hello again");
    object["status"]["createdBy"] = json!("forged");
    let updated = world.put(&path, &object).await;
    assert_eq!((updated.code, &updated.body["metadata"]["generation"]), (200, &json!(2)));
    assert_eq!(updated.body["status"]["createdBy"], "narthex quickstart");
    let stale = world.put(&path, &object).await;
    assert_eq!((stale.code, &stale.body["reason"]), (409, &json!("Conflict")));
    assert_eq!(
        stale.message(),
        "Operation cannot be fulfilled on greetings.example.narthex.dev \"hello\": the object has been modified; \
         please apply your changes to the latest version and try again"
    );
    let same = world.put(&path, &updated.body).await;
    assert_eq!(same.body["metadata"]["resourceVersion"], updated.body["metadata"]["resourceVersion"]);
    object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    assert_eq!(world.put(&path, &object).await.code, 200);
    object["metadata"]["uid"] = json!("another");
    assert_eq!(world.put(&path, &object).await.code, 409);
    assert_eq!(world.put(&format!("{GREETINGS}/moin"), &object).await.code, 400);
    let missing = world.put(&format!("{GREETINGS}/none"), &json!({"metadata": {"name": "none"}})).await;
    assert_eq!((missing.code, missing.message()), (404, "greetings.example.narthex.dev \"none\" not found"));
    let details = json!({"name": "none", "group": "example.narthex.dev", "kind": "greetings"});
    assert_eq!(missing.body["details"], details);
}

#[tokio::test]
async fn patch_json_and_merge_but_not_strategic() {
    let world = ExampleServer::new();
    let path = format!("{GREETINGS}/hello");
    let merged = world.patch(&path, "merge-patch+json", json!({"metadata": {"labels": {"x": "y"}}})).await;
    assert_eq!(merged.body["metadata"]["labels"], json!({"tone": "warm", "x": "y"}));
    assert_eq!(merged.body["metadata"]["generation"], 1);
    let operations = json!([{"op": "replace", "path": "/spec/message", "value": "Hi"}]);
    assert_eq!(world.patch(&path, "json-patch+json", operations).await.body["spec"]["message"], "Hi");
    let failing = json!([{"op": "test", "path": "/spec/message", "value": "no"}]);
    assert_eq!(world.patch(&path, "json-patch+json", failing).await.code, 422);
    let stale = json!({"metadata": {"resourceVersion": "1001"}, "spec": {"message": "late"}});
    assert_eq!(world.patch(&path, "merge-patch+json", stale).await.code, 409);
    assert_eq!(world.patch(&path, "strategic-merge-patch+json", json!({})).await.code, 415);
    assert_eq!(world.patch(&format!("{GREETINGS}/none"), "merge-patch+json", json!({})).await.code, 404);
    let rename = json!({"metadata": {"name": "other"}});
    assert_eq!(world.patch(&path, "merge-patch+json", rename).await.code, 400);
}

#[tokio::test]
async fn server_side_apply_creates_merges_conflicts_and_removes() {
    let world = ExampleServer::new();
    let path = |manager: &str, force: bool| {
        format!("{GREETINGS}/applied?fieldManager={manager}{}", if force { "&force=true" } else { "" })
    };
    let wish = |spec: Value| {
        json!({"apiVersion": "example.narthex.dev/v1", "kind": "Greeting",
        "metadata": {"name": "applied"}, "spec": spec})
    };
    let first = json!({"message": "hi", "language": "en"});
    let made = world.patch(&path("ann", false), APPLY, wish(first.clone())).await;
    assert_eq!((made.code, &made.body["metadata"]["managedFields"][0]["manager"]), (201, &json!("ann")));
    let same = world.patch(&path("ann", false), APPLY, wish(first)).await;
    assert_eq!((same.code, &same.body["metadata"]), (200, &made.body["metadata"]), "an unchanged apply writes nothing");
    let other = world.patch(&path("bob", false), APPLY, wish(json!({"message": "hello"}))).await;
    assert_eq!(
        (other.code, other.message()),
        (409, "Apply failed with 1 conflict: conflict with \"ann\": .spec.message")
    );
    assert_eq!(other.body["details"]["causes"][0]["reason"], "FieldManagerConflict");
    let forced = world.patch(&path("bob", true), APPLY, wish(json!({"message": "hello"}))).await;
    assert_eq!(forced.body["spec"], json!({"message": "hello", "language": "en"}));
    let fewer = world.patch(&path("ann", false), APPLY, wish(json!({}))).await;
    assert_eq!(fewer.body["spec"], json!({"message": "hello"}), "the language was ann's alone");
    assert_eq!(world.patch(&format!("{GREETINGS}/applied"), APPLY, wish(json!({}))).await.code, 422);
    let unknown = world.patch(&path("ann", false), APPLY, wish(json!({"volume": 11}))).await;
    assert_eq!(unknown.code, 400);
    assert!(unknown.message().ends_with(".spec.volume: field not declared in schema"), "{}", unknown.message());
    let yaml = "kind: Greeting\nmetadata:\n  name: applied\nspec:\n  to: [ann, bob]\n";
    let sent = [("content-type", "application/apply-patch+yaml")];
    let applied = world.call(Method::PATCH, &path("eve", false), &sent, yaml).await;
    assert_eq!(applied.body["spec"]["to"], json!(["ann", "bob"]));
}

#[tokio::test]
async fn dry_run_changes_nothing() {
    let world = ExampleServer::new();
    let body = json!({"metadata": {"name": "hi"}});
    assert_eq!(world.post(&format!("{GREETINGS}?dryRun=All"), body.clone()).await.code, 201);
    assert_eq!(world.get(&format!("{GREETINGS}/hi")).await.code, 404);
    assert_eq!(world.post(&format!("{GREETINGS}?dryRun=Some"), body).await.code, 422);
    assert_eq!(world.delete(&format!("{GREETINGS}/hello?dryRun=All"), "").await.code, 200);
    assert_eq!(world.delete(&format!("{GREETINGS}/hello"), r#"{"dryRun": ["All"]}"#).await.code, 200);
    assert_eq!(world.get(&format!("{GREETINGS}/hello")).await.body["metadata"]["resourceVersion"], "1001");
}

#[tokio::test]
async fn delete_checks_preconditions() {
    let world = ExampleServer::new();
    let path = format!("{GREETINGS}/hello");
    let uid = world.get(&path).await.body["metadata"]["uid"].clone();
    let wrong = world.delete(&path, r#"{"preconditions": {"uid": "x"}}"#).await;
    assert_eq!((wrong.code, &wrong.body["reason"]), (409, &json!("Conflict")));
    assert!(wrong.message().contains("the UID in the precondition (x) does not match"), "{}", wrong.message());
    assert_eq!(world.delete(&path, r#"{"preconditions": {"resourceVersion": "1"}}"#).await.code, 409);
    let right = json!({"preconditions": {"uid": uid, "resourceVersion": "1001"}}).to_string();
    let gone = world.delete(&path, &right).await;
    assert_eq!((gone.code, &gone.body["status"]), (200, &json!("Success")));
    let details = json!({"name": "hello", "group": "example.narthex.dev", "kind": "greetings", "uid": uid});
    assert_eq!(gone.body["details"], details);
    assert_eq!(world.delete(&path, "").await.code, 404);
}

#[tokio::test]
async fn finalizers_delay_deletion() {
    let world = ExampleServer::new();
    let path = format!("{DOORS}/held");
    world.post(DOORS, json!({"metadata": {"name": "held", "finalizers": ["example.com/guard"]}})).await;
    let held = world.delete(&path, "").await;
    assert!(held.body["metadata"]["deletionTimestamp"].is_string());
    let another = json!({"metadata": {"finalizers": ["example.com/guard", "example.com/late"]}});
    assert_eq!(world.patch(&path, "merge-patch+json", another).await.code, 422);
    let freed = world.patch(&path, "merge-patch+json", json!({"metadata": {"finalizers": null}})).await;
    assert_eq!(freed.code, 200);
    assert_eq!(world.get(&path).await.code, 404);
}

#[tokio::test]
async fn delete_collection_by_selector() {
    let world = ExampleServer::new();
    let gone = world.delete(&format!("{GREETINGS}?labelSelector=tone%3Dwarm"), "").await;
    assert_eq!((gone.code, gone.names()), (200, vec!["hello", "kalimera"]));
    assert_eq!(world.get(GREETINGS).await.names(), ["moin"]);
    assert_eq!(world.delete("/apis/example.narthex.dev/v1/greetings", "").await.code, 405);
}

#[tokio::test]
async fn table_and_partial_metadata_representations() {
    let world = ExampleServer::new();
    let table = world.call(Method::GET, DOORS, &[("accept", TABLE)], "").await.body;
    assert_eq!((&table["kind"], &table["metadata"]["resourceVersion"]), (&json!("Table"), &json!("1005")));
    assert_eq!(table["rows"][0]["cells"].as_array().unwrap()[..3], [json!("nave"), json!("the nave"), json!(true)]);
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let whole = world.call(Method::GET, &format!("{DOORS}?includeObject=Object"), &[("accept", TABLE)], "").await;
    assert_eq!(whole.body["rows"][0]["object"]["spec"]["open"], true);
    let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let list = world.call(Method::GET, DOORS, &[("accept", partial)], "").await;
    assert_eq!((list.names(), list.body["items"][0].get("spec")), (vec!["nave", "street"], None));
    assert_eq!(world.call(Method::GET, DOORS, &[("accept", "text/html")], "").await.code, 406);
}

#[tokio::test]
async fn discovery_and_openapi_served() {
    let world = ExampleServer::new();
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let found = world.call(Method::GET, "/apis", &[("accept", &format!("{aggregated},application/json"))], "").await;
    assert_eq!(found.headers["content-type"], aggregated);
    let versions = found.body["items"][0]["versions"].as_array().unwrap();
    assert_eq!((&versions[0]["version"], &versions[1]["resources"][0]["scope"]), (&json!("v1"), &json!("Cluster")));
    let tag = found.headers["etag"].to_str().unwrap();
    let again = world.call(Method::GET, "/apis", &[("accept", aggregated), ("if-none-match", tag)], "").await;
    assert_eq!((again.code, again.body), (304, json!("")));
    assert_eq!(world.get("/apis").await.body["groups"][0]["preferredVersion"]["version"], "v1");
    assert_eq!(world.get("/apis/example.narthex.dev/").await.body["kind"], "APIGroup");
    let resources = world.get("/apis/example.narthex.dev/v1alpha1").await.body;
    assert_eq!(
        (&resources["resources"][0]["name"], resources["resources"][0]["namespaced"].as_bool()),
        (&json!("doors"), Some(false))
    );
    let index = world.get("/openapi/v3").await.body;
    let url = index["paths"]["apis/example.narthex.dev/v1"]["serverRelativeURL"].as_str().unwrap();
    assert_eq!(world.get(url).await.body["openapi"], "3.0.0");
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(world.get(path).await.body, json!("ok"));
    }
    assert!(world.get("/version").await.body["gitVersion"].is_string());
    for path in [
        "/",
        "/openapi/v2",
        "/apis/other",
        "/apis/example.narthex.dev/v2",
        "/apis/example.narthex.dev/v1/doors",
        "/apis/example.narthex.dev/v1/greetings/hello",
        "/apis/example.narthex.dev/v1alpha1/namespaces/a/doors",
    ] {
        let missing = world.get(path).await;
        assert_eq!((missing.code, &missing.body["kind"]), (404, &json!("Status")), "{path}");
    }
    let everywhere = world.post("/apis/example.narthex.dev/v1/greetings", json!({})).await;
    assert_eq!((everywhere.code, &everywhere.body["reason"]), (405, &json!("MethodNotAllowed")));
}
