//! Rewrites: values taken from a request, and the templates they are put into.

use http::header::CONNECTION;
use http::{HeaderMap, HeaderName};
use kubeapi::Query;

use super::UnreviewableRequest;
use crate::message::hop_by_hop::{has_token, is_proxy_identity_header, is_reserved, is_same_normalized_name};

/// A string that may contain `{{ .Value }}`.
///
/// kube-rbac-proxy accepts any template of Go's `text/template`. The value is its only input, so this is the form in
/// use. Any other template is an error at start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Template {
    /// The text around the values: one piece more than there are values.
    pieces: Vec<String>,
}

/// The query parameter and the header with the values.
#[derive(Debug, Default)]
pub(super) struct ValueSources {
    pub(super) parameter: Option<String>,
    pub(super) header: Option<HeaderName>,
}

impl Template {
    /// Parses a template; none if it is not supported.
    pub(super) fn parse(text: &str) -> Option<Template> {
        let mut pieces = Vec::new();
        let (mut rest, mut trim) = (text, false);
        while let Some((before, action)) = rest.split_once("{{") {
            let (inside, after) = action.split_once("}}")?;
            let (inside, trim_before) = match inside.strip_prefix('-') {
                Some(trimmed) if trimmed.starts_with(is_space) => (trimmed, true),
                _ => (inside, false),
            };
            let (inside, trim_after) = match inside.strip_suffix('-') {
                Some(trimmed) if trimmed.ends_with(is_space) => (trimmed, true),
                _ => (inside, false),
            };
            if inside.trim_matches(is_space) != ".Value" {
                return None;
            }
            let before = if trim { before.trim_start_matches(is_space) } else { before };
            pieces.push(if trim_before { before.trim_end_matches(is_space) } else { before }.to_owned());
            (rest, trim) = (after, trim_after);
        }
        pieces.push(if trim { rest.trim_start_matches(is_space) } else { rest }.to_owned());
        Some(Template { pieces })
    }

    /// Returns the text with `value` filled in.
    pub(super) fn fill(&self, value: &str) -> String {
        self.pieces.join(value)
    }
}

/// White space in Go's templates.
fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\r' | '\n')
}

impl ValueSources {
    /// Returns all values in a request without duplicates, those of the query first.
    pub(super) fn values(
        &self,
        query: &Query<'_>,
        headers: &HeaderMap,
        limit: usize,
    ) -> Result<Vec<String>, UnreviewableRequest> {
        let mut values: Vec<String> = Vec::new();
        let mut add = |value: &str| {
            if values.iter().all(|existing| existing != value) {
                values.push(value.to_owned());
            }
            if values.len() > limit { Err(UnreviewableRequest("too many values")) } else { Ok(()) }
        };
        if let Some(parameter) = &self.parameter {
            for (_, value) in query.pairs().filter(|(name, _)| name == parameter) {
                add(&value)?;
            }
        }
        if let Some(header) = &self.header {
            check_header_is_forwarded(header, headers)?;
            for value in headers.get_all(header) {
                let value =
                    std::str::from_utf8(value.as_bytes()).map_err(|_| UnreviewableRequest("a header is not UTF-8"))?;
                add(value.trim_matches([' ', '\t']))?;
            }
        }
        if values.is_empty() { Err(UnreviewableRequest("query parameter or header is missing")) } else { Ok(values) }
    }
}

/// Checks that the backend sees the authorized value: a header named by `Connection` is not forwarded, and servers
/// behind WSGI or CGI treat `X_Namespace` like `X-Namespace`.
fn check_header_is_forwarded(header: &HeaderName, headers: &HeaderMap) -> Result<(), UnreviewableRequest> {
    if has_token(headers, &CONNECTION, header.as_str()) {
        return Err(UnreviewableRequest(
            "the header with the value is listed in Connection and would not be forwarded",
        ));
    }
    let same = |name: &HeaderName| {
        let (name, header) = (name.as_str(), header.as_str());
        name != header && is_same_normalized_name(name, header)
    };
    if headers.keys().any(same) {
        return Err(UnreviewableRequest("the header with the value is present in two spellings"));
    }
    Ok(())
}

/// Whether a header may be a source of values: not one that the gateway sets or strips, nor an identity header.
pub(super) fn is_allowed_source(header: &HeaderName) -> bool {
    !is_reserved(header.as_str())
        && !is_proxy_identity_header(header.as_str())
        && !header.as_str().starts_with("x-remote-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrite_template_filled_with_value() {
        for (text, filled) in [
            ("", Some("")),
            ("plain", Some("plain")),
            ("{{ .Value }}", Some("v")),
            ("{{.Value}}", Some("v")),
            ("a-{{ .Value }}-b{{.Value}}", Some("a-v-bv")),
            ("a {{- .Value -}} b", Some("avb")),
            ("a {{ .Value -}} b", Some("a vb")),
            ("a }} b", Some("a }} b")),
            ("{{ .Name }}", None),
            ("{{ printf \"%s\" .Value }}", None),
            ("{{ .Value", None),
            ("{{ }}", None),
            ("{{-.Value}}", None),
            ("{{/* x */}}", None),
        ] {
            assert_eq!(Template::parse(text).map(|template| template.fill("v")).as_deref(), filled, "{text}");
        }
    }

    #[test]
    fn rewrite_value_is_not_expanded_again() {
        assert_eq!(Template::parse("{{ .Value }}").unwrap().fill("{{ .Value }}"), "{{ .Value }}");
    }
}
