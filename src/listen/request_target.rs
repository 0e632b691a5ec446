//! Request targets: which bytes of a URL are accepted, and which are escaped first.
//!
//! Go's `url.ParseRequestURI` accepts every byte but control characters and escapes what should have been escaped. The
//! http crate refuses some of these bytes, so they are escaped here, before a library parses the request. A space stays
//! refused: it may be the beginning of another request line.

use std::sync::LazyLock;

use http::Uri;
use http::uri::PathAndQuery;

use crate::message::MalformedRequest;

/// Maximum length of a URL: that of the http crate.
pub(super) const MAX_URL_BYTES: usize = u16::MAX as usize - 1;
/// Maximum length of the part of a refused URL that is kept for the log.
const MAX_LOGGED_BYTES: usize = 1024;

/// Whether a byte stays as it is, in the path and in the query.
static PLAIN: LazyLock<[bool; 256]> = LazyLock::new(|| {
    std::array::from_fn(|byte| {
        let byte = byte as u8;
        // The http crate takes what follows "#" for a fragment, and drops it. A request has none.
        byte.is_ascii()
            && byte != b'#'
            && PathAndQuery::try_from(&[b'/', byte][..]).is_ok()
            && PathAndQuery::try_from(&[b'/', b'?', byte][..]).is_ok()
    })
});

/// Checks the target of a request: the escaped one if bytes of it must be escaped, none if it is good as it is.
///
/// # Errors
/// The target has spaces or control characters, is too long, or is neither a path nor a URL.
pub(super) fn check_target(target: &[u8]) -> Result<Option<Vec<u8>>, MalformedRequest> {
    let mut escaped = None;
    if !target.iter().all(|byte| PLAIN[usize::from(*byte)]) {
        if let Some(position) = target.iter().position(|byte| byte.is_ascii_control() || *byte == b' ') {
            let byte = target[position];
            return Err(MalformedRequest::invalid(format!(
                "invalid URL: byte {byte:#04x} at position {position} is not allowed; encode it as %{byte:02X}"
            )));
        }
        escaped = Some(escape(target, usize::MAX));
    }
    let checked = escaped.as_deref().unwrap_or(target);
    if checked.len() > MAX_URL_BYTES {
        return Err(MalformedRequest::url_too_long(Some(checked.len()), MAX_URL_BYTES));
    }
    if checked.first() != Some(&b'/') && Uri::try_from(checked).is_err() {
        let shown = String::from_utf8_lossy(&checked[..checked.len().min(100)]).into_owned();
        return Err(MalformedRequest::invalid(format!("invalid URL {shown:?}: it does not begin with \"/\"")));
    }
    Ok(escaped)
}

/// The beginning of a refused target as a valid path, for the log.
pub(super) fn loggable_target(target: &[u8]) -> Vec<u8> {
    let mut path = if target.first() == Some(&b'/') { Vec::new() } else { vec![b'/'] };
    path.extend(escape(target, MAX_LOGGED_BYTES));
    path
}

/// Escapes all bytes that are not plain, up to a length.
fn escape(target: &[u8], limit: usize) -> Vec<u8> {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let mut out = Vec::with_capacity(target.len().min(limit));
    for byte in target {
        if out.len() + 3 > limit {
            break;
        }
        if PLAIN[usize::from(*byte)] {
            out.push(*byte);
        } else {
            out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_target_escapes_what_go_accepts() {
        for (target, expected) in [
            (&b"/api/v1?labelSelector=a%3Db&x=(1)"[..], None),
            (b"*", None),
            (b"http://host/x", None),
            (b"/a?b=<c>", Some("/a?b=%3Cc%3E")),
            (b"/a\"b", Some("/a%22b")),
            (b"/a#b?c#d", Some("/a%23b?c%23d")),
            (b"/\xc3\xbc?\xff", Some("/%C3%BC?%FF")),
        ] {
            let escaped = check_target(target).unwrap().map(|path| String::from_utf8(path).unwrap());
            assert_eq!(escaped.as_deref(), expected);
        }
    }

    /// Whatever is accepted, the http crate accepts.
    #[test]
    fn request_target_accepted_is_a_uri() {
        bolero::check!().with_iterations(3000).for_each(|bytes: &[u8]| {
            for start in ["/", "/?", ""] {
                let target = [start.as_bytes(), bytes].concat();
                if let Ok(escaped) = check_target(&target) {
                    let accepted = escaped.as_deref().unwrap_or(&target);
                    let uri = Uri::try_from(accepted).unwrap_or_else(|error| panic!("{target:?}: {error}"));
                    let is_path = accepted.first() == Some(&b'/');
                    assert!(!is_path || uri.to_string().len() == accepted.len(), "{target:?} becomes {uri}");
                }
                assert!(PathAndQuery::try_from(&loggable_target(&target)[..]).is_ok(), "{target:?}");
            }
        });
        for byte in 0..=255_u8 {
            let target = [b'/', byte, b'?', byte];
            assert_eq!(check_target(&target).is_ok(), !byte.is_ascii_control() && byte != b' ', "{byte}");
        }
    }

    #[test]
    fn request_target_refusal_names_byte_or_limit() {
        let message = |target: &[u8]| {
            let refused = check_target(target).unwrap_err();
            (refused.status().code, refused.status().message.clone())
        };
        let control = "invalid URL: byte 0x0a at position 2 is not allowed; encode it as %0A";
        assert_eq!(message(b"/a\nb"), (400, control.to_owned()));
        assert_eq!(message(&[b'/'; 65_535]), (414, "the URL has 65535 bytes, the most are 65534".to_owned()));
        assert_eq!(message(b"a/b"), (400, "invalid URL \"a/b\": it does not begin with \"/\"".to_owned()));
        assert_eq!(message(b"").0, 400);
        assert!(check_target(&[b'/'; 65_534]).is_ok());
    }
}
