//! Request headers by which a front proxy names the user.

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use kubeapi::{User, extra_key};

use crate::message::hop_by_hop::is_reserved;
use crate::process::{Problem, Problems};
use crate::tls::server::FrontProxies;

/// Headers that a request needs; no configured prefix may match one of them.
const REQUIRED_HEADERS: [&str; 7] =
    ["authorization", "connection", "content-length", "content-type", "host", "transfer-encoding", "upgrade"];

/// Names of the headers that a front proxy sets (`--requestheader-*-headers`, `-prefix`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHeaderNames {
    /// User name headers; the first with a value counts.
    pub usernames: Vec<HeaderName>,
    /// UID headers; the first with a value counts.
    pub uids: Vec<HeaderName>,
    /// Group headers; every value of each is a group.
    pub groups: Vec<HeaderName>,
    /// Prefixes of extra headers, in any case; the rest of the name is the escaped extra key.
    pub extra_prefixes: Vec<String>,
}

/// Allowed front proxies, and the names of their request headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHeaderConfig {
    /// Names of the request headers.
    pub names: RequestHeaderNames,
    /// Allowed common names of its certificate (`--requestheader-allowed-names`); empty for any certificate signed by
    /// the request-header CA.
    pub allowed_names: Vec<String>,
}

impl RequestHeaderNames {
    /// Parses the names given by flags. Reports all errors at once, in Kubernetes' words where it has any. UID headers
    /// have no default, as in Kubernetes.
    pub fn new(
        usernames: &[String],
        uids: &[String],
        groups: &[String],
        extra_prefixes: &[String],
    ) -> Result<RequestHeaderNames, Problems> {
        let mut problems = Problems::default();
        let mut read = |flag: &str, names: &[String]| -> Vec<HeaderName> {
            names.iter().filter_map(|name| problems.collect(header_name(flag, name))).collect()
        };
        let names = RequestHeaderNames {
            usernames: read("requestheader-username-headers", usernames),
            uids: read("requestheader-uid-headers", uids),
            groups: read("requestheader-group-headers", groups),
            extra_prefixes: read("requestheader-extra-headers-prefix", extra_prefixes)
                .into_iter()
                .map(|prefix| prefix.as_str().to_owned())
                .collect(),
        };
        problems.into_result(names)
    }

    /// Returns the defaults of Kubernetes' flags: `X-Remote-User`, `X-Remote-Group` and `X-Remote-Extra-`.
    pub fn standard() -> RequestHeaderNames {
        RequestHeaderNames {
            usernames: vec![HeaderName::from_static("x-remote-user")],
            uids: Vec::new(),
            groups: vec![HeaderName::from_static("x-remote-group")],
            extra_prefixes: vec!["x-remote-extra-".to_owned()],
        }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &HeaderName> {
        self.usernames.iter().chain(&self.uids).chain(&self.groups)
    }

    pub(super) fn prefixes(&self) -> impl Iterator<Item = &str> {
        self.extra_prefixes.iter().map(String::as_str)
    }

    /// Returns the user in the headers, like `k8s.io/apiserver/pkg/authentication/request/headerrequest`. Call it only
    /// after the sender was verified as a front proxy.
    ///
    /// None without any of the headers. An error if they name no user: Kubernetes continues then, and may take the
    /// front proxy itself for the caller.
    pub(super) fn authenticate(&self, headers: &HeaderMap) -> Result<Option<User>, String> {
        let mut user = User {
            name: self.first(headers, &self.usernames)?.unwrap_or_default(),
            uid: self.first(headers, &self.uids)?.unwrap_or_default(),
            ..User::default()
        };
        for name in &self.groups {
            for value in headers.get_all(name) {
                let group = header_text(name, value)?;
                if !group.is_empty() {
                    user.groups.push(group.to_owned());
                }
            }
        }
        for prefix in &self.extra_prefixes {
            for (name, value) in headers {
                if let Some(key) = strip_prefix_ignoring_case(name.as_str(), prefix) {
                    user.extra.entry(extra_key::unescape(key)).or_default().push(header_text(name, value)?.to_owned());
                }
            }
        }
        if !user.name.is_empty() {
            return Ok(Some(user));
        }
        let spoke = self.names().any(|name| headers.contains_key(name)) || !user.extra.is_empty();
        if spoke { Err("the front proxy names no user".to_owned()) } else { Ok(None) }
    }

    /// Returns the first value of a header only: an appending proxy in between cannot be told from one that replaces.
    fn first(&self, headers: &HeaderMap, names: &[HeaderName]) -> Result<Option<String>, String> {
        for name in names {
            let value = headers.get(name).map(|value| header_text(name, value)).transpose()?.unwrap_or_default();
            if !value.is_empty() {
                return Ok(Some(value.to_owned()));
            }
        }
        Ok(None)
    }
}

impl RequestHeaderConfig {
    /// Creates the configuration from the validated lists of the cluster's ConfigMap.
    pub(super) fn from_cluster(front_proxies: &FrontProxies) -> RequestHeaderConfig {
        let names = RequestHeaderNames::new(
            &front_proxies.username_headers,
            &front_proxies.uid_headers,
            &front_proxies.group_headers,
            &front_proxies.extra_prefixes,
        );
        // Without header names no user can be named: an invalid list disables the front proxies.
        RequestHeaderConfig { names: names.unwrap_or_default(), allowed_names: front_proxies.allowed_names.clone() }
    }

    /// Checks that the common name is allowed for a front proxy. The error is Kubernetes'.
    pub(super) fn check_name(&self, common_name: Option<&str>) -> Result<(), String> {
        let name = common_name.unwrap_or_default();
        if self.allowed_names.is_empty() || self.allowed_names.iter().any(|allowed| allowed == name) {
            Ok(())
        } else {
            Err(format!("x509: subject with cn={name} is not in the allowed list"))
        }
    }
}

fn header_name(flag: &str, name: &str) -> Result<HeaderName, Problem> {
    if name.trim().is_empty() {
        return Err(Problem::new(format!("--{flag}"), format!("empty value in \"{flag}\"")));
    }
    let header = HeaderName::from_bytes(name.trim().as_bytes())
        .map_err(|_| Problem::new(format!("--{flag}"), format!("{name:?} is not a valid header name")))?;
    // These headers are stripped from every request: none may match a header that the request needs.
    let prefix = flag.ends_with("prefix") && REQUIRED_HEADERS.iter().any(|needed| needed.starts_with(header.as_str()));
    if is_reserved(header.as_str()) || prefix {
        let message = "is reserved, or matches a reserved header; use a name such as X-Remote-User";
        return Err(Problem::new(format!("--{flag}"), format!("{name:?} {message}")));
    }
    Ok(header)
}

/// Returns a value without surrounding white space, which the next HTTP/1.1 hop would trim, too.
fn header_text<'v>(name: &HeaderName, value: &'v HeaderValue) -> Result<&'v str, String> {
    let text = std::str::from_utf8(value.as_bytes()).map_err(|_| format!("the value of {name} is not UTF-8"))?;
    Ok(text.trim_matches([' ', '\t']))
}

fn strip_prefix_ignoring_case<'n>(name: &'n str, prefix: &str) -> Option<&'n str> {
    let (start, rest) = name.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::test_headers;

    fn names() -> RequestHeaderNames {
        RequestHeaderNames::new(
            &["X-Remote-User".into(), "X-Other-User".into()],
            &["X-Remote-Uid".into()],
            &["X-Remote-Group".into(), "X-Other-Group".into()],
            &["X-Remote-Extra-".into(), "X-Other-".into()],
        )
        .unwrap()
    }

    #[test]
    fn request_header_values_keep_order_and_first_user_wins() {
        let headers = test_headers(&[
            ("x-other-group", "last"),
            ("x-remote-group", "b"),
            ("x-remote-group", ""),
            ("x-remote-group", "a,c"),
            ("x-remote-group", "b"),
            ("x-remote-user", "jane"),
            ("x-remote-user", "root"),
            ("x-other-user", "other"),
            ("x-remote-uid", " 42 "),
            ("x-remote-extra-example.com%2Fscope", "one"),
            ("x-remote-extra-Example.com%2fScope", "two"),
            ("x-remote-extra-bad%zz", "three"),
            ("x-remote-extra-", "four"),
            ("x-other-example.com%2fscope", "five"),
        ]);
        let user = names().authenticate(&headers).unwrap().unwrap();
        assert_eq!((&*user.name, &*user.uid), ("jane", "42"));
        assert_eq!(user.groups, ["b", "a,c", "b", "last"]);
        let extra: Vec<_> = user.extra.iter().map(|(key, values)| format!("{key}={}", values.join("|"))).collect();
        assert_eq!(extra, ["=four", "bad%zz=three", "example.com/scope=one|two|five", "group=last", "user=other"]);
    }

    #[test]
    fn request_header_second_name_used_when_first_is_empty() {
        let headers = test_headers(&[("x-remote-user", ""), ("x-remote-user", "root"), ("x-other-user", "jane")]);
        assert_eq!(names().authenticate(&headers).unwrap().unwrap().name, "jane");
    }

    /// Without a user name, the front proxy must not be taken for the caller.
    #[test]
    fn request_headers_without_user_are_an_error() {
        assert_eq!(names().authenticate(&test_headers(&[("accept", "*/*")])), Ok(None));
        for lines in [
            &[("x-remote-user", "")][..],
            &[("x-remote-user", " \t")],
            &[("x-remote-group", "system:masters")],
            &[("x-remote-uid", "1")],
            &[("x-remote-extra-a", "b")],
        ] {
            assert!(names().authenticate(&test_headers(lines)).is_err(), "{lines:?}");
        }
        let mut headers = HeaderMap::new();
        headers.insert("x-remote-user", HeaderValue::from_bytes(b"\xff").unwrap());
        assert!(names().authenticate(&headers).unwrap_err().contains("not UTF-8"));
        assert_eq!(
            names().authenticate(&test_headers(&[("x-remote-user", "jürgen")])).unwrap().unwrap().name,
            "jürgen"
        );
    }

    /// Only the common name counts.
    #[test]
    fn request_header_allowed_names_match_common_name() {
        let any = RequestHeaderConfig::default();
        assert_eq!(any.check_name(None), Ok(()));
        let some = RequestHeaderConfig {
            allowed_names: vec!["front".into(), "back".into()],
            ..RequestHeaderConfig::default()
        };
        assert_eq!(some.check_name(Some("back")), Ok(()));
        assert_eq!(some.check_name(Some("x")), Err("x509: subject with cn=x is not in the allowed list".to_owned()));
        assert!(some.check_name(None).is_err());
    }

    #[test]
    fn request_header_flag_errors_reported_together() {
        let problems = RequestHeaderNames::new(&["".into()], &["a b".into()], &[" ".into()], &["x:".into()])
            .unwrap_err()
            .to_string();
        assert_eq!(problems.lines().count(), 4);
        assert!(
            problems.contains("--requestheader-username-headers: empty value in \"requestheader-username-headers\"")
        );
        assert!(problems.contains("--requestheader-uid-headers: \"a b\" is not a valid header name"));
        let problems = RequestHeaderNames::new(&["Host".into()], &[], &["te".into()], &["con".into(), "x-".into()]);
        let problems = problems.unwrap_err().to_string();
        assert_eq!(problems.lines().count(), 3, "{problems}");
        assert!(problems.contains("--requestheader-extra-headers-prefix: \"con\" is reserved"));
    }
}
