//! Authorization: RBAC policies, kube-rbac-proxy files, authorizer chains, SubjectAccessReviews, impersonation headers.

use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use kubeapi::{CanonicalPath, Query, RequestInfo, User};
use narthex::authorize::configuration::AuthorizationConfiguration;
use narthex::authorize::parsers::{impersonated, strip_headers};
use narthex::authorize::rbac_proxy::{PathAccess, PathFilter, RbacProxyRules, RequiredPermissions};
use narthex::authorize::{Attributes, AuthorizationMode, Authorizer, RbacPolicy, subject_access_review};

use crate::fuzz_text;

#[test]
fn rbac_policies() {
    const WORDS: &[&str] = &[
        "---\napiVersion: rbac.authorization.k8s.io/v1\n",
        "kind: ClusterRole\n",
        "kind: Role\n",
        "kind: ClusterRoleBinding\n",
        "kind: RoleBinding\n",
        "metadata: {name: a}\n",
        "metadata: {name: a, namespace: b, labels: {c: d}}\n",
        "rules: [{apiGroups: ['*'], resources: ['*'], verbs: ['*']}]\n",
        "rules: [{nonResourceURLs: ['/a*'], verbs: [get]}]\n",
        "rules: null\n",
        "aggregationRule: {clusterRoleSelectors: [{matchLabels: {c: d}}, {matchExpressions: [{key: c, operator: Exists}]}]}\n",
        "roleRef: {kind: ClusterRole, name: a}\n",
        "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: a}\n",
        "subjects: [{kind: User, name: jane}, {kind: ServiceAccount, name: x}]\n",
        "kind: List\nitems:\n- ",
        "&x *x",
        "[",
        "{",
        "é",
        "\"",
    ];
    fuzz_text(WORDS, |text| {
        for json in [false, true] {
            match RbacPolicy::parse("f", text, json) {
                Ok(policy) => {
                    // For any policy, a user without a binding has no permission.
                    let anonymous = User { name: "nobody".into(), ..User::default() };
                    let request = RequestInfo { path: "/a", verb: "get".into(), ..RequestInfo::default() };
                    assert!(policy.allows(Attributes { user: &anonymous, request: &request }).is_none());
                }
                Err(problems) => assert!(problems.0.iter().all(|problem| problem.location.starts_with('f'))),
            }
        }
    });
}

#[test]
fn rbac_proxy_config_files() {
    const WORDS: &[&str] = &[
        "authorization:\n",
        "  resourceAttributes: {resource: pods, namespace: '{{ .Value }}'}\n",
        "  rewrites: {byQueryParameter: {name: a}}\n",
        "  rewrites: {byHttpHeader: {name: X-A}}\n",
        "  static:\n  - path: /a\n",
        "  - {resourceRequest: true, user: {name: jane, groups: [devs]}}\n",
        "  rules:\n  - paths: [/a, '/b/*']\n",
        "    methods: [GET]\n",
        "    resourceAttributes: {name: 'x{{- .Value -}}'}\n",
        "STATIC: 7\n",
        "{\"authorization\": {",
        "[^a-z]*?",
        "{{",
        "}}",
        "[",
        "\\",
        "é",
    ];
    fuzz_text(WORDS, |text| {
        for json in [false, true] {
            let rules = match RbacProxyRules::parse("f", text, json) {
                Ok(rules) => rules,
                Err(problems) => {
                    assert!(
                        !problems.0.is_empty() && problems.0.iter().all(|problem| problem.location.starts_with('f'))
                    );
                    continue;
                }
            };
            for (path, query) in [("/a", ""), ("/b/c", "a=1&a=2"), ("/b%2Fc", "a"), ("/", "a=;&a=%zz")] {
                let (path, query) = (CanonicalPath::parse(path).unwrap(), Query::parse(query));
                let value = HeaderValue::from_bytes("é".as_bytes()).unwrap();
                let headers = HeaderMap::from_iter([(HeaderName::from_static("x-a"), value)]);
                if let Ok(questions) = rules.required_permissions(&Method::GET, &path, &query, &headers) {
                    assert!((1..=RequiredPermissions::MAX).contains(&questions.iter().count()));
                }
            }
        }
        if let Ok(paths) = PathFilter::new(&[], &[text.to_owned()]) {
            for path in ["/a//b", "/a%2Fb", "/a;b", "/a%5Cb", "/a%25b"] {
                assert_eq!(paths.access(&CanonicalPath::parse(path).unwrap()), PathAccess::Protected);
            }
        }
    });
}

#[test]
fn authorization_configuration() {
    const WORDS: &[&str] = &[
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n",
        "- type: Webhook\n  name: a\n  webhook:\n    timeout: 3s\n    subjectAccessReviewVersion: v1\n",
        "    failurePolicy: Deny\n    connectionInfo: {type: InClusterConfig}\n",
        "    matchConditionSubjectAccessReviewVersion: v1\n    matchConditions:\n",
        "    - expression: request.user == 'x'\n",
        "    - expression: \"has(request.resourceAttributes) && request.groups.exists(g, g == 'a')\"\n",
        "    - {expression: 7}\n",
        "- {type: RBAC, name: rbac}\n",
        "- type: [",
        "authorizers: {}\n",
        "    authorizedTTL: -9223372036854775808ns\n",
        "    unauthorizedTTL: 99999999h\n",
        "---\n",
        "null",
        "{",
        "é",
    ];
    fuzz_text(WORDS, |text| {
        for json in [false, true] {
            if let Err(problems) = AuthorizationConfiguration::parse("f", text, json) {
                assert!(!problems.0.is_empty() && problems.0.iter().all(|problem| problem.location.starts_with('f')));
            }
        }
    });
}

#[test]
fn subject_access_reviews() {
    const WORDS: &[&str] = &[
        "{\"spec\":{",
        "\"user\":\"jane\",",
        "\"groups\":[\"a\",null],",
        "\"groups\":null,",
        "\"extra\":{\"a\":[\"b\"],\"c\":null},",
        "\"nonResourceAttributes\":{\"path\":\"/a\",\"verb\":\"get\"}",
        "\"resourceAttributes\":{\"verb\":\"list\"",
        ",\"labelSelector\":{\"requirements\":[{\"key\":\"a b\",\"operator\":\"In\",\"values\":[\",)\"]}]}",
        ",\"fieldSelector\":{\"rawSelector\":\"a=b,\",\"requirements\":null}",
        "}}",
        "}",
        "[",
        "é",
    ];
    fuzz_text(WORDS, |text| {
        let chain = Authorizer { chain: vec![AuthorizationMode::AlwaysDeny].into(), ..Authorizer::default() };
        let response =
            subject_access_review(&chain, &narthex::authenticate::GroupFilter::default(), "", text.as_bytes())
                .now_or_never();
        match response.expect("nobody is asked who would have to be waited for") {
            Ok(object) => assert_eq!(object["status"]["allowed"], false, "{object}"),
            Err(status) => assert!(matches!(status.code, 400 | 422)),
        }
    });
}

#[test]
fn impersonation_headers() {
    const WORDS: &[&str] = &[
        "impersonate-user:bob\n",
        "impersonate-user:",
        "impersonate-uid:7\n",
        "impersonate-group:a\n",
        "impersonate-group:",
        "Impersonate-Extra-Scopes:x\n",
        "impersonate-extra-",
        "impersonate_user:",
        "%2f",
        "%",
        ":",
        "\n",
        " ",
        "\t",
        "\"",
        "é",
    ];
    fuzz_text(WORDS, |text| {
        let mut headers = HeaderMap::new();
        for (name, value) in text.lines().filter_map(|line| line.split_once(':')) {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
                headers.append(name, value);
            }
        }
        let spoken =
            ["impersonate-user", "impersonate-uid", "impersonate-group"].map(|name| headers.contains_key(name));
        match impersonated(&headers) {
            Ok(Some(user)) => assert!(!user.name.is_empty() && user.name.trim() == user.name && spoken[0]),
            // Nothing that would change what they may.
            Ok(None) => assert!(!spoken[2]),
            Err(status) => assert_eq!(status.code, 400),
        }
        strip_headers(&mut headers);
        assert!(headers.keys().all(|name| !name.as_str().starts_with("impersonate-")));
    });
}
