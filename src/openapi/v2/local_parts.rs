//! The document of what is served locally, in parts that stay while they are the same.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::source_document::SourceDocument;

/// A part of the document of what is served locally.
pub struct LocalPart {
    /// Names the content: another content has another key.
    pub key: String,
    /// An OpenAPI v2 document as JSON; none if the key is known.
    pub json: Option<String>,
}

/// Builds the parts of the document of what is served locally, given whether the content of a key is known.
pub type BuildLocalV2 = Arc<dyn Fn(&dyn Fn(&str) -> bool) -> Vec<LocalPart> + Send + Sync>;

/// The parts of the last document, by key.
#[derive(Default)]
pub(super) struct LocalParts(BTreeMap<String, Arc<SourceDocument>>);

impl LocalParts {
    /// The whole document now. Parts that are not in it any more are dropped.
    pub(super) fn update(&mut self, build: &BuildLocalV2) -> SourceDocument {
        let mut before = std::mem::take(&mut self.0);
        let mut document = SourceDocument::default();
        for LocalPart { key, json } in build(&|key| before.contains_key(key)) {
            let part = match json {
                Some(json) => Arc::new(parse(&json)),
                None => before.remove(&key).unwrap_or_default(),
            };
            document.extend(&part);
            self.0.insert(key, part);
        }
        document
    }
}

/// A part that cannot be merged is empty: others are not lost with it.
fn parse(json: &str) -> SourceDocument {
    SourceDocument::parse(json.as_bytes(), None).unwrap_or_else(|error| {
        tracing::warn!(%error, "OpenAPI v2 of a resource left out: its schema is not valid there");
        SourceDocument::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_parts_are_built_once_and_replaced_with_their_key() {
        let document = |path: &str, kind: &str| {
            format!(
                r#"{{"swagger":"2.0","info":{{"title":"a","version":"1"}},"paths":{{"{path}":{{}}}},
                    "definitions":{{"A":{{"description":"{kind}"}}}}}}"#
            )
        };
        let build = |wanted: &'static [(&'static str, &'static str)]| -> BuildLocalV2 {
            Arc::new(move |is_known| {
                let part = |(key, path): &(&str, &str)| LocalPart {
                    key: (*key).to_owned(),
                    json: (!is_known(key)).then(|| document(path, key)),
                };
                wanted.iter().map(part).collect()
            })
        };
        let mut parts = LocalParts::default();
        let paths = |document: &SourceDocument| document.paths.keys().cloned().collect::<Vec<_>>();
        let first = parts.update(&build(&[("one", "/a"), ("two", "/b")]));
        assert_eq!(paths(&first), ["/a", "/b"]);
        assert!(first.definitions["A"].text.contains("two"), "the later part counts");
        // The content of a known key is not read again.
        let second = parts.update(&build(&[("one", "/x"), ("three", "/c")]));
        assert_eq!(paths(&second), ["/a", "/c"]);
        assert!(Arc::ptr_eq(&first.paths["/a"], &second.paths["/a"]));
        assert_eq!(parts.0.len(), 2);
        let invalid: BuildLocalV2 = Arc::new(|_| vec![LocalPart { key: "x".to_owned(), json: Some("{".to_owned()) }]);
        assert_eq!(parts.update(&invalid), SourceDocument::default());
    }
}
