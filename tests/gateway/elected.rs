//! Leader election: which of several gateways writes APIService conditions to the kube-apiserver, and what it writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::backend::{Backend, Settings, json as answer};
use crate::client::{admin, get, sample};
use crate::cluster::Cluster;
use crate::scene::annotated;
use crate::world::{Gateway, World, eventually, narthex};

const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.things.example.com";
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/things/endpointslices/things-v1-0";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/narthex";
const LEADS: &str = "leader_election_master_status{name=\"narthex\"}";
/// Short, so that nobody waits long for a leader that died.
const QUICK: [&str; 3] =
    ["--leader-elect-lease-duration=3s", "--leader-elect-renew-deadline=2s", "--leader-elect-retry-period=200ms"];

struct Stage {
    world: World,
    cluster: Cluster,
    /// Answers as long as it is there, and badly if it is `ill`.
    _backend: Backend,
    ill: Arc<AtomicBool>,
    documents: String,
}

impl Stage {
    async fn set() -> Stage {
        let world = World::new();
        let ill = Arc::new(AtomicBool::new(false));
        let told = ill.clone();
        let settings = Settings { all: true, ..Settings::http2() };
        let backend = Backend::start(&world, settings, move |_| {
            let code = if told.load(Ordering::SeqCst) { 500 } else { 200 };
            async move { answer(code, "{}") }
        })
        .await;
        let cluster = Cluster::start(&world).await;
        let documents =
            world.manifests("things.example.com", "v1", &[backend.address], &annotated(&[]).replace("1000", "3"));
        cluster.apply(&documents);
        Stage { world, cluster, _backend: backend, ill, documents }
    }

    fn gateway(&self, more: &[&str]) -> Gateway {
        let flag = Cluster::flag(&self.world);
        self.world.gateway(&[&[flag.as_str()], more].concat())
    }

    fn available(&self) -> Option<Value> {
        let object = self.cluster.get(API_SERVICE)?;
        object["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == "Available").cloned()
    }

    async fn becomes(&self, status: &str, reason: &str, message: &str) -> Value {
        eventually(&format!("{status} {reason}"), async || {
            let now = self.available()?;
            (now["status"] == status && now["reason"] == reason && now["message"] == message).then_some(now)
        })
        .await
    }

    fn writes(&self) -> usize {
        self.cluster.writes(&format!("{API_SERVICE}/status"))
    }

    fn holder(&self) -> String {
        let lease = self.cluster.get(LEASE).unwrap_or_default();
        lease["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
    }
}

async fn until_leads(gateway: &Gateway) {
    eventually("the gateway to lead", async || (sample(gateway, LEADS).await == Some(1.0)).then_some(())).await;
}

#[tokio::test]
async fn the_leader_writes_what_differs_in_upstreams_words() {
    let stage = Stage::set().await;
    let custom = json!({"type": "Custom", "status": "True"});
    stage.cluster.edit(API_SERVICE, |object| object["status"] = json!({"conditions": [custom.clone()]}));
    let gateway = stage.gateway(&[]);
    let passed = stage.becomes("True", "Passed", "all checks passed").await;
    stage.cluster.apply(&stage.world.manifests("more.example.com", "v1", &[], ""));
    let more = "/apis/apiregistration.k8s.io/v1/apiservices/v1.more.example.com";
    eventually("the other's condition", async || {
        let conditions = stage.cluster.get(more)?["status"]["conditions"].clone();
        (conditions[0]["reason"] == "EndpointsNotFound").then_some(())
    })
    .await;
    assert_eq!(stage.writes(), 1, "what did not change is not written");

    stage.cluster.delete(SLICE);
    let words = "cannot find endpointslices for service/things-v1 in \"things\"";
    let failed = stage.becomes("False", "EndpointsNotFound", words).await;
    assert!(failed["lastTransitionTime"].as_str() >= passed["lastTransitionTime"].as_str());
    let conditions = stage.cluster.get(API_SERVICE).unwrap()["status"]["conditions"].clone();
    assert_eq!(conditions[0], custom, "others' conditions stay");

    // What the spec says is not touched, and a write of ours is no news to ourselves.
    assert_eq!(stage.writes(), 2);
    let status = narthex(&["status".to_owned(), format!("--admin-address={}", gateway.admin)]);
    let text = String::from_utf8(status.stdout).unwrap();
    assert!(text.contains(": watched; APIService conditions are written by this gateway"), "{text}");
}

#[tokio::test]
async fn of_two_one_writes_and_when_it_ends_the_other_does() {
    let stage = Stage::set().await;
    let mut first = stage.gateway(&[]);
    until_leads(&first).await;
    stage.becomes("True", "Passed", "all checks passed").await;
    let held = stage.holder();
    let second = stage.gateway(&[]);
    second.said(&["new leader elected", &held]).await;
    assert_eq!(sample(&second, LEADS).await, Some(0.0));

    // It gives the Lease back; nobody waits for its fifteen seconds.
    first.signal("TERM");
    assert!(first.ended().await.success());
    until_leads(&second).await;
    assert_ne!(stage.holder(), held);
    assert_eq!(stage.cluster.get(LEASE).unwrap()["spec"]["leaseTransitions"], 1);
    stage.cluster.delete(SLICE);
    stage.becomes("False", "EndpointsNotFound", "cannot find endpointslices for service/things-v1 in \"things\"").await;
    assert_eq!(stage.writes(), 2, "the second wrote only the news");
}

#[tokio::test]
async fn a_leader_that_dies_is_followed_by_another_when_its_lease_is_over() {
    let stage = Stage::set().await;
    let first = stage.gateway(&QUICK);
    until_leads(&first).await;
    let second = stage.gateway(&QUICK);
    second.said(&["new leader elected"]).await;
    drop(first);
    until_leads(&second).await;
    // Without the cluster it does not lead for longer than it may, and says so; then it does again.
    let stopped = stage.cluster.stop().await;
    eventually("it to stop leading", async || (sample(&second, LEADS).await == Some(0.0)).then_some(())).await;
    let _cluster = stopped.start(&stage.world).await;
    until_leads(&second).await;
}

#[tokio::test]
async fn whose_word_is_overwritten_leaves_it_to_the_other() {
    let stage = Stage::set().await;
    let gateway = stage.gateway(&["--leader-elect=false"]);
    let theirs = json!({"type": "Available", "status": "False", "reason": "FailedDiscoveryCheck",
        "message": "no", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    for _ in 0..2 {
        stage.becomes("True", "Passed", "all checks passed").await;
        stage.cluster.edit(API_SERVICE, |object| object["status"] = json!({"conditions": [theirs.clone()]}));
    }
    gateway.said(&["v1.things.example.com", "another writer overwrites the Available condition"]).await;
    // News about others does not make it write that one.
    stage.cluster.apply(&stage.documents.replace("things.example.com", "other.example.com"));
    let other = "/apis/apiregistration.k8s.io/v1/apiservices/v1.other.example.com";
    eventually("the other's condition", async || {
        (stage.cluster.get(other)?["status"]["conditions"][0]["reason"] == "Passed").then_some(())
    })
    .await;
    assert_eq!(stage.available(), Some(theirs));
    assert_eq!(stage.writes(), 2);
}

/// kube-apiserver says so after one failure, we after three: nobody contradicts it meanwhile.
#[tokio::test]
async fn whoever_finds_an_outage_first_is_not_contradicted() {
    let stage = Stage::set().await;
    let gateway = stage.gateway(&["--leader-elect=false"]);
    stage.becomes("True", "Passed", "all checks passed").await;
    stage.ill.store(true, Ordering::SeqCst);
    let theirs = json!({"type": "Available", "status": "False", "reason": "FailedDiscoveryCheck",
        "message": "no", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    stage.cluster.edit(API_SERVICE, |object| object["status"] = json!({"conditions": [theirs.clone()]}));
    let unavailable = "aggregator_unavailable_apiservice{name=\"v1.things.example.com\"}";
    eventually("us to find it out", async || (sample(&gateway, unavailable).await == Some(1.0)).then_some(())).await;
    assert_eq!((stage.writes(), stage.available()), (1, Some(theirs)));
    stage.ill.store(false, Ordering::SeqCst);
    stage.becomes("True", "Passed", "all checks passed").await;
    assert_eq!(stage.writes(), 2);
}

#[tokio::test]
async fn who_may_not_write_says_so_and_serves_on() {
    let stage = Stage::set().await;
    stage.cluster.refuse("/apis/coordination.k8s.io/", 403);
    stage.cluster.refuse(&format!("{API_SERVICE}/status"), 403);
    let gateway = stage.gateway(&[]);
    gateway.said(&["the Lease cannot be read or written"]).await;
    let alone = stage.gateway(&["--leader-elect=false"]);
    alone.said(&["conditions of APIServices cannot be written"]).await;
    assert_eq!(stage.available(), None);
}

#[tokio::test]
async fn remote_calls_list_lease_and_conditions() {
    let stage = Stage::set().await;
    let gateway = stage.gateway(&QUICK);
    let calls = async || {
        let report = admin(&gateway, get("/status.json", &[])).await.json();
        let of = |kind: &str| report["remoteCalls"].as_array()?.iter().find(|call| call["call"] == kind).cloned();
        Some((of("Lease")?, of("APIService status")?))
    };
    stage.becomes("True", "Passed", "all checks passed").await;
    let (lease, status) = eventually("both to have succeeded", async || {
        calls().await.filter(|(lease, status)| lease["lastSuccess"] != "" && status["lastSuccess"] != "")
    })
    .await;
    assert_eq!((&lease["name"], &status["error"]), (&json!("narthex"), &json!("")));
    assert!(lease["latencyMicros"].is_u64() && status["latencyMicros"].is_u64(), "{lease} {status}");
    stage.cluster.refuse(LEASE, 403);
    let error = eventually("the Lease to fail", async || {
        calls()
            .await
            .map(|(lease, _)| lease["error"].as_str().unwrap_or_default().to_owned())
            .filter(|it| !it.is_empty())
    })
    .await;
    assert!(error.contains("answered 403"), "{error}");
}
