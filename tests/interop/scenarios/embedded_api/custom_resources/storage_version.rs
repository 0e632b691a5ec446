//! The storage version of a CRD changes while a webhook converts: both versions are served, objects are rewritten,
//! the old version is removed (upstream's `conversion_test.go` and the page on versions). What a webhook may answer.

use std::collections::BTreeMap;
use std::sync::Mutex;

use base64::Engine as _;
use serde_json::{Value, json};

use super::{apply_crd, compare_sessions, crontab, crontabs, group, version};
use crate::environment::{Kubectl, Session, TestEnvironment, eventually, start_conversion_webhook};

/// Objects converted, by group.
static CONVERTED: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// Objects converted during some commands, by group and what the commands do.
static CONVERTED_BY: Mutex<BTreeMap<(String, &str), usize>> = Mutex::new(BTreeMap::new());

const STORAGE_VERSION: &str = "storage version";
const BOTH_VERSIONS: &str = "both versions";
const BEFORE_REWRITING: &str = "before the objects are rewritten";
const AFTER_REWRITING: &str = "after the objects are rewritten";
const OLD_VERSION: &str = "after the objects are rewritten, in the old version";
const ONE_VERSION: &str = "one version";

pub(in super::super) fn change_storage_version(environment: &TestEnvironment, kubectl: &Kubectl) {
    compare_sessions(environment, kubectl, "storage-version", run_commands, check_calls);
}

fn run_commands(session: &mut Session<'_>) {
    let conversion = start_webhook(session);
    no_conversion(session, &conversion);
    both_versions(session);
    faulty_answers(session);
    rewrite_objects(session, &conversion);
    remove_version(session, &conversion);
}

/// Converts `hostPort` of v1beta1 to `host` and `port` of v1 and back. The name of an object says what to do wrong.
fn convert(mut object: Value, version: &str) -> Result<Value, &'static str> {
    let group = version.split('/').next().unwrap().to_owned();
    *CONVERTED.lock().unwrap().entry(group).or_default() += 1;
    object["apiVersion"] = version.into();
    let fields = object.as_object_mut().unwrap();
    match fields.remove("hostPort") {
        Some(both) if version.ends_with("/v1") => {
            let (host, port) = both.as_str().unwrap().split_once(':').ok_or("no colon")?;
            fields.insert("host".to_owned(), host.into());
            fields.insert("port".to_owned(), port.into());
        }
        _ => {
            let part =
                |value: Option<Value>| value.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default();
            let (host, port) = (part(fields.remove("host")), part(fields.remove("port")));
            fields.insert("hostPort".to_owned(), format!("{host}:{port}").into());
        }
    }
    match object["metadata"]["name"].as_str().unwrap_or_default() {
        "fails" => return Err("this object is not converted"),
        "renamed" => object["metadata"]["name"] = "other".into(),
        "moved" => object["metadata"]["namespace"] = "other".into(),
        "changed-uid" => object["metadata"]["uid"] = "11111111-1111-1111-1111-111111111111".into(),
        "changed-version" => object["apiVersion"] = "other.example.com/v1".into(),
        "changed-kind" => object["kind"] = "Other".into(),
        "labeled" => object["metadata"]["labels"] = json!({"converted": "yes"}),
        "annotated" => object["metadata"]["annotations"] = json!({"converted": "yes"}),
        "bad-label" => object["metadata"]["labels"] = json!({"converted": 1}),
        "finalized" => object["metadata"]["finalizers"] = json!(["example.com/converted"]),
        _ => {}
    }
    Ok(object)
}

/// Starts the webhook; returns the section of the CRD that names it.
fn start_webhook(session: &Session<'_>) -> Value {
    let authority = &session.environment.cluster.authorities.backend;
    let identity = authority.server(&format!("converter-{}", session.namespace), &["127.0.0.1"]);
    let port = start_conversion_webhook(&identity, convert);
    let bundle = base64::engine::general_purpose::STANDARD.encode(std::fs::read(&authority.file).unwrap());
    let client = json!({"url": format!("https://127.0.0.1:{port}/convert"), "caBundle": bundle});
    json!({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client}})
}

/// Applies the CRD, without its output: it has the address of the webhook.
fn apply(session: &mut Session<'_>, conversion: &Value, storage: &str, names: &[&str]) {
    let versions: Vec<Value> = names
        .iter()
        .map(|name| match *name {
            "v1" => version(
                "v1",
                storage == "v1",
                &json!({"host": {"type": "string"}, "port": {"type": "string"}}),
                &json!({}),
            ),
            name => version(name, storage == name, &json!({"hostPort": {"type": "string"}}), &json!({})),
        })
        .collect();
    let mut crd = crontabs(session, &versions);
    crd["spec"]["conversion"] = conversion.clone();
    apply_crd(session, &crd);
}

fn converted(session: &Session<'_>) -> usize {
    CONVERTED.lock().unwrap().get(&group(session)).copied().unwrap_or_default()
}

/// Runs commands and notes how many objects the webhook converted.
fn run_counted(session: &mut Session<'_>, what: &'static str, commands: &[String]) {
    let before = converted(session);
    for command in commands {
        session.kubectl(command).ok();
    }
    CONVERTED_BY.lock().unwrap().insert((group(session), what), converted(session) - before);
}

/// The embedded API server calls the webhook when an object is needed in another version than the stored one, and then
/// alone. kube-apiserver also calls it for the versions in managedFields, and does not call it for what it has cached.
fn check_calls(session: &Session<'_>) {
    let counts = CONVERTED_BY.lock().unwrap();
    let count = |what: &'static str| counts[&(group(session), what)];
    for what in [STORAGE_VERSION, AFTER_REWRITING, ONE_VERSION] {
        assert_eq!(count(what), 0, "{what}: objects converted");
    }
    for what in [BOTH_VERSIONS, BEFORE_REWRITING, OLD_VERSION] {
        assert!(count(what) > 0, "{what}: no objects converted");
    }
}

fn of_version(session: &Session<'_>, version: &str) -> String {
    format!("crontabs.{version}.{}", group(session))
}

fn no_conversion(session: &mut Session<'_>, conversion: &Value) {
    apply(session, conversion, "v1beta1", &["v1beta1", "v1"]);
    let old = crontab(session, "v1beta1", "old", &json!({"hostPort": "localhost:1234"}));
    session.with_input("create -f -", &old).ok();
    let resource = of_version(session, "v1beta1");
    let commands = [
        format!("get {resource} old -o yaml"),
        format!("get {resource} -o name"),
        format!("patch {resource} old --type=merge -p {{\"hostPort\":\"localhost:1\"}}"),
        format!("label {resource} old a=b"),
    ];
    run_counted(session, STORAGE_VERSION, &commands);
}

fn both_versions(session: &mut Session<'_>) {
    let new = crontab(session, "v1", "new", &json!({"host": "example.com", "port": "80"}));
    session.with_input("create -o yaml -f -", &new).ok();
    let resource = of_version(session, "v1");
    let mut commands = Vec::new();
    for version in ["v1beta1", "v1"] {
        let resource = of_version(session, version);
        commands.extend(["old", "new"].map(|name| format!("get {resource} {name} -o yaml")));
        commands.push(format!("get {resource} -o yaml"));
    }
    commands.extend([
        format!("patch {resource} old --type=merge -p {{\"port\":\"2\"}} -o yaml"),
        format!("annotate {resource} new touched=yes"),
    ]);
    run_counted(session, BOTH_VERSIONS, &commands);
    let wrong = crontab(session, "v1", "wrong", &json!({"host": 1}));
    session.with_input("create --validate=false -f -", &wrong);
}

/// Objects that the webhook converts in a way that is refused or partly ignored.
fn faulty_answers(session: &mut Session<'_>) {
    let resource = of_version(session, "v1");
    for name in [
        "fails",
        "renamed",
        "moved",
        "changed-uid",
        "changed-version",
        "changed-kind",
        "labeled",
        "annotated",
        "bad-label",
        "finalized",
    ] {
        let object = crontab(session, "v1beta1", name, &json!({"hostPort": "localhost:1"}));
        session.with_input("create -f -", &object).ok();
        session.kubectl(&format!("get {resource} {name} -o yaml"));
        session.kubectl(&format!("patch {resource} {name} --type=merge -p {{\"port\":\"9\"}}"));
        session.kubectl(&format!("delete {} {name}", of_version(session, "v1beta1"))).ok();
        let object = crontab(session, "v1", name, &json!({"host": "localhost", "port": "1"}));
        session.with_input("create -f -", &object);
        session.kubectl(&format!("delete {} {name} --ignore-not-found", of_version(session, "v1beta1")));
    }
}

fn rewrite_objects(session: &mut Session<'_>, conversion: &Value) {
    apply(session, conversion, "v1", &["v1beta1", "v1"]);
    let group = group(session);
    session.kubectl(&format!("get crd crontabs.{group} -o jsonpath={{.status.storedVersions}}"));
    let reads: Vec<String> =
        ["v1beta1", "v1"].map(|version| format!("get {} -o yaml", of_version(session, version))).into();
    run_counted(session, BEFORE_REWRITING, &reads);
    let all = session.run_unrecorded(&format!("get {} -o json", of_version(session, "v1"))).ok().to_owned();
    session.with_input("replace -f -", &all).ok();
    // A change that does nothing is not written: the objects get a label.
    session.kubectl(&format!("label {} --all rewritten=yes", of_version(session, "v1"))).ok();
    run_counted(session, AFTER_REWRITING, &reads[1..]);
    run_counted(session, OLD_VERSION, &reads[..1]);
}

fn remove_version(session: &mut Session<'_>, conversion: &Value) {
    let group = group(session);
    let trim = r#"{"status":{"storedVersions":["v1"]}}"#;
    session
        .kubectl(&format!(
            "patch customresourcedefinitions crontabs.{group} --subresource=status --type=merge -p {trim}"
        ))
        .ok();
    apply(session, conversion, "v1", &["v1"]);
    let path = format!("/apis/{group}/v1beta1/namespaces/{}/crontabs", session.namespace);
    eventually("the version to go", || {
        let found = session.run_unrecorded(&format!("get --raw {path}"));
        if found.success { Err(found.output) } else { Ok(()) }
    });
    let resource = of_version(session, "v1");
    run_counted(session, ONE_VERSION, &[format!("get {resource} -o yaml"), format!("label {resource} --all last=yes")]);
    session.kubectl(&format!("get crd crontabs.{group} -o jsonpath={{.status.storedVersions}}"));
}
