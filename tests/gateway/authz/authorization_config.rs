//! `--authorization-config`: a chain of webhooks and RBAC objects, with match conditions and failure policies.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde_json::{Value, json};

use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::client::{Client, ClientResponse, admin_request, get, metric_value};
use crate::support::fake_review_server::{FakeReviewServer, ReviewReply, access_review_reply, failure_reply};
use crate::support::fixtures::{CertKeyPair, TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

const OTHERS: &str = "/apis/things.example.com/v1/namespaces/other/things";
const POLICY: &str = "
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules: [{apiGroups: ['*'], resources: ['*'], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: devs}
roleRef: {kind: ClusterRole, name: reader}
subjects: [{kind: Group, name: devs}]
";

/// A webhook that says what the test wants.
pub(crate) fn webhook_entry(name: &str, kubeconfig: &str, more: &Value) -> Value {
    let mut webhook = json!({
        "timeout": "3s", "subjectAccessReviewVersion": "v1", "failurePolicy": "NoOpinion",
        "matchConditionSubjectAccessReviewVersion": "v1",
        "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": kubeconfig},
    });
    for (field, value) in more.as_object().unwrap() {
        webhook[field] = value.clone();
    }
    json!({"type": "Webhook", "name": name, "webhook": webhook})
}

/// The RBAC objects of a file.
pub(crate) fn rbac_entry() -> Value {
    json!({"type": "RBAC", "name": "rbac"})
}

/// Writes a configuration.
pub(crate) fn write_configuration(path: &Path, authorizers: &[Value]) {
    let document = json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthorizationConfiguration", "authorizers": authorizers,
    });
    // By rename: half a file is a mistake, which this is not about.
    let hidden = path.with_extension("tmp");
    std::fs::write(&hidden, document.to_string()).unwrap();
    std::fs::rename(hidden, path).unwrap();
}

struct AuthorizationConfigFixture {
    setup: GatewayFixture,
    backend: Backend,
    file: PathBuf,
    /// Certificates are part of the identity: each user keeps one certificate.
    client_certificates: Mutex<HashMap<String, CertKeyPair>>,
}

impl AuthorizationConfigFixture {
    async fn new(environment: TestEnvironment, authorizers: &[Value]) -> AuthorizationConfigFixture {
        let backend = Backend::start(&environment, BackendSettings::http2(), |_| async { response(200, "{}") }).await;
        let (file, policy) = (environment.path("authorization.yaml"), environment.path("policy.yaml"));
        write_configuration(&file, authorizers);
        std::fs::write(&policy, POLICY).unwrap();
        let flags = [
            format!("--authorization-config={}", file.display()),
            format!("--authorization-policy-file={}", policy.display()),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let setup = GatewayFixture::with_flags(environment, &[&backend], &[], &flags);
        AuthorizationConfigFixture { setup, backend, file, client_certificates: Mutex::default() }
    }

    /// Sends a request as a user over a new connection.
    async fn get_as(&self, name: &str, groups: &[&str], path: &str) -> ClientResponse {
        let pair = {
            let mut people = self.client_certificates.lock().unwrap();
            let issued = || self.setup.environment.issue_user(name, groups);
            people.entry(format!("{name} {groups:?}")).or_insert_with(issued).clone()
        };
        Client::http2(&self.setup.environment, &self.setup.gateway, Some(&pair)).await.get(path).await
    }

    async fn metric(&self, name: &str) -> f64 {
        metric_value(&self.setup.gateway, name).await.unwrap_or_default()
    }
}

fn reply_with_status(status: Value) -> impl Fn(&Value) -> ReviewReply + Send + Sync + 'static {
    move |_| access_review_reply(status.clone())
}

#[tokio::test]
async fn authorization_chain_first_opinion_decides() {
    let environment = TestEnvironment::new();
    let (first, second) = (FakeReviewServer::start(&environment).await, FakeReviewServer::start(&environment).await);
    first.set_behavior(|question| match question["spec"]["user"].as_str() {
        Some("eve") => access_review_reply(json!({"allowed": false, "denied": true, "reason": "never eve"})),
        Some("jane") => access_review_reply(json!({"allowed": true})),
        _ => access_review_reply(json!({"allowed": false, "reason": "first does not know"})),
    });
    second.set_behavior(reply_with_status(json!({"allowed": false, "reason": "second does not know"})));
    let fixture = {
        let old = json!({"subjectAccessReviewVersion": "v1beta1"});
        let authorizers = [
            webhook_entry("first.example.com", &first.write_kubeconfig(&environment, "first", "/authorize/"), &old),
            rbac_entry(),
            webhook_entry("second", &second.write_kubeconfig(&environment, "second", ""), &json!({})),
        ];
        AuthorizationConfigFixture::new(environment, &authorizers).await
    };
    // The first says yes.
    assert_eq!(fixture.get_as("jane", &[], THINGS).await.status, 200);
    assert_eq!(
        first.last_review(),
        (
            "/authorize?timeout=3s".to_owned(),
            json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1beta1", "metadata": {}, "spec": {
                "resourceAttributes": {"namespace": "default", "verb": "list", "group": "things.example.com",
                    "version": "v1", "resource": "things"},
                "user": "jane", "group": ["system:authenticated"],
                "extra": first.last_review().1["spec"]["extra"]}, "status": {"allowed": false}})
        )
    );
    // It says nothing, and the RBAC objects say yes.
    assert_eq!(fixture.get_as("bob", &["devs"], THINGS).await.status, 200);
    assert_eq!((first.review_count(), second.review_count()), (2, 0));
    // The webhook denies, and no further authorizer is called.
    let status = fixture.get_as("eve", &["devs"], THINGS).await.assert_failure(403, "Forbidden");
    assert!(status["message"].as_str().unwrap().ends_with(": never eve"), "{status}");
    assert_eq!((first.review_count(), second.review_count()), (3, 0));
    // No authorizer has an opinion.
    let status = fixture.get_as("bob", &["ops"], THINGS).await.assert_failure(403, "Forbidden");
    let reasons = ": first does not know\nsecond does not know";
    assert!(status["message"].as_str().unwrap().ends_with(reasons), "{status}");
    let (target, question) = second.last_review();
    assert_eq!((&*target, &question["apiVersion"]), ("/?timeout=3s", &json!("authorization.k8s.io/v1")));
    assert_eq!(question["spec"]["groups"], json!(["ops", "system:authenticated"]));
    // system:masters is authorized without a webhook call.
    assert_eq!(fixture.get_as("root", &["system:masters"], THINGS).await.status, 200);
    assert_eq!((first.review_count(), second.review_count()), (4, 1));
    for (name, expected) in [
        (
            "apiserver_authorization_decisions_total{decision=\"allowed\",name=\"first.example.com\",type=\"Webhook\"}",
            1.0,
        ),
        (
            "apiserver_authorization_decisions_total{decision=\"denied\",name=\"first.example.com\",type=\"Webhook\"}",
            1.0,
        ),
        ("apiserver_authorization_decisions_total{decision=\"allowed\",name=\"rbac\",type=\"RBAC\"}", 1.0),
        ("apiserver_authorization_webhook_evaluations_total{name=\"first.example.com\",result=\"success\"}", 4.0),
        ("apiserver_authorization_webhook_evaluations_total{name=\"second\",result=\"success\"}", 1.0),
        ("apiserver_authorization_webhook_duration_seconds_count{name=\"second\",result=\"success\"}", 1.0),
        ("narthex_decision_cache_entries{cache=\"access\"}", 5.0),
    ] {
        assert_eq!(fixture.metric(name).await, expected, "{name}");
    }
}

#[tokio::test]
async fn authorization_webhook_match_conditions_select_requests() {
    let environment = TestEnvironment::new();
    let (strict, lenient) = (FakeReviewServer::start(&environment).await, FakeReviewServer::start(&environment).await);
    for reviewer in [&strict, &lenient] {
        reviewer.set_behavior(reply_with_status(json!({"allowed": false, "denied": true, "reason": "asked"})));
    }
    let conditions = |failure_policy: &str, name: &str| {
        json!({"failurePolicy": failure_policy, "matchConditions": [
            {"expression": "has(request.resourceAttributes)"},
            {"expression": format!("request.resourceAttributes.namespace == '{name}'")},
            // The expression fails for users without this key.
            {"expression": "request.user != 'broken' || request.extra['nothing'][0] == 'x'"},
        ]})
    };
    let fixture = {
        let authorizers = [
            webhook_entry(
                "lenient",
                &lenient.write_kubeconfig(&environment, "lenient", "/l"),
                &conditions("NoOpinion", "default"),
            ),
            webhook_entry(
                "strict",
                &strict.write_kubeconfig(&environment, "strict", "/s"),
                &conditions("Deny", "other"),
            ),
            rbac_entry(),
        ];
        AuthorizationConfigFixture::new(environment, &authorizers).await
    };
    // Both are left out of it, once by a condition that speaks of the request's other half.
    for _ in 0..3 {
        assert_eq!(
            fixture.get_as("bob", &["devs"], "/apis/things.example.com/v1/namespaces/third/things").await.status,
            200
        );
    }
    assert_eq!(fixture.get_as("bob", &["devs"], "/version").await.status, 403);
    assert_eq!((lenient.review_count(), strict.review_count()), (0, 0));
    assert_eq!(fixture.get_as("bob", &["devs"], THINGS).await.status, 403);
    assert_eq!(fixture.get_as("bob", &["devs"], OTHERS).await.status, 403);
    assert_eq!((lenient.review_count(), strict.review_count()), (1, 1));
    // A condition that cannot be evaluated is the failure policy's to judge, every time.
    for _ in 0..2 {
        assert_eq!(fixture.get_as("broken", &["devs"], THINGS).await.status, 200);
        fixture.get_as("broken", &["devs"], OTHERS).await.assert_failure(500, "InternalError");
    }
    assert_eq!((lenient.review_count(), strict.review_count()), (1, 1));
    for (name, expected) in [
        ("apiserver_authorization_match_condition_evaluation_errors_total{name=\"lenient\",type=\"Webhook\"}", 2.0),
        ("apiserver_authorization_match_condition_evaluation_errors_total{name=\"strict\",type=\"Webhook\"}", 2.0),
        // Thrice for the third namespace, once for the path, and for each question that was the other's.
        ("apiserver_authorization_match_condition_exclusions_total{name=\"strict\",type=\"Webhook\"}", 6.0),
        ("apiserver_authorization_match_condition_exclusions_total{name=\"lenient\",type=\"Webhook\"}", 7.0),
        ("apiserver_authorization_webhook_evaluations_fail_open_total{name=\"lenient\",result=\"error\"}", 0.0),
    ] {
        assert_eq!(fixture.metric(name).await, expected, "{name}");
    }
}

#[tokio::test]
async fn authorization_webhook_failure_policy_no_opinion_or_deny() {
    let environment = TestEnvironment::new();
    let (lenient, strict) = (FakeReviewServer::start(&environment).await, FakeReviewServer::start(&environment).await);
    lenient.set_behavior(|_| failure_reply(403, "Forbidden"));
    strict.set_behavior(|_| ReviewReply::Text(200, "<html>secret words</html>"));
    let others = |namespace: &str| json!([{"expression": format!("has(request.resourceAttributes) && request.resourceAttributes.namespace == '{namespace}'")}]);
    let fixture = {
        let authorizers = [
            webhook_entry(
                "lenient",
                &lenient.write_kubeconfig(&environment, "lenient", "/l"),
                &json!({"matchConditions": others("default")}),
            ),
            webhook_entry(
                "strict",
                &strict.write_kubeconfig(&environment, "strict", "/s"),
                &json!({"failurePolicy": "Deny", "matchConditions": others("other")}),
            ),
            rbac_entry(),
        ];
        AuthorizationConfigFixture::new(environment, &authorizers).await
    };
    assert_eq!(fixture.get_as("bob", &["devs"], THINGS).await.status, 200);
    // No authorizer allows it, and the webhook that might have is unavailable.
    let anonymous = fixture.get_as("bob", &[], THINGS).await;
    anonymous.assert_failure(500, "InternalError");
    let denied = fixture.get_as("bob", &["devs"], OTHERS).await;
    denied.assert_failure(500, "InternalError");
    assert!(!anonymous.text().contains("secret") && !denied.text().contains("secret"));
    assert_eq!(fixture.backend.received().len(), 1);
    for (name, expected) in [
        ("apiserver_authorization_webhook_evaluations_total{name=\"lenient\",result=\"error\"}", 2.0),
        ("apiserver_authorization_webhook_evaluations_fail_open_total{name=\"lenient\",result=\"error\"}", 2.0),
        ("apiserver_authorization_webhook_evaluations_total{name=\"strict\",result=\"error\"}", 1.0),
        ("apiserver_authorization_webhook_evaluations_fail_open_total{name=\"strict\",result=\"error\"}", 0.0),
    ] {
        assert_eq!(fixture.metric(name).await, expected, "{name}");
    }
}

#[tokio::test]
async fn authorization_webhook_cache_disabled_asks_every_time() {
    let environment = TestEnvironment::new();
    let reviewer = FakeReviewServer::start(&environment).await;
    reviewer.set_behavior(|question| access_review_reply(json!({"allowed": question["spec"]["user"] == "jane"})));
    let fixture = {
        let forgetful = json!({"cacheAuthorizedRequests": false});
        let authorizers = [webhook_entry("a", &reviewer.write_kubeconfig(&environment, "a", "/a"), &forgetful)];
        AuthorizationConfigFixture::new(environment, &authorizers).await
    };
    for recorded in 1..=2 {
        assert_eq!(fixture.get_as("jane", &[], THINGS).await.status, 200);
        assert_eq!(fixture.get_as("bob", &[], THINGS).await.status, 403);
        assert_eq!(reviewer.review_count(), recorded + 1, "bob is asked about once");
    }
}

#[tokio::test]
async fn authorization_config_reloaded_and_invalid_one_ignored() {
    let environment = TestEnvironment::new();
    let (first, second) = (FakeReviewServer::start(&environment).await, FakeReviewServer::start(&environment).await);
    let of_first = first.write_kubeconfig(&environment, "first", "/first");
    let of_second = second.write_kubeconfig(&environment, "second", "/second");
    let fixture = AuthorizationConfigFixture::new(environment, &[webhook_entry("first", &of_first, &json!({}))]).await;
    assert_eq!(fixture.get_as("jane", &[], THINGS).await.status, 200);
    assert_eq!(first.review_count(), 1);
    let reloads = |status: &str| {
        let name = "apiserver_authorization_config_controller_automatic_reloads_total{";
        let (gateway, end) = (&fixture.setup.gateway, format!("status=\"{status}\"}} "));
        async move {
            let text = admin_request(gateway, get("/metrics", &[])).await.text();
            let line = text.lines().find(|line| line.starts_with(name) && line.contains(&end));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or_default()
        }
    };

    // A mistake: what was good stays.
    write_configuration(
        &fixture.file,
        &[webhook_entry("first", &of_first, &json!({"timeout": "never"})), rbac_entry()],
    );
    let line = fixture.setup.gateway.wait_for_log(&["authorization configuration changed and is invalid"]).await;
    assert!(line.contains("authorizers[0].webhook.timeout: time: invalid duration"), "{line}");
    eventually("the failure to be counted", async || (reloads("failure").await == 1).then_some(())).await;
    let status = async || admin_request(&fixture.setup.gateway, get("/status.json", &[])).await.json();
    let message = status().await;
    assert_eq!(message["authorizers"], json!(["Webhook first"]));
    let problem = message["fileProblems"][0].as_str().unwrap();
    assert!(problem.contains("authorizers[0].webhook.timeout: time: invalid duration"), "{problem}");
    assert_eq!(fixture.get_as("eve", &[], THINGS).await.status, 200);
    assert_eq!(first.review_count(), 2);

    // Another webhook in front, and the one there was as it is: it still knows what it said.
    second.set_behavior(reply_with_status(json!({"allowed": false})));
    write_configuration(
        &fixture.file,
        &[webhook_entry("second", &of_second, &json!({})), webhook_entry("first", &of_first, &json!({}))],
    );
    eventually("the reload", async || (reloads("success").await == 1).then_some(())).await;
    eventually("the status to say so", async || {
        let message = status().await;
        (message["authorizers"] == json!(["Webhook second", "Webhook first"]) && message["fileProblems"] == json!([]))
            .then_some(())
    })
    .await;
    assert_eq!(fixture.get_as("jane", &[], THINGS).await.status, 200);
    assert_eq!((first.review_count(), second.review_count()), (2, 1));

    // A kubeconfig that is not there yet, and then is.
    let missing = fixture.setup.environment.path("third.kubeconfig").display().to_string();
    write_configuration(&fixture.file, &[webhook_entry("third", &missing, &json!({}))]);
    let line =
        fixture.setup.gateway.wait_for_log(&["changed and is invalid", "third.kubeconfig: cannot be read"]).await;
    assert!(line.contains("authorizers[0].webhook.connectionInfo: "), "{line}");
    let third = FakeReviewServer::start(&fixture.setup.environment).await;
    third.set_behavior(reply_with_status(json!({"allowed": false, "reason": "third"})));
    third.write_kubeconfig(&fixture.setup.environment, "third", "/third");
    eventually("the third", async || {
        let response = fixture.get_as("jane", &[], THINGS).await;
        (response.status == 403).then_some(())
    })
    .await;
    assert_eq!(third.last_review().0, "/third?timeout=3s");
    // Removed webhooks are not called.
    assert_eq!((first.review_count(), second.review_count()), (2, 1));
    assert_eq!(fixture.metric("narthex_decision_cache_entries{cache=\"access\"}").await, 1.0);
}

/// Impersonation is authorized by the chain, and needs an authorizer with an opinion.
#[tokio::test]
async fn impersonation_authorized_by_authorization_chain() {
    let environment = TestEnvironment::new();
    let reviewer = FakeReviewServer::start(&environment).await;
    reviewer.set_behavior(|question| {
        let spec = &question["spec"];
        let (user, what) = (&spec["user"], &spec["resourceAttributes"]);
        let allowed = *user == "bob" || *user == "jane" && what["verb"] == "impersonate" && what["name"] == "bob";
        access_review_reply(json!({"allowed": allowed}))
    });
    let sidecar = webhook_entry("guard", &reviewer.write_kubeconfig(&environment, "guard", "/guard"), &json!({}));
    let allow_all = json!({"type": "AlwaysAllow", "name": "alwaysallow"});
    let fixture = AuthorizationConfigFixture::new(environment, &[sidecar, allow_all.clone()]).await;
    let pair = fixture.setup.environment.issue_user("jane", &[]);
    let client = Client::http2(&fixture.setup.environment, &fixture.setup.gateway, Some(&pair)).await;
    let ask = async |name: &str| client.send_and_read(get(THINGS, &[("impersonate-user", name)])).await;
    assert_eq!(ask("bob").await.status, 200);
    assert_eq!(fixture.backend.last_request().header_values("x-remote-user"), ["bob"]);
    // AlwaysAllow allows requests but no impersonation.
    ask("eve").await.assert_failure(403, "Forbidden");
    write_configuration(&fixture.file, &[allow_all]);
    let words = "no authorization mode of this gateway";
    eventually("the guard to be gone", async || ask("bob").await.text().contains(words).then_some(())).await;
    assert_eq!(client.get(THINGS).await.status, 200);
}

#[tokio::test]
async fn authorization_webhook_flags_request_url_and_version() {
    for (flag, version, groups) in [("--authorization-webhook-version=v1", "v1", "groups"), ("", "v1beta1", "group")] {
        let environment = TestEnvironment::new();
        let reviewer = FakeReviewServer::start(&environment).await;
        let file =
            format!("--authorization-webhook-config-file={}", reviewer.write_kubeconfig(&environment, "hook", "/hook"));
        let backend = Backend::start(&environment, BackendSettings::http2(), |_| async { response(200, "{}") }).await;
        let flags = ["--authorization-mode=Webhook", &file, flag];
        let flags: Vec<&str> = flags.into_iter().filter(|flag| !flag.is_empty()).collect();
        let setup = GatewayFixture::with_flags(environment, &[&backend], &[], &flags);
        assert_eq!(setup.http2().await.get(THINGS).await.status, 200);
        let (target, question) = reviewer.last_review();
        assert_eq!(target, "/hook?timeout=10s");
        assert_eq!(question["apiVersion"], format!("authorization.k8s.io/{version}"));
        assert_eq!(question["spec"][groups], json!(["devs", "system:authenticated"]));
        let name = "apiserver_authorization_webhook_evaluations_total{name=\"default\",result=\"success\"}";
        assert_eq!(metric_value(&setup.gateway, name).await, Some(1.0));
    }
}

#[tokio::test]
async fn authorization_config_errors_reported_before_start() {
    let environment = TestEnvironment::new();
    let file = environment.path("authorization.yaml");
    let conditions = json!({"matchConditions": [{"expression": "request.usr == 'x'"}, {"expression": "request.user"}]});
    write_configuration(
        &file,
        &[webhook_entry("a", "/nowhere/a.kubeconfig", &conditions), json!({"type": "Node", "name": "node"})],
    );
    let check = |more: &[&str]| {
        let mut line = vec!["check".to_owned(), "gateway".to_owned()];
        line.extend(environment.gateway_arguments(&[&format!("--authorization-config={}", file.display())]));
        line.extend(more.iter().map(|more| (*more).to_owned()));
        let output = run_narthex(&line);
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, output_text) =
        check(&["--authorization-mode=Static", "--authorization-webhook-cache-authorized-ttl=1s"]);
    assert_eq!(status, Some(1), "{output_text}");
    for words in [
        "--authorization-config: can not be specified together with --authorization-mode",
        "--authorization-config: can not be specified together with --authorization-webhook-cache-authorized-ttl",
        "authorizers[0].webhook.matchConditions[0].expression: \"request.usr == 'x'\": compilation failed: undefined \
         field 'usr'",
        "authorizers[0].webhook.matchConditions[1].expression: \"request.user\": must evaluate to bool",
        "authorizers[1].type: \"Node\" is not supported: it is for kubelets",
    ] {
        assert!(output_text.contains(words), "{words}\n{output_text}");
    }
    write_configuration(&file, &[webhook_entry("a", "/nowhere/a.kubeconfig", &json!({})), rbac_entry()]);
    let (status, output_text) = check(&[]);
    assert_eq!(status, Some(1), "{output_text}");
    for words in [
        "authorizers[0].webhook.connectionInfo: /nowhere/a.kubeconfig: cannot be read",
        "authorizers[1].type: RBAC requires --authorization-policy-file, the file with the RBAC objects",
    ] {
        assert!(output_text.contains(words), "{words}\n{output_text}");
    }
}
