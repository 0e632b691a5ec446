//! The claims of service account tokens (`pkg/serviceaccount/claims.go`).

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

/// Leeway of clocks in seconds, and how long a token outlives the deletion of its objects (`jwt.DefaultLeeway`).
pub(super) const LEEWAY_SECONDS: i64 = 60;
/// Longest token in bytes. Audiences of a TokenRequest are limited so that no longer one is issued.
const MAX_TOKEN_BYTES: usize = 64 << 10;
/// The claims of a token of a TokenRequest.
#[derive(Deserialize)]
pub(super) struct PrivateClaims {
    #[serde(default)]
    pub(super) namespace: String,
    #[serde(default)]
    pub(super) serviceaccount: ObjectClaim,
    pub(super) pod: Option<ObjectClaim>,
    pub(super) secret: Option<ObjectClaim>,
    pub(super) node: Option<ObjectClaim>,
    pub(super) warnafter: Option<i64>,
}

#[derive(Default, Deserialize)]
pub(super) struct ObjectClaim {
    #[serde(default)]
    pub(super) name: String,
    #[serde(default)]
    pub(super) uid: String,
}

/// The issuer that a token names; none for what is no JWT, or too long for a service account token.
pub(super) fn read_issuer(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct IssuerClaim {
        iss: String,
    }
    let payload = token.split('.').nth(1).filter(|_| token.len() <= MAX_TOKEN_BYTES)?;
    let payload = URL_SAFE_NO_PAD.decode(payload).ok()?;
    serde_json::from_slice::<IssuerClaim>(&payload).ok().map(|claim| claim.iss)
}

/// The audiences in both lists, in the order of the second.
pub(super) fn common_audiences(valid_for: &[String], requested: &[String]) -> Vec<String> {
    let valid_for: HashSet<&String> = valid_for.iter().collect();
    requested.iter().filter(|audience| valid_for.contains(audience)).cloned().collect()
}

pub(super) fn check_times(claims: &Map<String, Value>, now: i64) -> Result<(), &'static str> {
    if number(claims, "nbf")?.is_some_and(|at| now + LEEWAY_SECONDS < at) {
        return Err("service account token is not valid yet");
    }
    if number(claims, "exp")?.is_some_and(|at| now - LEEWAY_SECONDS > at) {
        return Err("service account token has expired");
    }
    if number(claims, "iat")?.is_some_and(|at| now + LEEWAY_SECONDS < at) {
        return Err("service account token is issued in the future");
    }
    Ok(())
}

/// A time in seconds (`NumericDate` of RFC 7519, section 2).
pub(super) fn number(claims: &Map<String, Value>, name: &str) -> Result<Option<i64>, &'static str> {
    match claims.get(name) {
        None | Some(Value::Null) => Ok(None),
        // A number that is too large for an integer is as good as the largest.
        #[allow(clippy::cast_possible_truncation)]
        Some(Value::Number(number)) => Ok(number.as_i64().or_else(|| number.as_f64().map(|number| number as i64))),
        Some(_) => Err("a time in the claims is not a number"),
    }
}

pub(super) fn audiences(claims: &Map<String, Value>) -> Result<Vec<String>, &'static str> {
    let malformed = "the claim aud is neither a text nor a list of texts";
    match claims.get("aud") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one.clone()]),
        Some(list) => Vec::deserialize(list).map_err(|_| malformed),
    }
}
