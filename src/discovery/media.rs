//! Media types of discovery, and entity tags.

use http::HeaderMap;
use http::header::{ACCEPT, IF_NONE_MATCH};

use crate::message::negotiate::{MediaRange, parse_accept};

/// Format of a discovery document, named by three media type parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiscoveryFormat {
    /// `apidiscovery.k8s.io/v2`.
    V2,
    /// `apidiscovery.k8s.io/v2beta1`.
    V2beta1,
    /// No format is named.
    Plain,
}

impl DiscoveryFormat {
    /// The format named by a media type; `None` for an unknown one (`as=Table`, `v=v3`). Other parameters (`foo=bar`,
    /// `profile=nopeer`) are ignored, as Kubernetes does.
    pub(super) fn from_clause(media: &MediaRange<'_>) -> Option<DiscoveryFormat> {
        match ["g", "v", "as"].map(|name| media.parameter(name).unwrap_or_default()) {
            ["apidiscovery.k8s.io", "v2", "APIGroupDiscoveryList"] => Some(DiscoveryFormat::V2),
            ["apidiscovery.k8s.io", "v2beta1", "APIGroupDiscoveryList"] => Some(DiscoveryFormat::V2beta1),
            [_, _, ""] => Some(DiscoveryFormat::Plain),
            _ => None,
        }
    }
}

/// Whether a `Content-Type` names a supported version of aggregated discovery.
pub(super) fn is_aggregated(content_type: &str) -> bool {
    parse_accept(content_type).first().is_some_and(|media| {
        media.covers("application", "json")
            && matches!(DiscoveryFormat::from_clause(media), Some(DiscoveryFormat::V2 | DiscoveryFormat::V2beta1))
    })
}

/// The clauses of `Accept`, most preferred first; `None` without the header, which means anything.
pub(crate) fn accepted(headers: &HeaderMap) -> Option<Vec<MediaRange<'_>>> {
    let accept = headers.get(ACCEPT).map(|accept| accept.to_str().unwrap_or("?")).unwrap_or_default();
    (!accept.trim().is_empty()).then(|| parse_accept(accept))
}

/// Whether `If-None-Match` names `etag` (with its quotes).
///
/// Kubernetes compares one exact tag. Here lists, `*` and weak tags count, too (RFC 9110, 13.1.2).
pub(crate) fn matches_etag(headers: &HeaderMap, etag: &str) -> bool {
    headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn media_aggregated_discovery_content_types() {
        for yes in [
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
            "application/json; as=APIGroupDiscoveryList; v=v2beta1; g=apidiscovery.k8s.io",
        ] {
            assert!(is_aggregated(yes), "{yes}");
        }
        for no in [
            "application/json",
            "",
            "text/html; charset=utf-8",
            "application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList",
            "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        ] {
            assert!(!is_aggregated(no), "{no}");
        }
    }

    #[test]
    fn media_if_none_match_lists_weak_and_any() {
        let matches = |value: &str, etag: &str| {
            matches_etag(&HeaderMap::from_iter([(IF_NONE_MATCH, value.parse().unwrap())]), etag)
        };
        for value in ["\"A\"", "W/\"A\"", "\"B\", \"A\"", "*"] {
            assert!(matches(value, "\"A\""), "{value}");
        }
        for value in ["\"B\"", "A", "\"A", ""] {
            assert!(!matches(value, "\"A\""), "{value}");
        }
        assert!(!matches_etag(&HeaderMap::new(), "\"A\""));
    }
}
