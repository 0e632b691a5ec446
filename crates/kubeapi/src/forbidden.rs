//! The Status of a request without permission.

use super::status::{Status, StatusDetails, qualified};
use super::{GoQuoted, RequestInfo};

impl Status {
    /// 403: the user lacks the permission, with Kubernetes' exact text (`ForbiddenStatusError` in
    /// `k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go`). `reason` is the authorizer's and may be
    /// empty.
    pub fn forbidden_to(user: &str, info: &RequestInfo<'_>, reason: &str) -> Status {
        let mut why = html_escaped(&forbidden_action(user, info));
        if !reason.is_empty() {
            why.push_str(": ");
            why.push_str(reason);
        }
        let resource = qualified(info.api_group, info.resource);
        if resource.is_empty() {
            return Status::forbidden(why);
        }
        let object = if info.name.is_empty() { String::new() } else { format!(" {}", GoQuoted(&info.name)) };
        Status::new(403, "Forbidden", format!("{resource}{object} is forbidden: {why}"))
            .with_details(StatusDetails::for_resource(info.api_group, info.resource, &info.name))
    }
}

fn forbidden_action(user: &str, info: &RequestInfo<'_>) -> String {
    let (user, verb) = (GoQuoted(user), &info.verb);
    if !info.is_resource_request {
        return format!("User {user} cannot {verb} path {}", GoQuoted(info.path));
    }
    let slash = if info.subresource.is_empty() { "" } else { "/" };
    let resource = format!("{}{slash}{}", info.resource, info.subresource);
    let (resource, group) = (GoQuoted(&resource), GoQuoted(info.api_group));
    let scope = if info.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {}", GoQuoted(info.namespace))
    };
    format!("User {user} cannot {verb} resource {resource} in API group {group} {scope}")
}

fn html_escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use http::Method;

    use super::*;
    use crate::{CanonicalPath, Query};

    fn forbidden(user: &str, method: &Method, path: &str, reason: &str) -> Status {
        let path = CanonicalPath::parse(path).unwrap();
        let query = Query::parse("");
        Status::forbidden_to(user, &RequestInfo::parse(method, &path, &query).unwrap(), reason)
    }

    /// Kubernetes' cases (`errors_test.go` beside `errors.go`).
    #[test]
    fn status_forbidden_matches_upstream() {
        for (user, method, path, reason, message, details) in [
            (
                "NAME",
                Method::GET,
                "/whatever",
                "",
                r#"forbidden: User "NAME" cannot get path "/whatever""#,
                StatusDetails::default(),
            ),
            (
                "NAME",
                Method::GET,
                "/<script>",
                "",
                r#"forbidden: User "NAME" cannot get path "/&lt;script&gt;""#,
                StatusDetails::default(),
            ),
            (
                "jane",
                Method::GET,
                "/apis/wardle.example.com/v1/namespaces/test/flunders/x",
                "",
                r#"flunders.wardle.example.com "x" is forbidden: User "jane" cannot get resource "flunders" in API group "wardle.example.com" in the namespace "test""#,
                StatusDetails::for_resource("wardle.example.com", "flunders", "x"),
            ),
            (
                "jane & co",
                Method::PUT,
                "/api/v1/namespaces/test/pods/x/status",
                "no, really < no",
                r#"pods "x" is forbidden: User "jane &amp; co" cannot update resource "pods/status" in API group "" in the namespace "test": no, really < no"#,
                StatusDetails::for_resource("", "pods", "x"),
            ),
            (
                "u\"\n",
                Method::DELETE,
                "/apis/g/v1/things",
                "",
                r#"things.g is forbidden: User "u\"\n" cannot deletecollection resource "things" in API group "g" at the cluster scope"#,
                StatusDetails::for_resource("g", "things", ""),
            ),
        ] {
            let expected = Status::new(403, "Forbidden", message).with_details(details);
            assert_eq!(forbidden(user, &method, path, reason), expected);
        }
    }
}
