//! The token in `Authorization: Bearer …`.

/// The content of an `Authorization` header.
#[derive(Debug, PartialEq, Eq)]
pub enum Bearer<'a> {
    /// No bearer token: absent, another scheme, or malformed.
    None,
    /// Two spaces before the token: Kubernetes ignores it and warns.
    ExtraSpace,
    /// A token.
    Token(&'a str),
}

/// Kubernetes' warning for [`Bearer::ExtraSpace`].
pub(super) const EXTRA_SPACE_WARNING: &str =
    "the provided Authorization header contains extra space before the bearer token, and is ignored";

/// Parses the value of `Authorization` like
/// `k8s.io/apiserver/pkg/authentication/request/bearertoken`: words after the token are ignored.
pub fn parse(value: &str) -> Bearer<'_> {
    let value = value.trim();
    // By bytes: faster than a character search on short texts, and this is on the request path.
    let Some(space) = value.bytes().position(|byte| byte == b' ') else { return Bearer::None };
    let scheme = &value[..space];
    let mut words = value[space + 1..].splitn(2, ' ');
    let token = words.next().unwrap_or_default();
    if !scheme.eq_ignore_ascii_case("bearer") {
        Bearer::None
    } else if !token.is_empty() {
        Bearer::Token(token)
    } else if words.next().is_some() {
        Bearer::ExtraSpace
    } else {
        Bearer::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_header_parsed_like_upstream() {
        for (value, expected) in [
            ("", Bearer::None),
            ("Bearer", Bearer::None),
            ("Bearer ", Bearer::None),
            ("Bearer: abc", Bearer::None),
            ("Basic abc", Bearer::None),
            ("abc", Bearer::None),
            ("Bearer  abc", Bearer::ExtraSpace),
            ("Bearer abc", Bearer::Token("abc")),
            ("  bearer abc  ", Bearer::Token("abc")),
            ("BEARER abc def ghi", Bearer::Token("abc")),
            ("Bearer\tabc", Bearer::None),
        ] {
            assert_eq!(parse(value), expected, "{value:?}");
        }
    }
}
