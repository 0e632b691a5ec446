//! Reads a whole document that a server sent, also if it is compressed without having been asked: Go's clients, which
//! servers of Kubernetes expect, unpack gzip.

use std::fmt;
use std::io::Read;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http::HeaderMap;
use http::header::CONTENT_ENCODING;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::BodyError;

/// Why a document could not be read.
#[derive(Debug)]
pub enum DocumentError {
    /// It is longer than this many bytes, as sent or unpacked.
    TooLong(usize),
    /// It is packed in a way that is not supported, or not as its header says.
    Encoding(String),
    /// It is incomplete.
    Broken(BodyError),
}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DocumentError::TooLong(most) => write!(f, "it is longer than {most} bytes"),
            DocumentError::Encoding(why) => f.write_str(why),
            DocumentError::Broken(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for DocumentError {}

/// Reads `body` of at most `max_bytes` bytes, and unpacks it as `headers` say.
///
/// # Errors
/// It is too long, broken, or packed in another way than by gzip.
pub async fn read_document<B>(headers: &HeaderMap, body: B, max_bytes: usize) -> Result<Bytes, DocumentError>
where
    B: http_body::Body<Error: Into<BodyError>>,
{
    let read = Limited::new(body, max_bytes).collect().await.map_err(|error| match error.is::<LengthLimitError>() {
        true => DocumentError::TooLong(max_bytes),
        false => DocumentError::Broken(error),
    })?;
    unpack(headers, read.to_bytes(), max_bytes)
}

/// Unpacks a document of at most `max_bytes` bytes as `headers` say.
///
/// # Errors
/// It is too long, or packed in another way than by gzip.
pub fn unpack(headers: &HeaderMap, packed: Bytes, max_bytes: usize) -> Result<Bytes, DocumentError> {
    let mut codings = headers.get_all(CONTENT_ENCODING).iter();
    let coding = match (codings.next().map(|value| value.to_str().unwrap_or("?").trim()), codings.next()) {
        (None, _) => return Ok(packed),
        (Some(coding), None) => coding,
        (Some(_), Some(_)) => return Err(DocumentError::Encoding("it is packed in several ways".to_owned())),
    };
    if coding.is_empty() || coding.eq_ignore_ascii_case("identity") || packed.is_empty() {
        return Ok(packed);
    }
    if !coding.eq_ignore_ascii_case("gzip") && !coding.eq_ignore_ascii_case("x-gzip") {
        let coding: String = coding.chars().take(32).collect();
        return Err(DocumentError::Encoding(format!("its Content-Encoding {coding:?} is not supported")));
    }
    let mut plain = Vec::new();
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    MultiGzDecoder::new(&*packed)
        .take(limit)
        .read_to_end(&mut plain)
        .map_err(|error| DocumentError::Encoding(format!("it is not gzip as its Content-Encoding says: {error}")))?;
    if plain.len() > max_bytes {
        return Err(DocumentError::TooLong(max_bytes));
    }
    Ok(plain.into())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use http_body_util::Full;

    use super::*;
    use crate::message::test_headers;

    fn packed(plain: &[u8]) -> Bytes {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap().into()
    }

    async fn read(coding: &[(&str, &str)], body: Bytes, most: usize) -> Result<Bytes, String> {
        read_document(&test_headers(coding), Full::new(body), most).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn document_gzipped_unasked_is_unpacked() {
        let gzip = [("content-encoding", "GZip")];
        assert_eq!(read(&gzip, packed(b"{}"), 100).await.unwrap(), "{}");
        let two = [packed(b"{"), packed(b"}")].concat().into();
        assert_eq!(read(&gzip, two, 100).await.unwrap(), "{}");
        assert_eq!(read(&[("content-encoding", "identity")], Bytes::from_static(b"x"), 1).await.unwrap(), "x");
        assert_eq!(read(&[], Bytes::from_static(b"x"), 1).await.unwrap(), "x");
        assert_eq!(read(&gzip, Bytes::new(), 1).await.unwrap(), "");
    }

    #[tokio::test]
    async fn document_that_unfolds_beyond_the_limit_is_refused() {
        let gzip = [("content-encoding", "gzip")];
        let bomb = packed(&vec![b' '; 1 << 20]);
        assert!(bomb.len() < 10_000);
        assert_eq!(read(&gzip, bomb.clone(), 10_000).await.unwrap_err(), "it is longer than 10000 bytes");
        assert_eq!(read(&gzip, bomb.clone(), (1 << 20) - 1).await.unwrap_err(), "it is longer than 1048575 bytes");
        assert_eq!(read(&gzip, bomb, 1 << 20).await.unwrap().len(), 1 << 20);
        assert_eq!(read(&[], Bytes::from_static(b"xx"), 1).await.unwrap_err(), "it is longer than 1 bytes");
    }

    #[tokio::test]
    async fn document_of_unknown_coding_is_refused() {
        let error = read(&[("content-encoding", "br")], packed(b"x"), 100).await.unwrap_err();
        assert!(error.contains("\"br\" is not supported"), "{error}");
        let twice = [("content-encoding", "gzip"), ("content-encoding", "gzip")];
        assert!(read(&twice, packed(b"x"), 100).await.unwrap_err().contains("several ways"));
        let error = read(&[("content-encoding", "gzip")], Bytes::from_static(b"{}"), 100).await.unwrap_err();
        assert!(error.contains("not gzip"), "{error}");
    }
}
