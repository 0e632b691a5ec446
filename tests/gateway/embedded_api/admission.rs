//! Admission plugins that complete or refuse objects.

use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";

async fn create(client: &Client, path: &str, object: &Value) -> Value {
    let created = send_json(client, Method::POST, path, object).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()
}

fn pod(name: &str, more: &Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    json!({"metadata": {"name": name}, "spec": spec})
}

#[tokio::test(flavor = "multi_thread")]
async fn pod_gets_the_priority_of_its_class() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let plain = create(&client, PODS, &pod("plain", &json!({}))).await;
    assert_eq!(
        (&plain["spec"]["priority"], &plain["spec"]["tolerations"][1]["tolerationSeconds"]),
        (&json!(0), &json!(300))
    );
    let class = |name: &str, value: i64| json!({"metadata": {"name": name}, "value": value, "globalDefault": true});
    create(&client, CLASSES, &class("high", 7)).await;
    let default = create(&client, PODS, &pod("default", &json!({}))).await;
    assert_eq!((&default["spec"]["priority"], &default["spec"]["priorityClassName"]), (&json!(7), &json!("high")));
    let refused = send_json(&client, Method::POST, CLASSES, &class("other", 8)).await.assert_failure(403, "Forbidden");
    let message = "priorityclasses.scheduling.k8s.io \"other\" is forbidden: PriorityClass high is already marked as default. \
                   Only one default can exist";
    assert_eq!(refused["message"], message);
    let absent = pod("absent", &json!({"priorityClassName": "none"}));
    let refused = send_json(&client, Method::POST, PODS, &absent).await.assert_failure(403, "Forbidden");
    assert_eq!(refused["message"], "pods \"absent\" is forbidden: no PriorityClass with name none was found");
    let given = pod("given", &json!({"priorityClassName": "high", "priority": 3}));
    send_json(&client, Method::POST, PODS, &given).await.assert_failure(403, "Forbidden");
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_need_no_namespace_without_namespace_lifecycle() {
    const CONFIG_MAPS: &str = "/api/v1/namespaces/a/configmaps";
    const NAMESPACES: &str = "/api/v1/namespaces";
    let api = EmbeddedApiFixture::start(&["--disable-admission-plugins=NamespaceLifecycle"]);
    let client = api.http2().await;
    create(&client, CONFIG_MAPS, &json!({"metadata": {"name": "c"}})).await;
    create(&client, NAMESPACES, &json!({"metadata": {"name": "a"}})).await;
    assert_eq!(client.get(&format!("{CONFIG_MAPS}/c")).await.status, 200, "it stays when the namespace comes");
    let deleted = send_json(&client, Method::DELETE, &format!("{NAMESPACES}/default"), &json!({})).await;
    assert_eq!(deleted.status, 200, "{}", deleted.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_that_are_turned_off_do_nothing() {
    let api =
        EmbeddedApiFixture::start(&["--disable-admission-plugins=Priority,DefaultTolerationSeconds,ServiceAccount"]);
    let client = api.http2().await;
    let plain = create(&client, PODS, &pod("plain", &json!({}))).await;
    assert_eq!((&plain["spec"]["priority"], &plain["spec"]["tolerations"]), (&Value::Null, &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_gets_class_and_finalizer_and_grows_only_if_its_class_allows() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let class = |name: &str, grows: bool| {
        json!({"metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "a.io/b", "allowVolumeExpansion": grows})
    };
    create(&client, "/apis/storage.k8s.io/v1/storageclasses", &class("fixed", false)).await;
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let claim = create(&client, CLAIMS, &json!({"metadata": {"name": "a"}, "spec": spec})).await;
    assert_eq!(claim["spec"]["storageClassName"], "fixed");
    assert_eq!(claim["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}).to_string();
    let headers = [("content-type", "application/merge-patch+json")];
    let path = format!("{CLAIMS}/a");
    let grow = async || client.send_and_read(request(Method::PATCH, &path, &headers, &larger)).await;
    let refused = grow().await.assert_failure(403, "Forbidden");
    let start = "persistentvolumeclaims \"a\" is forbidden: ";
    assert_eq!(refused["message"], format!("{start}Only bound persistent volume claims can be expanded"));
    let bound = json!({"status": {"phase": "Bound"}}).to_string();
    client.send_and_read(request(Method::PATCH, &format!("{path}/status"), &headers, &bound)).await;
    let refused = grow().await.assert_failure(403, "Forbidden");
    let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
    assert_eq!(refused["message"], format!("{start}{why}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn node_is_tainted_and_requester_of_a_certificate_is_noted() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let node = create(&client, "/api/v1/nodes", &json!({"metadata": {"name": "n"}})).await;
    assert_eq!(node["spec"]["taints"], json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]));
    let key = rcgen::KeyPair::generate().unwrap();
    let mut subject = rcgen::CertificateParams::default();
    subject.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    let pem = subject.serialize_request(&key).unwrap().pem().unwrap();
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let of_signer = |signer: &str| {
        json!({"metadata": {"name": "c"}, "spec": {"signerName": signer, "usages": ["client auth"], "request": encoded,
            "username": "somebody", "groups": ["g"]}})
    };
    let refused = send_json(&client, Method::POST, requests, &of_signer("kubernetes.io/kube-apiserver-client")).await;
    let message = refused.assert_failure(403, "Forbidden")["message"].as_str().unwrap().to_owned();
    assert!(
        message.ends_with("use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed")
    );
    let created = create(&client, requests, &of_signer("a.io/b")).await;
    assert_eq!(created["spec"]["username"], "admin");
    assert_eq!(created["spec"]["groups"], json!(["system:masters", "system:authenticated"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn approval_needs_the_signer() {
    let policy = |names: &str| {
        format!(
            r#"{{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{{"name":"r"}},"rules":[
            {{"apiGroups":["certificates.k8s.io"],"resources":["certificatesigningrequests","certificatesigningrequests/approval"],
            "verbs":["get","update","patch"]}},
            {{"apiGroups":["certificates.k8s.io"],"resources":["signers"],"resourceNames":[{names}],"verbs":["approve"]}}]}}
---
{{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{{"name":"b"}},
            "roleRef":{{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"r"}},
            "subjects":[{{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"jane"}}]}}"#
        )
    };
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    for (names, expected) in [(r#""b.io/*""#, 403), (r#""a.io/*""#, 200)] {
        let api = EmbeddedApiFixture::start_with(|environment| {
            let file = environment.path("policy.yaml");
            std::fs::write(&file, policy(names)).unwrap();
            vec![format!("--authorization-policy-file={}", file.display())]
        });
        let admin = api.http2().await;
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = rcgen::CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
        let encoded = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, pem);
        let spec = json!({"signerName": "a.io/b", "usages": ["client auth"], "request": encoded});
        create(&admin, requests, &json!({"metadata": {"name": "c"}, "spec": spec})).await;
        let jane = api.environment.issue_user("jane", &[]);
        let jane = Client::http2(&api.environment, &api.gateway, Some(&jane)).await;
        let condition = json!({"type": "Approved", "status": "True", "reason": "r"});
        let body = json!({"status": {"conditions": [condition]}}).to_string();
        let headers = [("content-type", "application/merge-patch+json")];
        let path = format!("{requests}/c/approval");
        let answer = jane.send_and_read(request(Method::PATCH, &path, &headers, &body)).await;
        assert_eq!(answer.status, expected, "{names}: {}", answer.text());
        assert!(expected == 200 || answer.text().contains("user not permitted to approve requests with signerName"));
    }
}
