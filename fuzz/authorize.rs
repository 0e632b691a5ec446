//! Policies: RBAC objects, and what they allow; and as whom somebody asks to act.

use http::{HeaderMap, HeaderName, HeaderValue};
use narthex::authorize::parsers::{impersonated, take_away};
use narthex::authorize::{Attributes, Policy};
use narthex::kubeapi::{RequestInfo, User};

use crate::on_texts;

#[test]
fn policies() {
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
    on_texts(WORDS, |text| {
        for json in [false, true] {
            match Policy::parse("f", text, json) {
                Ok(policy) => {
                    // Whatever is in it: who is in no binding may nothing.
                    let nobody = User { name: "nobody".into(), ..User::default() };
                    let request = RequestInfo { path: "/a", verb: "get".into(), ..RequestInfo::default() };
                    assert!(policy.allows(Attributes { user: &nobody, request: &request }).is_none());
                }
                Err(problems) => assert!(problems.0.iter().all(|problem| problem.place.starts_with('f'))),
            }
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
    on_texts(WORDS, |text| {
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
        take_away(&mut headers);
        assert!(headers.keys().all(|name| !name.as_str().starts_with("impersonate-")));
    });
}
