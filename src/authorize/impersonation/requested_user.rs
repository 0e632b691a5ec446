//! Parser of the `Impersonate-*` headers.

use std::fmt::Write;

use http::{HeaderMap, HeaderValue};
use kubeapi::{GoQuoted, Status, User, extra_key};

use crate::authenticate::check_speakable;
use crate::message::hop_by_hop::{has_normalized_prefix, remove_where};

const EXTRA: &str = "impersonate-extra-";

/// Returns the requested user; none if no attribute is given.
///
/// Of `Impersonate-User` and `Impersonate-Uid`, the first value counts, and an empty one is ignored. Every value of
/// `Impersonate-Group` is a group, also an empty one.
///
/// # Errors
/// 400 for a group, UID or extra without a user name, in Kubernetes' words, and for values that cannot be sent in
/// headers unchanged.
pub fn parse_headers(headers: &HeaderMap) -> Result<Option<User>, Status> {
    let first = |name| headers.get(name).map(|value| header_text(name, value)).transpose();
    let mut user = User {
        name: first("impersonate-user")?.unwrap_or_default(),
        uid: first("impersonate-uid")?.unwrap_or_default(),
        ..User::default()
    };
    for value in headers.get_all("impersonate-group") {
        user.groups.push(header_text("impersonate-group", value)?);
    }
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            user.extra.entry(extra_key::unescape(key)).or_default().push(header_text(name.as_str(), value)?);
        }
    }
    if !user.name.is_empty() {
        check_speakable(&user).map_err(|why| Status::bad_request(format!("invalid Impersonate headers: {why}")))?;
        return Ok(Some(user));
    }
    if user.uid.is_empty() && user.groups.is_empty() && user.extra.is_empty() {
        return Ok(None);
    }
    Err(Status::bad_request(format!("requested {} without impersonating a user name", go_syntax(&user))))
}

/// Removes all `Impersonate-*` headers, in any spelling that some servers accept.
pub fn strip_headers(headers: &mut HeaderMap) {
    remove_where(headers, |name| has_normalized_prefix(name, "impersonate-"));
}

fn header_text(name: &str, value: &HeaderValue) -> Result<String, Status> {
    let not_text = |_| Status::bad_request(format!("invalid Impersonate headers: the value of {name} is not UTF-8"));
    std::str::from_utf8(value.as_bytes()).map(str::to_owned).map_err(not_text)
}

/// Formats a user like Go's `%#v` of a `*user.DefaultInfo`.
fn go_syntax(user: &User) -> String {
    let list = |values: &[String]| {
        let values: Vec<String> = values.iter().map(|value| GoQuoted(value).to_string()).collect();
        format!("[]string{{{}}}", values.join(", "))
    };
    let groups = if user.groups.is_empty() { "[]string(nil)".to_owned() } else { list(&user.groups) };
    let mut extra = String::from("map[string][]string");
    if user.extra.is_empty() {
        extra.push_str("(nil)");
    } else {
        let entries: Vec<String> =
            user.extra.iter().map(|(key, values)| format!("{}:{}", GoQuoted(key), list(values))).collect();
        // Writing to a string cannot fail.
        let _ = write!(extra, "{{{}}}", entries.join(", "));
    }
    let (name, uid) = (GoQuoted(&user.name), GoQuoted(&user.uid));
    format!("&user.DefaultInfo{{Name:{name}, UID:{uid}, Groups:{groups}, Extra:{extra}}}")
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;
    use crate::message::test_headers;

    fn refused(lines: &[(&str, &str)]) -> String {
        let status = parse_headers(&test_headers(lines)).unwrap_err();
        assert_eq!((status.code, status.reason), (400, "BadRequest"));
        status.message
    }

    #[test]
    fn impersonation_headers_parsed_completely() {
        let headers = test_headers(&[
            ("Impersonate-User", "bob"),
            ("Impersonate-User", "root"),
            ("Impersonate-Uid", ""),
            ("Impersonate-Uid", "7"),
            ("Impersonate-Group", "b"),
            ("Impersonate-Extra-Scopes", "x"),
            ("Impersonate-Group", ""),
            ("Impersonate-Group", "a,c"),
            ("Impersonate-Extra-%73copes", "y"),
            ("Impersonate-Extra-Example.com%2fFoo", "z"),
            ("Impersonate-Extra-a%zz", ""),
            ("Impersonate-Extra-", "e"),
            ("Impersonate_Group", "system:masters"),
            ("Impersonate-Groups", "system:masters"),
        ]);
        let wanted = parse_headers(&headers).unwrap().unwrap();
        assert_eq!((&*wanted.name, &*wanted.uid), ("bob", ""));
        assert_eq!(wanted.groups, ["b", "", "a,c"]);
        let extra: Vec<(String, String)> =
            wanted.extra.iter().map(|(key, values)| (key.clone(), values.join("|"))).collect();
        let expected = [("", "e"), ("a%zz", ""), ("example.com/foo", "z"), ("scopes", "x|y")];
        assert_eq!(extra, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    #[test]
    fn impersonation_headers_without_user_are_none() {
        for lines in [
            &[("accept", "*/*")][..],
            &[("impersonate-user", "")],
            &[("impersonate-user", ""), ("impersonate-user", "root")],
            &[("impersonate-uid", "")],
            &[("impersonate_user", "root")],
        ] {
            assert_eq!(parse_headers(&test_headers(lines)), Ok(None), "{lines:?}");
        }
    }

    /// Go's format; the text is sent to clients.
    #[test]
    fn impersonation_headers_without_user_name_rejected_like_upstream() {
        assert_eq!(
            refused(&[("impersonate-group", "a\"b"), ("impersonate-group", "")]),
            r#"requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"a\"b", ""}, Extra:map[string][]string(nil)} without impersonating a user name"#
        );
        assert_eq!(
            refused(&[("impersonate-uid", "7"), ("impersonate-user", "")]),
            r#"requested &user.DefaultInfo{Name:"", UID:"7", Groups:[]string(nil), Extra:map[string][]string(nil)} without impersonating a user name"#
        );
        assert_eq!(
            refused(&[("impersonate-extra-b", "1"), ("impersonate-extra-a", "2"), ("impersonate-extra-b", "3")]),
            r#"requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string(nil), Extra:map[string][]string{"a":[]string{"2"}, "b":[]string{"1", "3"}}} without impersonating a user name"#
        );
    }

    #[test]
    fn impersonation_headers_with_unsafe_values_are_rejected() {
        assert!(refused(&[("impersonate-user", " root")]).contains("begins or ends with a space"));
        assert!(refused(&[("impersonate-user", "a\tb")]).contains("control character"));
        assert!(refused(&[("impersonate-user", "a"), ("impersonate-group", "b ")]).contains("space"));
        let mut headers = test_headers(&[("impersonate-user", "bob")]);
        headers.insert("impersonate-group", HeaderValue::from_bytes(b"\xff").unwrap());
        assert!(parse_headers(&headers).unwrap_err().message.contains("impersonate-group is not UTF-8"));
        assert_eq!(parse_headers(&test_headers(&[("impersonate-user", "Jürgen")])).unwrap().unwrap().name, "Jürgen");
    }

    #[test]
    fn impersonation_headers_stripped_in_every_spelling() {
        let mut headers = test_headers(&[
            ("Impersonate-User", "a"),
            ("impersonate_group", "a"),
            ("IMPERSONATE.UID", "a"),
            ("Impersonate-Extra-x", "a"),
            ("Impersonate-Anything", "a"),
            ("impersonated", "a"),
            ("accept", "a"),
        ]);
        strip_headers(&mut headers);
        let mut left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["accept", "impersonated"]);
    }
}
