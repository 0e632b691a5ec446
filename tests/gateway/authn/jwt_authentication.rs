//! `--authentication-config`: JWTs verified by their issuer's published keys.

use std::path::PathBuf;

use http::Method;
use serde_json::{Value, json};

use crate::support::backend::{Backend, BackendSettings, ReceivedRequest, json_response as response};
use crate::support::client::{Client, ClientResponse, get, metric_value, request};
use crate::support::fake_oidc_issuer::{
    DISCOVERY, FakeOidcIssuer, KEYS, SigningKey, authentication_configuration, unix_now, unsigned,
};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually, run_narthex};

const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

async fn start_things_backend(environment: &TestEnvironment) -> Backend {
    let backend = Backend::start(environment, BackendSettings::default(), async |_| response(200, "{}")).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    backend
}

/// A new file each time, so that no two gateways follow the same one.
fn write_configuration(environment: &TestEnvironment, configuration: &Value) -> PathBuf {
    let number = std::fs::read_dir(environment.folder.path()).unwrap().count();
    let path = environment.path(&format!("authentication-{number}.yaml"));
    std::fs::write(&path, configuration.to_string()).unwrap();
    path
}

fn start_gateway(environment: &TestEnvironment, configuration: &Value, more: &[&str]) -> GatewayProcess {
    start_gateway_with_file(environment, &write_configuration(environment, configuration), more)
}

fn start_gateway_with_file(environment: &TestEnvironment, file: &std::path::Path, more: &[&str]) -> GatewayProcess {
    let flag = format!("--authentication-config={}", file.display());
    let flags: Vec<&str> = std::iter::once(flag.as_str()).chain(more.iter().copied()).collect();
    environment.start_gateway(&flags)
}

async fn get_with_token(client: &Client, token: &str) -> ClientResponse {
    client.send_and_read(get(THINGS, &[("authorization", &format!("Bearer {token}"))])).await
}

/// Until the issuer's keys are there.
async fn wait_until_accepted(client: &Client, token: &str) {
    eventually("the token to be believed", async || (get_with_token(client, token).await.status == 200).then_some(()))
        .await;
}

/// The identity headers at the backend, in order of names.
fn identity_headers(seen: &ReceivedRequest) -> Vec<String> {
    let mut lines: Vec<String> = seen
        .headers
        .iter()
        .filter(|(name, _)| name.as_str().starts_with("x-remote-"))
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    lines.sort_by_key(|line| line.split(':').next().map(str::to_owned));
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn jwt_accepted_with_every_algorithm_and_not_forwarded() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let (rsa, p256, p384) = (SigningKey::rsa(), SigningKey::ec("P-256"), SigningKey::ec("P-384"));
    let (p521, ed) = (SigningKey::ec("P-521"), SigningKey::ed());
    let issuer =
        FakeOidcIssuer::start(&environment, &[("r", &rsa), ("2", &p256), ("3", &p384), ("5", &p521), ("e", &ed)]).await;
    let gateway = start_gateway(&environment, &issuer.single_issuer_configuration(&environment, &json!({})), &[]);
    let client = Client::http2(&environment, &gateway, None).await;
    let claims = issuer.claims(&json!({"groups": ["devs", "ops"], "jti": "42"}));
    for (algorithm, name, key) in [
        ("RS256", "r", &rsa),
        ("RS512", "r", &rsa),
        ("PS256", "r", &rsa),
        ("PS384", "r", &rsa),
        ("ES256", "2", &p256),
        ("ES384", "3", &p384),
        ("ES512", "5", &p521),
        ("EdDSA", "e", &ed),
    ] {
        wait_until_accepted(&client, &key.token(algorithm, name, &claims)).await;
        let seen = backend.last_request();
        assert_eq!(
            identity_headers(&seen),
            [
                "x-remote-extra-authentication.kubernetes.io%2fcredential-id: JTI=42",
                "x-remote-group: oidc:devs",
                "x-remote-group: oidc:ops",
                "x-remote-group: system:authenticated",
                "x-remote-user: oidc:jane",
            ]
        );
        assert!(seen.header_values("authorization").is_empty());
    }
    // The same from a WebSocket's protocols.
    use base64::Engine as _;
    let token = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(ed.token("EdDSA", "e", &claims));
    let http1 = Client::http1(&environment, &gateway, None).await;
    let protocols = format!("base64url.bearer.authorization.k8s.io.{token}, v5.channel.k8s.io");
    let headers = [
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-protocol", protocols.as_str()),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "AQIDBAUGBwgJCgsMDQ4PEC=="),
    ];
    http1.send_and_read(get(THINGS, &headers)).await;
    assert_eq!(backend.last_request().header_values("x-remote-user"), ["oidc:jane"]);
    assert_eq!(backend.last_request().header_values("sec-websocket-protocol"), ["v5.channel.k8s.io"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn jwt_invalid_is_401_without_details() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let (key, untrusted) = (SigningKey::rsa(), SigningKey::rsa());
    let issuer = FakeOidcIssuer::start(&environment, &[("a", &key)]).await;
    let rules =
        json!({"userValidationRules": [{"expression": "!user.username.endsWith('root')", "message": "no root"}]});
    let flags = environment.anonymous_flags();
    let flags = flags.each_ref().map(String::as_str);
    let gateway = start_gateway(&environment, &issuer.single_issuer_configuration(&environment, &rules), &flags);
    let client = Client::http1(&environment, &gateway, None).await;
    let good = key.token("RS256", "a", &issuer.claims(&json!({})));
    wait_until_accepted(&client, &good).await;
    let before = backend.received().len();
    let by = |claims: Value| key.token("RS256", "a", &issuer.claims(&claims));
    let (head, signature) = good.rsplit_once('.').unwrap();
    let none = unsigned(&json!({"alg": "none"}), &issuer.claims(&json!({})));
    let hmac = unsigned(&json!({"alg": "HS256", "kid": "a"}), &issuer.claims(&json!({})));
    let tokens = [
        ("expired", by(json!({"exp": unix_now() - 1}))),
        ("without end", by(json!({"exp": null}))),
        ("from tomorrow", by(json!({"nbf": unix_now() + 3600}))),
        ("for others", by(json!({"aud": ["kubernetes"]}))),
        ("without a name", by(json!({"sub": ""}))),
        ("a number for a name", by(json!({"sub": 7}))),
        ("against a rule", by(json!({"sub": "root"}))),
        ("a control character in the name", by(json!({"sub": "a\r\nX-Remote-Group: system:masters"}))),
        ("groups of numbers", by(json!({"groups": [1]}))),
        ("of nobody we know", by(json!({"iss": "https://evil.example"}))),
        ("by a stranger", untrusted.token("RS256", "a", &issuer.claims(&json!({})))),
        ("by a key that is not there", key.token("RS256", "b", &issuer.claims(&json!({})))),
        ("cut short", good[..good.len() - 9].to_owned()),
        ("without a signature", format!("{head}.")),
        ("none", format!("{none}.")),
        ("none, signed", format!("{none}.{signature}")),
        ("a shared secret", format!("{hmac}.{signature}")),
        ("two signatures", format!("{good}.{signature}")),
        ("no token", "a.b.c".to_owned()),
        ("JSON", "{\"payload\":\"\"}".to_owned()),
        ("huge", format!("{}.{}.x", "a".repeat(40_000), "b".repeat(40_000))),
    ];
    for (what, token) in &tokens {
        let response = get_with_token(&client, token).await;
        let status = response.assert_failure(401, "Unauthorized");
        assert_eq!(status["message"], "Unauthorized", "{what}");
        assert!(!response.headers.contains_key("www-authenticate"), "{what}");
    }
    assert_eq!(backend.received().len(), before, "a token reached the backend");
    // None of them, nor the good one, is in the log.
    for line in gateway.log_lines() {
        assert!(tokens.iter().all(|(_, token)| token.len() < 20 || !line.contains(token.as_str())), "{line}");
        assert!(!line.contains(signature) && !line.contains(head), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jwks_rotation_accepts_new_key_and_rejects_old() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let (old, new) = (SigningKey::ec("P-256"), SigningKey::ec("P-256"));
    let issuer = FakeOidcIssuer::start(&environment, &[("old", &old)]).await;
    let gateway = start_gateway(&environment, &issuer.single_issuer_configuration(&environment, &json!({})), &[]);
    let client = Client::http1(&environment, &gateway, None).await;
    let old_token = old.token("ES256", "old", &issuer.claims(&json!({})));
    wait_until_accepted(&client, &old_token).await;
    assert_eq!(issuer.request_count(KEYS), 1);
    issuer.publish(&[("new", &new)]);
    // Remembered, until the keys are known to be others.
    assert_eq!(get_with_token(&client, &old_token).await.status, 200);
    let new_token = new.token("ES256", "new", &issuer.claims(&json!({})));
    wait_until_accepted(&client, &new_token).await;
    get_with_token(&client, &old_token).await.assert_failure(401, "Unauthorized");
    // Made-up names of keys do not become questions to the issuer.
    let recorded = issuer.request_count(KEYS);
    for number in 0..50 {
        let made_up = new.token("ES256", &format!("made-up-{number}"), &issuer.claims(&json!({})));
        get_with_token(&client, &made_up).await.assert_failure(401, "Unauthorized");
    }
    assert!(issuer.request_count(KEYS) <= recorded + 1, "{} questions", issuer.request_count(KEYS) - recorded);
    // What is lost afterwards does not lose the keys.
    issuer.serve(KEYS, Some((500, "text/plain", String::new())));
    let another = new.token("ES256", "new", &issuer.claims(&json!({"sub": "bob"})));
    assert_eq!(get_with_token(&client, &another).await.status, 200);
    assert_eq!(backend.last_request().header_values("x-remote-user"), ["oidc:bob"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn jwt_verification_cached() {
    let environment = TestEnvironment::new();
    let _backend = start_things_backend(&environment).await;
    let key = SigningKey::ed();
    let issuer = FakeOidcIssuer::start(&environment, &[("a", &key)]).await;
    let gateway = start_gateway(&environment, &issuer.single_issuer_configuration(&environment, &json!({})), &[]);
    let token = key.token("EdDSA", "a", &issuer.claims(&json!({})));
    wait_until_accepted(&Client::http1(&environment, &gateway, None).await, &token).await;
    let hits =
        async || metric_value(&gateway, "narthex_decision_cache_requests_total{cache=\"jwt\",result=\"hit\"}").await;
    let before = hits().await.unwrap_or_default();
    for _ in 0..10 {
        // Another connection each time: what a connection knows does not count.
        let client = Client::http1(&environment, &gateway, None).await;
        assert_eq!(get_with_token(&client, &token).await.status, 200);
    }
    assert_eq!(hits().await, Some(before + 10.0));
}

/// An issuer with invalid documents: tokens are rejected and the log names the cause, until the documents are valid.
#[tokio::test(flavor = "multi_thread")]
async fn jwt_issuer_with_invalid_documents_rejected_and_recovers() {
    let environment = TestEnvironment::new();
    let _backend = start_things_backend(&environment).await;
    let key = SigningKey::ed();
    let other = FakeOidcIssuer::start(&environment, &[("a", &key)]).await;
    let document = |issuer: &FakeOidcIssuer| {
        (
            200,
            "application/json",
            json!({"issuer": issuer.url, "jwks_uri": format!("{}{KEYS}", issuer.url)}).to_string(),
        )
    };
    let cases = [
        (DISCOVERY, Some((302, "text/plain", format!("{}{DISCOVERY}", other.url))), "it names another issuer"),
        (DISCOVERY, Some((200, "text/html; charset=utf-8", "<html>".to_owned())), "the response is HTML"),
        (DISCOVERY, Some((200, "application/json", "{".to_owned())), "invalid discovery document"),
        (DISCOVERY, Some(document(&other)), "it names another issuer"),
        (KEYS, Some((200, "application/json", "x".repeat(2 << 20))), "it is longer than 1048576 bytes"),
        (KEYS, Some((200, "application/json", "{\"keys\":[]}".to_owned())), "the key set has no key"),
        (KEYS, Some((307, "text/plain", "http://127.0.0.1/keys".to_owned())), "URL scheme must be https"),
        (KEYS, Some((302, "text/plain", KEYS.to_owned())), "stopped after 10 redirects"),
        (KEYS, Some((404, "text/plain", String::new())), "the response status is 404"),
    ];
    for (path, bad, why) in cases {
        let issuer = FakeOidcIssuer::start(&environment, &[("a", &key)]).await;
        issuer.serve(path, bad);
        let gateway = start_gateway(&environment, &issuer.single_issuer_configuration(&environment, &json!({})), &[]);
        gateway.wait_for_log(&["ERROR", &issuer.url, why]).await;
        let client = Client::http1(&environment, &gateway, None).await;
        let token = key.token("EdDSA", "a", &issuer.claims(&json!({})));
        get_with_token(&client, &token).await.assert_failure(401, "Unauthorized");
    }
    // Over plain HTTP, and with a certificate of an unknown CA.
    let issuer = FakeOidcIssuer::start(&environment, &[("a", &key)]).await;
    let plain = json!({"issuer": issuer.url, "jwks_uri": format!("{}{KEYS}", issuer.url.replace("https", "http"))});
    issuer.serve(DISCOVERY, Some((200, "application/json", plain.to_string())));
    let first = start_gateway(&environment, &issuer.single_issuer_configuration(&environment, &json!({})), &[]);
    first.wait_for_log(&["ERROR", "jwks_uri", "URL scheme must be https"]).await;
    let mut strange = issuer.single_issuer_configuration(&environment, &json!({}));
    strange["jwt"][0]["issuer"]["certificateAuthority"] = environment.read_file("client-ca.crt").into();
    let second = start_gateway(&environment, &strange, &[]);
    second.wait_for_log(&["ERROR", "fetching the issuer's keys failed", "no authority of the bundle signed it"]).await;
    // And in the end it mends itself.
    let client = Client::http1(&environment, &first, None).await;
    issuer.publish(&[("a", &key)]);
    wait_until_accepted(&client, &key.token("EdDSA", "a", &issuer.claims(&json!({})))).await;
}

/// As Go's `http.Client`: also to another server, whose certificate is of the same authority.
#[tokio::test(flavor = "multi_thread")]
async fn jwt_documents_behind_redirects_are_fetched() {
    let environment = TestEnvironment::new();
    let _backend = start_things_backend(&environment).await;
    let key = SigningKey::ed();
    let elsewhere = FakeOidcIssuer::start(&environment, &[("a", &key)]).await;
    let issuer = FakeOidcIssuer::start(&environment, &[]).await;
    issuer.serve(KEYS, Some((302, "text/plain", "moved?again".to_owned())));
    issuer.serve("/moved", Some((308, "text/plain", format!("{}{KEYS}", elsewhere.url))));
    let gateway = start_gateway(&environment, &issuer.single_issuer_configuration(&environment, &json!({})), &[]);
    let client = Client::http1(&environment, &gateway, None).await;
    let claims = issuer.claims(&json!({"exp": (unix_now() + 3600).to_string()}));
    wait_until_accepted(&client, &key.token("EdDSA", "a", &claims)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jwt_multiple_issuers_and_configuration_reload() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let key = SigningKey::ed();
    let (one, other) = (
        FakeOidcIssuer::start(&environment, &[("a", &key)]).await,
        FakeOidcIssuer::start(&environment, &[("a", &key)]).await,
    );
    let entry =
        |issuer: &FakeOidcIssuer| issuer.single_issuer_configuration(&environment, &json!({}))["jwt"][0].clone();
    let both = authentication_configuration(&[entry(&one), entry(&other)]);
    let file = write_configuration(&environment, &both);
    let gateway = start_gateway_with_file(&environment, &file, &[]);
    let client = Client::http1(&environment, &gateway, None).await;
    let tokens = [&one, &other].map(|issuer| key.token("EdDSA", "a", &issuer.claims(&json!({}))));
    for token in &tokens {
        wait_until_accepted(&client, token).await;
    }
    let recorded = one.request_count(KEYS);
    // One goes, and the other maps names differently: what is remembered of either is forgotten.
    let mut changed = authentication_configuration(&[entry(&one)]);
    changed["jwt"][0]["claimMappings"] = json!({"username": {"expression": "'x:' + claims.sub"}});
    std::fs::write(&file, changed.to_string()).unwrap();
    eventually("the issuer to go", async || (get_with_token(&client, &tokens[1]).await.status == 401).then_some(()))
        .await;
    assert_eq!(get_with_token(&client, &tokens[0]).await.status, 200);
    assert_eq!(backend.last_request().header_values("x-remote-user"), ["x:jane"]);
    // Its keys are unchanged and were not fetched again.
    assert_eq!(one.request_count(KEYS), recorded);
    let mut wrong = changed.clone();
    wrong["jwt"][0]["claimMappings"]["username"]["expression"] = "claims.".into();
    std::fs::write(&file, wrong.to_string()).unwrap();
    gateway.wait_for_log(&["ERROR", "the last good one stays", "jwt[0].claimMappings.username.expression"]).await;
    assert_eq!(get_with_token(&client, &tokens[0]).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn anonymous_auth_conditions_of_configuration_file() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let mut file = authentication_configuration(&[]);
    file["anonymous"] = json!({"enabled": true, "conditions": [{"path": THINGS}, {"path": "/version"}]});
    let path = write_configuration(&environment, &file);
    let first = start_gateway_with_file(&environment, &path, &[]);
    let client = Client::http1(&environment, &first, None).await;
    assert_eq!(client.get(THINGS).await.status, 200);
    assert_eq!(backend.last_request().header_values("x-remote-user"), ["system:anonymous"]);
    let client = Client::http1(&environment, &first, None).await;
    assert_eq!(client.get("/version").await.status, 200);
    for path in ["/apis", "/version/", "/apis/things.example.com/v1/namespaces/other/things"] {
        Client::http1(&environment, &first, None).await.get(path).await.assert_failure(401, "Unauthorized");
    }
    // An invalid token is rejected, not treated as anonymous.
    get_with_token(&Client::http1(&environment, &first, None).await, "a.b.c").await.assert_failure(401, "Unauthorized");
    // The flag and the file are two answers to one question.
    let flags = [format!("--authentication-config={}", path.display()), "--anonymous-auth".to_owned()];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let output = run_narthex(&[vec!["gateway".to_owned()], environment.gateway_arguments(&flags)].concat());
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("anonymous: must not be given with --anonymous-auth"), "{message}");
}

/// `--authentication-drop-groups` and `--authentication-pass-on-groups`, wherever the groups come from.
#[tokio::test(flavor = "multi_thread")]
async fn authentication_drop_groups_from_every_source() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let key = SigningKey::ed();
    let issuer = FakeOidcIssuer::start(&environment, &[("a", &key)]).await;
    let mappings = json!({"claimMappings": {
        "username": {"claim": "sub", "prefix": ""}, "groups": {"claim": "groups", "prefix": ""},
    }});
    let file = environment.path("tokens.csv");
    std::fs::write(&file, "s3cret,jane,1,\"system:masters,devs,internal:x\"\n").unwrap();
    let flags = [
        format!("--token-auth-file={}", file.display()),
        "--authentication-drop-groups=system:masters,internal:*".to_owned(),
        "--authentication-pass-on-groups=system:*,dev*,internal:x".to_owned(),
        "--authorization-mode=AlwaysDeny".to_owned(),
        "--authorization-always-allow-paths=/version".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let strict = start_gateway(&environment, &issuer.single_issuer_configuration(&environment, &mappings), &flags);
    let lenient =
        start_gateway(&environment, &issuer.single_issuer_configuration(&environment, &mappings), &flags[..3]);
    let groups = ["system:masters", "devs", "internal:x", "ops"];
    let token = key.token("EdDSA", "a", &issuer.claims(&json!({"groups": groups})));
    let bearer = format!("Bearer {token}");
    let mut headers = vec![("x-remote-user", "jane")];
    headers.extend(groups.iter().map(|group| ("x-remote-group", *group)));
    let (certificate, front) = (environment.issue_user("jane", &groups), environment.issue_front_proxy("outer-proxy"));
    type GroupSource<'w> = (&'w str, Option<&'w crate::support::fixtures::CertKeyPair>, Vec<(&'w str, &'w str)>);
    let ways: [GroupSource<'_>; 4] = [
        ("certificate", Some(&certificate), Vec::new()),
        ("token", None, vec![("authorization", &bearer)]),
        ("token file", None, vec![("authorization", "Bearer s3cret")]),
        ("request header", Some(&front), headers),
    ];
    for (way, pair, headers) in &ways {
        let client = Client::http2(&environment, &lenient, *pair).await;
        if *way == "token" {
            wait_until_accepted(&client, &token).await;
        }
        assert_eq!(client.send_and_read(request(Method::GET, THINGS, headers, "")).await.status, 200, "{way}");
        assert_eq!(backend.last_request().header_values("x-remote-group"), ["devs", "system:authenticated"], "{way}");
        // The group that may everything is gone before it is authorized.
        let client = Client::http2(&environment, &strict, *pair).await;
        if *way == "token" {
            eventually("the keys to be there", async || {
                (get_with_token(&client, &token).await.status == 403).then_some(())
            })
            .await;
        }
        client.send_and_read(request(Method::GET, THINGS, headers, "")).await.assert_failure(403, "Forbidden");
    }
}
