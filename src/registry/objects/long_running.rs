//! Long-running requests of an APIService, which have no request timeout.

/// Requests that the annotation `narthex.dev/long-running` marks as long-running, besides Kubernetes' own.
///
/// A comma list of `verb:NAME` (a Kubernetes verb: `verb:list`), `subresource:NAME` (`subresource:stream`)
/// and path patterns. A pattern begins with `/`; a segment `*` in the middle stands for any one segment, a
/// `*` at the very end for anything that follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LongRunning {
    verbs: Vec<String>,
    subresources: Vec<String>,
    paths: Vec<String>,
}

impl LongRunning {
    /// Reads the annotation. The error names the invalid entry.
    pub fn parse(text: &str) -> Result<LongRunning, String> {
        let mut all = LongRunning::default();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let (list, value) = match entry.split_once(':') {
                Some(("verb", verb)) => (&mut all.verbs, verb),
                Some(("subresource", subresource)) => (&mut all.subresources, subresource),
                _ if entry.starts_with('/') => (&mut all.paths, entry),
                _ => {
                    return Err(format!(
                        "{entry:?} is not verb:NAME, subresource:NAME or a path pattern that begins with /"
                    ));
                }
            };
            if value.is_empty() || value.contains(char::is_whitespace) {
                return Err(format!("{entry:?} has an empty name, or one with spaces"));
            }
            list.push(value.to_owned());
        }
        Ok(all)
    }

    /// Whether a request with this verb, subresource (empty for none) and decoded path is long-running.
    pub fn matches(&self, verb: &str, subresource: &str, path: &str) -> bool {
        self.verbs.iter().any(|one| one == verb)
            || (!subresource.is_empty() && self.subresources.iter().any(|one| one == subresource))
            || self.paths.iter().any(|pattern| pattern_matches(pattern, path))
    }
}

fn pattern_matches(pattern: &str, path: &str) -> bool {
    let (pattern, open) = match pattern.strip_suffix('*') {
        Some(prefix) => (prefix, true),
        None => (pattern, false),
    };
    let mut segments = path.split('/');
    let mut pattern_segments = pattern.split('/').peekable();
    while let Some(want) = pattern_segments.next() {
        let Some(segment) = segments.next() else { return false };
        let last = pattern_segments.peek().is_none();
        let same = if last && open {
            segment.starts_with(want)
        } else {
            want == segment || (want == "*" && !segment.is_empty())
        };
        if !same {
            return false;
        }
    }
    open || segments.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_running_entries_match_requests() {
        let all =
            LongRunning::parse("verb:list, subresource:stream,/apis/g/v1/namespaces/*/logs/*/tail,/apis/g/v1/big*")
                .unwrap();
        assert!(all.matches("list", "", "/x"));
        assert!(all.matches("get", "stream", "/x"));
        assert!(all.matches("get", "", "/apis/g/v1/namespaces/a/logs/b/tail"));
        assert!(!all.matches("get", "", "/apis/g/v1/namespaces/a/logs/b/c/tail"));
        assert!(!all.matches("get", "", "/apis/g/v1/namespaces/a/logs/b/tail/more"));
        assert!(!all.matches("get", "", "/apis/g/v1/namespaces/a/logs/b"));
        assert!(all.matches("get", "", "/apis/g/v1/bigger/x/y") && all.matches("get", "", "/apis/g/v1/big"));
        assert!(!all.matches("get", "", "/apis/g/v1/small"));
        assert!(!LongRunning::default().matches("get", "", ""));
    }

    #[test]
    fn long_running_invalid_entries_rejected() {
        for wrong in ["watch", "verb:", "subresource: x", "verbs:get"] {
            assert!(LongRunning::parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(LongRunning::parse(" , ").unwrap(), LongRunning::default());
    }
}
