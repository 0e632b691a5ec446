//! `--oidc-*` flags: tokens of one issuer are the only authentication.

use serde_json::{Value, json};

use crate::sidecar::delegated_auth::{SidecarStage, TINA, start_named_server};
use crate::support::client::{Client, get};
use crate::support::fake_oidc_issuer::{FakeOidcIssuer, KEYS, SigningKey};
use crate::support::fixtures::{TestEnvironment, eventually};

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

#[tokio::test]
async fn oidc_flags_replace_certificates_and_token_reviews() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let (rsa, curve, untrusted) = (SigningKey::rsa(), SigningKey::ec("P-256"), SigningKey::rsa());
    let issuer = FakeOidcIssuer::start(&environment, &[("r", &rsa), ("c", &curve)]).await;
    let authorities = environment.path("issuer-ca.crt");
    std::fs::copy(environment.path("backend-ca.crt"), &authorities).unwrap();
    let flags = [
        &format!("--oidc-issuer={}", issuer.url),
        "--oidc-clientID=narthex",
        &format!("--oidc-ca-file={}", authorities.display()),
        "--oidc-username-claim=sub",
        "--oidc-username-prefix=oidc:",
        "--oidc-groups-prefix=g:",
        "--auth-header-fields-enabled",
    ];
    let jane = environment.issue_user("jane", &["devs"]);
    let fixture = SidecarStage::with_command("kube-rbac-proxy", &[("/", &server)], environment, &flags).await;
    let claims = |more: Value| issuer.claims(&more);
    let good = bearer(&rsa.token("RS256", "r", &claims(json!({"groups": ["a", "b"]}))));
    eventually("the issuer's keys", async || {
        (fixture.get("/metrics", &[("authorization", &good)]).await.status == 200).then_some(())
    })
    .await;
    let seen = server.last_request();
    assert_eq!(seen.header_values("x-remote-user"), ["oidc:jane"]);
    assert_eq!(seen.header_values("x-remote-groups"), ["g:a|g:b"]);
    let before = server.received().len();
    for (why, token) in [
        ("a token that the cluster knows", TINA.1.to_owned()),
        ("another algorithm", bearer(&curve.token("ES256", "c", &claims(json!({}))))),
        ("one more of the same key", bearer(&rsa.token("RS384", "r", &claims(json!({}))))),
        ("another client", bearer(&rsa.token("RS256", "r", &claims(json!({"aud": "other"}))))),
        ("a stranger", bearer(&untrusted.token("RS256", "r", &claims(json!({}))))),
    ] {
        let response = fixture.get("/metrics", &[("authorization", &token)]).await;
        assert_eq!((response.status.as_u16(), &*response.text()), (401, "Unauthorized\n"), "{why}");
    }
    let certified = Client::http1(&fixture.environment, &fixture.sidecar, Some(&jane)).await;
    assert_eq!(certified.send_and_read(get("/metrics", &[])).await.status, 401);
    assert_eq!(certified.send_and_read(get("/metrics", &[("authorization", &good)])).await.status, 200);
    assert_eq!(server.received().len(), before + 1);
    assert!(fixture.reviewer.reviews("TokenReview").is_empty());
    fixture.sidecar.wait_for_log(&["--client-ca-file", "not used with --oidc-issuer"]).await;

    // Wrong later: what was good stays.
    std::fs::write(&authorities, "nothing of the kind").unwrap();
    fixture.sidecar.wait_for_log(&["the last good one stays", "issuer-ca.crt"]).await;
    assert_eq!(fixture.get("/metrics", &[("authorization", &good)]).await.status, 200);
    let recorded = issuer.request_count(KEYS);
    std::fs::write(&authorities, fixture.environment.read_file("serving-ca.crt")).unwrap();
    fixture.sidecar.wait_for_log(&["authentication configuration reloaded"]).await;
    assert!(issuer.request_count(KEYS) >= recorded);
}
