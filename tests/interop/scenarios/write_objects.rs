//! Requests that change objects.

use super::{Scenario, TestFn};
use crate::environment::{Session, TestEnvironment, curl_with_input};

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    ("write: create", create),
    ("write: rejected create", create_what_is_refused),
    ("write: apply", apply),
    ("write: apply --server-side", apply_server_side),
    ("write: patch", patch),
    ("write: label and annotate", label_and_annotate),
    ("write: replace and edit", replace_and_edit),
    ("write: delete", delete),
    ("write: delete --wait", delete_and_wait),
    ("write: wait --for", wait_for),
];

pub(super) const TESTS: &[(&str, TestFn)] = &[("write: early 413 reaches the client", early_413)];

/// A manifest in JSON: older versions of kubectl take input that begins with a brace for JSON.
fn flunder(name: &str, reference: &str) -> serde_json::Value {
    serde_json::json!({
        "apiVersion": "wardle.example.com/v1beta1", "kind": "Flunder",
        "metadata": {"name": name, "labels": {"kept": "yes"}},
        "spec": {"flunderReference": reference, "referenceType": "Flunder"},
    })
}

/// A flunder with an additional field.
fn flunder_with(path: &str, value: impl Into<serde_json::Value>) -> serde_json::Value {
    let mut document = flunder("odd", "x");
    let (parent, field) = path.rsplit_once('/').unwrap();
    document.pointer_mut(parent).unwrap()[field] = value.into();
    document
}

fn big_annotation(sixteens: usize) -> serde_json::Value {
    serde_json::json!({"big": "0123456789abcdef".repeat(sixteens)})
}

fn reference_of(session: &mut Session<'_>, name: &str) -> String {
    session.kubectl(&format!("get flunder {name} -o jsonpath={{.spec.flunderReference}}")).ok().to_owned()
}

fn create(session: &mut Session<'_>) {
    session.with_input("create --dry-run=server -f -", &flunder("a", "dry")).ok();
    session.kubectl("get flunder a").expect_error("not found");
    let step = session.with_input("create -f -", &flunder("a", "one"));
    assert_eq!(step.ok(), "flunder.wardle.example.com/a created\n");
    session.with_input("create -f -", &flunder("a", "again")).expect_error("AlreadyExists");
    assert_eq!(reference_of(session, "a"), "one");
    // A body of several HTTP/2 frames.
    let large = flunder_with("/metadata/annotations", big_annotation(12_000));
    session.with_input("create -f -", &large).ok();
    let length = session.kubectl("get flunder odd -o jsonpath={.metadata.annotations.big}").ok().len();
    assert_eq!(length, 16 * 12_000);
}

fn create_what_is_refused(session: &mut Session<'_>) {
    let unknown = flunder_with("/spec/nonsense", 1);
    session.with_input("create --validate=strict -f -", &unknown).expect_error("unknown field \"spec.nonsense\"");
    let step = session.with_input("create --validate=warn -f -", &unknown);
    step.ok();
    assert!(step.errors.contains("unknown field \"spec.nonsense\""), "a warning: {}", step.errors);
    let both = flunder_with("/spec/fischerReference", "y");
    session.with_input("create -f -", &both).expect_error("cannot be set with flunderReference at the same time");
    let version = flunder_with("/apiVersion", "wardle.example.com/v9");
    session.with_input("create -f -", &version).expect_error("no matches for kind");
    let huge = flunder_with("/metadata/annotations", big_annotation(250_000));
    session.with_input("create -f -", &huge).expect_error("RequestEntityTooLarge");
    session
        .kubectl("create --raw /apis/wardle.example.com/v1alpha1/flunders -f /dev/null")
        .expect_error("MethodNotAllowed");
}

fn apply(session: &mut Session<'_>) {
    assert!(session.with_input("apply -f -", &flunder("a", "one")).ok().contains("created"));
    assert!(session.with_input("apply -f -", &flunder("a", "one")).ok().contains("unchanged"));
    assert!(session.with_input("apply -f -", &flunder("a", "two")).ok().contains("configured"));
    assert_eq!(reference_of(session, "a"), "two");
    assert!(session.with_input("apply -f - --dry-run=server", &flunder("a", "three")).ok().contains("dry run"));
    assert_eq!(reference_of(session, "a"), "two");
    let step = session.with_input("diff -f -", &flunder("a", "four"));
    assert!(!step.success && step.output.contains("+  flunderReference: four"), "{step:?}");
}

fn apply_server_side(session: &mut Session<'_>) {
    let args = "apply --server-side --field-manager=first -f -";
    assert!(session.with_input(args, &flunder("a", "one")).ok().contains("serverside-applied"));
    session.with_input(args, &flunder("a", "two")).ok();
    let second = "apply --server-side --field-manager=second -f -";
    session.with_input(second, &flunder("a", "three")).expect_error("conflict");
    session.with_input(&format!("{second} --force-conflicts"), &flunder("a", "three")).ok();
    assert_eq!(reference_of(session, "a"), "three");
    session.kubectl("get flunder a -o yaml --show-managed-fields").ok();
}

fn patch(session: &mut Session<'_>) {
    session.with_input("create -f -", &flunder("a", "one")).ok();
    session.kubectl(r#"patch flunder a --type=merge -p {"spec":{"flunderReference":"merged"}}"#).ok();
    assert_eq!(reference_of(session, "a"), "merged");
    session
        .kubectl(r#"patch flunder a --type=json -p [{"op":"replace","path":"/spec/flunderReference","value":"json"}]"#)
        .ok();
    assert_eq!(reference_of(session, "a"), "json");
    session.kubectl(r#"patch flunder a -p {"metadata":{"labels":{"kind":"strategic"}}}"#).ok();
    session
        .kubectl(r#"patch flunder a --type=json -p [{"op":"test","path":"/spec/flunderReference","value":"no"}]"#)
        .expect_error("The request is invalid");
    session.kubectl(r#"patch flunder a --type=merge -p {"metadata":{"resourceVersion":"1"}}"#).expect_error("Conflict");
    session.kubectl(r#"patch flunder none --type=merge -p {}"#).expect_error("not found");
    session
        .kubectl(r#"patch flunder a --type=merge --subresource=status -p {"status":{}}"#)
        .expect_error("flunders/status");
}

fn label_and_annotate(session: &mut Session<'_>) {
    session.with_input("create -f -", &flunder("a", "one")).ok();
    session.kubectl("label flunder a color=blue").ok();
    session.kubectl("label flunder a color=red").expect_error("already has a value");
    session.kubectl("label flunder a color=red --overwrite").ok();
    session.kubectl("label flunders --all shelf=here").ok();
    session.kubectl("annotate flunder a note=written").ok();
    assert!(session.kubectl("get flunders -l color=red,shelf=here").ok().contains('a'));
    session.kubectl("label flunder a color-").ok();
    session.kubectl("get flunder a -o jsonpath={.metadata.labels}").ok();
}

fn replace_and_edit(session: &mut Session<'_>) {
    session.with_input("create -f -", &flunder("a", "one")).ok();
    let current = session.run_unrecorded("get flunder a -o json");
    session.with_input("replace -f -", &current.ok().replace("\"one\"", "\"two\"")).ok();
    assert_eq!(reference_of(session, "a"), "two");
    // A replace with an old resource version conflicts.
    session.with_input("replace -f -", &current.output.replace("\"one\"", "\"three\"")).expect_error("Conflict");
    session.with_input("replace --force -f -", &flunder("a", "four")).ok();
    assert_eq!(reference_of(session, "a"), "four");
    let mut edit = session.command("edit flunder a");
    edit.env("KUBE_EDITOR", "sed -i s/four/five/");
    assert!(session.record("edit flunder a", edit, "").ok().contains("edited"));
    assert_eq!(reference_of(session, "a"), "five");
}

fn delete(session: &mut Session<'_>) {
    for name in ["a", "b", "c"] {
        session.with_input("create -f -", &flunder(name, "one")).ok();
    }
    session.kubectl("delete flunder a --wait=false").ok();
    session.kubectl("get flunder a").expect_error("not found");
    session.with_input("delete -f -", &flunder("b", "one")).ok();
    session.kubectl("delete flunder b").expect_error("not found");
    session.kubectl("delete flunders --all --now").ok();
    assert_eq!(session.kubectl("get flunders -o name").ok(), "");
    session.kubectl("delete flunder b --ignore-not-found").ok();
}

fn delete_and_wait(session: &mut Session<'_>) {
    let mut held = flunder("held", "one");
    held["metadata"]["finalizers"] = serde_json::json!(["example.com/hold"]);
    session.with_input("create -f -", &held).ok();
    let mut deletion = session.stream("delete flunder held --wait=true --timeout=80s");
    deletion.line_with("deleted");
    // The object is marked for deletion and has a finalizer: kubectl must wait.
    session.kubectl("wait flunder held --for=jsonpath={.metadata.deletionGracePeriodSeconds}=0 --timeout=60s").ok();
    assert!(deletion.is_running(), "kubectl did not wait");
    session.kubectl(r#"patch flunder held --type=merge -p {"metadata":{"finalizers":null}}"#).ok();
    let (success, lines) = deletion.finish();
    assert!(success, "{lines:?}");
    session.kubectl("get flunder held").expect_error("not found");
}

fn wait_for(session: &mut Session<'_>) {
    session.with_input("create -f -", &flunder("a", "one")).ok();
    session.kubectl("wait flunder a --for=jsonpath={.spec.flunderReference}=one --timeout=60s").ok();
    let waiting = session.stream("wait flunder a --for=jsonpath={.spec.flunderReference}=two --timeout=80s");
    session.kubectl(r#"patch flunder a --type=merge -p {"spec":{"flunderReference":"two"}}"#).ok();
    let (success, lines) = waiting.finish();
    assert!(success, "{lines:?}");
    let waiting = session.stream("wait flunder a --for=delete --timeout=80s");
    session.kubectl("delete flunder a").ok();
    let (success, lines) = waiting.finish();
    assert!(success, "{lines:?}");
    session
        .kubectl("wait flunder a --for=jsonpath={.spec.flunderReference}=two --timeout=1s")
        .expect_error("not found");
}

/// The server stops reading at 3 MiB and responds while the client still sends.
///
/// Over HTTP/1.1 only: curl 7.88 sometimes loses such a response over HTTP/2, also from the server itself. With
/// Expect: 100-continue it loses the server's own response, so that is tested with narthex only.
fn early_413(environment: &TestEnvironment) {
    let body = vec![b'x'; 64 << 20];
    let path = "/apis/wardle.example.com/v1beta1/namespaces/default/flunders";
    let ask = |target, expectation| {
        let args = ["--http1.1", "-X", "POST", "-T", "-", "-H", "Content-Type: application/json", "-H", expectation];
        curl_with_input(environment.endpoint(target), Some(environment.cluster.jane()), path, &args, &body)
    };
    let [direct, through] = environment.targets();
    let expected = ask(direct, "Expect:");
    assert_eq!(expected.0, 413, "{}", expected.1);
    assert_eq!(ask(through, "Expect:"), expected);
    if through != direct {
        assert_eq!(ask(through, "Expect: 100-continue"), expected);
    }
}
