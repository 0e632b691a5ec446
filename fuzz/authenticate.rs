//! Tokens: the file, `Authorization`, a WebSocket's protocols; and names of identity headers.

use http::{HeaderMap, HeaderName, HeaderValue};
use narthex::authenticate::parsers::{Bearer, bearer, records, websocket};
use narthex::authenticate::{IdentityHeaders, RequestHeaderNames, Tokens};

use crate::{on_bytes, on_texts, text};

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
    on_texts(WORDS, |text| {
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
        match Tokens::parse(text, "tokens.csv") {
            Ok(tokens) => assert!(tokens.user("").is_none() && tokens.len() <= lines),
            Err(problems) => assert!(!problems.0.is_empty()),
        }
    });
}

#[test]
fn authorization_header() {
    on_texts(&["Bearer", "bearer", "Basic", " ", " ", "\t", ":", "token", "é", ",", "\""], |text| {
        if let Bearer::Token(token) = bearer(text) {
            assert!(!token.is_empty() && !token.contains(' ') && text.contains(token));
        }
    });
}

#[test]
fn websocket_token() {
    const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";
    on_texts(&[PREFIX, "dG9rZW4", "czNjcmV0", "_w", "=", "==", ",", ",", " ", "chat", "é", "%"], |text| {
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
    let headers = IdentityHeaders::new(&RequestHeaderNames::standard());
    on_bytes(|bytes| {
        let mut map = HeaderMap::new();
        for line in bytes.chunks(5) {
            if let Ok(name) = HeaderName::from_bytes(text(line, WORDS).as_bytes()) {
                map.append(name, HeaderValue::from_static("x"));
            }
        }
        headers.strip(&mut map);
        for name in map.keys() {
            let name = name.as_str().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
            assert!(!["authorization", "x-remote-user", "x-remote-uid", "x-remote-group"].contains(&&*name));
            assert!(!name.starts_with("x-remote-extra-"));
        }
    });
}
