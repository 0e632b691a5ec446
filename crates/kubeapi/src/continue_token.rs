//! `continue` of a list: where its next page begins (`k8s.io/apiserver/pkg/storage/continue.go`).

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde_json::Value;

use super::Status;
use super::json::{json_kind, quote_json_into, read_json};

const VERSION: &str = "meta.k8s.io/v1";

/// Go's `base64.RawURLEncoding`, which ignores the last bits that do not make a byte.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// Position in a list. Clients get it as opaque text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContinueToken {
    /// Revision of the first page; `None` to go on at the latest.
    pub revision: Option<u64>,
    /// First key of the page, relative to the key of the list, with a slash at the start. Never leads out of the list:
    /// it has no segment that is empty, `.` or `..`.
    pub start: String,
}

impl ContinueToken {
    /// The text for clients.
    pub fn encode(&self) -> String {
        let mut json = format!("{{\"v\":\"{VERSION}\",\"rv\":");
        match self.revision {
            Some(revision) => json.push_str(&revision.to_string()),
            None => json.push_str("-1"),
        }
        json.push_str(",\"start\":");
        quote_json_into(&mut json, &self.start);
        json.push('}');
        BASE64.encode(json)
    }

    /// Reads the text of a client.
    ///
    /// # Errors
    /// 400 with Kubernetes' text.
    pub fn decode(text: &str) -> Result<ContinueToken, Status> {
        decode(text)
            .map_err(|why| Status::bad_request(format!("invalid continue token: continue key is not valid{why}")))
    }
}

fn decode(text: &str) -> Result<ContinueToken, String> {
    // Go skips line ends.
    let text: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    let bytes = BASE64
        .decode(&text)
        .map_err(|error| format!(": illegal base64 data at input byte {}", invalid_position(&text, &error)))?;
    let (json, _) = read_json(&bytes).map_err(|error| format!(": {error}"))?;
    let mismatch = |kind: &str, at: &str| format!(": json: cannot unmarshal {kind} into Go {at}");
    let fields = match &json {
        Value::Object(fields) => fields.clone(),
        Value::Null => serde_json::Map::new(),
        other => return Err(mismatch(json_kind(other), "value of type storage.continueToken")),
    };
    let text_of = |key: &str| match fields.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(other) => Err(mismatch(json_kind(other), &format!("struct field continueToken.{key} of type string"))),
    };
    let version = text_of("v")?;
    let revision = match fields.get("rv") {
        None | Some(Value::Null) => 0,
        Some(Value::Number(number)) if number.is_i64() => number.as_i64().unwrap_or_default(),
        Some(other) => {
            return Err(mismatch(json_kind(other), "struct field continueToken.rv of type int64"));
        }
    };
    let start = text_of("start")?;
    if version != VERSION {
        return Err(format!(": server does not recognize this encoded version {version}"));
    }
    if revision == 0 {
        return Err(format!(": incorrect encoded start resourceVersion (version {VERSION})"));
    }
    if start.is_empty() {
        return Err(format!(": encoded start key empty (version {VERSION})"));
    }
    let path = start.strip_prefix('/').unwrap_or(start);
    if !path.is_empty() && path.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        return Err(format!(": {start}"));
    }
    Ok(ContinueToken { revision: u64::try_from(revision).ok(), start: format!("/{path}") })
}

/// Where Go reports the error: at the first byte that is not of the alphabet, else at the last one.
fn invalid_position(text: &str, error: &base64::DecodeError) -> usize {
    match error {
        base64::DecodeError::InvalidByte(at, _) => *at,
        _ => text.bytes().position(|byte| byte == b'=').unwrap_or(text.len().saturating_sub(1)),
    }
}

/// 410 for a list at a revision that is no longer kept.
pub fn expired_list() -> Status {
    Status::expired("The resourceVersion for the provided list is too old.")
}

/// 410 for a page at a revision that is no longer kept, with a token that goes on at the latest revision
/// (`handleCompactedErrorForPaging` in `k8s.io/apiserver/pkg/storage/etcd3/errors.go`).
pub fn expired_page(token: &ContinueToken) -> Status {
    let latest = ContinueToken { revision: None, start: token.start.clone() };
    Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list \
         without the continue parameter, or use the continue token in this response to retrieve the remainder of the \
         results. Continuing with the provided token results in an inconsistent list - objects that were created, \
         modified, or deleted between the time the first chunk was returned and now may show up in the list.",
    )
    .with_continue(latest.encode())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(json: &str) -> Result<ContinueToken, String> {
        ContinueToken::decode(&BASE64.encode(json)).map_err(|status| {
            assert_eq!(status.code, 400);
            status.message
        })
    }

    #[test]
    fn continue_token_encodes_as_upstream() {
        let token = ContinueToken { revision: Some(7), start: "/ns/a\0".into() };
        let text = token.encode();
        assert_eq!(text, "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6Nywic3RhcnQiOiIvbnMvYVx1MDAwMCJ9");
        assert_eq!(ContinueToken::decode(&text), Ok(token));
    }

    #[test]
    fn continue_token_errors_match_upstream() {
        let prefix = "invalid continue token: continue key is not valid";
        for (json, expected) in [
            ("{", ": unexpected end of JSON input"),
            ("[]", ": json: cannot unmarshal array into Go value of type storage.continueToken"),
            (r#"{"rv":"1"}"#, ": json: cannot unmarshal string into Go struct field continueToken.rv of type int64"),
            ("{}", ": server does not recognize this encoded version "),
            (r#"{"v":"v2"}"#, ": server does not recognize this encoded version v2"),
            (r#"{"v":"meta.k8s.io/v1"}"#, { ": incorrect encoded start resourceVersion (version meta.k8s.io/v1)" }),
            (r#"{"v":"meta.k8s.io/v1","rv":1}"#, ": encoded start key empty (version meta.k8s.io/v1)"),
            (r#"{"v":"meta.k8s.io/v1","rv":1,"start":"a/../../b"}"#, ": a/../../b"),
            (r#"{"v":"meta.k8s.io/v1","rv":1,"start":"/a//b"}"#, ": /a//b"),
            (r#"{"v":"meta.k8s.io/v1","rv":1,"start":"/a/"}"#, ": /a/"),
        ] {
            assert_eq!(decoded(json), Err(format!("{prefix}{expected}")), "{json}");
        }
        let garbage = ContinueToken::decode("ab!d").unwrap_err();
        assert_eq!(garbage.message, format!("{prefix}: illegal base64 data at input byte 2"));
        let short = ContinueToken::decode("abcde").unwrap_err();
        assert_eq!(short.message, format!("{prefix}: illegal base64 data at input byte 4"));
    }

    #[test]
    fn continue_token_without_slash_or_revision() {
        let read = decoded(r#"{"v":"meta.k8s.io/v1","rv":-1,"start":"a"}"#);
        assert_eq!(read, Ok(ContinueToken { revision: None, start: "/a".into() }));
    }

    #[test]
    fn expired_page_goes_on_at_latest() {
        let status = expired_page(&ContinueToken { revision: Some(7), start: "/a".into() });
        assert_eq!((status.code, status.reason), (410, "Expired"));
        let next = ContinueToken::decode(status.continue_token.as_deref().unwrap()).unwrap();
        assert_eq!(next, ContinueToken { revision: None, start: "/a".into() });
    }

    proptest! {
        #[test]
        fn continue_token_decodes_what_it_encodes(revision in 1..=i64::MAX as u64, name in "[^/]{1,20}") {
            prop_assume!(name != "." && name != "..");
            let token = ContinueToken { revision: Some(revision), start: format!("/ns/{name}\0") };
            prop_assert_eq!(ContinueToken::decode(&token.encode()), Ok(token));
        }

        #[test]
        fn continue_token_answers_any_text(text in "[a-zA-Z0-9=_!-]{0,30}") {
            let _ = ContinueToken::decode(&text);
        }
    }
}
