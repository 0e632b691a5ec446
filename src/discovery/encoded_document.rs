//! A document in several encodings, each written once, on demand.

use std::io::Write;
use std::sync::OnceLock;

use aws_lc_rs::digest;
use bytes::Bytes;
use http::HeaderValue;
use serde::Serialize;

use super::protobuf;

/// Minimum size for gzip (Kubernetes' `defaultGzipThresholdBytes`).
const GZIP_THRESHOLD: usize = 128 << 10;

/// One document in several encodings.
#[derive(Debug)]
pub(crate) struct EncodedDocument {
    /// JSON, with a newline at the end.
    pub(crate) json: Bytes,
    /// Entity tag with quotes: upper-case hexadecimal SHA-512 of the JSON, as in Kubernetes.
    pub(crate) etag: HeaderValue,
    gzip: OnceLock<Option<Bytes>>,
    yaml: OnceLock<Option<AlternateEncoding>>,
    protobuf: OnceLock<Option<AlternateEncoding>>,
}

/// A document in another encoding than JSON.
#[derive(Debug)]
pub(crate) struct AlternateEncoding {
    /// The complete document.
    pub(crate) bytes: Bytes,
    gzip: OnceLock<Option<Bytes>>,
}

impl EncodedDocument {
    /// Serializes `value`, which must consist of plain structs, strings, numbers and lists.
    pub(crate) fn from_value(value: &impl Serialize) -> EncodedDocument {
        // serde_json cannot fail on plain structs of strings, numbers and lists.
        let mut json = serde_json::to_vec(value).unwrap_or_default();
        json.push(b'\n');
        EncodedDocument::from_json(json.into())
    }

    /// Serializes `value` as [`EncodedDocument::from_value`]. Its entity tag is `hash` in quotes.
    pub(crate) fn with_hash(value: &impl Serialize, hash: &str) -> EncodedDocument {
        let etag = HeaderValue::from_str(&format!("\"{hash}\"")).unwrap_or(HeaderValue::from_static("\"\""));
        EncodedDocument { etag, ..EncodedDocument::from_value(value) }
    }

    /// A document from its JSON.
    pub(crate) fn from_json(json: Bytes) -> EncodedDocument {
        let digest = digest::digest(&digest::SHA512, &json);
        let mut etag = String::with_capacity(130);
        etag.push('"');
        const DIGITS: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
        for byte in digest.as_ref() {
            etag.extend([byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]));
        }
        etag.push('"');
        let etag = HeaderValue::from_str(&etag).unwrap_or(HeaderValue::from_static("\"\""));
        EncodedDocument { json, etag, gzip: OnceLock::new(), yaml: OnceLock::new(), protobuf: OnceLock::new() }
    }

    /// Whether the document may be sent with gzip.
    pub(crate) fn is_large(&self) -> bool {
        self.json.len() >= GZIP_THRESHOLD
    }

    /// The JSON compressed with gzip on the first call; `None` below the threshold.
    pub(crate) fn gzipped(&self) -> Option<Bytes> {
        self.gzip.get_or_init(|| gzipped(&self.json)).clone()
    }

    /// The document as YAML, converted on the first call; `None` if that fails.
    pub(super) fn yaml(&self) -> Option<&AlternateEncoding> {
        let write = || {
            let value: serde_json::Value = serde_json::from_slice(&self.json).ok()?;
            serde_saphyr::to_string(&value).ok().map(AlternateEncoding::new)
        };
        self.yaml.get_or_init(write).as_ref()
    }

    /// The document as Kubernetes protobuf, encoded on the first call; `None` if it is not a discovery document.
    pub(super) fn protobuf(&self) -> Option<&AlternateEncoding> {
        self.protobuf.get_or_init(|| protobuf::encode(&self.json).map(AlternateEncoding::new)).as_ref()
    }
}

impl AlternateEncoding {
    fn new(bytes: impl Into<Bytes>) -> AlternateEncoding {
        AlternateEncoding { bytes: bytes.into(), gzip: OnceLock::new() }
    }

    /// Whether the document may be sent with gzip.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes.len() >= GZIP_THRESHOLD
    }

    /// As [`EncodedDocument::gzipped`].
    pub(crate) fn gzipped(&self) -> Option<Bytes> {
        self.gzip.get_or_init(|| gzipped(&self.bytes)).clone()
    }
}

/// `bytes` compressed with gzip; `None` below the threshold.
fn gzipped(bytes: &[u8]) -> Option<Bytes> {
    if bytes.len() < GZIP_THRESHOLD {
        return None;
    }
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(4));
    packer.write_all(bytes).ok()?;
    packer.finish().ok().map(Bytes::from)
}
