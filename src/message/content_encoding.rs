//! Content encodings that a client accepts: `Accept-Encoding`.

use http::HeaderMap;
use http::header::ACCEPT_ENCODING;

/// A content encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
}

impl ContentCoding {
    /// The name in `Content-Encoding`.
    pub fn name(self) -> &'static str {
        match self {
            ContentCoding::Gzip => "gzip",
            ContentCoding::Zstd => "zstd",
        }
    }
}

/// Returns the supported encoding with the highest weight; zstd if both are equal. `*` is ignored: a client that can
/// decode one of these names it.
pub fn preferred(headers: &HeaderMap) -> Option<ContentCoding> {
    let (gzip, zstd) = (weight(headers, ContentCoding::Gzip), weight(headers, ContentCoding::Zstd));
    match zstd > 0.0 && zstd >= gzip {
        true => Some(ContentCoding::Zstd),
        false => (gzip > 0.0).then_some(ContentCoding::Gzip),
    }
}

/// Whether the client accepts an encoding.
pub fn accepts(headers: &HeaderMap, coding: ContentCoding) -> bool {
    weight(headers, coding) > 0.0
}

fn weight(headers: &HeaderMap, coding: ContentCoding) -> f32 {
    headers
        .get_all(ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|clause| {
            let (name, parameters) = clause.split_once(';').unwrap_or((clause, ""));
            let weight = parameters.trim().strip_prefix("q=").map_or(Some(1.0), |q| q.parse().ok());
            name.trim().eq_ignore_ascii_case(coding.name()).then_some(weight?)
        })
        .fold(0.0, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_encoding_highest_weight_wins() {
        for (accepted, expected) in [
            ("", None),
            ("*", None),
            ("br", None),
            ("gzip", Some(ContentCoding::Gzip)),
            ("br, GZIP;q=0.5", Some(ContentCoding::Gzip)),
            ("gzip;q=0", None),
            ("gzip;q=x", None),
            ("gzip, zstd", Some(ContentCoding::Zstd)),
            ("gzip;q=0.9, zstd;q=0.1", Some(ContentCoding::Gzip)),
            ("zstd;q=0, gzip", Some(ContentCoding::Gzip)),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, accepted.parse().unwrap())]);
            assert_eq!(preferred(&headers), expected, "{accepted}");
        }
        assert_eq!(preferred(&HeaderMap::new()), None);
    }
}
