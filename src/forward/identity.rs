//! The caller's identity in headers, as a front proxy sends it (`X-Remote-*`).

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::kubeapi::{User, extra_key};

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
const EXTRA: &str = "x-remote-extra-";

/// The headers that say who a user is; made once for a user, put onto each of their requests.
///
/// As `k8s.io/client-go/transport.SetAuthProxyHeaders`: one line for each group, keys of extras escaped,
/// the UID only when there is one. An empty name is never sent: the backend would then take the front
/// proxy's own certificate for the caller.
#[derive(Clone, Debug)]
pub struct Stamp {
    /// User, UID, groups and extras, in this order.
    lines: Vec<(HeaderName, HeaderValue)>,
    /// Names that must not be there.
    absent: Vec<HeaderName>,
}

/// A user that cannot be put into headers.
#[derive(Debug, PartialEq, Eq)]
pub struct Unspeakable(pub &'static str);

impl Stamp {
    /// The headers for `user`; without its UID unless `with_uid` (`--forward-uid`).
    ///
    /// # Errors
    /// [`Unspeakable`] when the name is empty, or a value has a character no header may carry.
    pub fn new(user: &User, with_uid: bool) -> Result<Stamp, Unspeakable> {
        if user.name.is_empty() {
            return Err(Unspeakable("the user has no name"));
        }
        let value = |text: &str, what| HeaderValue::from_bytes(text.as_bytes()).map_err(|_| Unspeakable(what));
        let mut lines = vec![(USER, value(&user.name, "the user's name has a control character")?)];
        if with_uid && !user.uid.is_empty() {
            lines.push((UID, value(&user.uid, "the user's UID has a control character")?));
        }
        for group in &user.groups {
            lines.push((GROUP, value(group, "a group's name has a control character")?));
        }
        for (key, values) in &user.extra {
            let name = HeaderName::try_from(format!("{EXTRA}{}", extra_key::escape(key)))
                .map_err(|_| Unspeakable("the key of an extra cannot be a header name"))?;
            for text in values {
                lines.push((name.clone(), value(text, "an extra has a control character")?));
            }
        }
        let absent = [UID, GROUP].into_iter().filter(|name| lines.iter().all(|(line, _)| line != name)).collect();
        Ok(Stamp { lines, absent })
    }

    /// Puts the identity onto a request, after everything that removes headers: a client's
    /// `Connection: X-Remote-Group` must not take away what we say.
    pub fn put(&self, headers: &mut HeaderMap) {
        // Authentication has removed what the client sent. This is the last gate: the first line of a name
        // replaces what may stand there, and what has no line goes. Not so for extras: two keys may have one name.
        let mut before = None;
        for (name, value) in &self.lines {
            if before == Some(name) || name.as_str().starts_with(EXTRA) {
                headers.append(name, value.clone());
            } else {
                headers.insert(name, value.clone());
            }
            before = Some(name);
        }
        for name in &self.absent {
            headers.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jane() -> User {
        User {
            name: "jane".into(),
            uid: "42".into(),
            groups: vec!["devs".into(), "a,b".into(), "devs".into()],
            extra: [("example.com/scope".to_owned(), vec!["one".to_owned(), "two".to_owned()])].into(),
        }
    }

    fn lines(headers: &HeaderMap) -> Vec<String> {
        let mut lines: Vec<_> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort();
        lines
    }

    #[test]
    fn one_line_a_group_in_order_with_repeats_and_escaped_keys() {
        let mut headers = HeaderMap::new();
        Stamp::new(&jane(), true).unwrap().put(&mut headers);
        let groups: Vec<_> = headers.get_all("x-remote-group").iter().collect();
        assert_eq!(groups, ["devs", "a,b", "devs"]);
        assert_eq!(
            lines(&headers),
            [
                "x-remote-extra-example.com%2fscope: one",
                "x-remote-extra-example.com%2fscope: two",
                "x-remote-group: a,b",
                "x-remote-group: devs",
                "x-remote-group: devs",
                "x-remote-uid: 42",
                "x-remote-user: jane",
            ]
        );
    }

    #[test]
    fn extras_whose_keys_differ_in_case_are_all_there() {
        let extra = [("Scope", "one"), ("a", "two"), ("scope", "three")];
        let extra = extra.map(|(key, value)| (key.to_owned(), vec![value.to_owned()])).into();
        let mut headers = HeaderMap::new();
        Stamp::new(&User { extra, ..jane() }, true).unwrap().put(&mut headers);
        let scopes: Vec<_> = headers.get_all("x-remote-extra-scope").iter().collect();
        assert_eq!(scopes, ["one", "three"]);
        assert_eq!(headers["x-remote-extra-a"], "two");
    }

    #[test]
    fn the_uid_stays_here_when_asked() {
        let mut headers = HeaderMap::new();
        Stamp::new(&jane(), false).unwrap().put(&mut headers);
        assert!(!headers.contains_key("x-remote-uid"));
    }

    #[test]
    fn what_a_client_said_is_replaced_never_added_to() {
        let mut headers = HeaderMap::new();
        headers.append("x-remote-user", HeaderValue::from_static("admin"));
        headers.append("x-remote-group", HeaderValue::from_static("system:masters"));
        Stamp::new(&jane(), true).unwrap().put(&mut headers);
        let users: Vec<_> = headers.get_all("x-remote-user").iter().collect();
        assert_eq!(users, ["jane"]);
        assert!(!headers.get_all("x-remote-group").iter().any(|group| group == "system:masters"));
    }

    #[test]
    fn an_empty_name_and_control_characters_are_refused() {
        assert_eq!(Stamp::new(&User::default(), true).unwrap_err().0, "the user has no name");
        let split = User { name: "jane\r\nX-Remote-Group: system:masters".into(), ..User::default() };
        assert!(Stamp::new(&split, true).is_err());
        let group = User { groups: vec!["a\0b".into()], ..jane() };
        assert!(Stamp::new(&group, true).is_err());
    }

    #[test]
    fn names_beyond_ascii_are_sent_as_they_are() {
        let mut headers = HeaderMap::new();
        Stamp::new(&User { name: "zoë".into(), ..User::default() }, true).unwrap().put(&mut headers);
        assert_eq!(headers["x-remote-user"].as_bytes(), "zoë".as_bytes());
    }
}
