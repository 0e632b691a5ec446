//! Escapes keys of `X-Remote-Extra-*`, which may be any text, for use in header names.

use std::borrow::Cow;
use std::fmt::Write;

/// Escapes a key for a header name (`headerKeyEscape` in `k8s.io/client-go/transport/round_trippers.go`).
///
/// Bytes that are no token characters, and `%`, become `%XX`. [`unescape`] restores the key in lower case: header names
/// are case-insensitive.
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

/// Unescapes the part of a header name after the prefix: lower case, `%XX` decoded.
///
/// A malformed escape, or bytes that are not UTF-8, leave the whole text as it is. Kubernetes does so for malformed
/// escapes.
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
    fn extra_key_upstream_examples() {
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
    fn extra_key_malformed_escapes_kept() {
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
