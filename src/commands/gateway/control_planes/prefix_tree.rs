//! Path prefixes, compared segment by segment with the path as the client wrote it.

use std::collections::HashMap;

/// Values by path prefix; the longest prefix of a path wins. The cost depends on the segments, not on the number of
/// prefixes.
pub(super) struct PrefixTree<T> {
    value: Option<T>,
    children: HashMap<Box<str>, PrefixTree<T>>,
}

/// A segment that is compared with prefixes is empty, is `.` or `..`, or is percent-encoded: another server could read
/// another prefix.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AmbiguousSegment;

impl<T> Default for PrefixTree<T> {
    fn default() -> PrefixTree<T> {
        PrefixTree { value: None, children: HashMap::new() }
    }
}

impl<T> PrefixTree<T> {
    /// Adds a prefix such as `/a/b`, or the empty one.
    pub(super) fn insert(&mut self, prefix: &str, value: T) {
        let mut node = self;
        for segment in prefix.split('/').skip(1) {
            node = node.children.entry(segment.into()).or_default();
        }
        node.value = Some(value);
    }

    /// The value of the longest prefix of `path`, and the length of that prefix.
    ///
    /// # Errors
    /// A segment that has to be compared is ambiguous.
    pub(super) fn find(&self, path: &str) -> Result<Option<(&T, usize)>, AmbiguousSegment> {
        let (mut node, mut end) = (self, 0);
        let mut found = node.value.as_ref().map(|value| (value, 0));
        while !node.children.is_empty() {
            let Some(rest) = path[end..].strip_prefix('/') else { break };
            let segment = &rest[..rest.find('/').unwrap_or(rest.len())];
            if segment.is_empty() && segment.len() == rest.len() {
                break;
            }
            if matches!(segment, "" | "." | "..") || segment.contains('%') {
                return Err(AmbiguousSegment);
            }
            let Some(child) = node.children.get(segment) else { break };
            (node, end) = (child, end + 1 + segment.len());
            found = node.value.as_ref().map(|value| (value, end)).or(found);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_tree_longest_prefix_by_whole_segments() {
        let mut tree = PrefixTree::default();
        for prefix in ["/clusters/a", "/clusters/b", "/clusters/a/inner", "/x"] {
            tree.insert(prefix, prefix);
        }
        for (path, expected) in [
            ("/clusters/a", Ok(Some("/clusters/a"))),
            ("/clusters/a/", Ok(Some("/clusters/a"))),
            ("/clusters/a/api/v1", Ok(Some("/clusters/a"))),
            ("/clusters/a/inner/api", Ok(Some("/clusters/a/inner"))),
            ("/clusters/ab/api", Ok(None)),
            ("/clusters", Ok(None)),
            ("/clusters/", Ok(None)),
            ("/", Ok(None)),
            ("*", Ok(None)),
            ("/api/v1/%2e%2e/x", Ok(None)),
            ("/clusters/b/%2e%2e/a/api", Ok(Some("/clusters/b"))),
            ("/x/../clusters/a", Ok(Some("/x"))),
            ("/clusters/%61/api", Err(AmbiguousSegment)),
            ("/clusters%2Fa/api", Err(AmbiguousSegment)),
            ("/clusters//a/api", Err(AmbiguousSegment)),
            ("//clusters/a/api", Err(AmbiguousSegment)),
            ("/./clusters/a", Err(AmbiguousSegment)),
            ("/clusters/../clusters/a", Err(AmbiguousSegment)),
            ("/clusters/a//inner", Err(AmbiguousSegment)),
            ("/clusters/a/%69nner/api", Err(AmbiguousSegment)),
        ] {
            let found = tree.find(path);
            assert_eq!(
                found.as_ref().map(|found| found.map(|(prefix, _)| *prefix)),
                expected.as_ref().copied(),
                "{path}"
            );
            if let Ok(Some((prefix, length))) = found {
                assert_eq!(&path[..length], *prefix);
            }
        }
        tree.insert("", "all");
        assert_eq!(tree.find("/api"), Ok(Some((&"all", 0))));
    }
}
