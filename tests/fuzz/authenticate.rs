//! Tokens: the file, `Authorization`, a WebSocket's protocols; and names of identity headers.

use http::{HeaderMap, HeaderName, HeaderValue};
use narthex::authenticate::jwt::AuthenticationConfiguration;
use narthex::authenticate::jwt::parsers::{Jwks, UnverifiedToken, claims};
use narthex::authenticate::parsers::{Bearer, bearer, records, websocket};
use narthex::authenticate::{IdentityHeaderMatcher, RequestHeaderNames, StaticTokens};

use crate::{fuzz_bytes, fuzz_text, text_from_words};

#[test]
fn token_file() {
    const WORDS: &[&str] = &[
        "t,u,1\n",
        "t2,u,1,\"g1,g2\"\r\n",
        "\"t\"\"3\",u,",
        "t4,",
        "u,",
        "\n",
        "\n",
        ",",
        "\"",
        "\"\"",
        "\r",
        " ",
        "\t",
        "\0",
        "é",
    ];
    fuzz_text(WORDS, |text| {
        let lines = text.matches('\n').count() + 1;
        let records = records(text);
        assert!(records.len() <= lines);
        for record in records {
            let line = match record {
                Ok((line, fields)) => {
                    assert!(!fields.is_empty());
                    line
                }
                Err((line, _)) => line,
            };
            assert!((1..=lines).contains(&line));
        }
        match StaticTokens::parse(text, "tokens.csv") {
            Ok(tokens) => assert!(tokens.user("").is_none() && tokens.len() <= lines),
            Err(problems) => assert!(!problems.0.is_empty()),
        }
    });
}

#[test]
fn authorization_header() {
    fuzz_text(&["Bearer", "bearer", "Basic", " ", " ", "\t", ":", "token", "é", ",", "\""], |text| {
        if let Bearer::Token(token) = bearer(text) {
            assert!(!token.is_empty() && !token.contains(' ') && text.contains(token));
        }
    });
}

#[test]
fn websocket_token() {
    const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";
    fuzz_text(&[PREFIX, "dG9rZW4", "czNjcmV0", "_w", "=", "==", ",", ",", " ", "chat", "é", "%"], |text| {
        let protocols = websocket(text.split('|'));
        assert!(protocols.others.iter().all(|protocol| !protocol.starts_with(PREFIX)));
        if let Ok(Some(token)) = protocols.token {
            assert!(!token.is_empty() && !protocols.others.is_empty() && protocols.changed);
        }
    });
}

#[test]
fn identity_header_names() {
    const WORDS: &[&str] = &[
        "x",
        "-",
        "_",
        ".",
        "remote",
        "user",
        "uid",
        "group",
        "s",
        "extra",
        "authorization",
        "impersonate",
        "x-remote-user",
        "X_Remote_Extra_",
        "%2f",
        "sec-websocket-protocol",
    ];
    let headers = IdentityHeaderMatcher::new(&RequestHeaderNames::standard());
    fuzz_bytes(|bytes| {
        let mut map = HeaderMap::new();
        for line in bytes.chunks(5) {
            if let Ok(name) = HeaderName::from_bytes(text_from_words(line, WORDS).as_bytes()) {
                map.append(name, HeaderValue::from_static("x"));
            }
        }
        headers.strip(&mut map);
        for name in map.keys() {
            let name = name.as_str().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
            assert!(!["authorization", "x-remote-user", "x-remote-uid", "x-remote-group"].contains(&&*name));
            assert!(!name.starts_with("x-remote-extra-") && !name.starts_with("impersonate-"));
        }
    });
}

#[test]
fn jwt_tokens() {
    // Parts that are base64url of something, so that more than the first look is fuzzed.
    const WORDS: &[&str] = &[
        "eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ",
        "eyJhbGciOiJub25lIn0",
        "eyJhbGciOiJFUzI1NiIsImNyaXQiOltdfQ",
        "eyJpc3MiOiJodHRwczovL2EuZXhhbXBsZSIsImF1ZCI6WyJhIl0sImV4cCI6MX0",
        "W10",
        "e30",
        "bnVsbA",
        ".",
        ".",
        "=",
        "-_",
        " ",
        "{",
        "\0",
        "é",
    ];
    let keys = r#"{"keys":[{"kty":"RSA","kid":"a","n":"AQAB","e":"AQAB"},
        {"kty":"EC","crv":"P-256","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","y":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}]}"#;
    fuzz_text(WORDS, |text| {
        let keys = Jwks::parse(keys.as_bytes()).unwrap();
        if let Some(claims) = claims(text)
            && let Ok(token) = UnverifiedToken::parse(text, claims)
        {
            assert!(text.starts_with(token.signing_input));
            assert_ne!(keys.verify(&token), narthex::authenticate::jwt::parsers::SignatureVerification::Valid);
        }
    });
}

#[test]
fn jwks() {
    const WORDS: &[&str] = &[
        "{\"keys\":[",
        "]}",
        "{\"kty\":",
        "\"RSA\"",
        "\"EC\",\"crv\":\"P-256\"",
        "\"OKP\",\"crv\":\"Ed25519\"",
        ",\"n\":\"AQAB\",\"e\":\"AQAB\"",
        ",\"x\":\"AA\",\"y\":\"",
        ",\"use\":\"sig\"",
        ",\"alg\":\"RS256\"",
        "}",
        ",",
        "\"",
        "1",
        "null",
        "=",
    ];
    fuzz_text(WORDS, |text| {
        if let Err(why) = Jwks::parse(text.as_bytes()) {
            assert!(!why.is_empty());
        }
    });
}

#[test]
fn authentication_configuration() {
    const WORDS: &[&str] = &[
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n",
        "- issuer: {url: https://a.example, audiences: [a]",
        ", discoveryURL: https://b.example",
        ", certificateAuthority: x",
        "}\n",
        "  claimMappings: {username: {claim: sub, prefix: ''}",
        ", groups: {expression: 'claims.groups'}",
        ", extra: [{key: a.example/b, valueExpression: \"'x'\"}]",
        "  claimValidationRules: [{claim: a}, {expression: 'claims.a == 1'}]\n",
        "  userValidationRules: [{expression: 'user.username != \"\"'}]\n",
        "anonymous: {enabled: true, conditions: [{path: /x}]}\n",
        "---\n",
        "[",
        "{",
        "null",
        "\"",
        "é",
    ];
    fuzz_text(WORDS, |text| {
        for json in [false, true] {
            if let Err(problems) = AuthenticationConfiguration::parse("f", text, json) {
                assert!(!problems.0.is_empty());
                assert!(
                    problems.0.iter().all(|problem| problem.location.starts_with('f') && !problem.message.is_empty())
                );
            }
        }
    });
}
