//! Parser of JSON Web Tokens in compact form. Nothing is verified here.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

/// The maximum length of a token: that of all headers of a request in Go's net/http.
const MAX_TOKEN_BYTES: usize = 1 << 20;

/// A signing algorithm: those of kube-apiserver, and EdDSA. There are none for shared secrets, and no `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, clippy::upper_case_acronyms)]
pub enum Algorithm {
    RS256,
    RS384,
    RS512,
    PS256,
    PS384,
    PS512,
    ES256,
    ES384,
    ES512,
    EdDSA,
}

/// The claims of a token, by name.
pub(super) type Claims = Map<String, Value>;

/// A parsed, unverified token.
#[derive(Debug)]
pub struct UnverifiedToken<'t> {
    /// The signed part: header and payload as received.
    pub signing_input: &'t str,
    /// The algorithm of the header.
    pub algorithm: Algorithm,
    /// The key ID of the header; may be empty.
    pub key_id: String,
    /// The decoded signature.
    pub signature: Vec<u8>,
    /// Claims of the token.
    pub claims: Claims,
}

/// Returns the unverified claims of a token, for finding its issuer; none if it is no JWT.
pub fn claims(token: &str) -> Option<Claims> {
    let (_, payload, _) = split_parts(token)?;
    decode_object(payload)
}

impl Algorithm {
    /// Parses the algorithm name of a token's header.
    pub fn parse(name: &str) -> Option<Algorithm> {
        Some(match name {
            "RS256" => Algorithm::RS256,
            "RS384" => Algorithm::RS384,
            "RS512" => Algorithm::RS512,
            "PS256" => Algorithm::PS256,
            "PS384" => Algorithm::PS384,
            "PS512" => Algorithm::PS512,
            "ES256" => Algorithm::ES256,
            "ES384" => Algorithm::ES384,
            "ES512" => Algorithm::ES512,
            "EdDSA" => Algorithm::EdDSA,
            _ => return None,
        })
    }
}

impl<'t> UnverifiedToken<'t> {
    /// Parses a token after its claims were read by [`claims`].
    ///
    /// # Errors
    /// Why it is invalid, without any part of the token.
    pub fn parse(token: &'t str, claims: Claims) -> Result<UnverifiedToken<'t>, &'static str> {
        let (header, payload, signature) = split_parts(token).ok_or("not a compact JWT")?;
        let header_fields = decode_object(header).ok_or("the header is not a JSON object")?;
        // RFC 7515, section 4.1.11: a token with unsupported critical extensions must be rejected.
        if header_fields.contains_key("crit") {
            return Err("critical header extensions are not supported");
        }
        let text = |name: &str| match header_fields.get(name) {
            None | Some(Value::Null) => Ok(""),
            Some(Value::String(text)) => Ok(text.as_str()),
            Some(_) => Err("a header field is not a string"),
        };
        // Other header fields are ignored: a token must not bring its own key (jwk, jku, x5c).
        let algorithm = Algorithm::parse(text("alg")?).ok_or("signing algorithm not supported")?;
        let key_id = text("kid")?.to_owned();
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| "the signature is not base64url")?;
        let signed = token.get(..header.len() + 1 + payload.len()).ok_or("not a compact JWT")?;
        Ok(UnverifiedToken { signing_input: signed, algorithm, key_id, signature, claims })
    }
}

fn split_parts(token: &str) -> Option<(&str, &str, &str)> {
    if token.len() > MAX_TOKEN_BYTES {
        return None;
    }
    let mut parts = token.split('.');
    let found = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().is_none().then_some(found)
}

fn decode_object(part: &str) -> Option<Claims> {
    match serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).ok()?).ok()? {
        Value::Object(fields) => Some(fields),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(text: &str) -> String {
        URL_SAFE_NO_PAD.encode(text)
    }

    fn parse(header: &str) -> Result<(Algorithm, String), &'static str> {
        let token = format!("{}.{}.c2ln", encoded(header), encoded("{}"));
        let token = UnverifiedToken::parse(&token, claims(&token).unwrap())?;
        Ok((token.algorithm, token.key_id))
    }

    #[test]
    fn jwt_symmetric_and_none_algorithms_are_rejected() {
        assert_eq!(parse(r#"{"alg":"RS256","kid":"a"}"#), Ok((Algorithm::RS256, "a".to_owned())));
        assert_eq!(parse(r#"{"alg":"EdDSA","typ":"JWT"}"#), Ok((Algorithm::EdDSA, String::new())));
        for algorithm in ["none", "None", "NONE", "nOnE", "", "HS256", "HS512", "rs256", "RS1", "ES256K", "A128KW"] {
            assert!(parse(&format!(r#"{{"alg":"{algorithm}"}}"#)).is_err(), "{algorithm}");
        }
        for header in [
            r#"{"kid":"a"}"#,
            r#"{"alg":1}"#,
            r#"{"alg":["RS256"]}"#,
            r#"{"alg":"RS256","kid":1}"#,
            r#"{"alg":"RS256","kid":["a"]}"#,
            r#"{"alg":"RS256","crit":[]}"#,
            r#"{"alg":"RS256","crit":["exp"],"exp":1}"#,
            r#"{"alg":"RS256""#,
            "[]",
            "",
        ] {
            assert!(parse(header).is_err(), "{header}");
        }
    }

    #[test]
    fn jwt_claims_absent_in_malformed_token() {
        let payload = encoded("{\"iss\":\"x\"}");
        for token in [
            String::new(),
            "a".to_owned(),
            "..".to_owned(),
            format!("a.{payload}"),
            format!("a.{payload}.b.c"),
            format!("a.{payload}=.b"),
            format!("a. {payload}.b"),
            format!("a.{}.b", encoded("[]")),
            format!("a.{}.b", encoded("{")),
            format!("a.{payload}.{}", "b".repeat(MAX_TOKEN_BYTES)),
        ] {
            assert!(claims(&token).is_none(), "{}", &token[..token.len().min(40)]);
        }
        assert_eq!(claims(&format!("a.{payload}.b")).unwrap()["iss"], "x");
    }

    #[test]
    fn jwt_signing_input_is_original_header_and_payload() {
        let token = format!("{}.{}.c2ln", encoded(r#"{ "alg" : "ES256" }"#), encoded("{}"));
        let parsed = UnverifiedToken::parse(&token, claims(&token).unwrap()).unwrap();
        assert_eq!(parsed.signing_input, token.rsplit_once('.').unwrap().0);
        assert_eq!(parsed.signature, b"sig");
    }
}
