//! Verb, resource, namespace and name of a request.
//!
//! As `k8s.io/apiserver/pkg/endpoints/request.RequestInfoFactory` with the prefixes `api` and `apis`. Authorization,
//! routing, metrics and the access log all use this one result.

use std::borrow::Cow;

use http::Method;

use super::{CanonicalPath, FieldSelector, LabelSelector, Query, Status};

/// Information about a request. Borrows from the path and the query: an ordinary request copies nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo<'r> {
    /// Whether the path names a resource. If not, only `path` and `verb` are meaningful.
    pub is_resource_request: bool,
    /// The decoded path.
    pub path: &'r str,
    /// `get`, `list`, `watch`, `create`, …; for non-resource requests the method in lower case. Empty for a resource
    /// request with a method that has no verb.
    pub verb: Cow<'r, str>,
    /// `api` or `apis`. As in Kubernetes, also set for `/apis/<group>/<version>`, which is no resource request.
    pub api_prefix: &'r str,
    /// Empty for the core group.
    pub api_group: &'r str,
    /// For example `v1`.
    pub api_version: &'r str,
    /// Empty for cluster-scoped requests and for those across all namespaces.
    pub namespace: &'r str,
    /// For example `pods`.
    pub resource: &'r str,
    /// For example `status`, or empty.
    pub subresource: &'r str,
    /// Name of the object: from the path, or from a field selector that allows only one. May be empty.
    pub name: Cow<'r, str>,
    /// The decoded path from the resource on: `pods/foo/log`.
    pub parts: &'r str,
    /// The `fieldSelector` of a list, watch or deletecollection, unparsed.
    pub field_selector: Cow<'r, str>,
    /// The `labelSelector` of a list, watch or deletecollection, unparsed.
    pub label_selector: Cow<'r, str>,
}

/// Query parameters that determine the verb, authorization or timeout of a resource request.
const AUTHORIZED_PARAMETERS: [&str; 6] =
    ["watch", "fieldSelector", "labelSelector", "limit", "timeoutSeconds", "timeout"];

impl<'r> RequestInfo<'r> {
    /// Query parameters of which only the first value is authorized, as by Go's `url.Values.Get`. Further values must
    /// not be forwarded. Empty for a non-resource request.
    pub fn authorized_parameters(&self) -> &'static [&'static str] {
        if self.is_resource_request { &AUTHORIZED_PARAMETERS } else { &[] }
    }

    /// Parses a request.
    ///
    /// # Errors
    /// 400 for a path that ends after a special verb (`/api/v1/watch`).
    pub fn parse(
        method: &Method,
        path: &'r CanonicalPath<'_>,
        query: &'r Query<'_>,
    ) -> Result<RequestInfo<'r>, Status> {
        let mut info = RequestInfo::non_resource(method, path);
        let mut rest = Segments(info.path.trim_matches('/'));
        // A resource path has at least a prefix, version and resource; with `apis` also a group.
        let needed = match rest.clone().next() {
            Some("api") => 3,
            Some("apis") => 4,
            _ => return Ok(info),
        };
        let depth = rest.clone().take(needed).count();
        if depth >= 3 {
            info.api_prefix = rest.next().unwrap_or_default();
        }
        if depth < needed {
            return Ok(info);
        }
        if info.api_prefix == "apis" {
            info.api_group = rest.next().unwrap_or_default();
        }
        info.api_version = rest.next().unwrap_or_default();
        info.is_resource_request = true;
        let verb_in_path = match rest.clone().next() {
            Some(verb @ ("proxy" | "watch")) => {
                rest.next();
                if rest.is_empty() {
                    return Err(Status::bad_request(format!(
                        "unable to determine kind and namespace from url, {}",
                        path.raw()
                    )));
                }
                info.verb = Cow::Borrowed(verb);
                true
            }
            _ => {
                info.verb = Cow::Borrowed(verb_of(method));
                false
            }
        };
        info.read_resource(rest);
        info.read_selectors(query, verb_in_path);
        Ok(info)
    }

    /// A non-resource request with this method and path, whatever the path is.
    pub fn non_resource(method: &Method, path: &'r CanonicalPath<'_>) -> RequestInfo<'r> {
        RequestInfo { path: path.decoded(), verb: lower_case(method), ..RequestInfo::default() }
    }

    /// Whether the verb is read-only: `get`, `list` and `watch`, or GET, HEAD and OPTIONS.
    pub fn is_read_only(&self) -> bool {
        if self.is_resource_request {
            matches!(&*self.verb, "get" | "list" | "watch")
        } else {
            matches!(&*self.verb, "get" | "head" | "options")
        }
    }

    /// Whether the request is long-running, without a timeout: the verbs `watch` and `proxy`, streaming subresources,
    /// and profiles (`k8s.io/apiserver/pkg/server/filters.BasicLongRunningRequestCheck` as configured by the
    /// kube-apiserver).
    pub fn is_long_running(&self) -> bool {
        if self.is_resource_request {
            matches!(&*self.verb, "watch" | "proxy")
                || matches!(self.subresource, "attach" | "exec" | "proxy" | "log" | "portforward")
        } else {
            self.path.starts_with("/debug/pprof/")
        }
    }

    fn read_resource(&mut self, mut rest: Segments<'r>) {
        if rest.clone().next() == Some("namespaces") {
            let mut inside = rest.clone();
            inside.next();
            if let Some(namespace) = inside.next() {
                self.namespace = namespace;
                if inside.clone().next().is_some_and(|next| !matches!(next, "status" | "finalize")) {
                    rest = inside;
                }
            }
        }
        self.parts = rest.0;
        self.resource = rest.next().unwrap_or_default();
        self.name = Cow::Borrowed(rest.next().unwrap_or_default());
        if self.verb != "proxy" {
            self.subresource = rest.next().unwrap_or_default();
        }
    }

    fn read_selectors(&mut self, query: &'r Query<'_>, verb_in_path: bool) {
        if self.name.is_empty() && self.verb == "get" {
            let watch = query.get("watch").is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("false"));
            self.verb = Cow::Borrowed(if watch { "watch" } else { "list" });
            if let Some(name) = single_name(query) {
                self.name = name;
            }
        }
        if self.name.is_empty() && self.verb == "delete" {
            self.verb = Cow::Borrowed("deletecollection");
        }
        if !verb_in_path && matches!(&*self.verb, "list" | "watch" | "deletecollection") {
            self.field_selector = query.get("fieldSelector").unwrap_or_default();
            self.label_selector = query.get("labelSelector").unwrap_or_default();
        }
    }
}

/// The only name that a `fieldSelector` of a list or watch allows. `None` if any list option is invalid.
fn single_name<'r>(query: &'r Query<'_>) -> Option<Cow<'r, str>> {
    let fields = query.get("fieldSelector")?;
    let name = FieldSelector::parse(&fields).ok()?.exact("metadata.name")?.to_owned();
    let is_number = |key| query.get(key).is_none_or(|value| value.parse::<i64>().is_ok());
    let readable = is_number("limit")
        && is_number("timeoutSeconds")
        && query.get("labelSelector").is_none_or(|labels| LabelSelector::parse(&labels).is_ok());
    let is_segment = name != "." && name != ".." && !name.contains(['/', '%']);
    (readable && is_segment).then_some(Cow::Owned(name))
}

/// The verb of a method; empty for one that has none.
pub fn verb_of(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET | Method::HEAD => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

fn lower_case(method: &Method) -> Cow<'static, str> {
    Cow::Borrowed(match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => return Cow::Owned(method.as_str().to_ascii_lowercase()),
    })
}

/// Remaining segments of a path without slashes at its ends. The empty path has no segment.
#[derive(Clone)]
struct Segments<'p>(&'p str);

impl Segments<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'p> Iterator for Segments<'p> {
    type Item = &'p str;

    fn next(&mut self) -> Option<&'p str> {
        if self.0.is_empty() {
            return None;
        }
        // By bytes: `str::find` is optimized for longer texts, and this runs for every request.
        let end = self.0.bytes().position(|byte| byte == b'/').unwrap_or(self.0.len());
        let segment = &self.0[..end];
        self.0 = self.0.get(end + 1..).unwrap_or("");
        Some(segment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_info(method: &str, target: &str, check: impl FnOnce(RequestInfo<'_>)) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = CanonicalPath::parse(path).unwrap();
        let query = Query::parse(query);
        check(RequestInfo::parse(&Method::from_bytes(method.as_bytes()).unwrap(), &path, &query).unwrap());
    }

    #[test]
    fn request_info_resource_requests() {
        // method, target, verb, group, version, namespace, resource, subresource, name, parts
        for case in [
            ["GET", "/api/v1/namespaces", "list", "", "v1", "", "namespaces", "", "", "namespaces"],
            ["GET", "/api/v1/namespaces/o", "get", "", "v1", "o", "namespaces", "", "o", "namespaces/o"],
            ["GET", "/api/v1/namespaces/o/pods", "list", "", "v1", "o", "pods", "", "", "pods"],
            ["GET", "/api/v1/namespaces/o/pods/", "list", "", "v1", "o", "pods", "", "", "pods"],
            ["GET", "/api/v1/namespaces/o/pods/f", "get", "", "v1", "o", "pods", "", "f", "pods/f"],
            ["HEAD", "/api/v1/namespaces/o/pods/f", "get", "", "v1", "o", "pods", "", "f", "pods/f"],
            ["GET", "/api/v1/pods", "list", "", "v1", "", "pods", "", "", "pods"],
            ["HEAD", "/api/v1/pods", "list", "", "v1", "", "pods", "", "", "pods"],
            // verbs in the path
            ["GET", "/api/v1/proxy/namespaces/o/pods/f", "proxy", "", "v1", "o", "pods", "", "f", "pods/f"],
            ["GET", "/api/v1/proxy/namespaces/o/pods/f/a/b", "proxy", "", "v1", "o", "pods", "", "f", "pods/f/a/b"],
            ["GET", "/api/v1/watch/pods", "watch", "", "v1", "", "pods", "", "", "pods"],
            ["GET", "/api/v1/watch/namespaces/o/pods", "watch", "", "v1", "o", "pods", "", "", "pods"],
            ["POST", "/api/v1/watch/pods", "watch", "", "v1", "", "pods", "", "", "pods"],
            // watch in the query
            ["GET", "/api/v1/pods?watch=true", "watch", "", "v1", "", "pods", "", "", "pods"],
            ["GET", "/api/v1/pods?watch=false", "list", "", "v1", "", "pods", "", "", "pods"],
            ["GET", "/api/v1/pods?watch=FALSE", "list", "", "v1", "", "pods", "", "", "pods"],
            ["GET", "/api/v1/pods?watch=1", "watch", "", "v1", "", "pods", "", "", "pods"],
            ["GET", "/api/v1/pods?watch=0", "list", "", "v1", "", "pods", "", "", "pods"],
            ["GET", "/api/v1/pods?watch=no", "watch", "", "v1", "", "pods", "", "", "pods"],
            ["GET", "/api/v1/pods?watch=", "watch", "", "v1", "", "pods", "", "", "pods"],
            ["GET", "/api/v1/pods?watch", "watch", "", "v1", "", "pods", "", "", "pods"],
            ["GET", "/api/v1/pods?watch=0&watch=1", "list", "", "v1", "", "pods", "", "", "pods"],
            ["GET", "/api/v1/pods?w%61tch=1", "watch", "", "v1", "", "pods", "", "", "pods"],
            ["GET", "/api/v1/pods/f?watch=1", "get", "", "v1", "", "pods", "", "f", "pods/f"],
            // subresources
            ["GET", "/api/v1/namespaces/o/pods/f/status", "get", "", "v1", "o", "pods", "status", "f", "pods/f/status"],
            [
                "GET",
                "/api/v1/namespaces/o/pods/f/proxy/s",
                "get",
                "",
                "v1",
                "o",
                "pods",
                "proxy",
                "f",
                "pods/f/proxy/s",
            ],
            [
                "PUT",
                "/api/v1/namespaces/o/finalize",
                "update",
                "",
                "v1",
                "o",
                "namespaces",
                "finalize",
                "o",
                "namespaces/o/finalize",
            ],
            [
                "PUT",
                "/api/v1/namespaces/o/status",
                "update",
                "",
                "v1",
                "o",
                "namespaces",
                "status",
                "o",
                "namespaces/o/status",
            ],
            // verbs
            ["PATCH", "/api/v1/namespaces/o/pods/f", "patch", "", "v1", "o", "pods", "", "f", "pods/f"],
            ["DELETE", "/api/v1/namespaces/o/pods/f", "delete", "", "v1", "o", "pods", "", "f", "pods/f"],
            ["POST", "/api/v1/namespaces/o/pods", "create", "", "v1", "o", "pods", "", "", "pods"],
            ["OPTIONS", "/api/v1/pods", "", "", "v1", "", "pods", "", "", "pods"],
            ["DELETE", "/api/v1/nodes", "deletecollection", "", "v1", "", "nodes", "", "", "nodes"],
            ["DELETE", "/api/v1/namespaces", "deletecollection", "", "v1", "", "namespaces", "", "", "namespaces"],
            ["DELETE", "/api/v1/namespaces/o/pods", "deletecollection", "", "v1", "o", "pods", "", "", "pods"],
            // groups
            ["DELETE", "/apis/e/v1/namespaces/o/pods", "deletecollection", "e", "v1", "o", "pods", "", "", "pods"],
            ["POST", "/apis/e/v1beta3/namespaces/o/pods", "create", "e", "v1beta3", "o", "pods", "", "", "pods"],
            ["GET", "/apis/batch/v1/job", "list", "batch", "v1", "", "job", "", "", "job"],
            ["GET", "/apis/batch/v1/job/foo/scale", "get", "batch", "v1", "", "job", "scale", "foo", "job/foo/scale"],
            ["GET", "/apis/g/v/r/n%20x", "get", "g", "v", "", "r", "", "n x", "r/n x"],
        ] {
            let [method, target, verb, group, version, namespace, resource, subresource, name, parts] = case;
            with_info(method, target, |info| {
                let prefix = if group.is_empty() { "api" } else { "apis" };
                let expected = RequestInfo {
                    is_resource_request: true,
                    path: info.path,
                    verb: verb.into(),
                    api_prefix: prefix,
                    api_group: group,
                    api_version: version,
                    namespace,
                    resource,
                    subresource,
                    name: name.into(),
                    parts,
                    ..RequestInfo::default()
                };
                assert_eq!(info, expected, "{method} {target}");
            });
        }
    }

    #[test]
    fn request_info_non_resource_requests() {
        for (method, target, verb) in [
            ("GET", "/", "get"),
            ("GET", "/api", "get"),
            ("GET", "/api/", "get"),
            ("GET", "/api/version", "get"),
            ("GET", "/api/version/", "get"),
            ("GET", "/apis/group/version/", "get"),
            ("GET", "/apis/group", "get"),
            ("POST", "/badprefix/version/resource", "post"),
            ("GET", "/apis/version/resource", "get"),
            ("HEAD", "/apis/extensions/v1beta1", "head"),
            ("GET", "/not-api/version/resource/name", "get"),
            ("PURGE", "/healthz/", "purge"),
            ("GET", "/API/v1/pods", "get"),
            ("GET", "//x//api/v1", "get"),
        ] {
            with_info(method, target, |info| {
                let api_prefix = if super::super::path::segments(target).count() == 3 && target.starts_with("/apis/") {
                    "apis"
                } else {
                    ""
                };
                let expected = RequestInfo { path: target, verb: verb.into(), api_prefix, ..RequestInfo::default() };
                assert_eq!(info, expected);
            });
        }
    }

    #[test]
    fn request_info_special_verb_without_resource_refused() {
        for path in ["/api/v1/watch", "/apis/g/v1/proxy/"] {
            let canonical = CanonicalPath::parse(path).unwrap();
            let query = Query::parse("");
            let status = RequestInfo::parse(&Method::GET, &canonical, &query).unwrap_err();
            assert_eq!(status.code, 400);
            assert_eq!(status.message, format!("unable to determine kind and namespace from url, {path}"));
        }
    }

    #[test]
    fn request_info_selectors() {
        // method, target, verb, name, field selector, label selector
        for case in [
            ["GET", "/apis/g/v/r", "list", "", "", ""],
            ["GET", "/apis/g/v/r?fieldSelector=metadata.name=n", "list", "n", "metadata.name=n", ""],
            ["GET", "/apis/g/v/r?fieldSelector=metadata.name%3D%3Dn", "list", "n", "metadata.name==n", ""],
            ["GET", "/apis/g/v/r?watch=true&fieldSelector=metadata.name=n", "watch", "n", "metadata.name=n", ""],
            ["GET", "/apis/g/v/r?fieldSelector=foo=bar&labelSelector=a=b", "list", "", "foo=bar", "a=b"],
            ["GET", "/apis/g/v/r?fieldSelector=metadata.name=n,foo", "list", "", "metadata.name=n,foo", ""],
            ["GET", "/apis/g/v/r?fieldSelector=metadata.name=n,foo&watch=true", "watch", "", "metadata.name=n,foo", ""],
            ["GET", "/apis/g/v/r?fieldSelector=metadata.name=n,foo&watch=false", "list", "", "metadata.name=n,foo", ""],
            ["GET", "/apis/g/v/r?fieldSelector=metadata.name=n&limit=x", "list", "", "metadata.name=n", ""],
            ["GET", "/apis/g/v/r?fieldSelector=metadata.name=n&limit=5", "list", "n", "metadata.name=n", ""],
            ["GET", "/apis/g/v/r?fieldSelector=metadata.name=n&timeoutSeconds=", "list", "", "metadata.name=n", ""],
            ["GET", "/apis/g/v/r?fieldSelector=metadata.name=n&labelSelector=((", "list", "", "metadata.name=n", "(("],
            ["GET", "/apis/g/v/r?fieldSelector=metadata.name=..", "list", "", "metadata.name=..", ""],
            ["GET", "/apis/g/v/r?fieldSelector=metadata.name=a%2Fb", "list", "", "metadata.name=a/b", ""],
            ["GET", "/apis/g/v/r?fieldSelector=metadata.name!=n", "list", "", "metadata.name!=n", ""],
            [
                "GET",
                "/apis/g/v/r?fieldSelector=metadata.name=a&fieldSelector=metadata.name=b&labelSelector=c&labelSelector=d",
                "list",
                "a",
                "metadata.name=a",
                "c",
            ],
            ["DELETE", "/apis/g/v/r?fieldSelector=foo=bar&labelSelector=a=b", "deletecollection", "", "foo=bar", "a=b"],
            ["DELETE", "/apis/g/v/r?fieldSelector=metadata.name=n", "deletecollection", "", "metadata.name=n", ""],
            ["GET", "/apis/g/v/r/n?fieldSelector=foo=bar&labelSelector=foo=bar", "get", "n", "", ""],
            ["GET", "/apis/g/v/watch/r?fieldSelector=metadata.name=f&labelSelector=a=b", "watch", "", "", ""],
            ["GET", "/apis/g/v/watch/r/n?fieldSelector=metadata.name=f&labelSelector=a=b", "watch", "n", "", ""],
        ] {
            let [method, target, verb, name, fields, labels] = case;
            with_info(method, target, |info| {
                let read = [&*info.verb, &*info.name, &*info.field_selector, &*info.label_selector];
                assert_eq!(read, [verb, name, fields, labels], "{target}");
            });
        }
    }

    #[test]
    fn request_info_long_running_and_read_only() {
        for (method, target, long_running, read_only) in [
            ("GET", "/api/v1/pods?watch=1", true, true),
            ("GET", "/api/v1/namespaces/o/pods/f/log", true, true),
            ("POST", "/api/v1/namespaces/o/pods/f/exec", true, false),
            ("GET", "/api/v1/proxy/nodes/n", true, false),
            ("GET", "/api/v1/pods", false, true),
            ("DELETE", "/api/v1/pods", false, false),
            ("OPTIONS", "/version", false, true),
            ("POST", "/version", false, false),
        ] {
            with_info(method, target, |info| {
                assert_eq!((info.is_long_running(), info.is_read_only()), (long_running, read_only), "{target}");
            });
        }
    }
}
