//! Replaces invalid `:authority` values in the requests of gRPC clients.
//!
//! grpc-go sends the path of a Unix socket as `:authority`, escaped or not, and an IPv6 address without brackets. These are
//! no authorities, and h2 resets such requests.

use crate::listen::{HeaderList, HeaderReview, ReceivedHeaders, ReviewedStream, review_headers};

/// Maximum size of the headers of a request.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// A stream of an HTTP/2 client whose requests have a valid `:authority`.
pub(super) type ValidAuthorityStream<S> = ReviewedStream<S, AuthorityReview>;

/// Replaces invalid authorities.
pub(super) struct AuthorityReview;

impl HeaderReview for AuthorityReview {
    fn review(&mut self, received: &ReceivedHeaders<'_>) -> Option<HeaderList> {
        let is_invalid =
            |name: &[u8], value: &[u8]| name == b":authority" && http::uri::Authority::try_from(value).is_err();
        let headers = received.headers;
        if headers.is_too_large() || !headers.iter().any(|(name, value)| is_invalid(name, value)) {
            return None;
        }
        let mut list = HeaderList::default();
        for header in headers.as_slice() {
            match is_invalid(header.name.as_bytes(), header.value.as_bytes()) {
                true => list.push(b":authority", b"localhost"),
                false => list.push_received(header),
            }
        }
        Some(list)
    }
}

/// Reviews the requests on `stream`.
pub(super) fn with_valid_authorities<S>(stream: S) -> ValidAuthorityStream<S> {
    review_headers(stream, AuthorityReview, MAX_HEADER_BYTES)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A header block in one HEADERS frame, with literals: all of one kind but the authority.
    fn request(start: &[u8], literal: u8, authority: &str) -> Vec<u8> {
        let mut block = start.to_vec();
        for (kind, name, value) in
            [(literal, ":method", "POST"), (0, ":authority", authority), (literal, "te", "trailers")]
        {
            block.push(kind);
            for text in [name, value] {
                block.push(text.len() as u8);
                block.extend_from_slice(text.as_bytes());
            }
        }
        let mut frame = vec![0, 0, block.len() as u8, 1, 4, 0, 0, 0, 1];
        frame.extend(block);
        frame
    }

    #[tokio::test]
    async fn authority_of_a_unix_socket_is_replaced() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        // The tables of h2 start anew, and get what the client sent.
        let replaced = request(b"\x20\x3f\xe1\x1f", 0x40, "localhost");
        for (authority, expected) in [
            ("%2Ftmp%2Ffront.sock", &replaced),
            ("/tmp/front.sock", &replaced),
            ("", &replaced),
            ("a:1", &request(b"", 0, "a:1")),
        ] {
            let (mut client, server) = tokio::io::duplex(4096);
            client.write_all(&[&preface[..], &request(b"", 0, authority)].concat()).await.unwrap();
            drop(client);
            let mut out = Vec::new();
            with_valid_authorities(server).read_to_end(&mut out).await.unwrap();
            assert_eq!(out, [&preface[..], expected].concat(), "{authority}");
        }
    }
}
