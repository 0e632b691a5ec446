//! Nothing of one control plane is seen through another: documents, caches, groups, metrics, audit.

use std::fs;

use serde_json::{Value, json};

use crate::control_planes::fixture::{
    TestControlPlane, connect, get_with_token, request, start_gateway, wait_for_state, write_control_planes,
};
use crate::support::client::{Client, admin_request, get};
use crate::support::fake_collector::FakeCollector;
use crate::support::fake_review_server::{FakeReviewServer, token_review_reply};
use crate::support::fixtures::{TestEnvironment, eventually};

/// Waits until discovery at `prefix` has the group of `name`, and returns all its groups.
async fn groups(client: &Client, prefix: &str, name: &str) -> Vec<String> {
    let own = format!("{name}.example.com");
    eventually(&own, async || {
        let list = request(client, "localhost", &format!("{prefix}/apis"), &[]).await.json();
        let names = |group: &Value| group["name"].as_str().unwrap_or_default().to_owned();
        let groups: Vec<String> = list["groups"].as_array()?.iter().map(names).collect();
        groups.contains(&own).then_some(groups)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_documents_metrics_and_audit_of_its_own() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    let policy = environment.path("audit.yaml");
    fs::write(&policy, "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n").unwrap();
    let log = environment.path("audit.log");
    let flags = [format!("--audit-policy-file={}", policy.display()), format!("--audit-log-path={}", log.display())];
    let more = ", servingMetrics: gateway";
    let gateway =
        start_gateway(&environment, &[c.by_path(more), d.by_path(more)], &[&flags[0], &flags[1], "--access-log=all"]);
    for (own, other) in [(&c, "d"), (&d, "c")] {
        let name = own.name;
        let client = connect(&environment, &gateway, "localhost", Some(&own.admin), "http/1.1").await;
        let prefix = format!("/clusters/{name}");
        let groups = groups(&client, &prefix, name).await;
        assert!(!groups.contains(&format!("{other}.example.com")), "{groups:?}");
        // Its URLs are those that clients can request, and no other's.
        let index = eventually("the OpenAPI index", async || {
            let index = request(&client, "localhost", &format!("{prefix}/openapi/v3"), &[]).await.json();
            index["paths"].get(format!("apis/{name}.example.com/v1")).is_some().then_some(index)
        })
        .await;
        assert!(!index.to_string().contains(&format!("{other}.example.com")), "{index}");
        let url = index["paths"][format!("apis/{name}.example.com/v1")]["serverRelativeURL"].as_str().unwrap();
        assert_eq!(url, format!("{prefix}/openapi/v3/apis/{name}.example.com/v1?hash=AA"));
        let document = request(&client, "localhost", url, &[]).await;
        assert_eq!(document.json()["server"], name);
        // Its metrics have its label, and nothing of others or of the process.
        let metrics = request(&client, "localhost", &format!("{prefix}/metrics"), &[]).await.text();
        let is_own = format!("control_plane=\"{name}\"");
        let samples: Vec<&str> = metrics.lines().filter(|line| !line.starts_with('#')).collect();
        assert!(samples.len() > 5 && samples.iter().all(|line| line.contains(&is_own)), "{metrics}");
    }
    // The operator sees all, with each family once.
    let all = admin_request(&gateway, get("/metrics", &[])).await.text();
    for name in ["c", "d"] {
        let label = format!("control_plane=\"{name}\"");
        assert!(all.lines().any(|line| line.starts_with("apiserver_request_total{") && line.contains(&label)), "{all}");
    }
    let families: Vec<&str> = all.lines().filter(|line| line.starts_with("# TYPE ")).collect();
    let mut unique = families.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(families.len(), unique.len());
    // The audit log and the access log name the control plane, and have the path that was authorized.
    let (log, expected) = (&log, json!("c"));
    eventually("the audit event", async || {
        let text = fs::read_to_string(log).unwrap();
        let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        events.into_iter().find(|event| {
            event["annotations"]["audit.narthex.dev/control-plane"] == expected && event["requestURI"] == "/metrics"
        })
    })
    .await;
    gateway.wait_for_log(&["control_plane=\"d\"", "path=\"/metrics\"", "user=\"d-admin\""]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_named_by_spans_of_its_requests() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    let collector = FakeCollector::start().await;
    let tracing = environment.path("tracing.yaml");
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: {}\n\
         samplingRatePerMillion: 1000000\n",
        collector.address
    );
    fs::write(&tracing, text).unwrap();
    let flag = format!("--tracing-config-file={}", tracing.display());
    let mut gateway = start_gateway(&environment, &[c.by_path(""), d.by_path("")], &[&flag]);
    let client = connect(&environment, &gateway, "localhost", None, "http/1.1").await;
    for name in ["c", "d"] {
        let response = get_with_token(&client, name, "/api/v1/pods", &format!("{name}-token")).await;
        assert_eq!(response.status, 200);
    }
    drop(client);
    // The end of the process exports the last spans.
    gateway.signal("TERM");
    assert!(gateway.wait_for_exit().await.success());
    let spans = collector.wait_for_spans(4).await;
    let mut named: Vec<_> = spans.iter().filter_map(|span| span.attributes.get("narthex.control_plane")).collect();
    named.sort();
    assert_eq!(named, ["c", "d"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_token_reviews_cached_for_it_alone() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    // The same token is another user's at each, and nobody's at the gateway.
    let (of_c, of_d) = (FakeReviewServer::start(&environment).await, FakeReviewServer::start(&environment).await);
    for (server, name) in [(&of_c, "carla"), (&of_d, "dora")] {
        server.set_behavior(move |_| token_review_reply(json!({"authenticated": true, "user": {"username": name}})));
    }
    of_c.write_kubeconfig(&environment, "of-c", "");
    of_d.write_kubeconfig(&environment, "of-d", "");
    let more = |name: &str| format!(", authenticationKubeconfig: of-{name}.kubeconfig, authenticationSkipLookup: true");
    let gateway = start_gateway(&environment, &[c.by_path(&more("c")), d.by_path(&more("d"))], &[]);
    let client = connect(&environment, &gateway, "localhost", None, "http/1.1").await;
    let token = [("authorization", "Bearer shared")];
    for _ in 0..3 {
        for (own, user) in [(&c, "carla"), (&d, "dora")] {
            let path = format!("/clusters/{}/api/v1/pods", own.name);
            assert_eq!(request(&client, "localhost", &path, &token).await.status, 200);
            assert_eq!(own.last_client_request().header_values("x-remote-user"), [user]);
        }
    }
    assert_eq!((of_c.reviews("TokenReview").len(), of_d.reviews("TokenReview").len()), (1, 1));
    request(&client, "localhost", "/api/v1/pods", &token).await.assert_failure(401, "Unauthorized");
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_limits_and_backend_connections_of_its_own() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    let lost = TestControlPlane::start(&environment, "lost").await;
    // Both have the same API server, and different front-proxy certificates.
    fs::copy(environment.path("c.kubeconfig"), environment.path("d.kubeconfig")).unwrap();
    let other = narthex::tls::CertificateSpec::client("other-front-proxy", &[]);
    let other = environment.request_header_ca.issue(&other, std::time::SystemTime::now()).unwrap();
    environment.write_pair("other", &other);
    let entries =
        [c.by_path(""), d.by_path(", proxyClientCertFile: other.crt, proxyClientKeyFile: other.key"), lost.by_path("")];
    let gateway = start_gateway(&environment, &entries, &[]);
    lost.server.stop().await;
    let client = connect(&environment, &gateway, "localhost", None, "http/1.1").await;
    for _ in 0..3 {
        for (name, peer) in [("c", "narthex-front-proxy"), ("d", "other-front-proxy")] {
            let (path, token) = (format!("/clusters/{name}/api/v1/pods"), format!("Bearer {name}-token"));
            assert_eq!(request(&client, "localhost", &path, &[("authorization", &token)]).await.status, 200);
            assert_eq!(c.last_client_request().peer, peer);
        }
        // One without its API server takes nothing from the others.
        let response =
            request(&client, "localhost", "/clusters/lost/api/v1/pods", &[("authorization", "Bearer lost-token")])
                .await;
        response.assert_failure(503, "ServiceUnavailable");
    }
    wait_for_state(&gateway, "c", "serving").await;
}

/// Both control planes know the same user, by the same token and the same client CA.
#[tokio::test(flavor = "multi_thread")]
async fn control_plane_drops_and_passes_on_groups_by_its_own_rules() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    for name in ["c", "d"] {
        let tokens = "shared,c-admin,1,\"devs,system:masters,internal:x,ops\"\n";
        fs::write(environment.path(&format!("{name}-tokens.csv")), tokens).unwrap();
    }
    fs::copy(environment.path("c-ca.crt"), environment.path("d-ca.crt")).unwrap();
    let drops = "authenticationDropGroups: ['system:masters', 'internal:*']";
    let passes_on = "authenticationPassOnGroups: ['system:*', 'internal:*']";
    // Allowed are everybody at /open, and the group system:masters.
    let entries = |[of_c, of_d]: [&str; 2]| {
        let more = |rules| format!(", {rules}, authorizationMode: AlwaysDeny, authorizationAlwaysAllowPaths: [/open]");
        [c.by_path(&more(of_c)), d.by_path(&more(of_d))]
    };
    let dropped = (["devs", "ops", "system:authenticated"].as_slice(), ["devs", "system:authenticated"].as_slice());
    let passed_on = (
        ["system:masters", "internal:x", "system:authenticated"].as_slice(),
        ["system:masters", "system:authenticated"].as_slice(),
    );
    let gateway = start_gateway(&environment, &entries([drops, passes_on]), &[]);
    let token = [("authorization", "Bearer shared")];
    for protocol in ["http/1.1", "h2"] {
        let with_token = connect(&environment, &gateway, "localhost", None, protocol).await;
        let with_certificate = connect(&environment, &gateway, "localhost", Some(&c.admin), protocol).await;
        // The other way around after a change of the file.
        for (rules, expected) in
            [([drops, passes_on], [dropped, passed_on]), ([passes_on, drops], [passed_on, dropped])]
        {
            write_control_planes(&environment, &entries(rules));
            eventually("the rules of both", async || {
                let mut in_effect = true;
                for (own, groups) in [&c, &d].into_iter().zip(expected) {
                    let path = format!("/clusters/{}/open", own.name);
                    let is_open = request(&with_token, "localhost", &path, &token).await.status == 200;
                    in_effect &= is_open && own.last_client_request().header_values("x-remote-group") == groups.0;
                }
                in_effect.then_some(())
            })
            .await;
            for round in 0..3 {
                for (own, (of_token, of_certificate)) in [&c, &d].into_iter().zip(expected) {
                    for (client, headers, groups) in
                        [(&with_token, token.as_slice(), of_token), (&with_certificate, &[], of_certificate)]
                    {
                        let context = format!("{} in round {round} over {protocol} with {rules:?}", own.name);
                        let path = |path: &str| format!("/clusters/{}{path}", own.name);
                        let response = request(client, "localhost", &path("/open"), headers).await;
                        assert_eq!(response.status, 200, "{context}");
                        let received = own.last_client_request();
                        assert_eq!(received.header_values("x-remote-user"), ["c-admin"], "{context}");
                        assert_eq!(received.header_values("x-remote-group"), groups, "{context}");
                        // What is authorized is the user without the dropped groups.
                        let response = request(client, "localhost", &path("/api/v1/pods"), headers).await;
                        let allowed = groups.contains(&"system:masters");
                        assert_eq!(response.status, if allowed { 200 } else { 403 }, "{context}");
                    }
                }
            }
        }
    }
}
