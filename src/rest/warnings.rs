//! `Warning` headers of a response, bounded as Kubernetes' (`k8s.io/apiserver/pkg/endpoints/filters/warning.go`).

use std::collections::HashSet;

use http::HeaderMap;
use http::header::WARNING;

use crate::message::warning;

/// Maximum number of characters of all warnings together; if they have more, each is cut off.
const MAX_TOTAL_CHARACTERS: usize = 4 << 10;

/// Number of characters to which a warning is cut off.
const CUT_CHARACTERS: usize = 256;

/// Adds the warnings as headers, bounded.
pub(super) fn add_warnings(headers: &mut HeaderMap, warnings: &[String]) {
    for value in bounded_warnings(warnings).iter().filter_map(|text| warning(text)) {
        headers.append(WARNING, value);
    }
}

/// The warnings, each once. If they are too long together, each is cut off, and further ones are left out.
pub(super) fn bounded_warnings(warnings: &[String]) -> Vec<String> {
    let total: usize = warnings.iter().map(|text| text.chars().count()).sum();
    let most = if total > MAX_TOTAL_CHARACTERS { CUT_CHARACTERS } else { usize::MAX };
    let (mut bounded, mut written) = (Vec::new(), 0);
    let mut seen = HashSet::new();
    for text in warnings {
        if written >= MAX_TOTAL_CHARACTERS {
            break;
        }
        if seen.insert(text) {
            let text: String = text.chars().take(most).collect();
            written += text.chars().count();
            bounded.push(text);
        }
    }
    bounded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(warnings: &[String]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        add_warnings(&mut headers, warnings);
        headers.get_all(WARNING).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn warnings_are_quoted_and_unique() {
        let warnings = ["unknown field \"a\"".to_owned(), "b\\".to_owned(), "unknown field \"a\"".to_owned()];
        assert_eq!(added(&warnings), [r#"299 - "unknown field \"a\"""#, r#"299 - "b\\""#]);
        assert_eq!(added(&["line\nline".to_owned()]), [""; 0], "a line end cannot be in a header");
    }

    #[test]
    fn warnings_are_cut_off_when_too_long_together() {
        let long: Vec<String> = (0..100).map(|number| format!("{number:03}{}", "x".repeat(1000))).collect();
        let headers = added(&long);
        assert_eq!((headers.len(), headers[0].len()), (16, 256 + 8));
        assert_eq!(added(&long[..4])[0].len(), 1003 + 8);
    }
}
