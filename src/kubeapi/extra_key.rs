//! Keys of `X-Remote-Extra-*`: any text on one side, a legal header name on the other.

use std::borrow::Cow;
use std::fmt::Write;

/// Turns a key into what may stand in a header name: a byte that is no token character, or is `%`,
/// becomes `%XX` (`headerKeyEscape` in `k8s.io/client-go/transport/round_trippers.go`).
///
/// [`unescape`] gives the key back, except for the case of its letters: header names have none.
pub fn escape(key: &str) -> Cow<'_, str> {
    if key.bytes().all(is_unescaped) {
        return Cow::Borrowed(key);
    }
    let mut escaped = String::with_capacity(key.len() + 8);
    for byte in key.bytes() {
        if is_unescaped(byte) {
            escaped.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    Cow::Owned(escaped)
}

/// Turns the part of a header name behind the prefix into a key: lower case, `%XX` decoded.
///
/// A text with a malformed escape, or one that does not decode to UTF-8, is taken as it stands, as
/// upstream takes the former: better a strange key than a lost one.
pub fn unescape(name: &str) -> String {
    let lower = name.to_ascii_lowercase();
    match super::percent::decode(&lower) {
        Some(Ok(decoded)) => decoded.into_owned(),
        Some(Err(_)) | None => lower,
    }
}

/// RFC 9110 `tchar` without `%`.
fn is_unescaped(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use http::HeaderName;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn upstream_s_examples() {
        for (key, escaped) in [
            ("alphabetical", "alphabetical"),
            ("alphanumeric123", "alphanumeric123"),
            ("percent%encoding", "percent%25encoding"),
            ("example.com/foo", "example.com%2Ffoo"),
            ("hello world", "hello%20world"),
            ("ü", "%C3%BC"),
            ("a@b:c=d", "a%40b%3Ac%3Dd"),
            ("", ""),
        ] {
            assert_eq!(escape(key), escaped);
            assert_eq!(unescape(escaped), key);
        }
    }

    #[test]
    fn malformed_escapes_are_kept() {
        for (name, key) in [
            ("Foo%zz", "foo%zz"),
            ("a%", "a%"),
            ("a%2", "a%2"),
            ("%FF", "%ff"),
            ("Example.Com%2fFoo", "example.com/foo"),
        ] {
            assert_eq!(unescape(name), key);
        }
    }

    proptest! {
        #[test]
        fn what_is_escaped_comes_back(key in ".*") {
            let expected: String = key.chars().map(|c| c.to_ascii_lowercase()).collect();
            prop_assert_eq!(unescape(&escape(&expected)), expected);
        }

        #[test]
        fn an_escaped_key_is_a_header_name(key in ".+") {
            let name = format!("x-remote-extra-{}", escape(&key));
            prop_assert!(HeaderName::from_bytes(name.as_bytes()).is_ok());
        }
    }
}
