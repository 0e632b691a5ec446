//! Relaying of documents: without the hash in the URL, which could cause a redirect.
//!
//! A backend that is asked for an outdated hash answers 301 to the current one. A gateway that relays no redirects
//! turns that into 502, as kube-aggregator does. So the hash is removed, and the backend returns the current document.
//! If its entity tag equals the hash, the response is marked immutable, as Kubernetes' handler would mark it.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use http::header::{CACHE_CONTROL, ETAG, EXPIRES};
use http::{HeaderMap, HeaderValue};

/// The query without `hash`, and the hash that was in it; each `None` if absent.
pub fn split_hash(query: Option<&str>) -> (Option<Cow<'_, str>>, Option<&str>) {
    let Some(query) = query else { return (None, None) };
    let is_hash = |pair: &&str| pair.starts_with("hash=") || *pair == "hash";
    let hash = query.split('&').find_map(|pair| pair.strip_prefix("hash="));
    if !query.split('&').any(|pair| is_hash(&pair)) {
        return (Some(Cow::Borrowed(query)), None);
    }
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_hash(pair)).collect();
    ((!rest.is_empty()).then(|| Cow::Owned(rest.join("&"))), hash)
}

/// Marks a backend's response (status 200 or 304) as immutable if its entity tag is `hash`. Kubernetes' tag is the hash
/// in quotes.
pub fn mark_immutable(headers: &mut HeaderMap, hash: Option<&str>, now: SystemTime) {
    let its = headers.get(ETAG).and_then(|etag| etag.to_str().ok()).map(|etag| etag.trim_matches('"'));
    if hash.is_some_and(|hash| !hash.is_empty() && its == Some(hash)) {
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        let expires = httpdate::fmt_http_date(now + Duration::from_secs(365 * 24 * 60 * 60));
        if let Ok(expires) = HeaderValue::from_str(&expires) {
            headers.insert(EXPIRES, expires);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_hash_removes_hash_from_query() {
        for (query, rest, hash) in [
            (None, None, None),
            (Some(""), Some(""), None),
            (Some("timeout=32s"), Some("timeout=32s"), None),
            (Some("hash=A"), None, Some("A")),
            (Some("hash=A&timeout=32s&hash=B"), Some("timeout=32s"), Some("A")),
            (Some("hash&x=1"), Some("x=1"), None),
            (Some("rehash=A"), Some("rehash=A"), None),
        ] {
            assert_eq!(split_hash(query), (rest.map(Cow::Borrowed), hash), "{query:?}");
        }
    }

    #[test]
    fn mark_immutable_only_if_etag_equals_hash() {
        let sealed = |etag: &'static str, hash| {
            let mut headers = HeaderMap::from_iter([(ETAG, HeaderValue::from_static(etag))]);
            mark_immutable(&mut headers, hash, SystemTime::UNIX_EPOCH);
            headers.get(EXPIRES).map(|expires| expires.to_str().unwrap().to_owned())
        };
        assert_eq!(sealed("\"ABC\"", Some("ABC")).as_deref(), Some("Fri, 01 Jan 1971 00:00:00 GMT"));
        assert_eq!(sealed("\"ABC\"", Some("OLD")), None);
        assert_eq!(sealed("\"\"", Some("")), None);
        assert_eq!(sealed("\"ABC\"", None), None);
    }
}
