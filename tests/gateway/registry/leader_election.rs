//! Leader election: which of several gateways writes APIService conditions to the kube-apiserver, and what it writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::client::{admin_request, get, metric_value};
use crate::support::fake_apiserver::FakeApiServer;
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::annotations_yaml;

const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.things.example.com";
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/things/endpointslices/things-v1-0";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/narthex";
const LEADER_METRIC: &str = "leader_election_master_status{name=\"narthex\"}";
/// Short, so that a dead leader is replaced soon.
const FAST_ELECTION_FLAGS: [&str; 3] =
    ["--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=200ms"];

struct LeaderElectionFixture {
    environment: TestEnvironment,
    cluster: FakeApiServer,
    /// Answers as long as it is there, and badly if it is `unhealthy`.
    _backend: Backend,
    is_unhealthy: Arc<AtomicBool>,
    documents: String,
}

impl LeaderElectionFixture {
    async fn new() -> LeaderElectionFixture {
        let environment = TestEnvironment::new();
        let unhealthy = Arc::new(AtomicBool::new(false));
        let error_text = unhealthy.clone();
        let settings = BackendSettings { handles_probes: true, ..BackendSettings::http2() };
        let backend = Backend::start(&environment, settings, move |_| {
            let code = if error_text.load(Ordering::SeqCst) { 500 } else { 200 };
            async move { response(code, "{}") }
        })
        .await;
        let cluster = FakeApiServer::start(&environment).await;
        let documents = environment.apiservice_manifests(
            "things.example.com",
            "v1",
            &[backend.address],
            &annotations_yaml(&[]).replace("1000", "3"),
        );
        cluster.apply(&documents);
        LeaderElectionFixture { environment, cluster, _backend: backend, is_unhealthy: unhealthy, documents }
    }

    fn start_gateway(&self, more: &[&str]) -> GatewayProcess {
        let flag = FakeApiServer::kubeconfig_flag(&self.environment);
        self.environment.start_gateway(&[&[flag.as_str()], more].concat())
    }

    fn available_condition(&self) -> Option<Value> {
        let object = self.cluster.get(API_SERVICE)?;
        object["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == "Available").cloned()
    }

    async fn wait_for_condition(&self, status: &str, reason: &str, message: &str) -> Value {
        eventually(&format!("{status} {reason}"), async || {
            let now = self.available_condition()?;
            (now["status"] == status && now["reason"] == reason && now["message"] == message).then_some(now)
        })
        .await
    }

    fn status_writes(&self) -> usize {
        self.cluster.write_count(&format!("{API_SERVICE}/status"))
    }

    fn lease_holder(&self) -> String {
        let lease = self.cluster.get(LEASE).unwrap_or_default();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    }
}

async fn wait_for_leadership(gateway: &GatewayProcess) {
    eventually("the gateway to lead", async || (metric_value(gateway, LEADER_METRIC).await == Some(1.0)).then_some(()))
        .await;
}

#[tokio::test]
async fn leader_writes_changed_conditions_with_upstream_text() {
    let fixture = LeaderElectionFixture::new().await;
    let custom = json!({"type": "Custom", "status": "True"});
    fixture.cluster.edit(API_SERVICE, |object| object["status"] = json!({"conditions": [custom.clone()]}));
    let gateway = fixture.start_gateway(&[]);
    let passed = fixture.wait_for_condition("True", "Passed", "all checks passed").await;
    fixture.cluster.apply(&fixture.environment.apiservice_manifests("more.example.com", "v1", &[], ""));
    let more = "/apis/apiregistration.k8s.io/v1/apiservices/v1.more.example.com";
    eventually("the other's condition", async || {
        let conditions = fixture.cluster.get(more)?["status"]["conditions"].clone();
        (conditions[0]["reason"] == "EndpointsNotFound").then_some(())
    })
    .await;
    assert_eq!(fixture.status_writes(), 1, "what did not change is not written");

    fixture.cluster.delete(SLICE);
    let words = "cannot find endpointslices for service/things-v1 in \"things\"";
    let failed = fixture.wait_for_condition("False", "EndpointsNotFound", words).await;
    assert!(failed["lastTransitionTime"].as_str() >= passed["lastTransitionTime"].as_str());
    let conditions = fixture.cluster.get(API_SERVICE).unwrap()["status"]["conditions"].clone();
    assert_eq!(conditions[0], custom, "others' conditions stay");

    // What the spec says is not touched, and a write of ours is no news to ourselves.
    assert_eq!(fixture.status_writes(), 2);
    let status = run_narthex(&["status".to_owned(), format!("--admin-address={}", gateway.admin)]);
    let text = String::from_utf8(status.stdout).unwrap();
    assert!(text.contains(": watched; APIService conditions are written by this gateway"), "{text}");
}

#[tokio::test]
async fn leader_shutdown_releases_lease_to_second_gateway() {
    let fixture = LeaderElectionFixture::new().await;
    let mut first = fixture.start_gateway(&[]);
    wait_for_leadership(&first).await;
    fixture.wait_for_condition("True", "Passed", "all checks passed").await;
    let held = fixture.lease_holder();
    let second = fixture.start_gateway(&[]);
    second.wait_for_log(&["new leader elected", &held]).await;
    assert_eq!(metric_value(&second, LEADER_METRIC).await, Some(0.0));

    // The leader releases the Lease, so the standby need not wait 15 seconds.
    first.signal("TERM");
    assert!(first.wait_for_exit().await.success());
    wait_for_leadership(&second).await;
    assert_ne!(fixture.lease_holder(), held);
    assert_eq!(fixture.cluster.get(LEASE).unwrap()["spec"]["leaseTransitions"], 1);
    fixture.cluster.delete(SLICE);
    fixture
        .wait_for_condition(
            "False",
            "EndpointsNotFound",
            "cannot find endpointslices for service/things-v1 in \"things\"",
        )
        .await;
    assert_eq!(fixture.status_writes(), 2, "the second wrote only the news");
}

#[tokio::test]
async fn leader_killed_is_replaced_after_lease_expires() {
    let fixture = LeaderElectionFixture::new().await;
    let first = fixture.start_gateway(&FAST_ELECTION_FLAGS);
    wait_for_leadership(&first).await;
    let second = fixture.start_gateway(&FAST_ELECTION_FLAGS);
    second.wait_for_log(&["new leader elected"]).await;
    drop(first);
    wait_for_leadership(&second).await;
    // Without the cluster it does not lead for longer than it may, and says so; then it does again.
    let stopped = fixture.cluster.stop().await;
    eventually("it to stop leading", async || (metric_value(&second, LEADER_METRIC).await == Some(0.0)).then_some(()))
        .await;
    let _cluster = stopped.start(&fixture.environment).await;
    wait_for_leadership(&second).await;
}

#[tokio::test]
async fn condition_overwritten_by_other_writer_is_left_alone() {
    let fixture = LeaderElectionFixture::new().await;
    let gateway = fixture.start_gateway(&["--leader-elect=false"]);
    let expected = json!({"type": "Available", "status": "False", "reason": "FailedDiscoveryCheck",
        "message": "no", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    for _ in 0..2 {
        fixture.wait_for_condition("True", "Passed", "all checks passed").await;
        fixture.cluster.edit(API_SERVICE, |object| object["status"] = json!({"conditions": [expected.clone()]}));
    }
    gateway.wait_for_log(&["v1.things.example.com", "another writer overwrites the Available condition"]).await;
    // News about others does not make it write that one.
    fixture.cluster.apply(&fixture.documents.replace("things.example.com", "other.example.com"));
    let other = "/apis/apiregistration.k8s.io/v1/apiservices/v1.other.example.com";
    eventually("the other's condition", async || {
        (fixture.cluster.get(other)?["status"]["conditions"][0]["reason"] == "Passed").then_some(())
    })
    .await;
    assert_eq!(fixture.available_condition(), Some(expected));
    assert_eq!(fixture.status_writes(), 2);
}

/// kube-apiserver writes the condition after one failure, narthex after three: it must not be overwritten in between.
#[tokio::test]
async fn condition_of_other_writer_not_contradicted_before_threshold() {
    let fixture = LeaderElectionFixture::new().await;
    let gateway = fixture.start_gateway(&["--leader-elect=false"]);
    fixture.wait_for_condition("True", "Passed", "all checks passed").await;
    fixture.is_unhealthy.store(true, Ordering::SeqCst);
    let expected = json!({"type": "Available", "status": "False", "reason": "FailedDiscoveryCheck",
        "message": "no", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    fixture.cluster.edit(API_SERVICE, |object| object["status"] = json!({"conditions": [expected.clone()]}));
    let unavailable = "aggregator_unavailable_apiservice{name=\"v1.things.example.com\"}";
    eventually("us to find it out", async || (metric_value(&gateway, unavailable).await == Some(1.0)).then_some(()))
        .await;
    assert_eq!((fixture.status_writes(), fixture.available_condition()), (1, Some(expected)));
    fixture.is_unhealthy.store(false, Ordering::SeqCst);
    fixture.wait_for_condition("True", "Passed", "all checks passed").await;
    assert_eq!(fixture.status_writes(), 2);
}

#[tokio::test]
async fn leader_election_forbidden_is_logged_and_serving_continues() {
    let fixture = LeaderElectionFixture::new().await;
    fixture.cluster.fail_requests("/apis/coordination.k8s.io/", 403);
    fixture.cluster.fail_requests(&format!("{API_SERVICE}/status"), 403);
    let gateway = fixture.start_gateway(&[]);
    gateway.wait_for_log(&["the Lease cannot be read or written"]).await;
    let alone = fixture.start_gateway(&["--leader-elect=false"]);
    alone.wait_for_log(&["writing APIService status forbidden"]).await;
    assert_eq!(fixture.available_condition(), None);
}

#[tokio::test]
async fn remote_calls_list_lease_and_conditions() {
    let fixture = LeaderElectionFixture::new().await;
    let gateway = fixture.start_gateway(&FAST_ELECTION_FLAGS);
    let calls = async || {
        let report = admin_request(&gateway, get("/status.json", &[])).await.json();
        let of = |kind: &str| report["remoteCalls"].as_array()?.iter().find(|call| call["call"] == kind).cloned();
        Some((of("Lease")?, of("APIService status")?))
    };
    fixture.wait_for_condition("True", "Passed", "all checks passed").await;
    let (lease, status) = eventually("both to have succeeded", async || {
        calls().await.filter(|(lease, status)| lease["lastSuccess"] != "" && status["lastSuccess"] != "")
    })
    .await;
    assert_eq!((&lease["name"], &status["error"]), (&json!("narthex"), &json!("")));
    assert!(lease["latencyMicros"].is_u64() && status["latencyMicros"].is_u64(), "{lease} {status}");
    fixture.cluster.fail_requests(LEASE, 403);
    let error = eventually("the Lease to fail", async || {
        calls()
            .await
            .map(|(lease, _)| lease["error"].as_str().unwrap_or_default().to_owned())
            .filter(|it| !it.is_empty())
    })
    .await;
    assert!(error.contains("answered 403"), "{error}");
}
