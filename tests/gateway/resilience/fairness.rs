//! Fairness: the limit of requests in flight is shared between users, so that one noisy user does not exhaust it.

use http::{Method, StatusCode};
use tokio::task::JoinSet;

use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{Client, get, metric_value, request};
use crate::support::fixtures::TestEnvironment;
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

/// How many requests the noisy user begins at once, and over how many connections.
const NOISY_REQUESTS: usize = 1000;
const CONNECTIONS: usize = 5;

/// A thousand requests for what a backend does not answer, of which `held` find a place; others go on asking one
/// thing after another.
async fn assert_fair_share(annotations: &[(&str, &str)], held: usize, limit: &str) {
    let environment = TestEnvironment::new();
    let (release, released) = tokio::sync::watch::channel(false);
    let backend = Backend::start(&environment, BackendSettings::default(), move |request| {
        let mut released = released.clone();
        async move {
            if request.uri().path().ends_with("/stall") {
                released.wait_for(|released| *released).await.unwrap();
            }
            json_response(200, "{}")
        }
    })
    .await;
    let flags = ["--max-requests-inflight=20", "--max-mutating-requests-inflight=20", "--access-log=off"];
    let fixture = GatewayFixture::with_flags(environment, &[&backend], annotations, &flags);
    let stalled = format!("{THINGS}/stall?timeout=60s");
    let mut noise = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let client = fixture.http2().await;
        for _ in 0..NOISY_REQUESTS / CONNECTIONS {
            let (client, request) = (client.clone(), get(&stalled, &[]));
            noise.spawn(async move { client.send_and_read(request).await });
        }
    }
    for _ in held..NOISY_REQUESTS {
        let response = noise.join_next().await.unwrap().unwrap();
        response.assert_failure(429, "TooManyRequests");
        assert_eq!(response.headers["retry-after"], "1");
    }
    let jane = fixture.http2().await;
    let tom =
        Client::http2(&fixture.environment, &fixture.gateway, Some(&fixture.environment.issue_user("tom", &[]))).await;
    let anna =
        Client::http1(&fixture.environment, &fixture.gateway, Some(&fixture.environment.issue_user("anna", &[]))).await;
    for client in [&tom, &anna, &tom, &anna] {
        for _ in 0..5 {
            jane.get(&stalled).await.assert_failure(429, "TooManyRequests");
            for (method, path) in [(Method::GET, THINGS), (Method::POST, THINGS), (Method::GET, "/version")] {
                let response = client.send_and_read(request(method, path, &[], "")).await;
                assert_eq!(response.status, 200, "{}", response.text());
            }
        }
    }
    assert_eq!((noise.try_join_next().is_none(), backend.received().len()), (true, held + 40));
    let rejected = format!(
        "apiserver_flowcontrol_rejected_requests_total{{flow_schema=\"\",priority_level=\"{limit}\",reason=\"fair-share\"}}"
    );
    assert_eq!(metric_value(&fixture.gateway, &rejected).await, Some((NOISY_REQUESTS - held + 20) as f64));
    // The noisy user is served again.
    release.send(true).unwrap();
    assert!(noise.join_all().await.iter().all(|response| response.status == StatusCode::OK));
    assert_eq!(jane.get(&stalled).await.status, 200);
}

/// The APIService takes half of all places unless told otherwise.
#[tokio::test(flavor = "multi_thread")]
async fn fair_share_of_apiservice_limit_for_other_users() {
    assert_fair_share(&[], 8, "apiservice").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fair_share_of_gateway_limit_for_other_users() {
    assert_fair_share(&[("max-inflight", "100")], 15, "readOnly").await;
}
