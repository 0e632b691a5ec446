//! Tests of the authorization file and of the required permissions.

use std::fmt::Write as _;

use http::{HeaderName, HeaderValue};
use kubeapi::User;

use super::*;
use crate::message::test_headers;

fn rules(text: &str) -> RbacProxyRules {
    RbacProxyRules::parse("config.yaml", text, false).unwrap()
}

fn mistakes(text: &str) -> Vec<String> {
    RbacProxyRules::parse("config.yaml", text, false).unwrap_err().0.iter().map(ToString::to_string).collect()
}

/// Returns the required permissions of a request, one per line.
fn permissions_of(
    rules: &RbacProxyRules,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
) -> Result<String, UnreviewableRequest> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let (path, query) = (CanonicalPath::parse(path).unwrap(), Query::parse(query));
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let questions = rules.required_permissions(&method, &path, &query, &test_headers(headers))?;
    let mut text = String::new();
    for question in questions.iter() {
        let RequestInfo { verb, path, api_group, api_version, namespace, resource, subresource, name, .. } = &question;
        if question.is_resource_request {
            assert_eq!(*path, "");
            writeln!(text, "{verb} {api_group}/{api_version} {namespace} {resource}/{subresource} {name}").unwrap();
        } else {
            writeln!(text, "{verb} {path}").unwrap();
        }
    }
    Ok(text)
}

#[test]
fn rbac_proxy_without_file_authorizes_path() {
    let rules = RbacProxyRules::default();
    for (method, verb) in [
        ("GET", "get"),
        ("HEAD", "get"),
        ("POST", "create"),
        ("PUT", "update"),
        ("PATCH", "patch"),
        ("DELETE", "delete"),
        ("OPTIONS", "*"),
        ("PROPFIND", "*"),
        ("get", "*"),
    ] {
        assert_eq!(permissions_of(&rules, method, "/a%20b?x=y", &[]), Ok(format!("{verb} /a b\n")));
    }
}

#[test]
fn rbac_proxy_resource_attributes_without_rewrites_are_literal() {
    let rules = rules(
        "authorization:\n  resourceAttributes:\n    namespace: default\n    apiVersion: v1\n    resource: services\n    \
         subresource: proxy\n    name: '{{ .Value }}'\n",
    );
    assert_eq!(permissions_of(&rules, "GET", "/x", &[]).unwrap(), "get /v1 default services/proxy {{ .Value }}\n");
}

#[test]
fn rbac_proxy_rewrites_require_one_permission_per_value() {
    let rules = rules(
        "authorization:\n  rewrites:\n    byQueryParameter: {name: namespace}\n    byHttpHeader: {name: X-Namespace}\n  \
         resourceAttributes:\n    apiGroup: apps\n    resource: deployments\n    namespace: '{{ .Value }}'\n    \
         name: in-{{ .Value }}\n",
    );
    let question = |value: &str| format!("get apps/ {value} deployments/ in-{value}\n");
    assert_eq!(permissions_of(&rules, "GET", "/?namespace=a", &[]).unwrap(), question("a"));
    assert_eq!(
        permissions_of(&rules, "GET", "/?namespace=a&x&namespace=b", &[]).unwrap(),
        question("a") + &question("b")
    );
    let headers = [("x-namespace", "c"), ("x-namespace", "a"), ("X-Other", "d")];
    assert_eq!(permissions_of(&rules, "GET", "/?namespace=a", &headers).unwrap(), question("a") + &question("c"));
    assert_eq!(permissions_of(&rules, "GET", "/?namespace=", &[]).unwrap(), question(""));
    assert_eq!(permissions_of(&rules, "GET", "/?n%61mespace=%61", &[]).unwrap(), question("a"));
}

#[test]
fn rbac_proxy_rewrites_missing_excess_or_ambiguous_values_are_rejected() {
    let rules = rules(
        "authorization:\n  rewrites: {byQueryParameter: {name: ns}, byHttpHeader: {name: X-N}}\n  resourceAttributes: \
         {resource: things, namespace: '{{ .Value }}'}\n",
    );
    let many: String = (0..=RequiredPermissions::MAX).map(|number| format!("&ns={number}")).collect();
    let same = "&ns=1".repeat(1000);
    assert!(permissions_of(&rules, "GET", &format!("/?{same}"), &[]).is_ok());
    for (target, headers) in [
        ("/", &[][..]),
        ("/?NS=a", &[]),
        // Go ignores such a pair, and it is not forwarded.
        ("/?ns=a;ns=b", &[]),
        (&format!("/?{many}"), &[]),
        ("/?ns=a", &[("x_n", "b")]),
        ("/", &[("x-n", "a"), ("x.n", "b")]),
        ("/", &[("x-n", "a"), ("connection", "close, X-N")]),
    ] {
        assert!(permissions_of(&rules, "GET", target, headers).is_err(), "{target} {headers:?}");
    }
    let headers = HeaderMap::from_iter([(HeaderName::from_static("x-n"), HeaderValue::from_static("a"))]);
    let latin = HeaderMap::from_iter([(HeaderName::from_static("x-n"), HeaderValue::from_bytes(b"\xe9").unwrap())]);
    let (path, query) = (CanonicalPath::parse("/").unwrap(), Query::parse(""));
    assert!(rules.required_permissions(&Method::GET, &path, &query, &headers).is_ok());
    assert!(rules.required_permissions(&Method::GET, &path, &query, &latin).is_err());
}

#[test]
fn rbac_proxy_rules_selected_by_path_and_method() {
    let rules = rules(
        "authorization:\n  rules:\n  - paths: [/api/v1/query, /api/v1/label/*/values]\n    methods: [GET, POST]\n    \
         verb: get\n    resourceAttributes: {apiGroup: metrics.k8s.io, resource: pods, namespace: '{{ .Value }}'}\n    \
         rewrites: {byQueryParameter: {name: namespace}}\n  - paths: [/admin/*]\n    resourceAttributes: {resource: \
         admins}\n  - paths: [/healthz]\n  resourceAttributes: {resource: services, name: me}\n",
    );
    for (method, target, questions) in [
        ("POST", "/api/v1/query?namespace=a", "get metrics.k8s.io/ a pods/ \n"),
        ("GET", "/api/v1/label/x/values?namespace=a", "get metrics.k8s.io/ a pods/ \n"),
        ("DELETE", "/api/v1/query?namespace=a", "delete /  services/ me\n"),
        ("GET", "/admin/users", "get /  admins/ \n"),
        ("GET", "/healthz", "get /healthz\n"),
        ("GET", "/", "get /  services/ me\n"),
    ] {
        assert_eq!(permissions_of(&rules, method, target, &[]).unwrap(), questions, "{method} {target}");
    }
    for target in ["/api/v1/query", "//admin/users", "/x%2F..%2Fadmin", "/admin%2Fusers", "/admin;x/users"] {
        if CanonicalPath::parse(target).is_ok() {
            assert!(permissions_of(&rules, "GET", target, &[]).is_err(), "{target}");
        }
    }
}

/// The sample works as described in `docs/how-to/sidecar-rules.md`.
#[test]
fn rbac_proxy_sample_rules_work_as_documented() {
    let sample = include_str!("../../../deploy/sidecar/rules.yaml");
    let shown = include_str!("../../../docs/how-to/sidecar-rules.md").split("```yaml\n").nth(1).unwrap();
    let shown = shown.split("```").next().unwrap();
    for text in [sample, shown] {
        let rules = rules(text);
        assert!(rules.warnings().is_empty());
        let service = "library services/proxy library\n";
        for (method, target, questions) in [
            ("GET", "/search?namespace=a", "list library.example.com/v1 a books/ \n".to_owned()),
            ("POST", "/search/new?namespace=a", "list library.example.com/v1 a books/ \n".to_owned()),
            ("DELETE", "/search?namespace=a", format!("delete /v1 {service}")),
            ("DELETE", "/shelves/a", "delete library.example.com/v1  books/ \n".to_owned()),
            ("OPTIONS", "/shelves/a", "* library.example.com/v1  books/ \n".to_owned()),
            ("GET", "/shelves", format!("get /v1 {service}")),
            ("GET", "/shelves/a/b", format!("get /v1 {service}")),
            ("GET", "/metrics", "get /metrics\n".to_owned()),
            ("POST", "/metrics", format!("create /v1 {service}")),
            ("HEAD", "/any", format!("get /v1 {service}")),
        ] {
            assert_eq!(permissions_of(&rules, method, target, &[]).unwrap(), questions, "{method} {target}");
        }
        assert!(permissions_of(&rules, "GET", "/search", &[]).is_err());
        assert!(permissions_of(&rules, "GET", "/shelves%2Fa", &[]).is_err());
    }
    assert!(rules(sample).has_static_rules());
}

#[test]
fn rbac_proxy_static_rules_match_user_and_attributes() {
    let rules = rules(
        "authorization:\n  static:\n  - user: {name: jane}\n    verb: get\n    path: /metrics\n  - user: {groups: [ops, \
         devs]}\n    resourceRequest: true\n    resource: namespaces\n    subresource: metrics\n    namespace: default\n",
    );
    assert!(rules.has_static_rules());
    let path =
        |path: &'static str, verb: &'static str| RequestInfo { path, verb: verb.into(), ..RequestInfo::default() };
    let resource = |namespace: &'static str, subresource: &'static str| RequestInfo {
        is_resource_request: true,
        verb: "update".into(),
        namespace,
        resource: "namespaces",
        subresource,
        name: "any".into(),
        ..RequestInfo::default()
    };
    for (user, groups, request, allowed) in [
        ("jane", &[][..], path("/metrics", "get"), true),
        ("jane", &[], path("/metrics", "update"), false),
        ("jane", &[], path("/metrics/", "get"), false),
        ("joe", &["jane"], path("/metrics", "get"), false),
        ("joe", &["devs"], resource("default", "metrics"), true),
        ("joe", &["x", "ops"], resource("default", "metrics"), true),
        ("ops", &["x"], resource("default", "metrics"), false),
        ("ops", &[], resource("default", "metrics"), false),
        ("joe", &["ops"], resource("other", "metrics"), false),
        ("joe", &["ops"], resource("default", ""), false),
        ("joe", &["ops"], path("/metrics", "get"), false),
    ] {
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        let user = User { name: user.into(), groups, ..User::default() };
        assert_eq!(
            rules.allows(Attributes { user: &user, request: &request }).is_some(),
            allowed,
            "{user:?} {request:?}"
        );
    }
}

/// Files of kube-rbac-proxy's `examples` and `test/e2e`, and of real clusters.
#[test]
fn rbac_proxy_files_of_other_projects_are_accepted() {
    for text in [
        "authorization:\n  rewrites:\n    byQueryParameter:\n      name: \"namespace\"\n  resourceAttributes:\n    \
         apiVersion: v1\n    resource: namespace\n    subresource: metrics\n    namespace: \"{{ .Value }}\"\n  static:\n    - \
         resourceRequest: true\n      resource: namespace\n      subresource: metrics\n",
        "\"authorization\":\n  \"static\":\n  - \"path\": \"/metrics\"\n    \"resourceRequest\": false\n    \"user\":\n      \
         \"name\": \"system:serviceaccount:openshift-monitoring:prometheus-k8s\"\n    \"verb\": \"get\"\n",
        "{\"authorization\": {\"resourceAttributes\": {\"resource\": \"services\"}}}",
        "authorization: {}\n",
        // Field names in any case, and numbers instead of strings.
        "Authorization:\n  resourceattributes: {namespace: 1, apigroup: true}\n  STATIC: [{User: {Name: 7, Groups: [8]}, \
         ResourceRequest: true}]\n",
    ] {
        let rules = rules(text);
        assert!(rules.warnings().is_empty(), "{text}");
    }
}

#[test]
fn rbac_proxy_file_errors_reported_together_by_field() {
    let text = "authorization:\n  resourceAttribute: {}\n  rewrites:\n    byQueryParameter: {}\n    byHttpHeaders: {}\n  \
                resourceAttributes:\n    namespace: '{{ .Name }}'\n    name: [x]\n    apiGroup: 1.5\n  rules:\n  - paths: \
                ['[', x]\n    methods: [get, 'G T']\n    rewrites: {byHttpHeader: {name: 'a b'}}\n  - methods: GET\n  \
                static:\n  - {resourceRequest: true, path: /x}\n  - {verb: get}\n  - {path: /x, groups: [a]}\n  - {user: \
                jane, path: /x}\nother: 1\n";
    assert_eq!(
        mistakes(text),
        [
            "config.yaml: authorization.rewrites: byQueryParameter.name or byHttpHeader.name is required: every \
             request would be rejected",
            "config.yaml: authorization.rewrites.byHttpHeaders: unknown field; did you mean byHttpHeader?",
            "config.yaml: authorization.resourceAttributes.namespace: \"{{ .Name }}\" is not a supported template; \
             use {{ .Value }}",
            "config.yaml: authorization.resourceAttributes.apiGroup: a number does not fit; a text is needed",
            "config.yaml: authorization.resourceAttributes.name: a list does not fit; a text is needed",
            "config.yaml: authorization.rules[0].paths[0]: \"[\" is not a path pattern",
            "config.yaml: authorization.rules[0].paths[1]: \"x\" is not a path pattern",
            "config.yaml: authorization.rules[0].methods[0]: \"get\" is not an HTTP method",
            "config.yaml: authorization.rules[0].methods[1]: \"G T\" is not an HTTP method",
            "config.yaml: authorization.rules[0].rewrites: has no effect without resourceAttributes",
            "config.yaml: authorization.rules[0].rewrites.byHttpHeader.name: \"a b\" is not an allowed header name",
            "config.yaml: authorization.rules[1].paths: required",
            "config.yaml: authorization.rules[1].methods: a text does not fit; a list is needed",
            "config.yaml: authorization.static[0].path: cannot be given with resourceRequest: a resource has no path",
            "config.yaml: authorization.static[1].path: required, unless resourceRequest is true",
            "config.yaml: authorization.static[2].groups: unknown field",
            "config.yaml: authorization.static[3].user: a text does not fit; a mapping is needed",
            "config.yaml: authorization.resourceAttribute: unknown field; did you mean resourceAttributes?",
            "config.yaml: other: unknown field",
        ]
    );
}

#[test]
fn rbac_proxy_file_malformed_is_rejected() {
    for (text, problem) in [
        ("", "config.yaml: one mapping with the field authorization is required"),
        ("a: 1\n---\nb: 2\n", "config.yaml: one mapping with the field authorization is required"),
        ("{}", "config.yaml: authorization: required"),
        ("authorization:\n", "config.yaml: authorization: required"),
        ("authorization: []\n", "config.yaml: authorization: a list does not fit; a mapping is needed"),
    ] {
        assert_eq!(mistakes(text), [problem], "{text:?}");
    }
}

fn warnings(text: &str) -> Vec<String> {
    rules(text).warnings().iter().map(ToString::to_string).collect()
}

#[test]
fn rbac_proxy_file_lint_warns() {
    let warnings =
        warnings("authorization: {rewrites: {byQueryParameter: {name: n}}, static: [{verb: '*', path: /x}]}\n");
    assert!(warnings[0].starts_with("config.yaml: authorization.rewrites: has no effect without"), "{warnings:?}");
    assert!(warnings[1].starts_with("config.yaml: authorization.static[0].verb: matches only methods"), "{warnings:?}");
    assert_eq!(warnings.len(), 2);
}

#[test]
fn rbac_proxy_lint_unmatched_static_rule_suggests_fix() {
    for (rule, told) in [
        ("{path: /metrics, verb: get}", None),
        ("{path: /metrics}", None),
        ("{path: /metrics, verb: GET}", Some("verb: \"GET\" matches no request; use \"get\"")),
        ("{path: /metrics, verb: PUT}", Some("verb: \"PUT\" matches no request; use \"update\"")),
        ("{path: /metrics, verb: list}", Some("verb: \"list\" matches no request; use \"get\"")),
        (
            "{path: /metrics, verb: read}",
            Some("verb: \"read\" matches no request; use one of get, create, update, patch, delete"),
        ),
        ("{path: metrics}", Some("path: \"metrics\" matches no request; use \"/metrics\"")),
        (
            "{path: /metrics/*}",
            Some("path: \"/metrics/*\" matches literally: patterns, queries and escapes are not supported"),
        ),
        (
            "{resourceRequest: true, resource: pods}",
            Some("resourceRequest: allows nothing: without resourceAttributes, requests are authorized by path"),
        ),
    ] {
        let told: Vec<_> =
            told.map(|told| format!("config.yaml: authorization.static[0].{told}")).into_iter().collect();
        assert_eq!(warnings(&format!("authorization: {{static: [{rule}]}}\n")), told, "{rule}");
    }
    let by_resource = "authorization: {resourceAttributes: {resource: pods}, static: [{path: /x}]}\n";
    let told = "config.yaml: authorization.static[0].path: allows nothing: with resourceAttributes, no request is \
                authorized by path";
    assert_eq!(warnings(by_resource), [told]);
    // A rule adds verbs, and permissions by path.
    let both = "authorization: {resourceAttributes: {resource: pods}, rules: [{paths: [/x], verb: list}], static: \
                [{path: /x, verb: list}, {resourceRequest: true}]}\n";
    assert_eq!(warnings(both), [""; 0]);
}

#[test]
fn rbac_proxy_lint_template_without_rewrites() {
    for text in ["{{ .Value }}", "{{ .Valu }}", "{{ .Value"] {
        let attributes = format!("{{resource: pods, namespace: '{text}'}}");
        let told = |at: &str| {
            format!(
                "config.yaml: authorization.{at}resourceAttributes.namespace: {text:?} is used literally: there \
                 are no rewrites to take a value from"
            )
        };
        assert_eq!(warnings(&format!("authorization: {{resourceAttributes: {attributes}}}\n")), [told("")]);
        let rule = format!("authorization: {{rules: [{{paths: [/x], resourceAttributes: {attributes}}}]}}\n");
        assert_eq!(warnings(&rule), [told("rules[0].")]);
    }
}

#[test]
fn rbac_proxy_lint_shadowed_rule() {
    for (before, rule, hidden) in [
        ("{paths: [/a, /b]}", "{paths: [/b], methods: [GET]}", true),
        ("{paths: [/a, /b]}", "{paths: [/b, /c]}", false),
        ("{paths: [/a/*]}", "{paths: [/a/b, '/a/*']}", true),
        ("{paths: [/a/*]}", "{paths: [/a/b/c]}", false),
        ("{paths: [/a], methods: [GET]}", "{paths: [/a], methods: [HEAD]}", true),
        ("{paths: [/a], methods: [HEAD]}", "{paths: [/a], methods: [GET]}", false),
        ("{paths: [/a], methods: [GET]}", "{paths: [/a]}", false),
    ] {
        let told = warnings(&format!("authorization: {{rules: [{before}, {rule}]}}\n"));
        assert_eq!(told.len(), usize::from(hidden), "{before} {rule}: {told:?}");
        assert!(told.iter().all(|told| told.starts_with("config.yaml: authorization.rules[1]: matches no request")));
    }
    let upper = warnings("authorization: {rules: [{paths: [/a], verb: List}]}\n");
    assert!(upper[0].ends_with("verbs are lower case; use \"list\""), "{upper:?}");
}

#[test]
fn rbac_proxy_rules_head_uses_get_rule_unless_listed_earlier() {
    let attributes = |resource: &str| format!("resourceAttributes: {{resource: {resource}}}");
    let by_get = format!("{{paths: [/a], methods: [GET], {}}}", attributes("pods"));
    let by_head = format!("{{paths: [/a], methods: [HEAD], {}}}", attributes("heads"));
    let rest = format!("{{paths: ['/*'], {}}}", attributes("secrets"));
    for (list, head, get) in [
        (format!("{by_get}, {rest}"), "pods", "pods"),
        (format!("{by_head}, {by_get}, {rest}"), "heads", "pods"),
        (format!("{by_head}, {rest}"), "heads", "secrets"),
    ] {
        let rules = rules(&format!("authorization: {{rules: [{list}]}}\n"));
        for (method, resource) in [("HEAD", head), ("GET", get), ("POST", "secrets")] {
            let asked = permissions_of(&rules, method, "/a", &[]).unwrap();
            assert!(asked.ends_with(&format!(" /  {resource}/ \n")), "{list} {method}: {asked}");
        }
    }
}
