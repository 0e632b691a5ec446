//! Tests of the configuration's validation.

use super::*;

fn webhook(more: &str) -> String {
    format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n- type: Webhook\n  \
         name: a\n  webhook:\n    timeout: 3s\n    subjectAccessReviewVersion: v1\n    \
         matchConditionSubjectAccessReviewVersion: v1\n    failurePolicy: Deny\n    connectionInfo: {{type: \
         KubeConfigFile, kubeConfigFile: /a}}\n{more}"
    )
}

#[track_caller]
fn mistakes(text: &str) -> Vec<String> {
    let problems = AuthorizationConfiguration::parse("f", text, false).expect_err("refused");
    problems.0.iter().map(ToString::to_string).collect()
}

#[test]
fn authorization_configuration_accepts_versions_and_defaults() {
    for version in ["v1", "v1beta1", "v1alpha1"] {
        let text = webhook("- {type: RBAC, name: rbac}\n").replace("k8s.io/v1", &format!("k8s.io/{version}"));
        let read = AuthorizationConfiguration::parse("f", &text, false).unwrap();
        let names: Vec<&str> = read.authorizers.iter().map(|authorizer| &*authorizer.name).collect();
        assert_eq!(names, ["a", "rbac"]);
        let said = format!("{:?}", read.authorizers[0].kind);
        for word in ["authorized_ttl: 300s", "unauthorized_ttl: 30s", "timeout: 3s", "denies_on_failure: true"] {
            assert!(said.contains(word), "{said}");
        }
    }
    let text = webhook("    cacheAuthorizedRequests: false\n    unauthorizedTTL: 1m0s\n");
    let said = format!("{:?}", AuthorizationConfiguration::parse("f", &text, false).unwrap().authorizers[0].kind);
    assert!(said.contains("authorized_ttl: 0ns") && said.contains("unauthorized_ttl: 60s"), "{said}");
}

#[test]
fn authorization_configuration_sample_is_valid() {
    let sample = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/delegation/authorization.yaml"));
    let read = AuthorizationConfiguration::parse("sample", sample, false).unwrap();
    assert_eq!(
        read.authorizers.iter().map(|one| &*one.name).collect::<Vec<_>>(),
        ["guard.example.com", "rbac", "cluster"]
    );
    assert_eq!(read.check(&ConfigurationRequirements { has_policy: true, needs_decision: true }).0, []);
}

#[test]
fn all_mistakes_at_once_each_at_its_path() {
    let text = r#"
apiVersion: apiserver.config.k8s.io/v2
kind: AuthorizationConfiguration
authorizors: []
authorizers:
- {type: Node, name: node}
- {type: ABAC, name: abac}
- {name: x}
- {type: RBAC, name: rules, webhook: {}}
- {type: Static, name: static}
- {type: AlwaysDeny, name: alwaysdeny, extra: 1}
- {type: Webhook, name: Not_Right}
- type: Webhook
  name: a
  webhook:
    timeout: 31s
    authorizedTTL: -1s
    unauthorizedTTL: soon
    subjectAccessReviewVersion: v2
    matchConditionSubjectAccessReviewVersion: v1beta1
    failurePolicy: Ignore
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: relative}
- type: Webhook
  name: a
  webhook:
    connectionInfo: {type: InClusterConfig, kubeConfigFile: /x}
    matchConditions:
    - expression: request.user == 'x'
    - expression: request.user == 'x'
    - expression: request.usr == 'x'
    - expression: ' '
    - {expression: request.user, name: x}
"#;
    insta::assert_snapshot!(mistakes(text).join("\n"));
}

#[test]
fn authorization_configuration_malformed_is_rejected() {
    for (text, words) in [
        ("", "expected exactly one AuthorizationConfiguration, found 0"),
        ("kind: [", "not YAML"),
        (
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n",
            "at least one authorization mode",
        ),
        ("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n", "is needed"),
        (&(webhook("") + "---\n" + &webhook("")), "expected exactly one AuthorizationConfiguration, found 2"),
    ] {
        let mistakes = mistakes(text);
        assert!(mistakes[0].contains(words), "{mistakes:?}");
    }
    let many = "    matchConditions:\n".to_owned() + &"    - expression: 'true'\n".repeat(65);
    assert_eq!(
        mistakes(&webhook(&many)),
        ["f: authorizers[0].webhook.matchConditions: 65 conditions are too many; the maximum is 64"]
    );
}

#[test]
fn authorization_configuration_checked_against_flags() {
    let text = |authorizers: &str| {
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: {authorizers}\n"
        )
    };
    let check = |authorizers: &str, policy, decision| {
        let read = AuthorizationConfiguration::parse("f", &text(authorizers), false).unwrap();
        let problems = read.check(&ConfigurationRequirements { has_policy: policy, needs_decision: decision });
        problems.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    let (rbac, allow, deny) = (
        "[{type: RBAC, name: rbac}]",
        "[{type: AlwaysAllow, name: alwaysallow}]",
        "[{type: AlwaysDeny, name: alwaysdeny}]",
    );
    assert_eq!(check(rbac, true, true), "");
    assert_eq!(check(allow, false, false), "");
    assert!(check(rbac, false, false).contains("authorizers[0].type: RBAC requires --authorization-policy-file"));
    assert!(check(allow, false, true).contains("authorizers[0].type: AlwaysAllow cannot be used with"));
    assert!(check(deny, false, true).contains("authorizers: --serve-delegation requires an authorizer"));
}
