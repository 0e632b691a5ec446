//! Tests of RBAC decisions and of policy errors.

use std::fs;

use http::Method;
use kubeapi::{CanonicalPath, Query, RequestInfo};
use proptest::prelude::*;

use super::manifests::{RoleReference, Subject};
use super::*;
use crate::process::{Drain, OnFailure, Published, ShutdownPhase};

const HEAD: &str = "apiVersion: rbac.authorization.k8s.io/v1";

/// A policy for kubectl, a user, a group and a service account.
fn example() -> String {
    let object = |text: &str| format!("---\n{HEAD}\n{text}\n");
    [
        "kind: ClusterRole\nmetadata: {name: view, labels: {to-edit: 'true'}}\nrules:\n\
         - {apiGroups: [g], resources: [things, things/status], verbs: [get, list, watch]}",
        "kind: ClusterRole\nmetadata: {name: edit}\nrules: null\n\
         aggregationRule: {clusterRoleSelectors: [{matchLabels: {to-edit: 'true'}}, {matchExpressions: [{key: more, \
         operator: Exists}]}]}",
        "kind: ClusterRole\nmetadata: {name: more, labels: {more: x}}\nrules:\n\
         - {apiGroups: [g], resources: ['*'], resourceNames: [one], verbs: [update]}",
        "kind: ClusterRole\nmetadata: {name: discovery}\nrules: [{nonResourceURLs: [/api, '/apis/*'], verbs: [get]}]",
        "kind: Role\nmetadata: {name: pods, namespace: a}\nrules: [{apiGroups: [''], resources: [pods/log], verbs: \
         ['*']}]",
        "kind: ClusterRoleBinding\nmetadata: {name: everybody}\nroleRef: {kind: ClusterRole, name: discovery}\n\
         subjects: [{kind: Group, name: 'system:authenticated'}]",
        "kind: ClusterRoleBinding\nmetadata: {name: devs}\nroleRef: {kind: ClusterRole, name: view, apiGroup: \
         rbac.authorization.k8s.io}\nsubjects: [{kind: Group, name: devs}, {kind: User, name: bob}]",
        "kind: RoleBinding\nmetadata: {name: jane, namespace: a}\nroleRef: {kind: ClusterRole, name: edit}\n\
         subjects: [{kind: User, name: jane, apiGroup: rbac.authorization.k8s.io}]",
        "kind: RoleBinding\nmetadata: {name: robots, namespace: a}\nroleRef: {kind: Role, name: pods}\n\
         subjects: [{kind: ServiceAccount, name: robot}, {kind: ServiceAccount, name: robot, namespace: b}]",
        "kind: ClusterRoleBinding\nmetadata: {name: lost}\nroleRef: {kind: ClusterRole, name: gone}\n\
         subjects: [{kind: User, name: eve}]",
    ]
    .map(object)
    .concat()
}

fn user(name: &str, groups: &[&str]) -> User {
    User { name: name.into(), groups: groups.iter().map(|group| (*group).into()).collect(), ..User::default() }
}

fn ask(policy: &RbacPolicy, user: &User, method: &Method, path: &str) -> Result<String, String> {
    let path = CanonicalPath::parse(path).unwrap();
    let query = Query::parse("");
    let request = RequestInfo::parse(method, &path, &query).unwrap();
    let attributes = Attributes { user, request: &request };
    let why = policy.allows(attributes).map(|why| why.strip_prefix("RBAC: allowed by ").unwrap().to_owned());
    why.ok_or_else(|| policy.denial_reason(attributes))
}

#[test]
fn rbac_policy_decides_like_upstream() {
    let policy = RbacPolicy::parse("p.yaml", &example(), false).unwrap();
    let get = |user: &User, path: &str| ask(&policy, user, &Method::GET, path);
    let put = |user: &User, path: &str| ask(&policy, user, &Method::PUT, path);
    let (jane, dev, nobody) = (user("jane", &["x"]), user("d", &["x", "devs"]), user("n", &[]));
    let everywhere = r#"ClusterRoleBinding "devs" of ClusterRole "view" to Group "devs""#;
    assert_eq!(get(&dev, "/apis/g/v1/things").unwrap(), everywhere);
    assert_eq!(get(&dev, "/apis/g/v1/namespaces/a/things/x/status").unwrap(), everywhere);
    assert!(get(&user("bob", &[]), "/apis/g/v1/namespaces/b/things/x").is_ok());
    assert_eq!(get(&dev, "/apis/h/v1/things"), Err(String::new()));
    assert_eq!(get(&nobody, "/apis/g/v1/things"), Err(String::new()));
    // A RoleBinding grants a ClusterRole, aggregated too, within its namespace only.
    let within = r#"RoleBinding "jane/a" of ClusterRole "edit" to User "jane""#;
    assert_eq!(get(&jane, "/apis/g/v1/namespaces/a/things").unwrap(), within);
    assert!(get(&jane, "/apis/g/v1/things").is_err());
    assert!(get(&jane, "/apis/g/v1/namespaces/b/things").is_err());
    assert!(put(&jane, "/apis/g/v1/namespaces/a/others/one").is_ok());
    assert!(put(&jane, "/apis/g/v1/namespaces/a/others/two").is_err());
    assert!(put(&dev, "/apis/g/v1/namespaces/a/others/one").is_err());
    // Service accounts, with and without a namespace of their own.
    let log = "/api/v1/namespaces/a/pods/x/log";
    for name in ["system:serviceaccount:a:robot", "system:serviceaccount:b:robot"] {
        let robot = user(name, &[]);
        assert!(get(&robot, log).unwrap().starts_with(r#"RoleBinding "robots/a" of Role "pods" to ServiceAccount"#));
        assert!(get(&robot, "/api/v1/namespaces/a/pods/x").is_err());
    }
    assert!(get(&user("system:serviceaccount:c:robot", &[]), log).is_err());
    // Paths.
    let known = user("n", &["system:authenticated"]);
    for (path, allowed) in [("/api", true), ("/apis/g", true), ("/api/", false), ("/version", false)] {
        assert_eq!(get(&known, path).is_ok(), allowed, "{path}");
    }
    assert!(ask(&policy, &known, &Method::POST, "/api").is_err());
    // A missing role.
    let why = r#"RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found"#;
    assert_eq!(get(&user("eve", &[]), "/apis/g/v1/things"), Err(why.to_owned()));
    assert_eq!(policy.warnings().len(), 1);
    assert_eq!(policy.bindings(), 5);
}

#[test]
fn rbac_aggregated_roles_are_transitive_and_cycles_grant_nothing() {
    let role = |name: &str, labels: &str, picks: &str, verb: &str| {
        let aggregation = if picks.is_empty() {
            String::new()
        } else {
            format!("aggregationRule: {{clusterRoleSelectors: [{{matchLabels: {{to: {picks}}}}}]}}\n")
        };
        format!(
            "---\n{HEAD}\nkind: ClusterRole\nmetadata: {{name: {name}, labels: {{to: {labels}}}}}\n{aggregation}\
             rules: [{{apiGroups: [g], resources: [r], verbs: [{verb}]}}]\n"
        )
    };
    let text = [
        role("admin", "none", "admin", "own"),
        role("edit", "admin", "edit", "own"),
        role("edit-base", "edit", "", "update"),
        role("circle-a", "b", "a", "own"),
        role("circle-b", "a", "b", "own"),
    ]
    .concat();
    let mut roles = Manifests::parse("p", &text, false).unwrap().cluster_roles;
    aggregate::aggregate(&mut roles);
    let verbs = |name: &str| -> Vec<&str> {
        let role = roles.iter().find(|role| role.name == name).unwrap();
        role.rules.iter().flat_map(|rule| &rule.verbs).map(String::as_str).collect()
    };
    assert_eq!(verbs("admin"), ["update"]);
    assert_eq!(verbs("edit"), ["update"]);
    assert_eq!(verbs("circle-a"), [""; 0]);
}

#[test]
fn all_mistakes_at_once_with_document_and_field() {
    let text = format!(
        "{HEAD}\nkind: ClusterRole\nmetadata: {{name: a/b, namespace: x}}\nrules:\n\
         - {{apiGroups: [g], resources: [r]}}\n- {{verbs: get, apiGroups: [g], resources: [r], resource: [r]}}\n\
         - {{verbs: [get], nonResourceURLs: [/x], resources: [r]}}\n- {{verbs: [get]}}\n\
         aggregationRule: {{clusterRoleSelectors: [{{matchExpressions: [{{key: '!', operator: In}}]}}]}}\n\
         ---\n{HEAD}\nkind: Role\nmetadata: {{name: r}}\nrules: [{{verbs: [get], nonResourceURLs: [/x]}}]\n\
         ---\n{HEAD}\nkind: RoleBinding\nmetadata: {{name: b, namespace: ns}}\nroleRef: {{apiGroup: x, kind: Rule}}\n\
         subjects: [{{kind: User}}, {{kind: Users, name: x}}, {{kind: ServiceAccount, name: X, apiGroup: other}}]\n\
         ---\n{HEAD}\nkind: ClusterRoleBinding\nmetadata: {{name: b}}\n\
         subjects: [{{kind: ServiceAccount, name: x}}]\n\
         ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: x}}\n\
         ---\napiVersion: rbac.authorization.k8s.io/v1beta1\nkind: ClusterRole\n\
         ---\n{HEAD}\nkind: Role\nmetadata: {{name: twice, namespace: ns}}\n\
         ---\n{HEAD}\nkind: Role\nmetadata: {{name: twice, namespace: ns}}\n---\nkind: [\n"
    );
    let problems = RbacPolicy::parse("p.yaml", &text, false).unwrap_err();
    insta::assert_snapshot!(problems);
    for empty in ["", "# nothing\n---\n"] {
        let problems = RbacPolicy::parse("p.yaml", empty, false).unwrap_err();
        assert_eq!(problems.to_string(), "p.yaml: contains no ClusterRole, Role or binding");
    }
}

#[test]
fn rbac_policy_accepts_kubectl_list() {
    let text = format!(
        "{{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[{{\"apiVersion\":\"{}\",\"kind\":\"ClusterRole\",\
         \"metadata\":{{\"name\":\"a\",\"uid\":\"1\",\"managedFields\":[]}},\"rules\":null}}]}}",
        &HEAD["apiVersion: ".len()..]
    );
    assert!(RbacPolicy::parse("p.json", &text, true).is_ok());
    assert!(RbacPolicy::parse("p.yaml", &text, false).is_ok());
}

/// Decides like Kubernetes: all bindings in turn, all subjects, all rules.
fn allows_by_scan(manifests: &Manifests, user: &User, request: &RequestInfo<'_>) -> bool {
    manifests.bindings.iter().any(|(_, binding)| {
        let here = binding.namespace.is_empty() || binding.namespace == request.namespace;
        let meant = binding.subjects.iter().any(|subject| match subject {
            Subject::User(name) => *name == user.name,
            Subject::Group(name) => user.groups.contains(name),
            Subject::ServiceAccount { namespace, name } => {
                user.name == format!("system:serviceaccount:{namespace}:{name}")
            }
        });
        let rules = match &binding.role {
            RoleReference::ClusterRole(name) => {
                manifests.cluster_roles.iter().find(|role| role.name == *name).map(|role| &role.rules)
            }
            RoleReference::Role(name) => manifests
                .roles
                .iter()
                .find(|role| role.name == *name && role.namespace == binding.namespace)
                .map(|role| &role.rules),
        };
        here && meant && rules.is_some_and(|rules| rules.iter().any(|rule| rule.allows(request)))
    })
}

fn word() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&["a", "b", "c"][..])
}

prop_compose! {
    fn a_role()(name in word(), namespace in prop::option::of(word()), verb in word(), resource in word()) -> String {
        let (kind, namespace) = match namespace {
            Some(namespace) => ("Role", format!(", namespace: {namespace}")),
            None => ("ClusterRole", String::new()),
        };
        format!(
            "---\n{HEAD}\nkind: {kind}\nmetadata: {{name: {name}{namespace}}}\n\
             rules: [{{apiGroups: [g], resources: [{resource}], verbs: [{verb}]}}]\n"
        )
    }
}

prop_compose! {
    fn a_binding()(
        name in "[a-z]{8}", namespace in prop::option::of(word()), role in word(), own in any::<bool>(),
        kind in prop::sample::select(&["User", "Group", "ServiceAccount"][..]), subject in word(), its in word(),
    ) -> String {
        let inside = namespace.map(|namespace| format!(", namespace: {namespace}")).unwrap_or_default();
        let prefix = if namespace.is_some() { "" } else { "Cluster" };
        let role_kind = if own && namespace.is_some() { "Role" } else { "ClusterRole" };
        let its = if kind == "ServiceAccount" { format!(", namespace: {its}") } else { String::new() };
        format!(
            "---\n{HEAD}\nkind: {prefix}RoleBinding\nmetadata: {{name: {name}{inside}}}\n\
             roleRef: {{kind: {role_kind}, name: {role}}}\nsubjects: [{{kind: {kind}, name: {subject}{its}}}]\n"
        )
    }
}

proptest! {
    #[test]
    fn the_index_says_what_a_walk_over_everything_says(
        roles in prop::collection::vec(a_role(), 0..6), bindings in prop::collection::vec(a_binding(), 1..6),
        requester in word(), service_account in prop::option::of(word()), group in word(),
        namespace in prop::option::of(word()), resource in word(), verb in word(),
    ) {
        let text = roles.concat() + &bindings.concat();
        // The generated roles may contain duplicates.
        prop_assume!(Manifests::parse("p", &text, false).is_ok());
        let (manifests, policy) =
            (Manifests::parse("p", &text, false).unwrap(), RbacPolicy::parse("p", &text, false).unwrap());
        let name = service_account.map_or(requester.to_owned(), |name| format!("system:serviceaccount:{requester}:{name}"));
        let user = user(&name, &[group]);
        let request = RequestInfo {
            is_resource_request: true, verb: verb.into(), api_group: "g", resource,
            namespace: namespace.unwrap_or_default(), ..RequestInfo::default()
        };
        let attributes = Attributes { user: &user, request: &request };
        prop_assert_eq!(policy.allows(attributes).is_some(), allows_by_scan(&manifests, &user, &request));
    }

    #[test]
    fn changed_index_is_as_a_new_one(
        before in (prop::collection::vec(a_role(), 0..6), prop::collection::vec(a_binding(), 1..6)),
        after in (prop::collection::vec(a_role(), 0..6), prop::collection::vec(a_binding(), 1..6)),
        requester in word(), group in word(), namespace in prop::option::of(word()), resource in word(), verb in word(),
    ) {
        // Few names, so that most are replaced.
        let rename = |number: usize, text: &String| text.replace("{name: ", &format!("{{name: n{}", number % 3));
        let text = |(roles, bindings): &(Vec<String>, Vec<String>)| {
            roles.concat() + &bindings.iter().enumerate().map(|(number, text)| rename(number, text)).collect::<String>()
        };
        let parsed = [&before, &after].map(|of| Manifests::parse("p", &text(of), false));
        prop_assume!(parsed.iter().all(Result::is_ok));
        let mut index = PolicyIndex::default();
        for manifests in parsed.into_iter().flatten() {
            let has_binding = |namespace: &str, name: &str| {
                manifests.bindings.iter().any(|(_, of)| (&*of.namespace, &*of.name) == (namespace, name))
            };
            index.retain_bindings(false, has_binding);
            index.retain_bindings(true, has_binding);
            index.retain_roles(false, |_, name| manifests.cluster_roles.iter().any(|role| role.name == name));
            index.retain_roles(true, |namespace, name| {
                manifests.roles.iter().any(|role| (&*role.namespace, &*role.name) == (namespace, name))
            });
            manifests.bindings.iter().for_each(|(_, binding)| index.set_binding(binding.clone()));
            manifests.cluster_roles.iter().for_each(|role| index.set_role("", &role.name, Some(role.rules.clone())));
            for role in &manifests.roles {
                index.set_role(&role.namespace, &role.name, Some(role.rules.clone()));
            }
            let user = user(requester, &[group]);
            let request = RequestInfo {
                is_resource_request: true, verb: verb.into(), api_group: "g", resource,
                namespace: namespace.unwrap_or_default(), ..RequestInfo::default()
            };
            let attributes = Attributes { user: &user, request: &request };
            let policy = index.policy().clone();
            prop_assert_eq!(policy.allows(attributes).is_some(), allows_by_scan(&manifests, &user, &request));
            prop_assert_eq!(policy.bindings(), manifests.bindings.len());
        }
    }
}

fn policy_text(user: &str) -> String {
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: a}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: r}}\n\
         subjects: [{{kind: User, name: {user}}}]\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: r}}\n\
         rules: [{{verbs: [get], nonResourceURLs: ['*']}}]\n"
    )
}

#[tokio::test]
async fn policy_file_invalid_keeps_last_good_policy() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policy.yaml");
    fs::write(&path, policy_text("jane")).unwrap();
    let (file, policy_of_jane) = PolicyFile::open(&path).unwrap();
    let (publisher, mut published) = Published::new(policy_of_jane);
    let (drainer, drain) = Drain::new();
    let (told, mut hear) = tokio::sync::mpsc::unbounded_channel();
    let on_failure: OnFailure = Box::new(move |problems| {
        let _ = told.send(problems.0.len());
    });
    let following = tokio::spawn(file.publish_changes(publisher, on_failure, drain));
    fs::write(&path, policy_text("bob")).unwrap();
    published.changed().await;
    assert!(published.get().users.contains_key("bob") && !published.get().users.contains_key("jane"));
    fs::write(&path, policy_text("eve").replace("[get]", "[]")).unwrap();
    assert_eq!(hear.recv().await, Some(1));
    assert!(published.get().users.contains_key("bob"));
    fs::write(&path, policy_text("eve")).unwrap();
    published.changed().await;
    assert_eq!(hear.recv().await, Some(0));
    assert!(published.get().users.contains_key("eve"));
    drainer.advance(ShutdownPhase::Ending);
    following.await.unwrap();
}
