//! `--oidc-*` flags: tokens of one issuer are the only authentication.

use serde_json::{Value, json};

use crate::client::{Client, get};
use crate::issuer::{Issuer, KEYS, SigningKey};
use crate::sidecar::{Stage, TINA, server};
use crate::world::{World, eventually};

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

#[tokio::test]
async fn one_issuer_by_flags_stands_in_the_place_of_certificates_and_reviews() {
    let world = World::new();
    let server = server(&world, "{}").await;
    let (rsa, curve, stranger) = (SigningKey::rsa(), SigningKey::ec("P-256"), SigningKey::rsa());
    let issuer = Issuer::start(&world, &[("r", &rsa), ("c", &curve)]).await;
    let authorities = world.path("issuer-ca.crt");
    std::fs::copy(world.path("backend-ca.crt"), &authorities).unwrap();
    let flags = [
        &format!("--oidc-issuer={}", issuer.url),
        "--oidc-clientID=narthex",
        &format!("--oidc-ca-file={}", authorities.display()),
        "--oidc-username-claim=sub",
        "--oidc-username-prefix=oidc:",
        "--oidc-groups-prefix=g:",
        "--auth-header-fields-enabled",
    ];
    let jane = world.user("jane", &["devs"]);
    let stage = Stage::set_as("kube-rbac-proxy", &[("/", &server)], world, &flags).await;
    let claims = |more: Value| issuer.claims(&more);
    let good = bearer(&rsa.token("RS256", "r", &claims(json!({"groups": ["a", "b"]}))));
    eventually("the issuer's keys", async || {
        (stage.ask("/metrics", &[("authorization", &good)]).await.status == 200).then_some(())
    })
    .await;
    let seen = server.last();
    assert_eq!(seen.all("x-remote-user"), ["oidc:jane"]);
    assert_eq!(seen.all("x-remote-groups"), ["g:a|g:b"]);
    let before = server.seen().len();
    for (why, token) in [
        ("a token that the cluster knows", TINA.1.to_owned()),
        ("another algorithm", bearer(&curve.token("ES256", "c", &claims(json!({}))))),
        ("one more of the same key", bearer(&rsa.token("RS384", "r", &claims(json!({}))))),
        ("another client", bearer(&rsa.token("RS256", "r", &claims(json!({"aud": "other"}))))),
        ("a stranger", bearer(&stranger.token("RS256", "r", &claims(json!({}))))),
    ] {
        let said = stage.ask("/metrics", &[("authorization", &token)]).await;
        assert_eq!((said.status.as_u16(), &*said.text()), (401, "Unauthorized\n"), "{why}");
    }
    let certified = Client::http1(&stage.world, &stage.sidecar, Some(&jane)).await;
    assert_eq!(certified.ask(get("/metrics", &[])).await.status, 401);
    assert_eq!(certified.ask(get("/metrics", &[("authorization", &good)])).await.status, 200);
    assert_eq!(server.seen().len(), before + 1);
    assert!(stage.reviewer.asked("TokenReview").is_empty());
    stage.sidecar.said(&["--client-ca-file", "not used with --oidc-issuer"]).await;

    // Wrong later: what was good stays.
    std::fs::write(&authorities, "nothing of the kind").unwrap();
    stage.sidecar.said(&["the last good one stays", "issuer-ca.crt"]).await;
    assert_eq!(stage.ask("/metrics", &[("authorization", &good)]).await.status, 200);
    let asked = issuer.asked(KEYS);
    std::fs::write(&authorities, stage.world.read("serving-ca.crt")).unwrap();
    stage.sidecar.said(&["authentication configuration reloaded"]).await;
    assert!(issuer.asked(KEYS) >= asked);
}
