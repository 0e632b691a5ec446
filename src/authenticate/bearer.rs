//! The token in `Authorization: Bearer …`.

/// What an `Authorization` header says.
#[derive(Debug, PartialEq, Eq)]
pub enum Bearer<'a> {
    /// Nothing about a bearer token: absent, another scheme, malformed.
    None,
    /// Two spaces before the token: upstream ignores it and warns.
    ExtraSpace,
    /// A token.
    Token(&'a str),
}

/// What upstream warns with.
pub(super) const EXTRA_SPACE: &str =
    "the provided Authorization header contains extra space before the bearer token, and is ignored";

/// Reads the value of `Authorization` as
/// `k8s.io/apiserver/pkg/authentication/request/bearertoken` does: words behind the token are ignored.
pub fn parse(value: &str) -> Bearer<'_> {
    let value = value.trim();
    // By bytes: the search for a character is made for longer texts, and this is on every request's way.
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
    fn as_upstream_reads_it() {
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
