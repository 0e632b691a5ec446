//! One verb never does another's work: a PUT that would create needs `create`, too.

use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, ClientResponse, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::TestEnvironment;

const POLICY: &str = "apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: writer
rules:
- apiGroups: ['', coordination.k8s.io, events.k8s.io]
  resources: ['*']
  verbs: [get, update, patch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: creator
rules:
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [permitted]
  verbs: [create]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: writers
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: writer}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: creators
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: creator}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: jane}
";

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

fn flags(environment: &TestEnvironment) -> Vec<String> {
    let policy = environment.path("policy.yaml");
    std::fs::write(&policy, POLICY).unwrap();
    let file = format!("--authorization-policy-file={}", policy.display());
    vec!["--authorization-mode=Static".to_owned(), file, "--access-log=errors".to_owned()]
}

/// The body of an object of each kind that PUT creates.
fn kinds() -> [(String, Value, Value); 5] {
    let metadata = json!({"name": "a", "namespace": "default"});
    let core = |plural: &str| format!("/api/v1/namespaces/default/{plural}/a");
    let event = json!({"metadata": metadata, "type": "Normal", "reason": "r", "source": {"component": "c"},
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}});
    let new_event = json!({"metadata": {"name": "b", "namespace": "default"}, "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "c",
        "reportingInstance": "i", "action": "a", "reason": "r", "type": "Normal",
        "regarding": {"kind": "Pod", "namespace": "default", "name": "p"}});
    let details = |group: &str, plural: &str| match group {
        "" => json!({"name": "a", "kind": plural}),
        group => json!({"name": "a", "group": group, "kind": plural}),
    };
    [
        (core("services"), json!({"metadata": metadata, "spec": {"ports": [{"port": 1}]}}), details("", "services")),
        (core("endpoints"), json!({"metadata": metadata}), details("", "endpoints")),
        (core("events"), event, details("", "events")),
        (
            "/apis/events.k8s.io/v1/namespaces/default/events/b".to_owned(),
            new_event,
            json!({"name": "b", "group": "events.k8s.io", "kind": "events"}),
        ),
        (format!("{LEASES}/a"), json!({"metadata": metadata}), details("coordination.k8s.io", "leases")),
    ]
}

async fn put_as(client: &Client, user: &str, path: &str, object: &Value) -> ClientResponse {
    let headers = [("content-type", "application/json"), ("impersonate-user", user)];
    client.send_and_read(request(Method::PUT, path, &headers, &object.to_string())).await
}

#[tokio::test(flavor = "multi_thread")]
async fn put_that_creates_refused_without_permission_to_create() {
    let api = EmbeddedApiFixture::start_with(flags);
    let admin = api.http2().await;
    let jane = api.environment.issue_user("jane", &[]);
    let client = Client::http2(&api.environment, &api.gateway, Some(&jane)).await;
    for (path, object, details) in kinds() {
        let dry_run = format!("{path}?dryRun=All");
        let answers = [
            send_json(&client, Method::PUT, &path, &object).await,
            send_json(&client, Method::PUT, &dry_run, &object).await,
            // Also for an administrator who acts as another user.
            put_as(&admin, "jane", &path, &object).await,
        ];
        for answer in answers {
            let status = answer.assert_failure(403, "Forbidden");
            assert_eq!(status["details"], details, "{path}");
            let message = status["message"].as_str().unwrap();
            let (plural, group) = (details["kind"].as_str().unwrap(), details["group"].as_str().unwrap_or_default());
            let text = format!(
                "is forbidden: User \"jane\" cannot create resource \"{plural}\" in API group \"{group}\" in the namespace \
                 \"default\""
            );
            assert!(message.contains(&text), "{message}");
        }
        assert_eq!(admin.get(&path).await.status, 404, "{path}");
        // What exists may be updated.
        let created = send_json(&admin, Method::PUT, &path, &object).await;
        assert_eq!(created.status, 201, "{}", created.text());
        let updated = send_json(&client, Method::PUT, &path, &created.json()).await;
        assert_eq!(updated.status, 200, "{}", updated.text());
    }
    // In a kube-apiserver's order: the object is valid before the permission is asked for, and the namespace exists.
    let invalid = json!({"metadata": {"name": "b"}, "subsets": [{"addresses": [{"ip": "x"}]}]});
    let refused = send_json(&client, Method::PUT, "/api/v1/namespaces/default/endpoints/b", &invalid).await;
    refused.assert_failure(422, "Invalid");
    // But for a Service, which would reserve an address before.
    let invalid = json!({"metadata": {"name": "b"}, "spec": {"ports": [{"port": 0}]}});
    let refused = send_json(&client, Method::PUT, "/api/v1/namespaces/default/services/b", &invalid).await;
    refused.assert_failure(403, "Forbidden");
    let lease = json!({"metadata": {"name": "b"}});
    let elsewhere = "/apis/coordination.k8s.io/v1/namespaces/nowhere/leases/b";
    send_json(&client, Method::PUT, elsewhere, &lease).await.assert_failure(404, "NotFound");
    let permitted = json!({"metadata": {"name": "permitted"}});
    let created = send_json(&client, Method::PUT, &format!("{LEASES}/permitted"), &permitted).await;
    assert_eq!(created.status, 201, "{}", created.text());
    // No kind is created through a subresource or by a patch.
    let service = json!({"metadata": {"name": "c"}, "spec": {"ports": [{"port": 1}]}});
    let status = "/api/v1/namespaces/default/services/c/status";
    send_json(&client, Method::PUT, status, &service).await.assert_failure(404, "NotFound");
    let headers = [("content-type", "application/merge-patch+json")];
    let patch = request(Method::PATCH, "/api/v1/namespaces/default/services/c", &headers, &service.to_string());
    client.send_and_read(patch).await.assert_failure(404, "NotFound");
}
