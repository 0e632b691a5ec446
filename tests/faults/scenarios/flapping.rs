//! A reviewer, a registry and endpoints that fail and come back again and again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::echo_backend::{ExecutionLedger, start_echo_backend};
use crate::measured_load::{Credentials, LoadUser, RunningLoad};
use crate::report::FaultRow;
use crate::stage::Stage;
use crate::support::backend::BackendSettings;
use crate::support::fake_review_server::{
    FakeReviewServer, ReviewReply, access_review_reply, failure_reply, token_review_reply,
};
use crate::support::fixtures::TestEnvironment;
use crate::support::gateway_fixture::register_things;

/// Calls `turn` with 0, 1, 2, ... until the fault is over, with requests between.
async fn take_turns(load: &RunningLoad, mut turn: impl AsyncFnMut(usize)) {
    let turns = if crate::is_long() { 60 } else { 8 };
    for number in 0..turns {
        turn(number).await;
        load.wait_for_more(60).await;
    }
}

/// Tokens are of users of that name; mallory's is not allowed anything.
fn review(question: &serde_json::Value) -> ReviewReply {
    let spec = &question["spec"];
    match question["kind"].as_str() {
        Some("SubjectAccessReview") => access_review_reply(json!({"allowed": spec["user"] != "mallory"})),
        _ => {
            token_review_reply(json!({"authenticated": true, "user": {"username": spec["token"], "groups": ["devs"]}}))
        }
    }
}

pub(crate) async fn reviewer() -> FaultRow {
    let environment = TestEnvironment::new();
    let reviewer = FakeReviewServer::start(&environment).await;
    reviewer.set_behavior(review);
    let kubeconfig = reviewer.write_kubeconfig(&environment, "reviewer", "");
    let flags = [
        format!("--authentication-token-webhook-config-file={kubeconfig}"),
        format!("--authorization-webhook-config-file={kubeconfig}"),
        "--authorization-mode=Webhook".to_owned(),
        // Every request asks anew, nearly.
        "--authentication-token-webhook-cache-ttl=100ms".to_owned(),
        "--authorization-webhook-cache-authorized-ttl=100ms".to_owned(),
        "--authorization-webhook-cache-unauthorized-ttl=100ms".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let ledger = ExecutionLedger::default();
    let backend = start_echo_backend(&environment, BackendSettings::default(), &ledger).await;
    let mut stage = Stage::start_with(environment, ledger, vec![backend], &flags).await;
    stage.users = ["anna", "bert", "carl", "mallory"]
        .map(|name| LoadUser {
            name: name.to_owned(),
            credentials: Credentials::Token(name.to_owned()),
            is_denied: name == "mallory",
        })
        .into();
    let load = stage.start_load().await;
    take_turns(&load, async |number| match number % 4 {
        0 => reviewer.set_behavior(|_| failure_reply(500, "InternalError")),
        2 => reviewer.set_behavior(|question| if fastrand::bool() { ReviewReply::Break } else { review(question) }),
        _ => reviewer.set_behavior(review),
    })
    .await;
    reviewer.set_behavior(review);
    stage.finish(load, REVIEW_FAILED).await
}

/// As in kube-apiserver, a token that cannot be reviewed is 401, and an HTTP/2 connection closes after a 401: requests that
/// its client had not sent yet are lost to it.
const REVIEW_FAILED: &[&str] = &[
    "GET 401",
    "GET 500",
    "GET 503",
    "GET 504",
    "GET connection lost",
    "POST 401",
    "POST 500",
    "POST 503",
    "POST 504",
    "POST connection lost",
];

/// APIServices that come, go and are garbage, beside the one under load, and its own file with garbage in it.
pub(crate) async fn registry() -> FaultRow {
    let mut stage = Stage::start(&[]).await;
    let load = stage.start_load().await;
    let addresses: Vec<SocketAddr> = stage.backends.iter().map(|backend| backend.address).collect();
    take_turns(&load, async |number| {
        let environment = &stage.environment;
        let other = environment.apiservice_manifests(&format!("other{}.example.com", number % 3), "v1", &addresses, "");
        match number % 4 {
            0 => environment.write_registry("other.yaml", &other),
            1 => environment.write_registry("other.yaml", &other[..other.len() / 2]),
            2 => environment.write_registry("things.yaml", "kind: APIService\nspec: {"),
            _ => {
                std::fs::remove_file(environment.path("registry/other.yaml")).unwrap();
                register_things(environment, &addresses, &[]);
            }
        }
    })
    .await;
    register_things(&stage.environment, &addresses, &[]);
    stage.finish(load, &[]).await
}

/// Endpoints are added, removed, and named where nothing listens; one backend always stays.
pub(crate) async fn endpoints() -> FaultRow {
    let mut stage = Stage::start(&[]).await;
    let load = stage.start_load().await;
    let living: Vec<SocketAddr> = stage.backends.iter().map(|backend| backend.address).collect();
    let closed = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    take_turns(&load, async |number| {
        let addresses = match number % 4 {
            0 => vec![living[0]],
            1 => vec![living[1], closed],
            2 => vec![closed, living[0]],
            _ => living.clone(),
        };
        register_things(&stage.environment, &addresses, &[]);
    })
    .await;
    register_things(&stage.environment, &living, &[]);
    stage.finish(load, &[]).await
}

/// A core busy with something else, until dropped.
pub(crate) struct TakenCore(Arc<AtomicBool>);

impl TakenCore {
    pub(crate) fn take() -> TakenCore {
        let is_over = Arc::new(AtomicBool::new(false));
        let flag = is_over.clone();
        // At most for as long as any test takes.
        let until = std::time::Instant::now() + Duration::from_secs(600);
        std::thread::spawn(move || {
            while !flag.load(Ordering::Relaxed) && std::time::Instant::now() < until {
                std::hint::spin_loop();
            }
        });
        TakenCore(is_over)
    }
}

impl Drop for TakenCore {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
