//! The local document of `apiregistration.k8s.io/v1`, so that `kubectl explain apiservices` works.

use std::sync::OnceLock;

use bytes::Bytes;

use crate::discovery::EncodedDocument;

/// Key of the document in the index.
pub(super) const KEY: &str = "apis/apiregistration.k8s.io/v1";

/// The document, written by hand in `apiregistration.json`. It changes only with the program.
pub(super) fn document() -> EncodedDocument {
    static COMPACT: OnceLock<Bytes> = OnceLock::new();
    EncodedDocument::from_json(COMPACT.get_or_init(compact).clone())
}

fn compact() -> Bytes {
    let text = include_str!("apiregistration.json");
    let compact =
        serde_json::from_str::<serde_json::Value>(text).ok().and_then(|value| serde_json::to_vec(&value).ok());
    compact.map_or(Bytes::from_static(text.as_bytes()), Bytes::from)
}
