//! Decisions of one control plane, cached or not, do not count for another: tokens, keys of issuers, reviews, CAs.

use std::collections::BTreeSet;
use std::fs;
use std::time::SystemTime;

use narthex::tls::{Authority, CertificateSpec as CertificateRequest};
use serde_json::{Value, json};

use crate::control_planes::fixture::{
    TestControlPlane, connect, get_with_token, request, start_gateway, write_kubeconfig, write_token,
};
use crate::support::client::Client;
use crate::support::fake_oidc_issuer::{DISCOVERY, FakeOidcIssuer, KEYS, SigningKey, authentication_configuration};
use crate::support::fake_review_server::{FakeReviewServer, ReviewReply, access_review_reply, token_review_reply};
use crate::support::fixtures::{CertKeyPair, TestEnvironment, eventually};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Two control planes, `c` and `d`, each with a reviewer: `c-reviewer.kubeconfig` and `d-reviewer.kubeconfig`.
struct ReviewedControlPlanes {
    environment: TestEnvironment,
    c: (TestControlPlane, FakeReviewServer),
    d: (TestControlPlane, FakeReviewServer),
}

impl ReviewedControlPlanes {
    async fn start() -> ReviewedControlPlanes {
        let environment = TestEnvironment::new();
        let c = (TestControlPlane::start(&environment, "c").await, FakeReviewServer::start(&environment).await);
        let d = (TestControlPlane::start(&environment, "d").await, FakeReviewServer::start(&environment).await);
        for (plane, reviewer) in [&c, &d] {
            reviewer.write_kubeconfig(&environment, &format!("{}-reviewer", plane.name), "");
        }
        ReviewedControlPlanes { environment, c, d }
    }

    /// The entries of both, with `fields` in which NAME is the name.
    fn entries(&self, fields: &str) -> [String; 2] {
        [&self.c.0, &self.d.0].map(|plane| plane.by_path(&fields.replace("NAME", plane.name)))
    }
}

const TOKEN_REVIEWS: &str = ", authenticationKubeconfig: NAME-reviewer.kubeconfig, authenticationSkipLookup: true";
const ACCESS_REVIEWS: &str = ", authorizationMode: Webhook, authorizationKubeconfig: NAME-reviewer.kubeconfig";

/// Asks `c` and `d` in both orders, each twice, and compares the status codes. `ask` gets the control plane and the number
/// of the order, so that each order can start without cached decisions.
async fn assert_in_both_orders(
    mut ask: impl AsyncFnMut(&'static str, usize) -> u16,
    expected: [(&'static str, u16); 2],
) {
    let [first, second] = expected;
    for (order, pair) in [[first, second], [second, first]].into_iter().enumerate() {
        for (name, status) in pair.into_iter().chain(pair) {
            assert_eq!(ask(name, order).await, status, "{name} in order {order}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_token_known_to_one_is_unknown_to_another_in_both_orders() {
    let planes = ReviewedControlPlanes::start().await;
    planes.c.1.set_behavior(|_| token_review_reply(json!({"authenticated": true, "user": {"username": "alice"}})));
    planes.d.1.set_behavior(|_| token_review_reply(json!({"authenticated": false})));
    let gateway = start_gateway(&planes.environment, &planes.entries(TOKEN_REVIEWS), &[]);
    let client = connect(&planes.environment, &gateway, "localhost", None, "http/1.1").await;
    let ask = async |name: &'static str, order: usize| {
        get_with_token(&client, name, PODS, &format!("shared-{order}")).await.status.as_u16()
    };
    assert_in_both_orders(ask, [("c", 200), ("d", 401)]).await;
    assert_eq!(planes.c.0.last_client_request().header_values("x-remote-user"), ["alice"]);
    assert_eq!(planes.d.0.client_requests(), [""; 0]);
    assert_eq!(planes.c.1.reviews("TokenReview").len(), 2, "one for each token");
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_issuer_keys_of_one_verify_no_token_for_another() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    // Both trust the same issuer URL, and keys of the same name; each gets them from another server.
    let (key_of_c, key_of_d) = (SigningKey::ec("P-256"), SigningKey::ec("P-256"));
    let issuer = FakeOidcIssuer::start(&environment, &[("key", &key_of_c)]).await;
    let other = FakeOidcIssuer::start(&environment, &[("key", &key_of_d)]).await;
    let discovery = json!({"issuer": issuer.url, "jwks_uri": format!("{}{KEYS}", other.url)}).to_string();
    other.serve(DISCOVERY, Some((200, "application/json", discovery)));
    let write = |name: &str, discovery: Option<String>| {
        let mut configuration = issuer.single_issuer_configuration(&environment, &json!({}));
        if let Some(url) = discovery {
            configuration["jwt"][0]["issuer"]["discoveryURL"] = url.into();
        }
        let entries: Vec<Value> = configuration["jwt"].as_array().unwrap().clone();
        let path = environment.path(&format!("{name}-authentication.yaml"));
        fs::write(path, authentication_configuration(&entries).to_string()).unwrap();
    };
    write("c", None);
    write("d", Some(format!("{}{DISCOVERY}", other.url)));
    let entries = [&c, &d].map(|of| of.by_path(&format!(", authenticationConfig: {}-authentication.yaml", of.name)));
    let gateway = start_gateway(&environment, &entries, &[]);
    let client = connect(&environment, &gateway, "localhost", None, "http/1.1").await;
    let token = |key: &SigningKey, id: &str| key.token("ES256", "key", &issuer.claims(&json!({"jti": id})));
    for (name, key) in [("c", &key_of_c), ("d", &key_of_d)] {
        eventually("the keys of the issuer", async || {
            (get_with_token(&client, name, PODS, &token(key, "first")).await.status == 200).then_some(())
        })
        .await;
    }
    for (key, expected) in [(&key_of_c, [("c", 200), ("d", 401)]), (&key_of_d, [("d", 200), ("c", 401)])] {
        let tokens = ["a", "b"].map(|id| token(key, id));
        let ask = async |name: &'static str, order: usize| {
            get_with_token(&client, name, PODS, &tokens[order]).await.status.as_u16()
        };
        assert_in_both_orders(ask, expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_access_review_of_one_is_no_answer_for_another_in_both_orders() {
    let planes = ReviewedControlPlanes::start().await;
    planes.c.1.set_behavior(|_| access_review_reply(json!({"allowed": true})));
    planes.d.1.set_behavior(|_| access_review_reply(json!({"allowed": false, "reason": "not at d"})));
    for name in ["c", "d"] {
        write_token(&planes.environment, name, "shared", "alice");
    }
    let gateway = start_gateway(&planes.environment, &planes.entries(ACCESS_REVIEWS), &[]);
    let client = connect(&planes.environment, &gateway, "localhost", None, "http/1.1").await;
    let ask = async |name: &'static str, order: usize| {
        let path = format!("/api/v1/namespaces/order-{order}/pods");
        get_with_token(&client, name, &path, "shared").await.status.as_u16()
    };
    assert_in_both_orders(ask, [("c", 200), ("d", 403)]).await;
    assert_eq!(planes.d.0.client_requests(), [""; 0]);
    for reviewer in [&planes.c.1, &planes.d.1] {
        let reviews = reviewer.reviews("SubjectAccessReview");
        let namespaces: Vec<&str> =
            reviews.iter().map(|review| review["spec"]["resourceAttributes"]["namespace"].as_str().unwrap()).collect();
        assert_eq!(namespaces, ["order-0", "order-1"], "each decision is cached");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_impersonation_allowed_by_one_is_denied_by_another_in_both_orders() {
    let planes = ReviewedControlPlanes::start().await;
    planes.c.1.set_behavior(|_| access_review_reply(json!({"allowed": true})));
    planes.d.1.set_behavior(|review| {
        let verb = review["spec"]["resourceAttributes"]["verb"].as_str().unwrap_or_default();
        access_review_reply(json!({"allowed": !verb.starts_with("impersonate")}))
    });
    for name in ["c", "d"] {
        write_token(&planes.environment, name, "shared", "alice");
    }
    let gateway = start_gateway(&planes.environment, &planes.entries(ACCESS_REVIEWS), &[]);
    let client = connect(&planes.environment, &gateway, "localhost", None, "http/1.1").await;
    let ask = async |name: &'static str, order: usize| {
        let user = format!("bob-{order}");
        let headers = [("authorization", "Bearer shared"), ("impersonate-user", user.as_str())];
        request(&client, "localhost", &format!("/clusters/{name}{PODS}"), &headers).await.status.as_u16()
    };
    assert_in_both_orders(ask, [("c", 200), ("d", 403)]).await;
    assert_eq!(planes.c.0.last_client_request().header_values("x-remote-user"), ["bob-1"]);
    // Who may not impersonate at d is still alice there.
    assert_eq!(get_with_token(&client, "d", PODS, "shared").await.status, 200);
    assert_eq!(planes.d.0.last_client_request().header_values("x-remote-user"), ["alice"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_policy_file_of_one_allows_nothing_at_another() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    for (name, resource) in [("c", "pods"), ("d", "secrets")] {
        write_token(&environment, name, "shared", "alice");
        let policy = format!(
            "kind: ClusterRole\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {{name: all}}\n\
             rules: [{{verbs: ['*'], apiGroups: [''], resources: [{resource}]}}]\n---\n\
             kind: ClusterRoleBinding\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {{name: all}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: all}}\n\
             subjects: [{{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}}]\n"
        );
        fs::write(environment.path(&format!("{name}-policy.yaml")), policy).unwrap();
    }
    let fields = |name: &str| format!(", authorizationMode: RBAC, authorizationPolicyFile: {name}-policy.yaml");
    let gateway = start_gateway(&environment, &[c.by_path(&fields("c")), d.by_path(&fields("d"))], &[]);
    let client = connect(&environment, &gateway, "localhost", None, "http/1.1").await;
    for (resource, expected) in [("pods", [("c", 200), ("d", 403)]), ("secrets", [("c", 403), ("d", 200)])] {
        let ask = async |name: &'static str, _: usize| {
            let path = format!("/api/v1/namespaces/default/{resource}");
            get_with_token(&client, name, &path, "shared").await.status.as_u16()
        };
        assert_in_both_orders(ask, expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_front_proxy_of_one_is_not_trusted_by_another() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    // CAs and front proxies have the same names: only their keys tell them apart.
    let front_proxy = |name: &str| {
        let (authority, issued) = Authority::new("front-proxies", SystemTime::now()).unwrap();
        fs::write(environment.path(&format!("{name}-front-proxy-ca.crt")), &issued.certificate).unwrap();
        let request = CertificateRequest::client("outer-proxy", &[]);
        CertKeyPair::from_issued(&authority.issue(&request, SystemTime::now()).unwrap())
    };
    let proxies = [front_proxy("c"), front_proxy("d")];
    let entries = [&c, &d].map(|of| {
        let file = format!("requestheaderClientCAFile: {}-front-proxy-ca.crt", of.name);
        of.by_path(&format!(", {file}, requestheaderAllowedNames: [outer-proxy]"))
    });
    let gateway = start_gateway(&environment, &entries, &[]);
    let headers = [("x-remote-user", "alice"), ("x-remote-group", "devs")];
    for (proxy, expected) in proxies.iter().zip([[("c", 200), ("d", 401)], [("d", 200), ("c", 401)]]) {
        let client = connect(&environment, &gateway, "localhost", Some(proxy), "http/1.1").await;
        let ask = async |name: &'static str, _: usize| {
            request(&client, "localhost", &format!("/clusters/{name}{PODS}"), &headers).await.status.as_u16()
        };
        assert_in_both_orders(ask, expected).await;
    }
    for of in [&c, &d] {
        let users: BTreeSet<String> =
            of.server.received().iter().flat_map(|request| request.header_values("x-remote-user")).collect();
        assert_eq!(users.into_iter().filter(|user| user != "system:kube-aggregator").collect::<Vec<_>>(), ["alice"]);
    }
}

/// The latest of many requests to `c` are not answered while its reviewer hangs.
#[tokio::test(flavor = "multi_thread")]
async fn control_plane_whose_reviewer_hangs_delays_no_other() {
    let planes = ReviewedControlPlanes::start().await;
    planes.c.1.set_behavior(|_| ReviewReply::Hang);
    let more: Vec<(TestControlPlane, FakeReviewServer)> = vec![
        (TestControlPlane::start(&planes.environment, "e").await, FakeReviewServer::start(&planes.environment).await),
        (TestControlPlane::start(&planes.environment, "f").await, FakeReviewServer::start(&planes.environment).await),
    ];
    let mut entries = planes.entries(TOKEN_REVIEWS).to_vec();
    for (plane, reviewer) in &more {
        reviewer.write_kubeconfig(&planes.environment, &format!("{}-reviewer", plane.name), "");
        entries.push(plane.by_path(&TOKEN_REVIEWS.replace("NAME", plane.name)));
    }
    for (_, reviewer) in more.iter().chain([&planes.d]) {
        reviewer.set_behavior(|_| token_review_reply(json!({"authenticated": true, "user": {"username": "alice"}})));
    }
    let gateway = start_gateway(&planes.environment, &entries, &[]);
    // One connection for all: neither it nor a thread waits for the reviewer of c.
    let client = connect(&planes.environment, &gateway, "localhost", None, "h2").await;
    let waiting: Vec<_> = (0..50)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move { get_with_token(&client, "c", PODS, &format!("shared-{number}")).await.status })
        })
        .collect();
    eventually("the reviews of c", async || (planes.c.1.review_count() >= 10).then_some(())).await;
    for number in 0..50 {
        for name in ["d", "e", "f"] {
            let response = get_with_token(&client, name, PODS, &format!("shared-{number}")).await;
            assert_eq!(response.status, 200, "{name} {number}");
        }
    }
    assert!(waiting.iter().all(|request| !request.is_finished()));
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_tls_session_is_resumed_at_none() {
    let environment = TestEnvironment::new();
    let (a, b) = (TestControlPlane::start(&environment, "a").await, TestControlPlane::start(&environment, "b").await);
    let gateway = start_gateway(&environment, &[a.by_host(""), b.by_host("")], &[]);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(environment.serving_ca.certificate().clone()).unwrap();
    let config = rustls::ClientConfig::builder_with_provider(narthex::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(a.admin.0.0.clone(), a.admin.0.1.clone_key())
        .unwrap();
    // One configuration keeps the sessions of all connections.
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    for (name, status) in [("a.example", 200), ("a.example", 200), ("b.example", 401), ("localhost", 401)] {
        let socket = tokio::net::TcpStream::connect(gateway.address).await.unwrap();
        let stream = connector.connect(name.try_into().unwrap(), socket).await.unwrap();
        assert_ne!(stream.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Resumed), "{name}");
        let client = Client::from_stream(stream, true).await;
        assert_eq!(request(&client, name, PODS, &[]).await.status, status, "{name}");
    }
}

/// The first decision about a certificate is not kept with the connection for another control plane, and one whose API
/// server is that of another decides for itself.
#[tokio::test(flavor = "multi_thread")]
async fn control_plane_with_the_api_server_of_another_authenticates_for_itself() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    write_kubeconfig(&environment, "d", c.server.address);
    write_token(&environment, "c", "shared", "alice");
    write_token(&environment, "d", "shared", "dora");
    let gateway = start_gateway(&environment, &[c.by_path(""), d.by_path("")], &[]);
    let client = connect(&environment, &gateway, "localhost", None, "h2").await;
    for (name, user) in [("c", "alice"), ("d", "dora"), ("d", "dora"), ("c", "alice")] {
        assert_eq!(get_with_token(&client, name, PODS, "shared").await.status, 200);
        assert_eq!(c.last_client_request().header_values("x-remote-user"), [user]);
    }
}
