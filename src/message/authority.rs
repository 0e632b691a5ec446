//! Strict parsing of `HOST[:PORT]`, as in a `Host` header or a URL.
//!
//! `http::uri::Authority` takes `[::1].evil.example` for the host `[::1]`, and has no port where the number is too large.

use std::net::Ipv6Addr;

/// Splits `HOST[:PORT]` into host and port. The host of `[::1]:80` is `::1`; an empty port is none, as in Go. `None` if the text
/// is anything else, for example with a user or a port over 65535.
pub fn split_authority(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, after) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']')?;
            address.parse::<Ipv6Addr>().ok()?;
            (address, after)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if host.is_empty() || host.contains(['@', '[', ']', '/', '?', '#', ' ']) {
        return None;
    }
    let port = match after.strip_prefix(':') {
        None if after.is_empty() => None,
        None => return None,
        Some("") => None,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(digits.parse().ok()?),
        Some(_) => return None,
    };
    Some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authority_is_split_strictly() {
        for (text, expected) in [
            ("a.example", Some(("a.example", None))),
            ("a.example:65535", Some(("a.example", Some(65535)))),
            ("a.example:", Some(("a.example", None))),
            ("[::1]", Some(("::1", None))),
            ("[::1]:8443", Some(("::1", Some(8443)))),
            ("127.0.0.1:0", Some(("127.0.0.1", Some(0)))),
        ] {
            assert_eq!(split_authority(text), expected, "{text}");
        }
        for text in [
            "",
            ":80",
            "[::1].evil",
            "[::1]evil:80",
            "[::1",
            "::1",
            "[a]",
            "[127.0.0.1]",
            "a:99999",
            "a:+1",
            "a:b",
            "a:1:2",
            "a@b",
            "a]",
            "[::1]:80:80",
            "[[::1]]",
        ] {
            assert_eq!(split_authority(text), None, "{text}");
        }
    }
}
