//! Log messages of failures: one line for each, with its cause.

use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{Client, admin_request, get};
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

#[tokio::test(flavor = "multi_thread")]
async fn access_log_cause_of_forbidden_names_verb_and_resource() {
    let fixture = GatewayFixture::from_registry(
        TestEnvironment::new(),
        &["--authorization-mode=AlwaysDeny", "--access-log-format=json"],
    );
    fixture.http1().await.get(THINGS).await.assert_failure(403, "Forbidden");
    let line = fixture.gateway.wait_for_log(&["\"kind\":\"access\"", "\"refused\":\"Forbidden\""]).await;
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    let cause = "things.things.example.com is forbidden: User \"jane\" cannot list resource \"things\" in API group \
                 \"things.example.com\" in the namespace \"default\": Everything is forbidden.";
    assert_eq!(line["cause"], cause, "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn access_log_failed_request_logged_once() {
    let environment = TestEnvironment::new();
    // The authorization webhook does not respond.
    let anonymous = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    crate::registry::delegate::write_kubeconfig(&environment, &format!("https://{anonymous}"));
    let kubeconfig = format!("--authorization-kubeconfig={}", environment.path("cluster.kubeconfig").display());
    let jane = environment.issue_user("jane", &[]);
    for (mode, lines) in [("errors", 0), ("off", 1)] {
        let flags = ["--authorization-mode=Webhook", &kubeconfig, &format!("--access-log={mode}")];
        let gateway = environment.start_gateway(&flags);
        let client = Client::http1(&environment, &gateway, Some(&jane)).await;
        client.get(THINGS).await.assert_failure(500, "InternalError");
        if mode == "errors" {
            gateway.wait_for_log(&[" access ", "status=500", "refused=\"InternalError\""]).await;
        } else {
            gateway.wait_for_log(&["request failed with an internal error"]).await;
        }
        let found =
            gateway.log_lines().iter().filter(|line| line.contains("request failed with an internal error")).count();
        assert_eq!(found, lines, "--access-log={mode}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn log_one_line_per_problem_of_a_file() {
    let environment = TestEnvironment::new();
    let file = environment.path("tokens.csv");
    std::fs::write(&file, "token,user,uid\n").unwrap();
    let flag = format!("--token-auth-file={}", file.display());
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    std::fs::write(&file, "first,user\nsecond\n").unwrap();
    let first = fixture.gateway.wait_for_log(&["ERROR", "tokens.csv:1: "]).await;
    let second = fixture.gateway.wait_for_log(&["ERROR", "tokens.csv:2: "]).await;
    for line in [&first, &second] {
        assert!(line.contains("the last good tokens stay"), "{line}");
    }
    assert!(!first.contains("tokens.csv:2") && !second.contains("tokens.csv:1"), "{first}\n{second}");
}

#[tokio::test(flavor = "multi_thread")]
async fn log_mentions_last_good_document_only_if_present() {
    let environment = TestEnvironment::new();
    let settings = BackendSettings { handles_probes: true, ..BackendSettings::default() };
    let backend = Backend::start(&environment, settings, async |_| json_response(503, "{}")).await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for words in ["discovery of the backend failed", "OpenAPI of the backend failed"] {
        let line = fixture.gateway.wait_for_log(&[words, "v1.things.example.com"]).await;
        assert!(!line.contains("last good answer") && !line.contains("said last"), "{line}");
    }
}

/// The log lines of `apiservice` that are no INFO, once its backend was asked for its documents.
async fn warnings_of(fixture: &GatewayFixture, apiservice: &str) -> Vec<String> {
    eventually("discovery to have been tried", async || {
        let report = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
        let mut all = report["apiservices"].as_array()?.iter();
        let row = all.find(|one| one["name"] == apiservice)?;
        (row["discovery"]["state"] == "stale" && row["available"] == false).then_some(())
    })
    .await;
    let log = fixture.gateway.log_lines().into_iter();
    log.filter(|line| line.contains(apiservice) && !line.contains("\"level\":\"INFO\"")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn log_discovery_404_once() {
    let environment = TestEnvironment::new();
    let settings = BackendSettings { handles_probes: true, ..BackendSettings::default() };
    let backend = Backend::start(&environment, settings, async |_| json_response(404, "{}")).await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let lines = warnings_of(&fixture, "v1.things.example.com").await;
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("bad status 404") && !lines[0].contains("detail="), "{}", lines[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn log_unknown_egress_selection_once() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), async |_| json_response(200, "{}")).await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[("egress", "dmz")]);
    let lines = warnings_of(&fixture, "v1.things.example.com").await;
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("EgressSelectionNotFound") && lines[0].contains("dmz"), "{}", lines[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn log_local_apiservices_in_one_line() {
    let environment = TestEnvironment::new();
    let local = |version: u8| {
        format!(
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: v{version}.local.io}}\nspec: \
             {{group: local.io, version: v{version}, groupPriorityMinimum: 1, versionPriority: 1}}\n---\n"
        )
    };
    environment.write_registry("local.yaml", &(1..=3).map(local).collect::<String>());
    let fixture = GatewayFixture::from_registry(environment, &[]);
    fixture.gateway.wait_for_log(&["INFO", "Local APIServices are available", "\"count\":3"]).await;
    let log = fixture.gateway.log_lines();
    assert!(!log.iter().any(|line| line.contains("INFO") && line.contains("local.io")), "{log:#?}");
}
