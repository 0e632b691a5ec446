//! Tests of JWT authentication: valid tokens, known attacks, and configuration errors.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;

use super::jwks::Jwks;
use super::test_signer::{SigningKey, key_set, unsigned};
use super::*;

const ISSUER: &str = "https://issuer.example";

/// Returns a file with one issuer; `more` is JSON of its other fields.
fn file(more: &Value) -> String {
    let mut jwt = json!({
        "issuer": {"url": ISSUER, "audiences": ["us", "them"], "audienceMatchPolicy": "MatchAny"},
        "claimMappings": {"username": {"claim": "sub", "prefix": "issuer:"}},
    });
    for (field, value) in more.as_object().unwrap() {
        jwt[field] = value.clone();
    }
    json!({"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration", "jwt": [jwt]}).to_string()
}

fn rules(more: &Value) -> JwtIssuer {
    let configuration =
        AuthenticationConfiguration::parse("a.yaml", &file(more), false).unwrap_or_else(|wrong| panic!("{wrong}"));
    configuration.issuers.into_iter().next().unwrap()
}

fn claims(more: &Value) -> Claims {
    let mut claims = json!({"iss": ISSUER, "aud": "us", "exp": 2000, "sub": "jane"});
    for (name, value) in more.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims.as_object().unwrap().clone()
}

fn verify(keys: &Jwks, token: &str) -> Result<SignatureVerification, &'static str> {
    let claims = token::claims(token).ok_or("no token")?;
    UnverifiedToken::parse(token, claims).map(|token| keys.verify(&token))
}

#[test]
fn jwt_algorithm_verifies_only_its_own_signatures() {
    let rsa = SigningKey::rsa();
    let (p256, p384, p521) = (SigningKey::ec("P-256"), SigningKey::ec("P-384"), SigningKey::ec("P-521"));
    let ed = SigningKey::ed();
    let all = [
        ("RS256", &rsa),
        ("RS384", &rsa),
        ("RS512", &rsa),
        ("PS256", &rsa),
        ("PS384", &rsa),
        ("PS512", &rsa),
        ("ES256", &p256),
        ("ES384", &p384),
        ("ES512", &p521),
        ("EdDSA", &ed),
    ];
    for (algorithm, key) in all {
        let keys = Jwks::parse(key_set(&[key.jwk("a")]).as_bytes()).unwrap();
        let token = key.token(algorithm, "a", &json!({"sub": "jane"}));
        assert_eq!(verify(&keys, &token), Ok(SignatureVerification::Valid), "{algorithm}");
        // Another key with that ID, another key ID, another payload.
        let others = [
            SigningKey::rsa(),
            SigningKey::ec("P-256"),
            SigningKey::ec("P-384"),
            SigningKey::ec("P-521"),
            SigningKey::ed(),
        ];
        let others: Vec<Value> = others.iter().map(|key| key.jwk("a")).collect();
        let other = Jwks::parse(key_set(&others).as_bytes()).unwrap();
        assert_eq!(verify(&other, &token), Ok(SignatureVerification::Invalid), "{algorithm}");
        let renamed = Jwks::parse(key_set(&[key.jwk("b")]).as_bytes()).unwrap();
        assert_eq!(verify(&renamed, &token), Ok(SignatureVerification::UnknownKey), "{algorithm}");
        let (header, rest) = token.split_once('.').unwrap();
        let (_, signature) = rest.split_once('.').unwrap();
        let forged = format!("{header}.{}.{signature}", URL_SAFE_NO_PAD.encode(r#"{"sub":"root"}"#));
        assert_eq!(verify(&keys, &forged), Ok(SignatureVerification::Invalid), "{algorithm}");
        // The header of one algorithm over the signature of another.
        for (claimed, _) in all.iter().filter(|(claimed, _)| *claimed != algorithm) {
            let signed = unsigned(&json!({"alg": claimed, "kid": "a"}), &json!({}));
            let signature = URL_SAFE_NO_PAD.encode(key.sign(algorithm, signed.as_bytes()));
            assert_ne!(
                verify(&keys, &format!("{signed}.{signature}")),
                Ok(SignatureVerification::Valid),
                "{algorithm} as {claimed}"
            );
        }
    }
}

#[test]
fn jwt_without_kid_is_tried_with_each_key() {
    let (one, other) = (SigningKey::ec("P-256"), SigningKey::ec("P-256"));
    let keys = Jwks::parse(key_set(&[one.jwk("a"), other.jwk("b")]).as_bytes()).unwrap();
    let signed = unsigned(&json!({"alg": "ES256"}), &json!({}));
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(other.sign("ES256", signed.as_bytes())));
    assert_eq!(verify(&keys, &token), Ok(SignatureVerification::Valid));
}

#[test]
fn jwt_of_a_large_key_set_is_verified_in_bounded_work() {
    let (one, other) = (SigningKey::ec("P-256"), SigningKey::ec("P-256"));
    let mut list: Vec<Value> = (0..1500).map(|number| other.jwk(&number.to_string())).collect();
    list.push(one.jwk("last"));
    let keys = Jwks::parse(key_set(&list).as_bytes()).unwrap();
    assert_eq!(verify(&keys, &one.token("ES256", "last", &json!({}))), Ok(SignatureVerification::Valid));
    let without_name = |claims: &Value| {
        let signed = unsigned(&json!({"alg": "ES256"}), claims);
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(one.sign("ES256", signed.as_bytes())))
    };
    // Of 1,501 keys, 1,024 are tried for a token that names none, and fewer for a long one.
    assert_eq!(verify(&keys, &without_name(&json!({}))), Ok(SignatureVerification::Invalid));
    let few = Jwks::parse(key_set(&list[1201..]).as_bytes()).unwrap();
    assert_eq!(verify(&few, &without_name(&json!({}))), Ok(SignatureVerification::Valid));
    let long = json!({"groups": vec!["a long name of a group"; 30_000]});
    assert_eq!(verify(&few, &without_name(&long)), Ok(SignatureVerification::Invalid));
    // A token of more than 64 KiB is verified.
    assert_eq!(verify(&few, &one.token("ES256", "last", &long)), Ok(SignatureVerification::Valid));
}

/// Known attacks: the public key as a shared secret, no signature, and a key inside the token.
#[test]
fn jwt_known_attacks_are_rejected() {
    let key = SigningKey::rsa();
    let keys = Jwks::parse(key_set(&[key.jwk("a")]).as_bytes()).unwrap();
    let jwk = key.jwk("a");
    let secret = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, jwk["n"].as_str().unwrap().as_bytes());
    let signed = unsigned(&json!({"alg": "HS256", "kid": "a"}), &json!({}));
    let mac = URL_SAFE_NO_PAD.encode(aws_lc_rs::hmac::sign(&secret, signed.as_bytes()));
    assert!(verify(&keys, &format!("{signed}.{mac}")).is_err());
    for algorithm in ["none", "NONE", ""] {
        let signed = unsigned(&json!({"alg": algorithm, "kid": "a"}), &json!({}));
        assert!(verify(&keys, &format!("{signed}.")).is_err());
    }
    let mine = SigningKey::rsa();
    let header = json!({"alg": "RS256", "kid": "mine", "jwk": mine.jwk("mine"), "jku": "https://evil.example/keys"});
    let signed = unsigned(&header, &json!({}));
    let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mine.sign("RS256", signed.as_bytes())));
    assert_eq!(verify(&keys, &token), Ok(SignatureVerification::UnknownKey));
    for name in ["../../etc/passwd", "a' OR '1'='1", "a\u{0}", "A"] {
        let signed = unsigned(&json!({"alg": "RS256", "kid": name}), &json!({}));
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(key.sign("RS256", signed.as_bytes())));
        assert_eq!(verify(&keys, &token), Ok(SignatureVerification::UnknownKey), "{name}");
    }
    assert_eq!(
        verify(&keys, &format!("{}.", unsigned(&json!({"alg": "RS256", "kid": "a"}), &json!({})))),
        Ok(SignatureVerification::Invalid)
    );
}

#[test]
fn jwks_malformed_is_rejected() {
    let key = SigningKey::ec("P-256").jwk("a");
    let with = |name: &str, value: Value| {
        let mut key = key.clone();
        key[name] = value;
        key_set(&[key])
    };
    for text in [
        String::new(),
        "<html>".to_owned(),
        "[]".to_owned(),
        "{}".to_owned(),
        key_set(&[]),
        with("use", json!("enc")),
        with("alg", json!("HS256")),
        with("kty", json!("oct")),
        with("crv", json!("secp256k1")),
        with("x", json!("")),
        with("x", json!("AAAA")),
        with("x", json!(1)),
    ] {
        assert!(Jwks::parse(text.as_bytes()).is_err(), "{}", &text[..text.len().min(80)]);
    }
    // Unknown keys are skipped.
    let mixed = key_set(&[json!({"kty": "oct", "k": "AAAA"}), json!("?"), key.clone()]);
    let (mixed, alone) = (Jwks::parse(mixed.as_bytes()).unwrap(), Jwks::parse(key_set(&[key]).as_bytes()).unwrap());
    assert!(mixed.has_same_keys(&alone) && mixed.id != alone.id);
}

#[test]
fn jwt_audience_and_validity_period_checked() {
    let (rules, (keys, _keeper)) = (
        rules(&json!({})),
        JwksCache::new(JwksSource {
            issuer: ISSUER.to_owned(),
            discovery_url: url::HttpsUrl::parse(ISSUER).unwrap(),
            authorities: None,
            egress: String::new(),
        }),
    );
    let issuer = Issuer { rules, keys };
    let check = |more: Value| issuer.check_claims(&claims(&more), Duration::from_millis(1_000_500));
    assert_eq!(check(json!({})), Ok(Duration::from_millis(999_500)));
    for good in [
        json!({"aud": ["x", "them"]}),
        json!({"exp": 1001.9}),
        json!({"exp": 1e300}),
        json!({"exp": "2000"}),
        json!({"exp": "2e3"}),
        json!({"exp": "2000.5", "nbf": "1"}),
        json!({"nbf": 1300}),
        json!({"nbf": null}),
    ] {
        assert!(check(good.clone()).is_ok(), "{good}");
    }
    for bad in [
        json!({"aud": "x"}),
        json!({"aud": []}),
        json!({"aud": null}),
        json!({"aud": ["x", 1]}),
        json!({"aud": {"us": "us"}}),
        json!({"exp": 1000}),
        json!({"exp": 1000.9}),
        json!({"exp": -1e300}),
        json!({"exp": null}),
        json!({"exp": "1000"}),
        json!({"exp": ""}),
        json!({"exp": " 2000"}),
        json!({"exp": "+2000"}),
        json!({"exp": "0x7d0"}),
        json!({"exp": "never"}),
        json!({"exp": true}),
        json!({"exp": [2000]}),
        json!({"nbf": 1400}),
        json!({"nbf": "1400"}),
        json!({"nbf": "soon"}),
    ] {
        assert!(check(bad.clone()).is_err(), "{bad}");
    }
}

fn map(more: &Value, of: &Value) -> Result<User, String> {
    mapping::map_user(&rules(more), &claims(of))
}

#[test]
fn jwt_claims_mapped_to_user() {
    let everything = json!({
        "claimMappings": {
            "username": {"claim": "sub", "prefix": "oidc:"},
            "groups": {"claim": "roles", "prefix": "r-"},
            "uid": {"claim": "id"},
            "extra": [
                {"key": "example.com/tenant", "valueExpression": "claims.tenant"},
                {"key": "example.com/none", "valueExpression": "''"},
                {"key": "example.com/list", "valueExpression": "claims.list.filter(x, x != 'b')"},
            ],
        },
    });
    let user =
        map(&everything, &json!({"roles": ["a", "b"], "id": "7", "tenant": "t", "list": ["a", "b"], "jti": "j"}));
    let user = user.unwrap();
    assert_eq!((&*user.name, &*user.uid, user.groups), ("oidc:jane", "7", vec!["r-a".to_owned(), "r-b".to_owned()]));
    let extra: Vec<(&str, String)> = user.extra.iter().map(|(key, values)| (key.as_str(), values.join(","))).collect();
    assert_eq!(
        extra,
        [
            ("authentication.kubernetes.io/credential-id", "JTI=j".to_owned()),
            ("example.com/list", "a".to_owned()),
            ("example.com/tenant", "t".to_owned()),
        ]
    );
    let expressions = json!({
        "claimMappings": {
            "username": {"expression": "claims.sub + '@x'"},
            "groups": {"expression": "claims.roles.split(',')"},
            "uid": {"expression": "claims.id"},
        },
    });
    let user = map(&expressions, &json!({"roles": "a,,b", "id": "7"})).unwrap();
    assert_eq!((&*user.name, &*user.uid, user.groups), ("jane@x", "7", vec!["a".to_owned(), "b".to_owned()]));
}

#[test]
fn jwt_claims_that_cannot_be_mapped_are_rejected() {
    let groups = |claim: Value| {
        let mapping = json!({"claimMappings": {
            "username": {"claim": "sub", "prefix": ""}, "groups": {"claim": "roles", "prefix": "p:"},
        }});
        map(&mapping, &claim).map(|user| user.groups.join(","))
    };
    assert_eq!(groups(json!({})), Ok(String::new()));
    assert_eq!(groups(json!({"roles": "a"})), Ok("p:a".to_owned()));
    assert_eq!(groups(json!({"roles": []})), Ok(String::new()));
    for bad in [json!({"roles": 1}), json!({"roles": ["a", 1]}), json!({"_claim_names": {"roles": "src1"}})] {
        assert!(groups(bad.clone()).is_err(), "{bad}");
    }
    let email = |of: Value| {
        let mapping = json!({"claimMappings": {"username": {"claim": "email", "prefix": ""}}});
        map(&mapping, &of).map(|user| user.name)
    };
    assert_eq!(email(json!({"email": "a@b"})), Ok("a@b".to_owned()));
    assert_eq!(email(json!({"email": "a@b", "email_verified": true})), Ok("a@b".to_owned()));
    for verified in [json!(false), json!("true"), json!(null), json!(1)] {
        assert!(email(json!({"email": "a@b", "email_verified": verified})).is_err());
    }
    for of in [json!({"sub": ""}), json!({"sub": 1}), json!({"sub": null}), json!({"sub": ["jane"]})] {
        assert!(map(&json!({}), &of).is_err(), "{of}");
    }
    let by = |expression: &str| {
        let mapping = json!({"claimMappings": {"username": {"expression": expression}}});
        map(&mapping, &json!({})).map(|user| user.name)
    };
    for expression in ["''", "1", "claims.missing", "[claims.sub]", "claims.sub == 'jane'"] {
        assert!(by(expression).is_err(), "{expression}");
    }
}

#[test]
fn jwt_validation_rules_enforced() {
    let with = |rules: Value, of: Value| map(&rules, &of).map(|_| ());
    let required = || json!({"claimValidationRules": [{"claim": "hd", "requiredValue": "example.com"}]});
    assert_eq!(with(required(), json!({"hd": "example.com"})), Ok(()));
    for of in [json!({}), json!({"hd": "x"}), json!({"hd": ["example.com"]}), json!({"hd": null})] {
        assert!(with(required(), of.clone()).is_err(), "{of}");
    }
    let lifetime =
        || json!({"claimValidationRules": [{"expression": "claims.exp - claims.iat <= 86400", "message": "too long"}]});
    assert_eq!(with(lifetime(), json!({"iat": 1900})), Ok(()));
    let why = with(lifetime(), json!({"exp": 1e6, "iat": 1})).unwrap_err();
    assert!(why.contains("too long"), "{why}");
    assert!(with(lifetime(), json!({})).is_err());
    let user = |expression: &str| {
        let rules = json!({
            "claimMappings": {"username": {"claim": "sub", "prefix": ""}, "groups": {"claim": "roles", "prefix": ""}},
            "userValidationRules": [{"expression": expression, "message": "no"}],
        });
        with(rules, json!({"roles": ["system:masters"]}))
    };
    assert_eq!(user("!user.username.startsWith('system:')"), Ok(()));
    assert!(user("user.groups.all(group, !group.startsWith('system:'))").unwrap_err().contains("failed: no"));
}

#[test]
fn a_file_wrong_in_every_field_says_so_at_once() {
    let text = r#"
apiVersion: apiserver.config.k8s.io/v2
kind: AuthenticationConfig
more: 1
anonymous: {enabled: false, conditions: [{path: /livez, paths: x}]}
jwt:
- issuer:
    url: http://user@issuer.example?x
    discoveryURL: ftp://x
    certificateAuthority: nothing
    audiences: [a, "", a]
    audienceMatchPolicy: MatchAll
    egressSelectorType: etcd
    color: red
  claimValidationRules:
  - {claim: a, expression: "true"}
  - {}
  - {claim: hd, message: x}
  - {claim: hd}
  - {expression: claims.admin}
  - {expression: "claims.", requiredValue: x}
  - {expression: "nobody.knows == 1"}
  claimMappings:
    username: {expression: claims.email, prefix: ""}
    groups: {claim: g}
    uid: {claim: a, expression: "'b'"}
    extra:
    - {key: plain, valueExpression: "'a'"}
    - {key: Example.com/x, valueExpression: "'a'"}
    - {key: a.k8s.io/x, valueExpression: ""}
    - {key: a.k8s.io/x, valueExpression: "'a'"}
  userValidationRules:
  - {expression: ""}
  - {expression: user.name == "x"}
  - {expression: user.username}
- issuer: {url: https://a.example, discoveryURL: "https://a.example/", audiences: [a, b], egressSelectorType: cluster}
  claimMappings: {username: {claim: sub}}
- issuer: {url: https://a.example}
"#;
    insta::assert_snapshot!(AuthenticationConfiguration::parse("a.yaml", text, false).unwrap_err());
    for text in ["", "---\n", "{}", "[]", "kind: [", &format!("{}\n---\n{}", file(&json!({})), file(&json!({})))] {
        assert!(AuthenticationConfiguration::parse("a.yaml", text, false).is_err(), "{text}");
    }
}

#[test]
fn authentication_configuration_accepts_older_versions_and_no_issuer() {
    for version in ["v1", "v1beta1", "v1alpha1"] {
        let text =
            format!("apiVersion: apiserver.config.k8s.io/{version}\nkind: AuthenticationConfiguration\njwt: []\n");
        assert!(AuthenticationConfiguration::parse("a.yaml", &text, false).unwrap().issuers.is_empty());
    }
    let text = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n\
                anonymous: {enabled: true, conditions: [{path: /livez}, {path: /readyz}]}\n";
    let anonymous = AuthenticationConfiguration::parse("a.yaml", text, false).unwrap().anonymous.unwrap();
    assert_eq!((anonymous.enabled, anonymous.paths), (true, vec!["/livez".to_owned(), "/readyz".to_owned()]));
}
