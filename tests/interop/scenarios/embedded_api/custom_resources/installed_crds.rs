//! The CustomResourceDefinitions of cert-manager, Flux, prometheus-operator and Gateway API, installed at kube-apiserver
//! and at the embedded API server: OpenAPI documents, discovery, descriptions, accepted and refused samples.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use serde_json::{Map, Value, json};

use crate::environment::{Cluster, Gateway, HttpsEndpoint, Identity, Kubectl, Session, TIMEOUT, TestEnvironment};

/// Kinds whose fields `kubectl explain` lists.
const EXPLAINED: [&str; 9] = [
    "certificates.cert-manager.io",
    "challenges.acme.cert-manager.io",
    "helmreleases.helm.toolkit.fluxcd.io",
    "gitrepositories.source.toolkit.fluxcd.io",
    "imagepolicies.image.toolkit.fluxcd.io",
    "servicemonitors.monitoring.coreos.com",
    "prometheusrules.monitoring.coreos.com",
    "gateways.gateway.networking.k8s.io",
    "httproutes.gateway.networking.k8s.io",
];

pub(in super::super) fn installs_crds(environment: &TestEnvironment, kubectl: &Kubectl) {
    let directory = environment.scratch(&format!("installed-definitions-{}", kubectl.version));
    // Other tests read the documents of the shared kube-apiserver.
    let cluster = Cluster::start(&directory.join("cluster"));
    let embedded =
        Gateway::start_embedded_api(&cluster, &directory, "embedded", &[("--allow-unenforced-rules", "true")]);
    let (folder, count) = unpack(&directory);
    let [expected, found] = std::thread::scope(|scope| {
        let servers = [("kube-apiserver", &cluster.endpoint), ("embedded API server", &embedded.endpoint)];
        let installed = servers.map(|(name, endpoint)| {
            let folder = &folder;
            let admin = cluster.admin();
            scope.spawn(move || {
                let mut session = super::open_session(environment, kubectl, endpoint, admin);
                let documents = install(&Server { endpoint, admin }, name, folder);
                session.kubectl(&format!("replace -f {}", folder.display())).ok();
                describe(&mut session);
                super::project_samples::create_samples(&mut session);
                (session.into_transcript(), documents)
            })
        });
        installed.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    super::assert_same_transcripts("installed-definitions", &expected.0, &found.0);
    let mut problems = Vec::new();
    for ((name, expected), (_, found)) in expected.1.iter().zip(&found.1) {
        first_differences(name, expected, found, &mut problems);
    }
    assert!(problems.is_empty(), "{} values differ\n{}", problems.len(), problems.join("\n"));
    println!("installed-definitions: {count} CRDs, {} documents", expected.1.len());
}

/// Unpacks the fixtures; returns the folder and their number.
fn unpack(directory: &Path) -> (PathBuf, usize) {
    let target = directory.join("definitions");
    std::fs::create_dir_all(&target).unwrap();
    let mut count = 0;
    for project in ["cert-manager", "flux", "gateway-api", "prometheus-operator"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/fixtures/crds").join(project);
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let mut text = String::new();
            GzDecoder::new(std::fs::File::open(&path).unwrap()).read_to_string(&mut text).unwrap();
            std::fs::write(target.join(path.file_stem().unwrap()), &text).unwrap();
            count += 1;
        }
    }
    (target, count)
}

/// A server and who asks it.
struct Server<'s> {
    endpoint: &'s HttpsEndpoint,
    admin: &'s Identity,
}

impl Server<'_> {
    fn get(&self, path: &str) -> Result<Value, String> {
        let response = self.endpoint.get(Some(self.admin), path)?;
        if response.status == 200 { Ok(response.json()) } else { Err(format!("{path}: {}", response.status)) }
    }

    /// The document at `path` once `is_complete`, and when that was.
    fn wait(&self, path: &str, is_complete: impl Fn(&Value) -> bool) -> (Value, Instant) {
        let end = Instant::now() + TIMEOUT;
        loop {
            match self.get(path) {
                Ok(document) if is_complete(&document) => return (document, Instant::now()),
                _ if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
                found => panic!("{path}: not complete: {found:?}"),
            }
        }
    }
}

/// Times from the response to the creation of a CRD.
#[derive(Default)]
struct InstallTimes {
    established: Vec<Duration>,
    discovery: Vec<Duration>,
    openapi: Vec<Duration>,
}

/// Installs the CRDs; returns the discovery and OpenAPI documents of their groups.
fn install(server: &Server<'_>, name: &str, folder: &Path) -> Vec<(String, Value)> {
    let mut times = InstallTimes::default();
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let mut versions: BTreeMap<String, usize> = BTreeMap::new();
    for file in &files {
        for version in install_crd(server, &std::fs::read(file).unwrap(), &mut times) {
            *versions.entry(version).or_default() += 1;
        }
    }
    let installed = Instant::now();
    let groups: BTreeSet<&str> = versions.keys().filter_map(|path| path.split('/').nth(2)).collect();
    let of_groups = |document: &Value| -> Map<String, Value> {
        let all = document["definitions"].as_object().cloned().unwrap_or_default();
        all.into_iter().filter(|(name, _)| groups.iter().any(|group| is_of_group(name, group))).collect()
    };
    // Each kind and its list.
    let count = 2 * versions.values().sum::<usize>();
    let (version2, time) = server.wait("/openapi/v2", |document| of_groups(document).len() >= count);
    print_times(name, "Established", &mut times.established);
    print_times(name, "discovery", &mut times.discovery);
    print_times(name, "OpenAPI v3", &mut times.openapi);
    println!("installed-definitions: {name}: OpenAPI v2 {:?} after the last definition", time - installed);
    let mut documents = vec![("/openapi/v2".to_owned(), Value::Object(of_groups(&version2)))];
    for path in versions.keys() {
        let mut discovery = server.get(path).unwrap();
        // kube-apiserver lists them in the order of a Go map.
        discovery["resources"].as_array_mut().unwrap().sort_by_key(|resource| resource["name"].to_string());
        documents.push((path.clone(), discovery));
        let openapi_path = format!("/openapi/v3{path}");
        let group = path.split('/').nth(2).unwrap();
        let openapi = comparable_openapi(&server.get(&openapi_path).unwrap(), group);
        documents.push((openapi_path, openapi));
    }
    documents
}

/// Schemas of the group, and paths with their operations, without what is said of server-side apply.
fn comparable_openapi(document: &Value, group: &str) -> Value {
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let schemas: Map<String, Value> = schemas
        .iter()
        .filter(|(name, _)| is_of_group(name, group))
        .map(|(name, schema)| (name.clone(), schema.clone()))
        .collect();
    let mut paths = document["paths"].clone();
    for item in paths.as_object_mut().unwrap().values_mut() {
        if let Some(content) = item.pointer_mut("/patch/requestBody/content").and_then(Value::as_object_mut) {
            content.remove("application/apply-patch+yaml");
        }
    }
    json!({"info": document["info"], "schemas": schemas, "paths": paths})
}

/// Creates a CRD and waits until it is served; returns the paths of its versions.
fn install_crd(server: &Server<'_>, manifest: &[u8], times: &mut InstallTimes) -> Vec<String> {
    const COLLECTION: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let headers = [("content-type", "application/yaml")];
    let response = server.endpoint.send(Some(server.admin), "POST", COLLECTION, &headers, manifest).unwrap();
    assert_eq!(response.status, 201, "{}", response.text());
    let created = Instant::now();
    let crd = response.json();
    let (spec, name) = (&crd["spec"], crd["metadata"]["name"].as_str().unwrap());
    let (_, time) = server.wait(&format!("{COLLECTION}/{name}"), is_established);
    times.established.push(time - created);
    let kind = spec["names"]["kind"].as_str().unwrap();
    let served = spec["versions"].as_array().unwrap().iter().filter(|version| version["served"] == true);
    let paths: Vec<String> = served
        .map(|version| format!("/apis/{}/{}", spec["group"].as_str().unwrap(), version["name"].as_str().unwrap()))
        .collect();
    for path in &paths {
        let lists = |document: &Value| document["resources"].as_array().unwrap().iter().any(|one| one["kind"] == kind);
        let (_, time) = server.wait(path, lists);
        times.discovery.push(time - created);
    }
    for path in &paths {
        let suffix = format!(".{kind}");
        let describes = |document: &Value| {
            let schemas = document["components"]["schemas"].as_object();
            schemas.is_some_and(|schemas| schemas.keys().any(|name| name.ends_with(&suffix)))
        };
        let (_, time) = server.wait(&format!("/openapi/v3{path}"), describes);
        times.openapi.push(time - created);
    }
    paths
}

fn is_established(crd: &Value) -> bool {
    let conditions = crd["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True")
}

/// Prints the median and the longest; other tests run at the same time.
fn print_times(name: &str, what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let [median, longest] = [times[times.len() / 2], times[times.len() - 1]];
    println!("installed-definitions: {name}: {what} after {median:?} in the median, {longest:?} at most");
}

/// Whether a name of an OpenAPI definition is of a kind of the group, which it has in reverse.
fn is_of_group(name: &str, group: &str) -> bool {
    let reversed: Vec<&str> = group.split('.').rev().collect();
    name.starts_with(&format!("{}.v", reversed.join(".")))
}

fn describe(session: &mut Session<'_>) {
    for resource in EXPLAINED {
        session.kubectl(&format!("explain {resource} --recursive")).ok();
        session.kubectl(&format!("explain {resource}.spec")).ok();
    }
    for group in ["cert-manager.io", "source.toolkit.fluxcd.io", "monitoring.coreos.com", "gateway.networking.k8s.io"] {
        session.kubectl(&format!("api-resources --api-group={group} -o wide"));
    }
}

/// Collects up to some differences between two documents.
fn first_differences(path: &str, expected: &Value, found: &Value, problems: &mut Vec<String>) {
    if problems.len() > 60 || expected == found {
        return;
    }
    match (expected, found) {
        (Value::Object(one), Value::Object(other)) => {
            let null = Value::Null;
            let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for key in keys {
                let values = (one.get(key).unwrap_or(&null), other.get(key).unwrap_or(&null));
                first_differences(&format!("{path} {key}"), values.0, values.1, problems);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                first_differences(&format!("{path} {index}"), one, other, problems);
            }
        }
        _ => problems.push(format!(
            "{path}\n  kube-apiserver {:.300}\n  embedded       {:.300}",
            expected.to_string(),
            found.to_string()
        )),
    }
}
