//! Identity headers of the caller, as a front proxy sends them (`X-Remote-*`).

use http::{HeaderMap, HeaderName, HeaderValue};

use kubeapi::{User, extra_key};

const USER: HeaderName = HeaderName::from_static("x-remote-user");
const UID: HeaderName = HeaderName::from_static("x-remote-uid");
const GROUP: HeaderName = HeaderName::from_static("x-remote-group");
/// Prefix of all of Kubernetes' own identity headers.
pub(super) const REMOTE_PREFIX: &str = "x-remote-";
const REMOTE_EXTRA_PREFIX: &str = "x-remote-extra-";

const INVALID_USER_NAME: &str = "the user's name has a control character";
const INVALID_GROUP_NAME: &str = "a group's name has a control character";

/// Identity headers of a user; built once per user and added to each request.
///
/// As `k8s.io/client-go/transport.SetAuthProxyHeaders`: one line per group, escaped extra keys, the UID only if there
/// is one. An empty name is never sent: the backend would then authenticate the caller by the front proxy's own
/// certificate.
#[derive(Clone, Debug)]
pub struct UserHeaders {
    /// User, UID, groups and extras, in this order.
    lines: Vec<(HeaderName, HeaderValue)>,
    /// Headers to remove.
    absent_names: Vec<HeaderName>,
}

/// Selection of the identity headers that a backend gets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityHeaderFormat {
    /// `X-Remote-User`, `X-Remote-Group` with one line per group, and `X-Remote-Extra-*`.
    pub remote: bool,
    /// Whether `X-Remote-Uid` is sent, too (`--forward-uid`).
    pub uid: bool,
    /// Two headers as in kube-rbac-proxy (`--auth-header-fields-enabled`).
    pub joined: Option<JoinedHeaders>,
    /// Other names than `X-Remote-*`, if any.
    pub names: Option<RemoteHeaderNames>,
}

/// Names of the identity headers in place of `X-Remote-User`, `X-Remote-Group` and `X-Remote-Extra-*`, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteHeaderNames {
    /// Header with the user's name.
    pub user: HeaderName,
    /// Header with a group, one line per group.
    pub group: HeaderName,
    /// Prefix of the headers with the user's extra attributes.
    pub extra_prefix: String,
}

/// A header for the user name, and one for all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedHeaders {
    /// Whether the headers are sent; if not, they are only removed from client requests.
    pub enabled: bool,
    /// Value of `--auth-header-user-field-name`.
    pub user: HeaderName,
    /// Value of `--auth-header-groups-field-name`.
    pub groups: HeaderName,
    /// `--auth-header-groups-field-separator`; not empty.
    pub separator: String,
}

/// Why a user cannot be encoded in headers.
#[derive(Debug, PartialEq, Eq)]
pub struct IdentityHeaderError(pub &'static str);

impl UserHeaders {
    /// Headers for `user` in Kubernetes' format; with its UID only if `with_uid` (`--forward-uid`).
    ///
    /// # Errors
    /// [`IdentityHeaderError`] if the name is empty, or a value has a character that is not allowed in headers.
    pub fn new(user: &User, with_uid: bool) -> Result<UserHeaders, IdentityHeaderError> {
        UserHeaders::with_format(user, &IdentityHeaderFormat { remote: true, uid: with_uid, joined: None, names: None })
    }

    /// Headers for `user` in the format `wording`; possibly none.
    ///
    /// # Errors
    /// As [`UserHeaders::new`], and if a group's name contains the separator between groups: a backend would read two
    /// groups.
    pub fn with_format(user: &User, wording: &IdentityHeaderFormat) -> Result<UserHeaders, IdentityHeaderError> {
        if user.name.is_empty() {
            return Err(IdentityHeaderError("the user has no name"));
        }
        let mut lines = Vec::new();
        if let Some(joined) = wording.joined.as_ref().filter(|joined| joined.enabled) {
            let groups = &user.groups;
            if groups.iter().any(|group| group.contains(&joined.separator)) {
                return Err(IdentityHeaderError("a group's name contains the separator of groups"));
            }
            lines.push((joined.user.clone(), header_value(&user.name, INVALID_USER_NAME)?));
            lines.push((joined.groups.clone(), header_value(&groups.join(&joined.separator), INVALID_GROUP_NAME)?));
        }
        if wording.remote {
            let mut remote = remote_lines(user, wording.uid)?;
            if let Some(names) = &wording.names {
                names.rename(&mut remote);
            }
            // Joined headers take precedence over Kubernetes' own of the same name.
            remote.retain(|(name, _)| lines.iter().all(|(joined, _)| joined != name));
            lines.append(&mut remote);
        }
        let absent =
            [USER, UID, GROUP].into_iter().filter(|name| lines.iter().all(|(present, _)| present != name)).collect();
        Ok(UserHeaders { lines, absent_names: absent })
    }

    /// No identity headers, for requests that were not authenticated.
    pub fn empty() -> UserHeaders {
        UserHeaders { lines: Vec::new(), absent_names: vec![USER, UID, GROUP] }
    }

    /// Header names used besides Kubernetes' own.
    pub(super) fn custom_names(&self) -> impl Iterator<Item = &HeaderName> {
        self.lines.iter().map(|(name, _)| name).filter(|name| !name.as_str().starts_with(REMOTE_PREFIX))
    }

    /// Adds the headers to a request. Call it after everything that removes headers: a client's
    /// `Connection: X-Remote-Group` must not remove the gateway's.
    pub fn apply(&self, headers: &mut HeaderMap) {
        // Authentication has removed the client's headers already; this is the last line of defense. The first line of
        // a name replaces existing ones, and names without a line are removed. Extras are appended: two keys may have
        // one name.
        let mut before = None;
        for (name, value) in &self.lines {
            if before == Some(name) || name.as_str().starts_with(REMOTE_EXTRA_PREFIX) {
                headers.append(name, value.clone());
            } else {
                headers.insert(name, value.clone());
            }
            before = Some(name);
        }
        for name in &self.absent_names {
            headers.remove(name);
        }
    }
}

impl RemoteHeaderNames {
    fn rename(&self, lines: &mut [(HeaderName, HeaderValue)]) {
        for (name, _) in lines {
            if *name == USER {
                *name = self.user.clone();
            } else if *name == GROUP {
                *name = self.group.clone();
            } else if let Some(key) = name.as_str().strip_prefix(REMOTE_EXTRA_PREFIX)
                && let Ok(renamed) = HeaderName::try_from(format!("{}{key}", self.extra_prefix))
            {
                *name = renamed;
            }
        }
    }
}

impl IdentityHeaderFormat {
    /// Header names besides Kubernetes' own that no client may send.
    pub fn custom_names(&self) -> Vec<HeaderName> {
        let joined = self.joined.iter().flat_map(|joined| [joined.user.clone(), joined.groups.clone()]);
        joined.chain(self.names.iter().flat_map(|names| [names.user.clone(), names.group.clone()])).collect()
    }
}

fn header_value(text: &str, what: &'static str) -> Result<HeaderValue, IdentityHeaderError> {
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| IdentityHeaderError(what))
}

/// Headers in Kubernetes' format.
fn remote_lines(user: &User, with_uid: bool) -> Result<Vec<(HeaderName, HeaderValue)>, IdentityHeaderError> {
    let mut lines = vec![(USER, header_value(&user.name, INVALID_USER_NAME)?)];
    if with_uid && !user.uid.is_empty() {
        lines.push((UID, header_value(&user.uid, "the user's UID has a control character")?));
    }
    for group in &user.groups {
        lines.push((GROUP, header_value(group, INVALID_GROUP_NAME)?));
    }
    for (key, values) in &user.extra {
        let name = HeaderName::try_from(format!("{REMOTE_EXTRA_PREFIX}{}", extra_key::escape(key)))
            .map_err(|_| IdentityHeaderError("an extra's key is not a valid header name"))?;
        for text in values {
            lines.push((name.clone(), header_value(text, "an extra has a control character")?));
        }
    }
    Ok(lines)
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
    fn identity_headers_one_line_per_group_and_escaped_extra_keys() {
        let mut headers = HeaderMap::new();
        UserHeaders::new(&jane(), true).unwrap().apply(&mut headers);
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
    fn identity_headers_extras_differing_in_case_are_all_sent() {
        let extra = [("Scope", "one"), ("a", "two"), ("scope", "three")];
        let extra = extra.map(|(key, value)| (key.to_owned(), vec![value.to_owned()])).into();
        let mut headers = HeaderMap::new();
        UserHeaders::new(&User { extra, ..jane() }, true).unwrap().apply(&mut headers);
        let scopes: Vec<_> = headers.get_all("x-remote-extra-scope").iter().collect();
        assert_eq!(scopes, ["one", "three"]);
        assert_eq!(headers["x-remote-extra-a"], "two");
    }

    #[test]
    fn identity_headers_omit_uid_when_disabled() {
        let mut headers = HeaderMap::new();
        UserHeaders::new(&jane(), false).unwrap().apply(&mut headers);
        assert!(!headers.contains_key("x-remote-uid"));
    }

    #[test]
    fn identity_headers_replace_client_values() {
        let mut headers = HeaderMap::new();
        headers.append("x-remote-user", HeaderValue::from_static("admin"));
        headers.append("x-remote-group", HeaderValue::from_static("system:masters"));
        UserHeaders::new(&jane(), true).unwrap().apply(&mut headers);
        let users: Vec<_> = headers.get_all("x-remote-user").iter().collect();
        assert_eq!(users, ["jane"]);
        assert!(!headers.get_all("x-remote-group").iter().any(|group| group == "system:masters"));
    }

    #[test]
    fn identity_headers_reject_empty_name_and_control_characters() {
        assert_eq!(UserHeaders::new(&User::default(), true).unwrap_err().0, "the user has no name");
        let split = User { name: "jane\r\nX-Remote-Group: system:masters".into(), ..User::default() };
        assert!(UserHeaders::new(&split, true).is_err());
        let group = User { groups: vec!["a\0b".into()], ..jane() };
        assert!(UserHeaders::new(&group, true).is_err());
    }

    #[test]
    fn identity_headers_non_ascii_name_is_sent_unchanged() {
        let mut headers = HeaderMap::new();
        UserHeaders::new(&User { name: "zoë".into(), ..User::default() }, true).unwrap().apply(&mut headers);
        assert_eq!(headers["x-remote-user"].as_bytes(), "zoë".as_bytes());
    }

    fn joined(user: &'static str, groups: &'static str) -> Option<JoinedHeaders> {
        let name = HeaderName::from_static;
        Some(JoinedHeaders { enabled: true, user: name(user), groups: name(groups), separator: "|".to_owned() })
    }

    fn told(wording: &IdentityHeaderFormat) -> Vec<String> {
        let mut headers = HeaderMap::new();
        UserHeaders::with_format(&User { groups: vec!["a".into(), "b".into()], ..jane() }, wording)
            .unwrap()
            .apply(&mut headers);
        lines(&headers).into_iter().filter(|line| !line.contains("-extra-")).collect()
    }

    #[test]
    fn identity_headers_joined_groups_format() {
        let theirs = IdentityHeaderFormat {
            names: None,
            joined: joined("x-remote-user", "x-remote-groups"),
            ..IdentityHeaderFormat::default()
        };
        assert_eq!(told(&theirs), ["x-remote-groups: a|b", "x-remote-user: jane"]);
        let both = IdentityHeaderFormat { remote: true, uid: true, ..theirs };
        assert_eq!(
            told(&both),
            [
                "x-remote-group: a",
                "x-remote-group: b",
                "x-remote-groups: a|b",
                "x-remote-uid: 42",
                "x-remote-user: jane"
            ]
        );
        let same = IdentityHeaderFormat { joined: joined("x-user", "x-remote-group"), ..both };
        assert_eq!(told(&same), ["x-remote-group: a|b", "x-remote-uid: 42", "x-remote-user: jane", "x-user: jane"]);
        assert_eq!(same.custom_names(), ["x-user", "x-remote-group"]);
        assert_eq!(told(&IdentityHeaderFormat::default()), [""; 0]);
    }

    #[test]
    fn identity_headers_joined_groups_empty() {
        let mut headers = HeaderMap::new();
        let wording = IdentityHeaderFormat { joined: joined("u", "g"), ..IdentityHeaderFormat::default() };
        UserHeaders::with_format(&User { groups: Vec::new(), ..jane() }, &wording).unwrap().apply(&mut headers);
        assert_eq!(headers["g"], "");
    }

    #[test]
    fn identity_headers_reject_group_with_separator() {
        let wording = IdentityHeaderFormat { joined: joined("u", "g"), ..IdentityHeaderFormat::default() };
        let user = User { groups: vec!["devs|system:masters".into()], ..jane() };
        assert!(UserHeaders::with_format(&user, &wording).is_err());
    }
}
