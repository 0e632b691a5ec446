//! Custom resources: kubectl prints for the embedded API server what it prints for kube-apiserver, from the CRD
//! to the removal of a version.

mod crds_page;
mod installed_crds;
mod project_samples;
mod storage_version;
mod stored_values;
mod versions_page;

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Value, json};

use super::kubectl_stories::record_table;
use crate::environment::{
    Cluster, CommandResult, Gateway, HttpsEndpoint, Identity, Kubectl, LIKE_KUBE_APISERVER, Session, TestEnvironment,
    eventually,
};

pub(super) use self::crds_page::follow_crds_page;
pub(super) use self::installed_crds::installs_crds;
pub(super) use self::storage_version::change_storage_version;
pub(super) use self::stored_values::stores_values_of_kube_apiserver;
pub(super) use self::versions_page::follow_versions_page;

/// Runs `commands` at a kube-apiserver of its own and at the embedded API server and compares the transcripts;
/// `embedded_commands` run at the embedded API server alone.
fn compare_sessions(
    environment: &TestEnvironment,
    kubectl: &Kubectl,
    name: &str,
    commands: fn(&mut Session<'_>),
    embedded_commands: fn(&Session<'_>),
) {
    let directory = environment.scratch(&format!("{name}-{}", kubectl.version));
    // kubectl resolves short names among the CRDs of all tests.
    let cluster = Cluster::start(&directory.join("cluster"));
    let embedded = Gateway::start_embedded_api(&cluster, &directory, "embedded", &LIKE_KUBE_APISERVER);
    let admin = cluster.admin();
    let transcripts = std::thread::scope(|scope| {
        let sessions = [(&cluster.endpoint, false), (&embedded.endpoint, true)].map(|(endpoint, is_embedded)| {
            scope.spawn(move || {
                let mut session = open_session(environment, kubectl, endpoint, admin);
                commands(&mut session);
                if is_embedded {
                    embedded_commands(&session);
                }
                session.into_transcript()
            })
        });
        sessions.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let [expected, found] = &transcripts;
    assert_same_transcripts(name, expected, found);
}

/// A session of the admin in a new namespace of a server outside the shared environment.
fn open_session<'e>(
    environment: &'e TestEnvironment,
    kubectl: &Kubectl,
    endpoint: &HttpsEndpoint,
    admin: &Identity,
) -> Session<'e> {
    let session = Session::open_at(environment, kubectl, endpoint, admin);
    endpoint.create(admin, "/api/v1/namespaces", &json!({"metadata": {"name": session.namespace}}));
    session
}

/// Asserts that two transcripts are equal; prints all commands that differ.
fn assert_same_transcripts(name: &str, expected: &[CommandResult], found: &[CommandResult]) {
    let differences: Vec<String> = expected
        .iter()
        .zip(found)
        .filter(|(expected, found)| comparable(expected) != comparable(found))
        .map(|(expected, found)| format!("kube-apiserver: {expected:#?}\nembedded: {found:#?}"))
        .collect();
    let count = differences.len();
    assert!(count == 0, "{name}: {count} of {} commands differ\n{}", expected.len(), differences.join("\n\n"));
    assert_eq!(expected.len(), found.len(), "the transcripts differ in length");
    println!("{name}: {} commands", expected.len());
}

/// A result without what differs on purpose: the order of causes, which kube-apiserver takes from a Go map; where to
/// look for a group that is not served; the object in the text of a decoding error, which has managedFields; and
/// what each server says about rules, which one of them does not enforce.
fn comparable(result: &CommandResult) -> CommandResult {
    static NOT_SERVED: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r" \((no APIService claims |get crontabs\.)[^)]*\)").unwrap());
    static OBJECT: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#"(patch: Invalid value: )"\{(\\.|[^"\\])*""#).unwrap());
    let errors = NOT_SERVED.replace_all(&result.errors, "");
    let errors = OBJECT.replace_all(&errors, "${1}OBJECT");
    let is_about_rules = |line: &&str| {
        line.starts_with("* <nil>: Invalid value: null: some validation rules were not checked")
            || line.starts_with("Warning: spec.") && line.contains("x-kubernetes-validations")
    };
    let mut lines: Vec<&str> = errors.lines().filter(|line| !is_about_rules(line)).collect();
    for causes in lines.chunk_by_mut(|one, next| one.starts_with("* ") && next.starts_with("* ")) {
        causes.sort_unstable();
    }
    CommandResult { errors: lines.join("\n"), ..result.clone() }
}

/// The API group of a session's CRDs. kube-apiserver is shared by all tests.
fn group(session: &Session<'_>) -> String {
    format!("{}.example.com", session.namespace)
}

/// A version of a CRD: its name, the fields of its schema, and fields beside the schema.
fn version(name: &str, is_storage: bool, properties: &Value, more: &Value) -> Value {
    let mut version = json!({
        "name": name, "served": true, "storage": is_storage,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
    });
    extend(&mut version, more);
    version
}

/// The CRD of CronTabs with these versions.
fn crontabs(session: &Session<'_>, versions: &[Value]) -> Value {
    let group = group(session);
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("crontabs.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "versions": versions,
            "names": {"plural": "crontabs", "singular": "crontab", "kind": "CronTab", "shortNames": ["ct"]},
        },
    })
}

fn extend(object: &mut Value, more: &Value) {
    let more = more.as_object().into_iter().flatten();
    object.as_object_mut().unwrap().extend(more.map(|(key, value)| (key.clone(), value.clone())));
}

/// A CronTab with these fields.
fn crontab(session: &Session<'_>, version: &str, name: &str, fields: &Value) -> Value {
    let api_version = format!("{}/{version}", group(session));
    let mut object = json!({"apiVersion": api_version, "kind": "CronTab", "metadata": {"name": name}});
    extend(&mut object, fields);
    object
}

/// Applies a CRD and waits until discovery and the OpenAPI v3 document of its first served version are of that
/// CRD: kube-apiserver changes them some time after the response.
fn apply_crd(session: &mut Session<'_>, crd: &Value) {
    let mut crd = crd.clone();
    let marker = format!("Revision {}.", session.recorded());
    let versions = crd["spec"]["versions"].as_array_mut().unwrap();
    let mut served = Vec::new();
    for version in versions.iter_mut().filter(|version| version["served"] == true) {
        let name = version["name"].as_str().unwrap().to_owned();
        version["schema"]["openAPIV3Schema"]["title"] = marker.clone().into();
        served.push(name);
    }
    session.with_input("apply -f -", &crd).ok();
    let name = crd["metadata"]["name"].as_str().unwrap();
    session.kubectl(&format!("wait --for=condition=Established customresourcedefinition/{name} --timeout=30s")).ok();
    let group = group(session);
    eventually("the OpenAPI documents of the crd", || {
        for version in &served {
            let found = session.run_unrecorded(&format!("get --raw /openapi/v3/apis/{group}/{version}"));
            if !found.output.contains(&marker) {
                return Err(format!("{version}: {}{}", found.output, found.errors));
            }
        }
        Ok(())
    });
    let plural = crd["spec"]["names"]["plural"].as_str().unwrap();
    eventually("discovery of the crd", || {
        // This command also drops what kubectl has cached.
        let found = session.run_unrecorded(&format!("api-resources --api-group={group} -o name"));
        if found.output.contains(plural) { Ok(()) } else { Err(found.output + &found.errors) }
    });
}

/// Runs kubectl with a document and without recording, where the servers differ.
fn run_unrecorded_with_input(session: &Session<'_>, args: &str, input: &Value) -> CommandResult {
    CommandResult::run(args, session.command(args), &input.to_string())
}
