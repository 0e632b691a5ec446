//! Impersonation (`kubectl --as`).

use http::Method;
use serde_json::{Value, json};

use crate::authn::identity::{identity_headers, send_raw};
use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::client::{Client, ClientResponse, get, metric_value, request};
use crate::support::fake_review_server::{
    FakeReviewServer, ReviewReply, access_review_reply, default_reply, failure_reply,
};
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

/// The sample that we ship, and jane's right to be bob, in the way there always was.
const EXTRA_POLICY: &str = "
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: be-bob}
rules:
- {verbs: [impersonate], apiGroups: [''], resources: [users], resourceNames: [bob, 'system:anonymous']}
- {verbs: [impersonate], apiGroups: [''], resources: [groups], resourceNames: [devs, 'system:masters', '']}
- {verbs: [impersonate], apiGroups: [''], resources: [serviceaccounts], resourceNames: [robot]}
- {verbs: [impersonate], apiGroups: [authentication.k8s.io], resources: [uids], resourceNames: [b-1]}
- {verbs: [impersonate], apiGroups: [authentication.k8s.io], resources: [userextras/scopes, userextras/a.b/c]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: be-bob}
roleRef: {kind: ClusterRole, name: be-bob}
subjects: [{kind: User, name: jane}]
";

struct ImpersonationPolicyFixture {
    setup: GatewayFixture,
    backend: Backend,
}

impl ImpersonationPolicyFixture {
    /// Judged by the sample policy and [`EXTRA_POLICY`].
    async fn new(settings: BackendSettings, code: u16, more: &[&str]) -> ImpersonationPolicyFixture {
        let environment = TestEnvironment::new();
        let backend = Backend::start(&environment, settings, move |_| async move { response(code, "{}") }).await;
        let policy = environment.path("policy.yaml");
        let sample = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/standalone/policy.yaml"));
        std::fs::write(&policy, format!("{sample}{EXTRA_POLICY}")).unwrap();
        let file = format!("--authorization-policy-file={}", policy.display());
        let mut flags = vec!["--authorization-mode=Static", &*file];
        flags.extend(more);
        let setup = GatewayFixture::with_flags(environment, &[&backend], &[], &flags);
        ImpersonationPolicyFixture { setup, backend }
    }

    async fn client_as(&self, name: &str, groups: &[&str]) -> Client {
        Client::http1(
            &self.setup.environment,
            &self.setup.gateway,
            Some(&self.setup.environment.issue_user(name, groups)),
        )
        .await
    }

    async fn metric(&self, name: &str) -> f64 {
        metric_value(&self.setup.gateway, name).await.unwrap_or_default()
    }
}

const IMPERSONATE_BOB: &[(&str, &str)] = &[
    ("Impersonate-User", "bob"),
    ("Impersonate-Uid", "b-1"),
    ("Impersonate-Group", "devs"),
    ("Impersonate-Extra-Scopes", "x"),
    ("Impersonate-Extra-a.b%2fC", "y"),
    ("Impersonate-Extra-scopes", "z"),
];

const EXPECTED_BOB_HEADERS: &[&str] = &[
    "x-remote-extra-a.b%2fc: y",
    "x-remote-extra-scopes: x",
    "x-remote-extra-scopes: z",
    "x-remote-group: devs",
    "x-remote-group: system:authenticated",
    "x-remote-uid: b-1",
    "x-remote-user: bob",
];

/// What is no impersonation header but might be taken for one.
const LOOKALIKE_HEADERS: &[(&str, &str)] = &[
    ("Impersonate_User", "root"),
    ("Impersonate_Group", "system:masters"),
    ("Impersonate.Uid", "0"),
    ("Impersonate-Groups", "system:masters"),
    ("Impersonate-Extra_x", "x"),
    ("X-Remote-User", "root"),
    ("X-Remote-Group", "system:masters"),
    ("X-Remote-Extra-Scopes", "all"),
];

#[tokio::test]
async fn impersonation_backend_sees_impersonated_user_only() {
    let fixture = ImpersonationPolicyFixture::new(BackendSettings::default(), 200, &["--access-log=all"]).await;
    let lines: Vec<(&str, &str)> = IMPERSONATE_BOB.iter().chain(LOOKALIKE_HEADERS).copied().collect();
    for client in fixture.setup.both_protocols().await {
        let read = client.send_and_read(get(THINGS, &lines)).await;
        assert_eq!(read.status, 200, "{}", read.text());
        assert_eq!(identity_headers(&fixture.backend.last_request()), EXPECTED_BOB_HEADERS);
    }
    // The record names both.
    fixture.setup.gateway.wait_for_log(&["access", "user=\"jane\" groups=2 as=\"bob\" as_groups=2 verb=LIST"]).await;
    let allowed = "apiserver_impersonation_attempts_total{decision=\"allowed\",mode=\"legacy\"}";
    assert_eq!(fixture.metric(allowed).await, 2.0);
}

/// As themselves again on the same connection.
#[tokio::test]
async fn impersonation_lookalike_headers_ignored_and_removed() {
    let fixture = ImpersonationPolicyFixture::new(BackendSettings::default(), 200, &[]).await;
    let empty = [("Impersonate-User", ""), ("Impersonate-Uid", "")];
    for client in fixture.setup.both_protocols().await {
        for lines in [LOOKALIKE_HEADERS, &empty] {
            client.send_and_read(get(THINGS, IMPERSONATE_BOB)).await;
            let read = client.send_and_read(get(THINGS, lines)).await;
            assert_eq!(read.status, 200, "{}", read.text());
            let seen = fixture.backend.last_request();
            assert_eq!(seen.header_values("x-remote-user"), ["jane"]);
            assert_eq!(seen.header_values("x-remote-group"), ["devs", "system:authenticated"]);
            assert!(identity_headers(&seen).iter().all(|line| !line.starts_with("impersonate")), "{seen:?}");
        }
    }
}

#[tokio::test]
async fn impersonation_applies_to_upgrades() {
    let fixture = ImpersonationPolicyFixture::new(BackendSettings::http1(), 418, &[]).await;
    for protocol in ["SPDY/3.1", "websocket"] {
        let mut text = format!(
            "GET {THINGS}/one HTTP/1.1\r\nHost: localhost\r\nUpgrade: {protocol}\r\n\
             Connection: Impersonate-Group, Upgrade, Impersonate-User\r\n"
        );
        for (name, value) in IMPERSONATE_BOB.iter().chain(LOOKALIKE_HEADERS) {
            text += &format!("{name}: {value}\r\n");
        }
        let response =
            send_raw(&fixture.setup.environment, &fixture.setup.gateway, Some(&fixture.setup.jane), &(text + "\r\n"))
                .await;
        assert!(response.starts_with("HTTP/1.1 418 "), "{response}");
        assert_eq!(identity_headers(&fixture.backend.last_request()), EXPECTED_BOB_HEADERS, "{protocol}");
    }
}

#[tokio::test]
async fn impersonation_inconsistent_headers_are_400() {
    let fixture = ImpersonationPolicyFixture::new(BackendSettings::default(), 200, &[]).await;
    let anonymous = |dump: &str| format!("requested &user.DefaultInfo{{{dump}}} without impersonating a user name");
    let cases: Vec<(Vec<(&str, &str)>, String)> = vec![
        (
            vec![("Impersonate-Group", "a"), ("Impersonate-Group", "")],
            anonymous(r#"Name:"", UID:"", Groups:[]string{"a", ""}, Extra:map[string][]string(nil)"#),
        ),
        (
            vec![("Impersonate-User", ""), ("Impersonate-Uid", "1")],
            anonymous(r#"Name:"", UID:"1", Groups:[]string(nil), Extra:map[string][]string(nil)"#),
        ),
        (
            vec![("Impersonate-Extra-A", "1")],
            anonymous(r#"Name:"", UID:"", Groups:[]string(nil), Extra:map[string][]string{"a":[]string{"1"}}"#),
        ),
        (
            vec![("Impersonate-User", ""), ("Impersonate-User", "bob"), ("Impersonate-Group", "a")],
            anonymous(r#"Name:"", UID:"", Groups:[]string{"a"}, Extra:map[string][]string(nil)"#),
        ),
    ];
    for client in fixture.setup.both_protocols().await {
        for (lines, message) in &cases {
            let status = client.send_and_read(get(THINGS, lines)).await.assert_failure(400, "BadRequest");
            let expected = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": "BadRequest", "code": 400});
            assert_eq!(status, expected);
        }
    }
    let mut odd = get(THINGS, &[("Impersonate-User", "bob")]);
    odd.headers_mut().insert("impersonate-group", http::HeaderValue::from_bytes(b"\xff\xfe").unwrap());
    fixture.setup.http2().await.send_and_read(odd).await.assert_failure(400, "BadRequest");
    assert!(fixture.backend.received().is_empty());
}

#[tokio::test]
async fn impersonation_denied_with_upstream_message() {
    let fixture = ImpersonationPolicyFixture::new(BackendSettings::default(), 200, &[]).await;
    let jane = fixture.setup.http1().await;
    let status = jane.send_and_read(get(&format!("{THINGS}/door"), &[("Impersonate-User", "root")])).await;
    let expected = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "things.things.example.com \"door\" is forbidden: User \"jane\" cannot impersonate-on:user-info:get \
                    resource \"things\" in API group \"things.example.com\" in the namespace \"default\"",
        "reason": "Forbidden", "details": {"name": "door", "group": "things.example.com", "kind": "things"},
        "code": 403,
    });
    assert_eq!(status.assert_failure(403, "Forbidden"), expected);
    // Support may look as a developer, and no more; what the developer may not, neither.
    let sue = fixture.client_as("sue", &["support"]).await;
    let as_jane = [("Impersonate-User", "jane"), ("Impersonate-Group", "devs")];
    assert_eq!(sue.send_and_read(get(THINGS, &as_jane)).await.status, 200);
    assert_eq!(
        identity_headers(&fixture.backend.last_request()),
        ["x-remote-group: devs", "x-remote-group: system:authenticated", "x-remote-user: jane"]
    );
    for (ask, message) in [
        (
            request(Method::POST, THINGS, &as_jane, "{}"),
            "things.things.example.com is forbidden: User \"sue\" cannot impersonate-on:user-info:create resource \
             \"things\" in API group \"things.example.com\" in the namespace \"default\"",
        ),
        (
            get(THINGS, &[as_jane[0], ("Impersonate-Group", "system:masters")]),
            "groups.authentication.k8s.io \"system:masters\" is forbidden: User \"sue\" cannot impersonate:user-info \
             resource \"groups\" in API group \"authentication.k8s.io\" at the cluster scope: impersonating the \
             system:masters group is not allowed",
        ),
        (
            get(THINGS, &[("Impersonate-User", "jane")]),
            "things.things.example.com is forbidden: User \"jane\" cannot list resource \"things\" in API group \
             \"things.example.com\" in the namespace \"default\"",
        ),
    ] {
        assert_eq!(sue.send_and_read(ask).await.assert_failure(403, "Forbidden")["message"], message);
    }
    assert_eq!(fixture.backend.received().len(), 1);
}

#[tokio::test]
async fn impersonation_of_dropped_groups_ignored() {
    let masters = [("Impersonate-User", "bob"), ("Impersonate-Group", "system:masters"), ("Impersonate-Group", "devs")];
    let fixture = ImpersonationPolicyFixture::new(BackendSettings::default(), 200, &[]).await;
    assert_eq!(
        fixture
            .setup
            .http1()
            .await
            .send_and_read(request(Method::PUT, &format!("{THINGS}/x/status"), &masters, "{}"))
            .await
            .status,
        200
    );
    let fixture = ImpersonationPolicyFixture::new(
        BackendSettings::default(),
        200,
        &["--authentication-drop-groups=system:masters,other*"],
    )
    .await;
    for client in fixture.setup.both_protocols().await {
        let write = request(Method::PUT, &format!("{THINGS}/x/status"), &masters, "{}");
        client.send_and_read(write).await.assert_failure(403, "Forbidden");
        assert_eq!(client.send_and_read(get(THINGS, &masters)).await.status, 200);
        assert_eq!(fixture.backend.last_request().header_values("x-remote-group"), ["devs", "system:authenticated"]);
        // Dropped is not the same as not judged.
        client
            .send_and_read(get(THINGS, &[("Impersonate-User", "bob"), ("Impersonate-Group", "others")]))
            .await
            .assert_failure(403, "Forbidden");
    }
}

#[tokio::test]
async fn impersonation_self_reviews_answered_for_impersonated_user() {
    let fixture = ImpersonationPolicyFixture::new(BackendSettings::default(), 200, &[]).await;
    let jane = fixture.setup.http1().await;
    let ask = async |group: &str, kind: &str, spec: Value, lines: &[(&str, &str)]| {
        let path = format!("/apis/{group}/v1/{}s", kind.to_lowercase());
        let body = json!({"kind": kind, "apiVersion": format!("{group}/v1"), "spec": spec}).to_string();
        let lines: Vec<_> = lines.iter().copied().chain([("content-type", "application/json")]).collect();
        let read = jane.send_and_read(request(Method::POST, &path, &lines, &body)).await;
        assert_eq!(read.status, 201, "{}", read.text());
        read.json()["status"].clone()
    };
    assert_eq!(
        ask("authentication.k8s.io", "SelfSubjectReview", json!({}), IMPERSONATE_BOB).await,
        json!({"userInfo": {"username": "bob", "uid": "b-1", "groups": ["devs", "system:authenticated"],
            "extra": {"scopes": ["x", "z"], "a.b/c": ["y"]}}})
    );
    let may = json!({"resourceAttributes": {"verb": "list", "group": "things.example.com", "resource": "things"}});
    for (lines, allowed) in [(&[][..], true), (IMPERSONATE_BOB, true), (&IMPERSONATE_BOB[..1], false)] {
        let status = ask("authorization.k8s.io", "SelfSubjectAccessReview", may.clone(), lines).await;
        assert_eq!(status["allowed"], allowed, "{lines:?}");
    }
    let robot = [("Impersonate-User", "system:serviceaccount:robots:robot")];
    let groups = ["system:serviceaccounts", "system:serviceaccounts:robots", "system:authenticated"];
    let user = json!({"userInfo": {"username": robot[0].1, "groups": groups}});
    assert_eq!(ask("authentication.k8s.io", "SelfSubjectReview", json!({}), &robot).await, user);
}

/// Asks a reviewer about everything.
struct ImpersonationReviewFixture {
    setup: GatewayFixture,
    reviewer: FakeReviewServer,
    backend: Backend,
}

impl ImpersonationReviewFixture {
    async fn new(more: &[&str]) -> ImpersonationReviewFixture {
        let environment = TestEnvironment::new();
        let backend = Backend::start(&environment, BackendSettings::http2(), |_| async { response(200, "{}") }).await;
        let reviewer = FakeReviewServer::start(&environment).await;
        let kubeconfig = format!("--authorization-kubeconfig={}", environment.path("reviewer.kubeconfig").display());
        let mut flags = vec!["--authorization-mode=Webhook", &*kubeconfig];
        flags.extend(more);
        let setup = GatewayFixture::with_flags(environment, &[&backend], &[], &flags);
        ImpersonationReviewFixture { setup, reviewer, backend }
    }

    /// The questions so far: `verb resource.group/name subresource`, in order.
    fn review_questions(&self) -> Vec<String> {
        let reviews = self.reviewer.reviews("SubjectAccessReview");
        reviews.iter().map(describe_review).collect()
    }
}

fn describe_review(review: &Value) -> String {
    let recorded = &review["spec"]["resourceAttributes"];
    let word = |key: &str| recorded[key].as_str().unwrap_or_default().to_owned();
    let user = review["spec"]["user"].as_str().unwrap_or_default();
    format!("{user}: {} {}.{} {}/{}", word("verb"), word("resource"), word("group"), word("subresource"), word("name"))
}

#[tokio::test]
async fn impersonation_access_reviews_as_upstream() {
    let fixture = ImpersonationReviewFixture::new(&["--authorization-webhook-cache-authorized-ttl=1h"]).await;
    let jane = fixture.setup.http2().await;
    for _ in 0..2 {
        let read = jane.send_and_read(get(THINGS, &[("Impersonate-User", "bob"), ("Impersonate-Uid", "7")])).await;
        assert_eq!(read.status, 200, "{}", read.text());
    }
    let mut recorded = fixture.review_questions();
    recorded[1..3].sort_unstable();
    assert_eq!(
        recorded,
        [
            "jane: impersonate-on:user-info:list things.things.example.com /",
            "jane: impersonate:user-info uids.authentication.k8s.io /7",
            "jane: impersonate:user-info users.authentication.k8s.io /bob",
            "bob: list things.things.example.com /",
        ]
    );
    let first = &fixture.reviewer.reviews("SubjectAccessReview")[3];
    assert_eq!(
        first["spec"],
        json!({"resourceAttributes": {"namespace": "default", "verb": "list", "group": "things.example.com",
            "version": "v1", "resource": "things"}, "user": "bob", "uid": "7", "groups": ["system:authenticated"]})
    );
    assert_eq!(identity_headers(&fixture.backend.last_request())[1..], ["x-remote-uid: 7", "x-remote-user: bob"]);
    // Only the old right: the constrained one is asked for once, and from then on the old one first.
    let fixture = ImpersonationReviewFixture::new(&["--authorization-webhook-cache-unauthorized-ttl=1h"]).await;
    fixture.reviewer.set_behavior(|review| {
        let verb = review["spec"]["resourceAttributes"]["verb"].as_str().unwrap_or_default();
        access_review_reply(json!({"allowed": !verb.contains(':'), "reason": "no constraints"}))
    });
    let jane = fixture.setup.http1().await;
    for user in ["bob", "eve"] {
        let lines = [("Impersonate-User", user), ("Impersonate-Extra-Scopes", "a"), ("Impersonate-Extra-Scopes", "b")];
        assert_eq!(jane.send_and_read(get(THINGS, &lines)).await.status, 200);
    }
    let mut recorded = fixture.review_questions();
    recorded[1..4].sort_unstable();
    recorded[5..].sort_unstable();
    assert_eq!(
        recorded,
        [
            "jane: impersonate-on:user-info:list things.things.example.com /",
            "jane: impersonate userextras.authentication.k8s.io scopes/a",
            "jane: impersonate userextras.authentication.k8s.io scopes/b",
            "jane: impersonate users. /bob",
            "bob: list things.things.example.com /",
            "eve: list things.things.example.com /",
            "jane: impersonate users. /eve",
        ]
    );
}

/// Any invalid review denies the impersonation.
#[tokio::test]
async fn impersonation_review_failure_is_403() {
    let fixture = ImpersonationReviewFixture::new(&[]).await;
    let cases: Vec<(&str, ReviewReply, &str)> = vec![
        ("no", access_review_reply(json!({"allowed": false})), ""),
        ("no, with a reason", access_review_reply(json!({"allowed": false, "reason": "go away"})), ": go away"),
        ("never", access_review_reply(json!({"allowed": false, "denied": true, "reason": "never"})), ": never"),
        ("yes and no", access_review_reply(json!({"allowed": true, "denied": true})), ": an authorizer failed"),
        ("no status", ReviewReply::Text(201, r#"{"kind":"SubjectAccessReview"}"#), ": an authorizer failed"),
        ("no JSON", ReviewReply::Text(200, "<html>secret words</html>"), ": an authorizer failed"),
        ("we may not ask", failure_reply(403, "Forbidden"), ": an authorizer failed"),
        ("an internal error", failure_reply(500, "InternalError"), ": an authorizer failed"),
    ];
    let replies: Vec<ReviewReply> = cases.iter().map(|(_, reply, _)| reply.clone()).collect();
    fixture.reviewer.set_behavior(move |review| {
        let name = review["spec"]["resourceAttributes"]["name"].as_str().unwrap_or_default();
        match name.strip_prefix("case-").and_then(|number| replies.get(number.parse::<usize>().ok()?)) {
            Some(reply) => reply.clone(),
            None => default_reply(review),
        }
    });
    let jane = fixture.setup.http2().await;
    let pending = (0..cases.len()).map(|number| {
        let jane = jane.clone();
        async move { jane.send_and_read(get(THINGS, &[("Impersonate-User", &*format!("case-{number}"))])).await }
    });
    let responses: Vec<ClientResponse> = futures_util::future::join_all(pending).await;
    for (number, (response, (name, _, reason))) in responses.iter().zip(&cases).enumerate() {
        let status = response.assert_failure(403, "Forbidden");
        assert_eq!(
            status["message"],
            format!(
                "users.authentication.k8s.io \"case-{number}\" is forbidden: User \"jane\" cannot impersonate:user-info \
                 resource \"users\" in API group \"authentication.k8s.io\" at the cluster scope{reason}"
            ),
            "{name}"
        );
        assert!(!response.text().contains("secret"), "{name}");
    }
    assert!(fixture.backend.received().is_empty());
    // No response: the client's timeout ends the request.
    fixture.reviewer.set_behavior(|_| ReviewReply::Hang);
    let late = get(&format!("{THINGS}?timeout=300ms"), &[("Impersonate-User", "somebody")]);
    jane.send_and_read(late).await.assert_failure(504, "Timeout");
    assert!(fixture.backend.received().is_empty());
}

/// Ten groups do not take ten times as long, and a hundred are not asked for all at once.
#[tokio::test]
async fn impersonation_reviews_run_concurrently_with_limit() {
    let fixture = ImpersonationReviewFixture::new(&[]).await;
    let (release, until) = tokio::sync::watch::channel(());
    fixture.reviewer.set_behavior(move |review| {
        let recorded = &review["spec"]["resourceAttributes"];
        if recorded["resource"] == "groups" && recorded["name"] != "*" {
            return ReviewReply::Delay(until.clone(), Box::new(default_reply(review)));
        }
        access_review_reply(json!({"allowed": recorded["name"] != "*"}))
    });
    let names: Vec<String> = (0..30).map(|number| format!("g{number}")).collect();
    let mut lines = vec![("Impersonate-User", "bob")];
    lines.extend(names.iter().map(|name| ("Impersonate-Group", &**name)));
    let jane = fixture.setup.http1().await;
    let (read, ()) = tokio::join!(jane.send_and_read(get(THINGS, &lines)), async {
        let waiting = || {
            fixture
                .review_questions()
                .iter()
                .filter(|recorded| recorded.contains("groups.") && !recorded.contains('*'))
                .count()
        };
        eventually("several to wait", async || (waiting() == 8).then_some(())).await;
        drop(release);
    });
    assert_eq!(read.status, 200, "{}", read.text());
    let groups = fixture.backend.last_request().header_values("x-remote-group");
    assert_eq!(groups[..30], names);
}
