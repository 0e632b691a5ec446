//! The page "Versions in CustomResourceDefinitions" of the Kubernetes documentation, from top to bottom. Conversion by
//! webhooks has tests of its own.

use serde_json::{Value, json};

use super::{apply_crd, compare_sessions, crontab, crontabs, group, record_table, version};
use crate::environment::{Kubectl, Session, TestEnvironment, eventually};

pub(in super::super) fn follow_versions_page(environment: &TestEnvironment, kubectl: &Kubectl) {
    compare_sessions(
        environment,
        kubectl,
        "versions-page",
        |session| {
            two_versions(session);
            priority(session);
            deprecation(session);
            webhook_crds(session);
            storage_version(session);
            removal(session);
        },
        |_| {},
    );
}

fn fields() -> Value {
    json!({"host": {"type": "string"}, "port": {"type": "string"}})
}

/// A CRD of versions, `storage` being the one that is stored.
fn crd(session: &Session<'_>, names: &[&str], storage: &str) -> Value {
    let version = |name: &&str| version(name, *name == storage, &fields(), &json!({}));
    let mut crd = crontabs(session, &names.iter().map(version).collect::<Vec<_>>());
    crd["spec"]["conversion"] = json!({"strategy": "None"});
    crd
}

fn local(session: &Session<'_>, version: &str, name: &str) -> Value {
    crontab(session, version, name, &json!({"host": "localhost", "port": "1234"}))
}

fn two_versions(session: &mut Session<'_>) {
    let group = group(session);
    let crd = crd(session, &["v1beta1", "v1"], "v1beta1");
    apply_crd(session, &crd);
    session.kubectl(&format!("api-resources --api-group={group}"));
    session.kubectl(&format!("get --raw /apis/{group}"));
    session.with_input("apply -f -", &local(session, "v1beta1", "old")).ok();
    session.with_input("apply -f -", &local(session, "v1", "new")).ok();
    for name in ["crontab".to_owned(), format!("crontab.v1beta1.{group}"), format!("crontab.v1.{group}")] {
        session.kubectl(&format!("get {name} -o yaml"));
        record_table(session, &format!("get {name}"));
        session.kubectl(&format!("explain {name}"));
    }
    session.kubectl(&format!("explain ct --api-version={group}/v1beta1"));
    session.with_input("apply -f -", &local(session, "v2", "absent"));
    session.with_input("delete -f -", &crd).ok();
}

fn priority(session: &mut Session<'_>) {
    let group = group(session);
    let names = ["foo10", "v11alpha2", "v3beta1", "v1", "v12alpha1", "v10beta3", "v2", "foo1", "v11beta2", "v10"];
    let crd = crd(session, &names, "v2");
    apply_crd(session, &crd);
    eventually("all versions", || {
        let found = session.run_unrecorded(&format!("get --raw /apis/{group}"));
        if names.iter().all(|name| found.output.contains(&format!("\"{name}\""))) { Ok(()) } else { Err(found.output) }
    });
    session.kubectl(&format!("get --raw /apis/{group}"));
    session.kubectl(&format!("api-resources --api-group={group}"));
    session.with_input("delete -f -", &crd).ok();
}

fn deprecation(session: &mut Session<'_>) {
    let group = group(session);
    let warning = format!("{group}/v1alpha1 CronTab is deprecated; see http://example.com/v1alpha1-v1");
    let mut crd = crd(session, &["v1alpha1", "v1beta1", "v1"], "v1");
    crd["spec"]["versions"][0]["deprecated"] = true.into();
    crd["spec"]["versions"][0]["deprecationWarning"] = warning.into();
    crd["spec"]["versions"][1]["deprecated"] = true.into();
    apply_crd(session, &crd);
    session.kubectl(&format!("get crd crontabs.{group} -o yaml"));
    for version in ["v1alpha1", "v1beta1", "v1"] {
        session.with_input("apply -f -", &local(session, version, "local")).ok();
        record_table(session, &format!("get crontabs.{version}.{group}"));
        session.kubectl(&format!("get crontabs.{version}.{group} -o name"));
        session.kubectl(&format!("delete crontabs.{version}.{group} local"));
    }
    session.with_input("delete -f -", &crd).ok();
}

/// Conversion sections of CRDs, right and wrong.
fn webhook_crds(session: &mut Session<'_>) {
    let service = json!({"namespace": "default", "name": "example-conversion-webhook-server", "path": "/crdconvert"});
    let bundle = "LS0tLS1CRUdJTi";
    for conversion in [
        json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1", "v1beta1"],
            "clientConfig": {"service": service}}}),
        json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
            "clientConfig": {"service": service, "caBundle": bundle}}}),
        json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
            "clientConfig": {"url": "https://my-webhook.example.com:9443/my-webhook-path"}}}),
        json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"],
            "clientConfig": {"url": "http://user@example.com/a?b=c#d", "service": service}}}),
        json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v2"], "clientConfig": {}}}),
        json!({"strategy": "Webhook"}),
        json!({"strategy": "None", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": {"service": service}}}),
        json!({"strategy": "Other"}),
    ] {
        let mut crd = crd(session, &["v1beta1", "v1"], "v1");
        crd["spec"]["conversion"] = conversion;
        session.with_input("create --dry-run=server -o yaml -f -", &crd);
    }
}

/// The series of events of the section on writing and reading versions.
fn storage_version(session: &mut Session<'_>) {
    let group = group(session);
    apply_crd(session, &crd(session, &["v1beta1"], "v1beta1"));
    session.with_input("apply -f -", &local(session, "v1beta1", "first")).ok();
    apply_crd(session, &crd(session, &["v1beta1", "v1"], "v1"));
    session.kubectl(&format!("get crd crontabs.{group} -o jsonpath={{.status.storedVersions}}"));
    for version in ["v1beta1", "v1"] {
        session.kubectl(&format!("get crontabs.{version}.{group} first -o yaml"));
    }
    session.with_input("apply -f -", &local(session, "v1", "second")).ok();
    session.kubectl(&format!("annotate crontabs.v1beta1.{group} first touched=yes"));
    // The objects are read and written back.
    let all = session.run_unrecorded("get crontabs -o json").ok().to_owned();
    session.with_input("replace -f -", &all);
    session.kubectl("get crontabs -o yaml");
}

fn removal(session: &mut Session<'_>) {
    let group = group(session);
    let only = crd(session, &["v1"], "v1");
    session.with_input("apply -f -", &only).expect_error("storedVersions");
    let patch = |versions: &str| {
        format!(
            "patch customresourcedefinitions crontabs.{group} --subresource=status --type=merge -p \
             {{\"status\":{{\"storedVersions\":{versions}}}}}"
        )
    };
    session.kubectl(&patch("[]"));
    session.kubectl(&patch(r#"["v1beta1"]"#));
    session.kubectl(&patch(r#"["v1","v7"]"#));
    session.kubectl(&patch(r#"["v1"]"#)).ok();
    let mut not_served = crd(session, &["v1beta1", "v1"], "v1");
    not_served["spec"]["versions"][0]["served"] = false.into();
    apply_crd(session, &not_served);
    let path = format!("/apis/{group}/v1beta1/namespaces/{}/crontabs", session.namespace);
    eventually("the version to go", || {
        let found = session.run_unrecorded(&format!("get --raw {path}"));
        if found.success { Err(found.output) } else { Ok(()) }
    });
    session.kubectl(&format!("get --raw {path}"));
    session.kubectl(&format!("get crontabs.v1beta1.{group}"));
    apply_crd(session, &only);
    session.kubectl(&format!("get crd crontabs.{group} -o yaml"));
    session.kubectl("get crontabs -o name");
    session.with_input("delete -f -", &only).ok();
}
