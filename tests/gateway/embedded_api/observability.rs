//! What operators see of stored objects: metrics, status, health checks, access log, audit, limits.

use std::fs;

use bytes::Bytes;
use http::Method;
use serde_json::{Value, json};

use crate::observability::audit::wait_for_events;
use crate::support::client::{Client, admin_request, get, metric_value, next_chunk, request, streaming_request};
use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually, run_narthex};

pub(super) async fn wait_for_metric(gateway: &GatewayProcess, name: &str, value: f64) {
    eventually(&format!("{name} to be {value}"), async || {
        (metric_value(gateway, name).await == Some(value)).then_some(())
    })
    .await;
}

async fn create(client: &Client, name: &str) -> Value {
    let object = json!({"metadata": {"name": name}, "data": {"key": "value"}});
    let created = send_json(client, Method::POST, CONFIG_MAPS, &object).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_of_stored_objects_have_upstream_names() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    create(&client, "a").await;
    create(&client, "b").await;
    let twice = send_json(&client, Method::POST, CONFIG_MAPS, &json!({"metadata": {"name": "a"}})).await;
    twice.assert_failure(409, "AlreadyExists");
    let patch = request(
        Method::PATCH,
        &format!("{CONFIG_MAPS}/a"),
        &[("content-type", "application/merge-patch+json")],
        r#"{"data":{"more":"1"}}"#,
    );
    assert_eq!(client.send_and_read(patch).await.status, 200);
    assert_eq!(client.send_and_read(request(Method::DELETE, &format!("{CONFIG_MAPS}/b"), &[], "")).await.status, 200);
    assert_eq!(client.get("/api/v1/configmaps").await.status, 200);
    let mut watch = client.send(get(&format!("{CONFIG_MAPS}?watch=1"), &[])).await.unwrap().into_body();
    next_chunk(&mut watch).await.unwrap().unwrap();

    let request_total = |code: &str, verb: &str, scope: &str| {
        format!(
            "apiserver_request_total{{code=\"{code}\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"configmaps\",scope=\"{scope}\",subresource=\"\",verb=\"{verb}\",version=\"v1\"}}"
        )
    };
    let watching = "apiserver_longrunning_requests{component=\"apiserver\",group=\"\",resource=\"configmaps\",scope=\"namespace\",subresource=\"\",verb=\"WATCH\",version=\"v1\"}";
    for (name, value) in [
        (request_total("201", "POST", "resource"), 2.0),
        (request_total("409", "POST", "resource"), 1.0),
        (request_total("200", "PATCH", "resource"), 1.0),
        (request_total("200", "DELETE", "resource"), 1.0),
        (request_total("200", "LIST", "cluster"), 1.0),
        (watching.to_owned(), 1.0),
        ("apiserver_current_inflight_requests{request_kind=\"mutating\"}".to_owned(), 0.0),
        // With kube-system/extension-apiserver-authentication.
        ("apiserver_storage_objects{resource=\"configmaps\"}".to_owned(), 2.0),
        ("apiserver_storage_objects{resource=\"namespaces\"}".to_owned(), 4.0),
        ("apiserver_storage_objects{resource=\"leases.coordination.k8s.io\"}".to_owned(), 0.0),
        ("apiserver_resource_objects{group=\"\",resource=\"configmaps\"}".to_owned(), 2.0),
        ("apiserver_watch_events_total{group=\"\",resource=\"configmaps\",version=\"v1\"}".to_owned(), 1.0),
        (
            "apiserver_watch_events_sizes_bucket{group=\"\",resource=\"configmaps\",version=\"v1\",le=\"1024\"}"
                .to_owned(),
            1.0,
        ),
        // One of them found that the name exists.
        ("etcd_requests_total{group=\"\",operation=\"create\",resource=\"configmaps\"}".to_owned(), 4.0),
        ("etcd_requests_total{group=\"\",operation=\"update\",resource=\"configmaps\"}".to_owned(), 1.0),
        ("etcd_requests_total{group=\"\",operation=\"delete\",resource=\"configmaps\"}".to_owned(), 1.0),
        (
            "etcd_request_duration_seconds_count{group=\"\",operation=\"create\",resource=\"configmaps\"}".to_owned(),
            4.0,
        ),
    ] {
        wait_for_metric(&api.gateway, &name, value).await;
    }
    let revision = metric_value(&api.gateway, "narthex_storage_revision").await.unwrap();
    let cached = "apiserver_watch_cache_resource_version{group=\"\",resource=\"configmaps\"}";
    assert_eq!(metric_value(&api.gateway, cached).await, Some(revision));
    let bytes =
        metric_value(&api.gateway, "apiserver_resource_size_estimate_bytes{group=\"\",resource=\"configmaps\"}");
    assert!(bytes.await.unwrap() > 100.0);
    let size = metric_value(&api.gateway, "apiserver_storage_size_bytes{storage_cluster_id=\"etcd-0\"}").await.unwrap();
    let files =
        ["data/store.db", "data/store.db-wal"].map(|file| fs::metadata(api.environment.path(file)).unwrap().len());
    assert_eq!(size as u64, files.iter().sum::<u64>());
    drop(watch);
    wait_for_metric(&api.gateway, &request_total("200", "WATCH", "namespace"), 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metric_of_watch_events_counts_each_initial_event() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    for number in 0..30 {
        create(&client, &format!("c{number}")).await;
    }
    let sizes = "apiserver_watch_events_sizes_count{group=\"\",resource=\"configmaps\",version=\"v1\"}";
    let total = "apiserver_watch_events_total{group=\"\",resource=\"configmaps\",version=\"v1\"}";
    let mut watches = Vec::new();
    for (accept, sent) in [("application/json", 30.0), ("application/vnd.kubernetes.protobuf;stream=watch", 60.0)] {
        let path = format!("{CONFIG_MAPS}?watch=1&resourceVersion=0");
        let mut watch = client.send(get(&path, &[("accept", accept)])).await.unwrap().into_body();
        next_chunk(&mut watch).await.unwrap().unwrap();
        watches.push(watch);
        wait_for_metric(&api.gateway, total, sent).await;
        wait_for_metric(&api.gateway, sizes, sent).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metric_labels_of_stored_objects_are_not_chosen_by_clients() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    for path in ["/api/v1/zzmarks", "/api/v1/namespaces/default/configmaps/a/zzmark", "/api/zzmark/configmaps"] {
        assert_eq!(client.get(path).await.status, 404, "{path}");
    }
    let text = admin_request(&api.gateway, get("/metrics", &[])).await.text();
    assert!(!text.contains("zzmark"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn status_shows_store_objects_and_watches() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    create(&client, "a").await;
    let mut watch = client.send(get(&format!("{CONFIG_MAPS}?watch=1"), &[])).await.unwrap().into_body();
    next_chunk(&mut watch).await.unwrap().unwrap();
    // What the server writes and watches itself begins beside the first requests.
    let own = "apiserver_storage_objects{resource=\"configmaps\"}";
    wait_for_metric(&api.gateway, own, 2.0).await;
    let report = eventually("the watch of the garbage collector", async || {
        let report = admin_request(&api.gateway, get("/status.json", &[])).await.json();
        let resources = report["storage"]["resources"].as_array().unwrap();
        let config_maps = resources.iter().find(|one| one["resource"] == "configmaps")?;
        (config_maps["watches"] == 2).then(|| report.clone())
    })
    .await;
    let storage = &report["storage"];
    assert_eq!(storage["location"], api.environment.path("data/store.db").display().to_string());
    assert!(storage["sizeBytes"].as_u64().unwrap() > 4096 && storage["revision"].as_u64().unwrap() >= 6, "{storage}");
    assert_eq!((&storage["compactedRevision"], &storage["refusal"]), (&json!(1), &json!("")));
    let find = |name: &str| {
        let resources = storage["resources"].as_array().unwrap();
        resources.iter().find(|one| one["resource"] == name).unwrap_or_else(|| panic!("{name} in {storage}")).clone()
    };
    assert_eq!(find("namespaces")["objects"], 4);
    // With kube-system/extension-apiserver-authentication, and the watch of the garbage collector.
    let config_maps = find("configmaps");
    assert_eq!((&config_maps["objects"], &config_maps["watches"]), (&json!(2), &json!(2)), "{config_maps}");
    // Clients ask for objects that are not there.
    assert_eq!(client.get(&format!("{CONFIG_MAPS}/none")).await.status, 404);
    let report = admin_request(&api.gateway, get("/status.json", &[])).await.json();
    assert_eq!(report["refusals"], json!([]));
    let wait = ["status".to_owned(), "--wait".to_owned(), format!("--admin-address={}", api.gateway.admin)];
    assert!(run_narthex(&wait).status.success());
    let output = run_narthex(&["status".to_owned(), format!("--admin-address={}", api.gateway.admin)]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("untried"), "{text}");
    assert!(text.contains(" objects stored") && text.contains("store.db: "), "{text}");
    assert!(text.lines().any(|line| line.starts_with("configmaps") && line.contains(" KiB ")), "{text}");
    let page = admin_request(&api.gateway, get("/", &[])).await.text();
    assert!(page.contains(">Stored objects</h2>") && page.contains(">configmaps</th>"), "{page}");
    for path in ["/readyz", "/livez", "/healthz"] {
        let checks = client.get(&format!("{path}?verbose")).await;
        assert!(checks.text().contains("[+]etcd ok"), "{}", checks.text());
        assert_eq!(client.get(&format!("{path}/etcd")).await.text(), "ok");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn access_log_of_stored_objects_has_verb_resource_and_code() {
    let api = EmbeddedApiFixture::start(&["--access-log=all", "--access-log-format=json"]);
    let client = api.http2().await;
    create(&client, "a").await;
    client.get(&format!("{CONFIG_MAPS}/none")).await.assert_failure(404, "NotFound");
    let record = async |words: &[&str]| serde_json::from_str::<Value>(&api.gateway.wait_for_log(words).await).unwrap();
    let created = record(&["\"POST\"", CONFIG_MAPS]).await;
    assert_eq!((&created["status"], &created["user"]), (&json!(201), &json!("admin")), "{created}");
    assert!(created["requestBytes"].as_u64() != Some(0), "{created}");
    let missing = record(&[&format!("{CONFIG_MAPS}/none")]).await;
    assert_eq!(missing["status"], 404, "{missing}");
    let mut watch = client.send(get(&format!("{CONFIG_MAPS}?watch=1"), &[])).await.unwrap().into_body();
    next_chunk(&mut watch).await.unwrap().unwrap();
    drop(watch);
    let watched = record(&["watch=1"]).await;
    assert_eq!(watched["status"], 200, "{watched}");
}

pub(super) fn audit_flags(environment: &TestEnvironment, rules: &str) -> [String; 2] {
    let policy = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}");
    fs::write(environment.path("policy.yaml"), policy).unwrap();
    [
        format!("--audit-policy-file={}", environment.path("policy.yaml").display()),
        format!("--audit-log-path={}", environment.path("audit/audit.log").display()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_events_of_stored_objects_have_objects_by_level() {
    let rules = "rules:\n- {level: Metadata, resources: [{group: '', resources: [secrets]}]}\n\
                 - {level: Request, verbs: [update]}\n- {level: RequestResponse}\n";
    let api = EmbeddedApiFixture::start_with(|environment| audit_flags(environment, rules).to_vec());
    let client = api.http2().await;
    let object = create(&client, "a").await;
    let created = wait_for_events(&api.environment, "/configmaps", 2).await;
    assert_eq!([&created[0]["stage"], &created[1]["stage"]], ["RequestReceived", "ResponseComplete"]);
    let complete = &created[1];
    assert_eq!((&complete["verb"], &complete["level"]), (&json!("create"), &json!("RequestResponse")));
    let reference = json!({"resource": "configmaps", "namespace": "default", "name": "a", "apiVersion": "v1"});
    assert_eq!(complete["objectRef"], reference, "{complete}");
    assert_eq!(complete["requestObject"]["data"], json!({"key": "value"}));
    assert_eq!(complete["responseObject"], object);
    assert_eq!(complete["responseStatus"], json!({"metadata": {}, "code": 201}));
    assert_eq!(complete["user"]["username"], "admin");
    assert_eq!(complete["annotations"]["authorization.k8s.io/decision"], "allow");

    send_json(&client, Method::PUT, &format!("{CONFIG_MAPS}/a"), &object).await;
    let updated = wait_for_events(&api.environment, "/configmaps/a", 2).await.remove(1);
    assert_eq!(updated["requestObject"], object);
    assert!(updated["responseObject"].is_null() && updated["responseStatus"]["code"] == 200, "{updated}");

    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    let secrets = "/api/v1/namespaces/default/secrets";
    assert_eq!(send_json(&client, Method::POST, secrets, &secret).await.status, 201);
    let hidden = wait_for_events(&api.environment, "/secrets", 2).await.remove(1);
    assert!(hidden["requestObject"].is_null() && !hidden.to_string().contains("hunter2"), "{hidden}");

    let refused = send_json(&client, Method::POST, CONFIG_MAPS, &json!({"metadata": {"name": "A"}})).await;
    refused.assert_failure(422, "Invalid");
    let refused = wait_for_events(&api.environment, "/configmaps", 4).await.remove(3);
    assert_eq!(
        (&refused["responseStatus"]["code"], &refused["responseStatus"]["reason"]),
        (&json!(422), &json!("Invalid"))
    );

    let mut watch = client.send(get(&format!("{CONFIG_MAPS}?watch=1"), &[])).await.unwrap().into_body();
    next_chunk(&mut watch).await.unwrap().unwrap();
    let started = wait_for_events(&api.environment, "?watch=1", 2).await;
    assert_eq!([&started[0]["stage"], &started[1]["stage"]], ["RequestReceived", "ResponseStarted"]);
    drop(watch);
    let ended = wait_for_events(&api.environment, "?watch=1", 3).await.remove(2);
    assert_eq!((&ended["stage"], &ended["responseStatus"]["code"]), (&json!("ResponseComplete"), &json!(200)));
}

#[tokio::test(flavor = "multi_thread")]
async fn inflight_limit_counts_writes_of_stored_objects() {
    let environment = TestEnvironment::new();
    let allow = environment.anonymous_flags();
    let mut flags: Vec<&str> = allow[1..].iter().map(String::as_str).collect();
    flags.extend(["--embedded-api", "--unsafe-no-fsync", "--max-mutating-requests-inflight=1"]);
    let gateway = environment.start_gateway(&flags);
    let jane = environment.issue_user("jane", &[]);
    let client = Client::http2(&environment, &gateway, Some(&jane)).await;
    // The body of the first does not end, so that it is in flight.
    let (sender, first) = streaming_request(Method::POST, CONFIG_MAPS, &[("content-type", "application/json")]);
    let first = tokio::spawn({
        let client = client.clone();
        async move { client.send_and_read(first).await }
    });
    let mutating = "apiserver_current_inflight_requests{request_kind=\"mutating\"}";
    wait_for_metric(&gateway, mutating, 1.0).await;
    let second = send_json(&client, Method::POST, CONFIG_MAPS, &json!({"metadata": {"name": "second"}})).await;
    second.assert_failure(429, "TooManyRequests");
    assert_eq!(client.get(CONFIG_MAPS).await.status, 200, "reads have a limit of their own");
    sender.send(Bytes::from_static(br#"{"metadata":{"name":"first"}}"#)).await.unwrap();
    drop(sender);
    assert_eq!(first.await.unwrap().status, 201);
    wait_for_metric(&gateway, mutating, 0.0).await;
    let rejected = "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"\",priority_level=\"mutating\",reason=\"concurrency-limit\"}";
    assert_eq!(metric_value(&gateway, rejected).await, Some(1.0));
}
