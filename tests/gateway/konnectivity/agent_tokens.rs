//! Service account tokens of agents, from the file of the agent to the TokenReview of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::{Value, json};

use crate::konnectivity::fixture::{
    AgentProcess, ServerProcess, free_port, new_environment, server_arguments, token_flags,
};
use crate::konnectivity::status::status_json;
use crate::support::fake_review_server::{FakeReviewServer, ReviewReply, failure_reply, token_review_reply};
use crate::support::fixtures::{TestEnvironment, eventually};

const ACCOUNT: &str = "system:serviceaccount:kube-system:konnectivity-agent";

fn account(name: &str) -> Value {
    json!({"authenticated": true, "audiences": ["konnectivity"], "user": {"username": name}})
}

/// Answers by the name of the token.
fn review(question: &Value) -> ReviewReply {
    let status = match question["spec"]["token"].as_str().unwrap() {
        "valid" => account(ACCOUNT),
        "other-namespace" => account("system:serviceaccount:default:konnectivity-agent"),
        "other-account" => account("system:serviceaccount:kube-system:default"),
        "user" => account("admin"),
        "other-audience" => json!({
            "authenticated": true, "audiences": ["https://kubernetes.default.svc"], "user": {"username": ACCOUNT},
        }),
        "expired" => json!({"authenticated": false, "error": "token has expired"}),
        "failing" => return failure_reply(500, "InternalError"),
        _ => json!({"authenticated": false}),
    };
    token_review_reply(status)
}

async fn start_server(environment: &TestEnvironment) -> ServerProcess {
    let flags = token_flags(environment);
    let flags = flags.each_ref().map(String::as_str);
    ServerProcess::start_at(environment, "server", "http-connect", ("127.0.0.1", free_port()), &flags).await
}

fn start_agent(environment: &TestEnvironment, server: &ServerProcess, token: &str) -> AgentProcess {
    let file = environment.path(&format!("{token}.token"));
    std::fs::write(&file, token).unwrap();
    let flag = format!("--service-account-token-path={}", file.display());
    AgentProcess::start(environment, token, server.agent_port, &[&flag])
}

/// Each agent but one is refused, both sides say why, and no log has a token.
#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_tokens_of_other_accounts_are_refused() {
    let environment = new_environment();
    let reviewer = FakeReviewServer::start(&environment).await;
    reviewer.set_behavior(review);
    let server = start_server(&environment).await;
    let cases = [
        ("other-namespace", "incoming request from \"default\" namespace. Expected \"kube-system\""),
        ("other-account", "incoming request from \"default\" service account. Expected \"konnectivity-agent\""),
        ("user", "username returned is not a service account"),
        ("other-audience", "service account jwt not valid"),
        ("expired", "token has expired"),
        ("failing", "500"),
        ("unknown", "service account jwt not valid"),
    ];
    let mut refused = Vec::new();
    for (token, reason) in cases {
        let agent = start_agent(&environment, &server, token);
        let line = agent.process.wait_for_log(&["the server refuses the agent with gRPC status 2", reason]).await;
        assert!(line.contains("--agent-service-account") && line.contains(&format!("{token}.token")), "{line}");
        server.process.wait_for_log(&["agent refused", reason]).await;
        refused.push(agent);
    }
    // Without a token.
    let agent = AgentProcess::start(&environment, "without", server.agent_port, &[]);
    agent.process.wait_for_log(&["Authentication context was not found in metadata"]).await;
    assert!(!server.is_ready());
    let _agent = start_agent(&environment, &server, "valid");
    server.wait_for_agents(1).await;
    let report = status_json(server.admin);
    assert_eq!(report["agents"][0]["agentId"], "valid");
    let failures = report["refusedConnections"].to_string();
    for (_, reason) in cases {
        let reason = serde_json::to_string(reason).unwrap();
        assert!(failures.contains(reason.trim_matches('"')), "{reason}: {failures}");
    }
}

/// A review is used for ten seconds. When the API server fails, a token that was valid is not taken for valid.
#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_token_reviews_expire_after_ten_seconds() {
    let environment = new_environment();
    let reviewer = FakeReviewServer::start(&environment).await;
    let is_failing = Arc::<AtomicBool>::default();
    let fails = is_failing.clone();
    reviewer.set_behavior(move |question| match fails.load(SeqCst) {
        true => failure_reply(503, "ServiceUnavailable"),
        false => review(question),
    });
    let server = start_server(&environment).await;
    let first = start_agent(&environment, &server, "valid");
    server.wait_for_agents(1).await;
    drop(first);
    server.wait_for_agents(0).await;
    is_failing.store(true, SeqCst);
    let refused = ["the server refuses the agent with gRPC status 2", "503"];
    let _agent = eventually("the review to expire", async || {
        let agent = start_agent(&environment, &server, "valid");
        let is_refused = eventually("an answer to the agent", async || {
            let lines = agent.process.log_lines();
            let is_refused = lines.iter().any(|line| refused.iter().all(|text| line.contains(text)));
            (is_refused || server.is_ready()).then_some(is_refused)
        });
        if is_refused.await {
            return Some(agent);
        }
        // From the cache.
        assert_eq!(reviewer.review_count(), 1);
        drop(agent);
        server.wait_for_agents(0).await;
        None
    })
    .await;
    assert!(!server.is_ready());
    is_failing.store(false, SeqCst);
    server.wait_for_agents(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_server_outside_of_a_pod_needs_a_kubeconfig_for_tokens() {
    let environment = new_environment();
    let ports = (environment.path("server.sock"), free_port(), free_port());
    let agents = ("127.0.0.1", free_port());
    let arguments = server_arguments(&environment, "server", "grpc", agents, (&ports.0, ports.1, ports.2));
    let flags = token_flags(&environment).into_iter().filter(|flag| !flag.starts_with("--kubeconfig="));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_narthex"));
    let output = command.env_clear().args(arguments).args(flags).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("KUBERNETES_SERVICE_HOST") && errors.contains("--kubeconfig: "), "{errors}");
}
