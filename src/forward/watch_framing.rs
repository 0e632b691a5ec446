//! Finds the boundaries between watch events, where a watch may be ended cleanly.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

/// Position of a watch stream within its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchFraming {
    /// JSON: one event per line. Whether the last line is complete.
    Lines(bool),
    /// Protobuf: each event after its length in four bytes, big-endian (`apimachinery`'s `serializer/protobuf`). The
    /// length as far as read, how many of its bytes were read, and how many bytes of the event are left.
    Framed { length: u32, length_bytes: u8, rest: u32 },
}

impl WatchFraming {
    /// Framing of a response with these headers; `None` if it cannot be determined.
    pub(super) fn from_headers(headers: &HeaderMap) -> Option<WatchFraming> {
        let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        if headers.contains_key(CONTENT_ENCODING) {
            None
        } else if kind.eq_ignore_ascii_case(b"application/json") {
            Some(WatchFraming::Lines(true))
        } else if kind.eq_ignore_ascii_case(b"application/vnd.kubernetes.protobuf") {
            Some(WatchFraming::Framed { length: 0, length_bytes: 0, rest: 0 })
        } else {
            None
        }
    }

    /// Advances over a piece of the stream.
    pub(super) fn observe(&mut self, data: &[u8]) {
        match self {
            WatchFraming::Lines(whole) => *whole = data.last().map_or(*whole, |byte| *byte == b'\n'),
            WatchFraming::Framed { length, length_bytes, rest } => {
                let mut data = data;
                while !data.is_empty() {
                    if *rest > 0 {
                        let taken = data.len().min(*rest as usize);
                        // At most `rest`.
                        *rest -= taken as u32;
                        data = &data[taken..];
                    } else {
                        *length = *length << 8 | u32::from(data[0]);
                        *length_bytes += 1;
                        data = &data[1..];
                        if *length_bytes == 4 {
                            (*rest, *length, *length_bytes) = (*length, 0, 0);
                        }
                    }
                }
            }
        }
    }

    /// Length of the prefix of `data`, the next piece, that ends with a complete event; `None` if no event ends in it.
    pub(super) fn last_event_end(mut self, data: &[u8]) -> Option<usize> {
        if let WatchFraming::Lines(_) = self {
            return data.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
        }
        let (mut at, mut found) = (0, None);
        while at < data.len() {
            // Advance to the end of the event, or by one byte of its length.
            let step = match self {
                WatchFraming::Framed { rest, .. } => (rest as usize).clamp(1, data.len() - at),
                WatchFraming::Lines(_) => 1,
            };
            self.observe(&data[at..at + step]);
            at += step;
            if self.is_at_event_boundary() {
                found = Some(at);
            }
        }
        found
    }

    /// Whether the stream is between two events.
    pub(super) fn is_at_event_boundary(&self) -> bool {
        matches!(self, WatchFraming::Lines(true) | WatchFraming::Framed { length_bytes: 0, rest: 0, .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(kind: &str, coding: Option<&str>) -> Option<WatchFraming> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, kind.parse().unwrap());
        if let Some(coding) = coding {
            headers.insert(CONTENT_ENCODING, coding.parse().unwrap());
        }
        WatchFraming::from_headers(&headers)
    }

    /// Offsets at which the watch may end.
    fn ends(mut events: WatchFraming, bytes: &[u8]) -> Vec<usize> {
        let first = events.is_at_event_boundary().then_some(0);
        let mut pass = |at: usize| {
            events.observe(&bytes[at..=at]);
            events.is_at_event_boundary().then_some(at + 1)
        };
        first.into_iter().chain((0..bytes.len()).filter_map(&mut pass)).collect()
    }

    #[test]
    fn watch_framing_boundaries_of_json_and_protobuf() {
        let json = events("application/json; charset=utf-8", None).unwrap();
        assert_eq!(ends(json, b"{}\n{\"a\":1}\n"), [0, 3, 11]);
        let protobuf = events("application/vnd.kubernetes.protobuf;stream=watch", None).unwrap();
        let frames = b"\0\0\0\x03abc\0\0\0\0\0\0\0\x01\n";
        assert_eq!(ends(protobuf, frames), [0, 7, 11, 16]);
        for cut in 0..frames.len() {
            let mut pieces = protobuf;
            pieces.observe(&frames[..cut]);
            pieces.observe(b"");
            pieces.observe(&frames[cut..]);
            assert!(pieces.is_at_event_boundary(), "cut at {cut}");
        }
        let mut large = protobuf;
        large.observe(b"\xff\xff\xff\xffx");
        assert!(!large.is_at_event_boundary());
    }

    #[test]
    fn watch_framing_last_event_end_is_last_boundary() {
        let cases = [
            ("application/json", &b"{}\n{\"a\":1}\n"[..]),
            ("application/vnd.kubernetes.protobuf", b"\0\0\0\x03abc\0\0\0\0\0\0\0\x01\n"),
        ];
        for (kind, bytes) in cases {
            let all = ends(events(kind, None).unwrap(), bytes);
            for from in 0..bytes.len() {
                let mut begun = events(kind, None).unwrap();
                begun.observe(&bytes[..from]);
                for to in from..=bytes.len() {
                    let expected = all.iter().rev().find(|end| **end > from && **end <= to).map(|end| end - from);
                    assert_eq!(begun.last_event_end(&bytes[from..to]), expected, "{kind} {from} {to}");
                }
            }
        }
    }

    #[test]
    fn watch_framing_unknown_for_other_encodings() {
        assert_eq!(events("application/json", Some("gzip")), None);
        assert_eq!(events("application/cbor-seq", None), None);
        assert_eq!(events("text/plain", None), None);
    }
}
