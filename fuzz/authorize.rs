//! Policies: RBAC objects, and what they allow.

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
