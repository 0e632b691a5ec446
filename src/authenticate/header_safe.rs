//! Check that an identity can be sent in HTTP headers unchanged. Otherwise a backend could see another identity.

use kubeapi::User;

/// Returns an error when `user` cannot be sent in headers unchanged.
///
/// The name must not be empty: a backend would then ignore the headers and take the front proxy's own certificate for
/// the caller. No value may contain a control character, or begin or end with a space, which the next hop would trim.
pub(crate) fn check_header_safe(user: &User) -> Result<(), String> {
    if user.name.is_empty() {
        return Err("the user has no name".to_owned());
    }
    let groups = user.groups.iter().map(|group| ("a group", group));
    let extra = user.extra.values().flatten().map(|value| ("a value of an extra", value));
    let all = [("the user's name", &user.name), ("the user's UID", &user.uid)].into_iter().chain(groups).chain(extra);
    for (what, text) in all {
        if text.chars().any(|c| c.is_ascii_control()) {
            return Err(format!("{what} contains a control character: {text:?}"));
        }
        if text.trim_matches(' ').len() != text.len() {
            return Err(format!("{what} begins or ends with a space: {text:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_that_headers_would_change_is_rejected() {
        let named = |name: &str| User { name: name.to_owned(), ..User::default() };
        for name in ["", " ", "a\r\nX-Remote-Group: system:masters", "a\0", "a\tb", "\x7f", " root", "root "] {
            assert!(check_header_safe(&named(name)).is_err(), "{name:?}");
        }
        for name in ["jane", "Jane Doe", "système:ü", "a,b", "system:serviceaccount:default:bob"] {
            assert_eq!(check_header_safe(&named(name)), Ok(()), "{name:?}");
        }
        let jane = named("jane");
        assert!(check_header_safe(&User { uid: "\n".into(), ..jane.clone() }).is_err());
        assert!(check_header_safe(&User { groups: vec!["a".into(), "b\n".into()], ..jane.clone() }).is_err());
        assert!(check_header_safe(&User { extra: [("k".into(), vec!["\r".into()])].into(), ..jane }).is_err());
    }
}
