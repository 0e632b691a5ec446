//! Tests of policy matching, and of the problems reported for invalid policies.

use http::Method;
use kubeapi::{CanonicalPath, Query};

use super::*;

const HEAD: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\n";

fn policy(rules: &str) -> AuditPolicy {
    AuditPolicy::parse("p.yaml", &format!("{HEAD}rules:\n{rules}")).unwrap()
}

fn judge(policy: &AuditPolicy, user: Option<&User>, method: &Method, uri: &str) -> RequestAuditConfig {
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let (path, query) = (CanonicalPath::parse(path).unwrap(), Query::parse(query));
    policy.evaluate(user, &RequestInfo::parse(method, &path, &query).unwrap())
}

fn tim() -> User {
    User { name: "tim".into(), groups: vec!["humans".into(), "devs".into()], ..User::default() }
}

/// Rules and the requests that they match, including the cases of Kubernetes' `checker_test.go`.
#[test]
fn audit_policy_rule_matches_like_upstream() {
    const POD: &str = "/api/v1/namespaces/default/pods/busybox";
    const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/edit";
    const LOG: &str = "/api/v1/namespaces/default/pods/busybox/log";
    const SCALE: &str = "/apis/apps/v1/namespaces/default/deployments/d/scale";
    const LOGS: &str = "/logs/kube.log";
    const ALL: [&str; 5] = [POD, ROLE, LOG, SCALE, LOGS];
    let cases: &[(&str, &[&str])] = &[
        ("", &ALL),
        ("users: [tim]", &ALL),
        ("users: [jane, tim]", &ALL),
        ("users: [tom]", &[]),
        ("userGroups: [devs, none]", &ALL),
        ("userGroups: [others]", &[]),
        ("users: [tim], userGroups: [others]", &[]),
        ("verbs: [get]", &ALL),
        ("verbs: [list, watch]", &[]),
        ("verbs: ['*']", &[]),
        ("namespaces: [default]", &[POD, LOG, SCALE]),
        ("namespaces: ['']", &[ROLE]),
        ("namespaces: [other]", &[]),
        ("resources: [{}]", &[POD, LOG]),
        ("resources: [{group: ''}]", &[POD, LOG]),
        ("resources: [{group: '*'}]", &[POD, ROLE, LOG, SCALE]),
        ("resources: [{group: '', resources: [pods]}]", &[POD]),
        ("resources: [{group: '', resources: [pods/log]}]", &[LOG]),
        ("resources: [{group: '', resources: ['pods/*']}]", &[POD, LOG]),
        ("resources: [{group: '*', resources: ['*/scale']}]", &[SCALE]),
        ("resources: [{group: '*', resources: ['*/*']}]", &[]),
        ("resources: [{group: '', resources: ['*']}]", &[POD, LOG]),
        ("resources: [{group: '*', resources: ['*'], resourceNames: [edit]}]", &[ROLE]),
        ("resources: [{group: apps, resources: [deployments/scale], resourceNames: [d, e]}]", &[SCALE]),
        ("resources: [{group: apps}, {group: rbac.authorization.k8s.io, resources: [clusterroles]}]", &[ROLE, SCALE]),
        ("resources: [{group: '*'}], namespaces: [default], verbs: [get]", &[POD, LOG, SCALE]),
        ("nonResourceURLs: ['*']", &[LOGS]),
        ("nonResourceURLs: ['/logs*']", &[LOGS]),
        ("nonResourceURLs: ['/logs/kube.log']", &[LOGS]),
        ("nonResourceURLs: ['/logs']", &[]),
        ("nonResourceURLs: ['/metrics*', '/logs/*']", &[LOGS]),
    ];
    for (rule, expected) in cases {
        let comma = if rule.is_empty() { "" } else { ", " };
        let policy = policy(&format!("- {{level: Metadata{comma}{rule}}}\n"));
        for uri in ALL {
            let found = judge(&policy, Some(&tim()), &Method::GET, uri).level == AuditLevel::Metadata;
            assert_eq!(found, expected.contains(&uri), "{rule}: {uri}");
        }
    }
}

#[test]
fn audit_policy_first_matching_rule_applies() {
    let policy = policy(
        "- {level: None, users: [tim], verbs: [list, watch]}\n\
         - {level: RequestResponse, verbs: [create, list]}\n\
         - {level: Request, nonResourceURLs: [/version]}\n",
    );
    let level = |user: Option<&User>, method: &Method, uri: &str| judge(&policy, user, method, uri).level;
    let things = "/apis/g.example.com/v1/things";
    assert_eq!(level(Some(&tim()), &Method::GET, things), AuditLevel::None);
    assert_eq!(level(Some(&tim()), &Method::GET, &format!("{things}?watch=1")), AuditLevel::None);
    assert_eq!(
        level(Some(&User { name: "jane".into(), ..User::default() }), &Method::GET, things),
        AuditLevel::RequestResponse
    );
    // Without a user, a rule with `users` does not match.
    assert_eq!(level(None, &Method::GET, things), AuditLevel::RequestResponse);
    assert_eq!(level(Some(&tim()), &Method::POST, things), AuditLevel::RequestResponse);
    assert_eq!(level(Some(&tim()), &Method::GET, "/version"), AuditLevel::Request);
    assert_eq!(level(Some(&tim()), &Method::DELETE, &format!("{things}/a")), AuditLevel::None);
}

#[test]
fn audit_policy_omit_stages_are_merged_and_managed_fields_overridden() {
    let text = "omitStages: [RequestReceived]\nomitManagedFields: true\nrules:\n\
                - {level: Metadata, users: [a], omitStages: [ResponseStarted, Panic], omitManagedFields: false}\n\
                - {level: Metadata}\n";
    let policy = AuditPolicy::parse("p.yaml", &format!("{HEAD}{text}")).unwrap();
    let of =
        |name: &str| judge(&policy, Some(&User { name: name.into(), ..User::default() }), &Method::GET, "/version");
    let has = |stages: AuditStages| AuditStage::ALL.map(|stage| stages.contains(stage));
    assert_eq!(has(of("a").omit), [true, true, false, true]);
    assert_eq!(has(of("b").omit), [true, false, false, false]);
    assert!(!of("a").omit_managed_fields && of("b").omit_managed_fields);
    assert_eq!(policy.rule_count(), 2);
}

#[test]
fn audit_policy_problems_name_their_paths() {
    let text = "apiVersion: audit.k8s.io/v1beta1\nkind: Polcy\nmetadata: {name: x}\nomitStages: [RequestReceived, Late]\n\
                omitManagedFields: perhaps\nrule: []\nrules:\n\
                - {}\n\
                - {level: All, users: tim, userGroup: [a], verbs: [1]}\n\
                - {level: None, omitStages: [panic], omitManagedFields: 1}\n\
                - level: Request\n  nonResourceURLs: [metrics, '/a*b', '**', '', '/ok*']\n  namespaces: [a]\n\
                - level: Request\n  resources:\n  - {group: apps/v1}\n  - {group: UPPER, resourceNames: [a]}\n  \
                  - {resource: [pods]}\n  - pods\n";
    let problems = AuditPolicy::parse("p.yaml", text).unwrap_err();
    assert_eq!(
        problems.to_string().lines().collect::<Vec<_>>(),
        [
            "p.yaml: apiVersion: \"audit.k8s.io/v1beta1\" does not fit; audit.k8s.io/v1 is needed",
            "p.yaml: kind: \"Polcy\" does not fit; Policy is needed",
            "p.yaml: omitStages[1]: \"Late\" is not a stage; RequestReceived, ResponseStarted, ResponseComplete or Panic is needed",
            "p.yaml: omitManagedFields: a text does not fit; true or false is needed",
            "p.yaml: rules[0].level: is missing; None, Metadata, Request or RequestResponse is needed",
            "p.yaml: rules[1].level: \"All\" is not a level; None, Metadata, Request or RequestResponse is needed",
            "p.yaml: rules[1].users: a text does not fit; a list is needed",
            "p.yaml: rules[1].verbs[0]: a number does not fit; a text is needed",
            "p.yaml: rules[1].userGroup: unknown field; did you mean userGroups?",
            "p.yaml: rules[2].omitStages[0]: \"panic\" is not a stage; RequestReceived, ResponseStarted, ResponseComplete or Panic is needed",
            "p.yaml: rules[2].omitManagedFields: a number does not fit; true or false is needed",
            "p.yaml: rules[3].nonResourceURLs[0]: \"metrics\" must begin with a slash",
            "p.yaml: rules[3].nonResourceURLs[1]: \"/a*b\": a star is only allowed at the end",
            "p.yaml: rules[3].nonResourceURLs[2]: \"**\" must begin with a slash",
            "p.yaml: rules[3].nonResourceURLs[2]: \"**\": a star is only allowed at the end",
            "p.yaml: rules[3].nonResourceURLs[3]: \"\" must begin with a slash",
            "p.yaml: rules[3].nonResourceURLs: a rule applies to paths or to resources and namespaces, never to both",
            "p.yaml: rules[4].resources[3]: a text does not fit; a mapping is needed",
            "p.yaml: rules[4].resources[0].group: \"apps/v1\" is not an API group; write it without a version, such as apps or rbac.authorization.k8s.io",
            "p.yaml: rules[4].resources[1].group: \"UPPER\" is not an API group; write it without a version, such as apps or rbac.authorization.k8s.io",
            "p.yaml: rules[4].resources[1].resourceNames: requires at least one entry in resources",
            "p.yaml: rules[4].resources[2].resource: unknown field; did you mean resources?",
            "p.yaml: rule: unknown field; did you mean rules?",
        ]
    );
}

#[test]
fn audit_policy_file_without_policy_is_refused() {
    for (text, expected) in [
        ("", "p.yaml: is empty; a Policy is needed"),
        ("# nothing\n", "p.yaml: is empty; a Policy is needed"),
        (HEAD, "p.yaml: rules: at least one is needed; requests that match no rule are not audited"),
        ("rules: [", "p.yaml: not YAML"),
        ("words", "p.yaml, document 1: not a Kubernetes object"),
        (
            &format!("{HEAD}rules: [{{level: None}}]\n---\n{HEAD}rules: [{{level: None}}]\n"),
            "p.yaml, document 2, Policy: a file may contain only one Policy",
        ),
    ] {
        let problems = AuditPolicy::parse("p.yaml", text).unwrap_err();
        assert_eq!(problems.0.len(), 1, "{problems}");
        assert!(problems.to_string().starts_with(expected), "{problems}");
    }
}

#[test]
fn audit_policy_samples_are_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert!(AuditPolicy::load(&folder.join("deploy/audit/policy.yaml")).unwrap().rule_count() > 3);
    AuditPolicy::load(&folder.join("tests/interop/fixtures/audit-policy.yaml")).unwrap();
}
