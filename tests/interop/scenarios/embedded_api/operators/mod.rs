//! Operators on custom resources: the same story at kube-apiserver and at the embedded API server, which is killed under
//! them.

mod chaospod;
mod kube_rs;
mod sample_controller;
mod website;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::TestFn;
use crate::environment::{Gateway, HttpResponse, HttpsEndpoint, Identity, TestEnvironment, eventually, kubeconfig};

pub(in crate::scenarios) const GATEWAY_TESTS: &[(&str, TestFn)] = &[
    ("embedded API: operators: controller-runtime with a conversion webhook", website::serves_websites),
    ("embedded API: operators: kube-rs with a derived definition", kube_rs::scales_fleets),
    ("embedded API: operators: sample-controller", sample_controller::deploys_foos),
    ("embedded API: operators: example of controller-runtime", chaospod::replaces_pods),
];

/// Kills in one story.
const KILLS: usize = 3;

/// An API server with an operator, and the files of both.
struct OperatorFixture<'a> {
    endpoint: &'a HttpsEndpoint,
    admin: &'a Identity,
    directory: PathBuf,
    /// Part of file names.
    name: &'a str,
    namespace: String,
}

impl OperatorFixture<'_> {
    fn kubeconfig(&self) -> PathBuf {
        let HttpsEndpoint { authority, .. } = self.endpoint;
        kubeconfig::write(&self.directory, self.name, &self.endpoint.url(), authority, Some(self.admin))
    }

    /// The path of a collection in the namespace of the story.
    fn collection(&self, version: &str, plural: &str) -> String {
        format!("/{version}/namespaces/{}/{plural}", self.namespace)
    }

    fn send(&self, method: &str, path: &str, document: &Value) -> Result<HttpResponse, String> {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let headers = [("content-type", kind)];
        self.endpoint.send(Some(self.admin), method, path, &headers, document.to_string().as_bytes())
    }

    /// Sends a request and asserts success.
    fn write(&self, method: &str, path: &str, document: &Value) -> Value {
        let response = self.send(method, path, document).unwrap();
        assert!(response.status.is_success(), "{method} {path}: {} {}", response.status, response.text());
        response.json()
    }

    /// Creates a CustomResourceDefinition and waits until it is established.
    fn install(&self, crd: &Value) {
        const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        self.write("POST", CRDS, crd);
        let name = crd["metadata"]["name"].as_str().unwrap();
        self.wait_for("an established CRD", &format!("{CRDS}/{name}"), |found| {
            condition(found, "Established")["status"] == "True"
        });
    }

    /// Waits until the object at `path` meets `is_met`, and returns it.
    fn wait_for(&self, what: &str, path: &str, is_met: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{what} at {}", self.name), || {
            let response = self.endpoint.get(Some(self.admin), path)?;
            if response.status != 200 {
                return Err(format!("{} {}", response.status, response.text()));
            }
            let object = response.json();
            if is_met(&object) { Ok(object) } else { Err(object.to_string()) }
        })
    }

    /// Waits until there is no object at `path`.
    fn wait_until_gone(&self, path: &str) {
        eventually(&format!("the end of {path} at {}", self.name), || {
            let response = self.endpoint.get(Some(self.admin), path)?;
            if response.status == 404 { Ok(()) } else { Err(response.text()) }
        });
    }

    /// The objects of a collection.
    fn items(&self, path: &str) -> Vec<Value> {
        let response = self.endpoint.get(Some(self.admin), path).unwrap();
        assert_eq!(response.status, 200, "{path}: {}", response.text());
        response.json()["items"].as_array().cloned().unwrap()
    }
}

/// The condition of a type, or null.
fn condition(object: &Value, name: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().find(|condition| condition["type"] == name).cloned().unwrap_or_default()
}

/// Runs `create` with increasing numbers while the gateway is killed and restarted; returns what it returned of
/// acknowledged objects.
fn create_while_killed<T: Send>(gateway: &mut Gateway, create: impl Fn(usize) -> Option<T> + Sync) -> Vec<T> {
    let stops = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let numbers = (0..).take_while(|_| !stops.load(Ordering::Relaxed));
            let create = |number| {
                // A few dozen objects are enough.
                std::thread::sleep(Duration::from_millis(50));
                create(number)
            };
            numbers.filter_map(create).collect()
        });
        for _ in 0..KILLS {
            std::thread::sleep(Duration::from_millis(fastrand::u64(400..1500)));
            gateway.process.signal(Signal::KILL);
            gateway.restart();
        }
        stops.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    })
}

/// Asserts that a server that starts refuses connections, and never answers as if it had no CRDs or no rights.
fn assert_no_wrong_answers(log: &str) {
    let wrong = ["could not find the requested resource", "no matches for kind", "forbidden", "nauthorized"];
    let is_wrong = |line: &&str| wrong.iter().any(|text| line.contains(text));
    assert_eq!(log.lines().filter(is_wrong).collect::<Vec<_>>(), [""; 0]);
}

/// Runs a story at kube-apiserver and at the embedded API server with additional flags, and compares what it returns.
/// The story has a namespace, and the gateway where it may kill it.
fn compare_stories(
    environment: &TestEnvironment,
    name: &str,
    more: &[(&str, &str)],
    story: impl Fn(&OperatorFixture<'_>, Option<&mut Gateway>) -> Vec<Value>,
) {
    let fixture = |endpoint, server: &'static str| {
        let directory = environment.scratch(&format!("{name}-{server}"));
        let admin = environment.cluster.admin();
        let fixture = OperatorFixture { endpoint, admin, directory, name: server, namespace: name.to_owned() };
        fixture.write("POST", "/api/v1/namespaces", &json!({"metadata": {"name": name}}));
        fixture
    };
    let expected = story(&fixture(&environment.cluster.endpoint, "kube-apiserver"), None);
    let directory = environment.scratch(name);
    let mut embedded = Gateway::start_embedded_api(&environment.cluster, &directory, "embedded", more);
    let endpoint = embedded.endpoint.clone();
    let found = story(&fixture(&endpoint, "embedded"), Some(&mut embedded));
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected, "left: embedded; right: kube-apiserver");
    }
    assert_eq!(found.len(), expected.len());
    println!("{name}: {} answers are those of kube-apiserver", found.len());
}

/// What remains of an object when what differs with each run is removed.
fn without_run_values(object: &Value) -> Value {
    let mut object = object.clone();
    for field in ["uid", "resourceVersion", "creationTimestamp", "managedFields", "deletionTimestamp"] {
        object["metadata"].as_object_mut().unwrap().remove(field);
    }
    for owner in object["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
        owner["uid"] = json!("");
    }
    for condition in object["status"]["conditions"].as_array_mut().into_iter().flatten() {
        condition["lastTransitionTime"] = json!("");
    }
    object
}

/// Writes a serving certificate for 127.0.0.1 as `tls.crt` and `tls.key` into `directory`; returns its CA bundle.
fn write_webhook_certificate(environment: &TestEnvironment, directory: &Path) -> String {
    use base64::Engine as _;
    let authority = &environment.cluster.authorities.backend;
    let identity = authority.server(&format!("webhook-{:08x}", fastrand::u32(..)), &["127.0.0.1"]);
    std::fs::copy(&identity.certificate, directory.join("tls.crt")).unwrap();
    std::fs::copy(&identity.key, directory.join("tls.key")).unwrap();
    base64::engine::general_purpose::STANDARD.encode(std::fs::read(&authority.file).unwrap())
}
