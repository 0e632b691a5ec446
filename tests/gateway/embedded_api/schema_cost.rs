//! Small objects whose schemas make their validation expensive.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};

use crate::support::client::Client;
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Longest time of a GET beside an expensive request. Without optimization, it would be 30 s on the worker thread.
const MAX_WAIT: Duration = Duration::from_secs(3);

fn objects(plural: &str) -> String {
    format!("/apis/cost.example.com/v1/namespaces/default/{plural}")
}

async fn establish(client: &Client, plural: &str, spec: &Value) {
    let schema = json!({"type": "object", "properties": {"spec": spec}});
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.cost.example.com")},
        "spec": {
            "group": "cost.example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": plural.to_uppercase()},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    let created = send_json(client, Method::POST, CRDS, &crd).await;
    assert_eq!(created.status, 201, "{}", created.text());
    eventually("objects to be served", async || (client.get(&objects(plural)).await.status == 200).then_some(())).await;
}

/// The longest time of a GET on several connections, until `is_done`.
async fn longest_get(clients: &[Client], is_done: &std::cell::Cell<bool>) -> Duration {
    let gets = clients.iter().map(async |client| {
        let mut longest = Duration::ZERO;
        while !is_done.get() {
            let began = Instant::now();
            assert_eq!(client.get("/api/v1/namespaces/default").await.status, 200);
            longest = longest.max(began.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        longest
    });
    join_all(gets).await.into_iter().max().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn object_with_expensive_schema_is_refused_while_others_are_served() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let others = join_all((0..6).map(|_| api.http2())).await;
    let alternatives: Vec<Value> = (0..4_000).map(|at| json!({"maximum": 9 + at % 3})).collect();
    let items = json!({"type": "array", "items": {"type": "integer", "allOf": alternatives}});
    establish(&client, "alternatives", &items).await;
    let pattern: Vec<String> = ('A'..='Z').map(|other| format!("[a{other}]{{1000}}[!#]")).collect();
    establish(&client, "patterns", &json!({"type": "string", "pattern": pattern.join("|")})).await;
    for (plural, small, large) in
        [("alternatives", json!([1, 2]), json!(vec![0; 2_000])), ("patterns", json!("aaa#"), json!("a".repeat(16_000)))]
    {
        let object = |name: &str, spec: &Value| json!({"apiVersion": "cost.example.com/v1", "kind": plural.to_uppercase(), "metadata": {"name": name}, "spec": spec});
        // Objects whose validation is within the limits have their usual answer.
        let answered = send_json(&client, Method::POST, &objects(plural), &object("small", &small)).await;
        let expected = if plural == "patterns" { 422 } else { 201 };
        assert_eq!(answered.status, expected, "{}", answered.text());
        let is_done = std::cell::Cell::new(false);
        let large = object("large", &large);
        let refused = async {
            let refused = send_json(&client, Method::POST, &objects(plural), &large).await;
            is_done.set(true);
            refused
        };
        let (refused, longest) = tokio::join!(refused, longest_get(&others, &is_done));
        assert_eq!(refused.status, 504, "{}", refused.text());
        assert!(refused.text().contains("validation of the object takes too long"), "{}", refused.text());
        assert!(longest < MAX_WAIT, "{plural}: {longest:?}");
        assert_eq!(client.get(&format!("{}/large", objects(plural))).await.status, 404);
    }
}
