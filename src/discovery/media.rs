//! Media types with their parameters, as `Accept` and `Content-Type` carry them, and entity tags.

use http::HeaderMap;
use http::header::{ACCEPT, IF_NONE_MATCH};

/// At most so many entries of an `Accept` header are looked at.
const MOST_RANGES: usize = 64;

/// One media type or range: `application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;q=0.9`.
#[derive(Debug, PartialEq)]
pub(crate) struct MediaRange<'h> {
    /// `application/json`, `*/*` and so on, as written; compare without regard to case.
    pub(crate) essence: &'h str,
    parameters: Vec<(&'h str, &'h str)>,
    quality: f32,
}

impl<'h> MediaRange<'h> {
    /// Reads one entry; `None` when it has no essence, or its quality is no number or zero.
    pub(crate) fn parse(text: &'h str) -> Option<MediaRange<'h>> {
        let mut pieces = text.split(';').map(str::trim);
        let essence = pieces.next().filter(|essence| essence.contains('/'))?;
        let mut range = MediaRange { essence, parameters: Vec::new(), quality: 1.0 };
        for piece in pieces.filter(|piece| !piece.is_empty()) {
            let (name, value) = piece.split_once('=').unwrap_or((piece, ""));
            let (name, value) = (name.trim(), value.trim().trim_matches('"'));
            if name.eq_ignore_ascii_case("q") {
                range.quality = value.parse::<f32>().ok().filter(|q| *q > 0.0 && *q <= 1.0)?;
            } else {
                range.parameters.push((name, value));
            }
        }
        Some(range)
    }

    /// The value of a parameter; empty when it is not there.
    pub(crate) fn parameter(&self, name: &str) -> &'h str {
        self.parameters.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    }

    /// Whether the essence is `essence`.
    pub(crate) fn is(&self, essence: &str) -> bool {
        self.essence.eq_ignore_ascii_case(essence)
    }

    /// Whether JSON would satisfy it.
    pub(crate) fn takes_json(&self) -> bool {
        self.is("application/json") || self.is("*/*") || self.is("application/*")
    }
}

/// What a client accepts, most wanted first (equal quality: as it wrote them).
///
/// `None` when it said nothing, which means anything.
pub(crate) fn by_preference(headers: &HeaderMap) -> Option<Vec<MediaRange<'_>>> {
    let mut said = false;
    let mut ranges: Vec<MediaRange<'_>> = Vec::new();
    for value in headers.get_all(ACCEPT) {
        for entry in value.to_str().unwrap_or_default().split(',') {
            said |= !entry.trim().is_empty();
            if ranges.len() < MOST_RANGES {
                ranges.extend(MediaRange::parse(entry));
            }
        }
    }
    ranges.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    said.then_some(ranges)
}

/// Whether `If-None-Match` names `etag` (with its quotes).
///
/// More than upstream, which knows one exact tag: lists, `*` and weak tags count too (RFC 9110, 13.1.2).
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

    fn headers(name: &http::HeaderName, values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn preference_is_quality_then_the_clients_order() {
        let headers =
            headers(&ACCEPT, &["text/html;q=0.5, application/yaml ;q=0.9", "application/json;as=Table, */*;q=0"]);
        let essences: Vec<_> = by_preference(&headers).unwrap().iter().map(|r| r.essence).collect();
        assert_eq!(essences, ["application/json", "application/yaml", "text/html"]);
        assert_eq!(by_preference(&HeaderMap::new()), None);
    }

    #[test]
    fn parameters_are_read_whatever_the_spacing() {
        let range = MediaRange::parse("Application/JSON ; G = \"apidiscovery.k8s.io\";as=X;bare").unwrap();
        assert!(range.is("application/json"));
        assert_eq!(range.parameter("g"), "apidiscovery.k8s.io");
        assert_eq!(range.parameter("bare"), "");
        for nonsense in ["", ";", "json", "application/json;q=NaN", "application/json;q=9", "a/b;q=-1"] {
            assert_eq!(MediaRange::parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn entity_tags_match_in_lists_weak_and_any() {
        for value in ["\"A\"", "W/\"A\"", "\"B\", \"A\"", "*"] {
            assert!(matches_etag(&headers(&IF_NONE_MATCH, &[value]), "\"A\""), "{value}");
        }
        for value in ["\"B\"", "A", "\"A", ""] {
            assert!(!matches_etag(&headers(&IF_NONE_MATCH, &[value]), "\"A\""), "{value}");
        }
        assert!(!matches_etag(&HeaderMap::new(), "\"A\""));
    }
}
