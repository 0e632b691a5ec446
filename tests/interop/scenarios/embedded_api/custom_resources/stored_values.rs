//! What is stored beside what kube-apiserver stores in etcd: keys and bytes (upstream's `TestEtcdStorage`).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use regex::Regex;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::environment::{
    Gateway, HttpsEndpoint, Identity, LIKE_KUBE_APISERVER, TestEnvironment, call_etcd, eventually, values_in_etcd,
};

const GROUP: &str = "stored-values.example.com";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Fields of an object, as text: numbers and strings are written in other words than they were sent in.
const FIELDS: &str = r#""spec":{"replicas":3,"z":{},"nothing":null,"list":[{"b":1,"a":2},[],{}],"dropped":1},"status":{
    "most":9223372036854775807,"more":9223372036854775808,"huge":12345678901234567890,"float":1.0,"half":0.5,
    "exponent":1e21,"small":0.0000001,"html":"<a&b>\u2028","text":"\u00e9\u0001\u007f\"\\/\ud83d\ude00"}"#;

/// Two CRDs, objects created, changed, with finalizers and owners: the same keys, and the same bytes but for
/// managedFields, uids and times.
pub(in super::super) fn stores_values_of_kube_apiserver(environment: &TestEnvironment) {
    let (cluster, directory) = (&environment.cluster, environment.scratch("stored-values"));
    let admin = cluster.admin();
    let mut embedded = Gateway::start_embedded_api(cluster, &directory, "embedded", &LIKE_KUBE_APISERVER);
    for endpoint in [&cluster.endpoint, &embedded.endpoint] {
        write_objects(endpoint, admin);
    }
    // Before the store can be read, which one process alone may open.
    let served = embedded.endpoint.get(Some(admin), &format!("{CRDS}/noxus.{GROUP}")).unwrap().json();
    embedded.process.signal(Signal::TERM);
    embedded.process.wait();
    let etcd = cluster.etcd_url.strip_prefix("http://").unwrap().parse().unwrap();
    let prefix = format!("/registry/{GROUP}/");
    let theirs = values_in_etcd(etcd, &prefix);
    let own = values_in_file(&directory.join("embedded-data/store.db"));
    let found: BTreeMap<&String, String> =
        own.iter().filter(|(key, _)| key.starts_with(&prefix)).map(|(key, value)| (key, comparable(value))).collect();
    let expected: BTreeMap<&String, String> = theirs.iter().map(|(key, value)| (key, comparable(value))).collect();
    assert_eq!(found.len(), 5);
    assert_eq!(found, expected);
    assert!(own.values().all(|value| value.ends_with("}\n") && !value.contains("managedFields")));

    // A CRD has the same key. kube-apiserver writes it in v1beta1, and reads v1, which is written here.
    let key = format!("/registry/apiextensions.k8s.io/customresourcedefinitions/noxus.{GROUP}");
    let crds = values_in_etcd(etcd, "/registry/apiextensions.k8s.io/customresourcedefinitions/");
    assert!(crds[&key].contains(r#""apiVersion":"apiextensions.k8s.io/v1beta1""#), "{}", crds[&key]);
    assert!(own[&key].starts_with(r#"{"apiVersion":"apiextensions.k8s.io/v1","#), "{}", own[&key]);
    let (id, value) = (BASE64.encode(&key), BASE64.encode(&own[&key]));
    call_etcd(etcd, "kv/put", &json!({"key": id, "value": value})).unwrap();
    eventually("kube-apiserver to serve the CRD that was stored here", || {
        let mut read = cluster.endpoint.get(Some(admin), &format!("{CRDS}/noxus.{GROUP}"))?.json();
        let mut expected = served.clone();
        for document in [&mut read, &mut expected] {
            document["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        }
        if read == expected { Ok(()) } else { Err(format!("{read:#}\n{expected:#}")) }
    });
    // 429 while it reads the objects of the changed CRD.
    eventually("kube-apiserver to list the objects of that CRD", || {
        let objects = cluster.endpoint.get(Some(admin), &format!("/apis/{GROUP}/v1/noxus"))?.json();
        if objects["items"].as_array().map(Vec::len) == Some(3) { Ok(()) } else { Err(objects.to_string()) }
    });
    println!("stored-values: {} keys with their values", found.len());
}

fn write_objects(endpoint: &HttpsEndpoint, admin: &Identity) {
    let send = |method: &str, path: &str, body: &str| {
        let media_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let headers = [("content-type", media_type)];
        let response = endpoint.send(Some(admin), method, path, &headers, body.as_bytes()).unwrap();
        assert!(response.status.is_success(), "{method} {path}: {}", response.text());
    };
    for (plural, kind, scope) in [("noxus", "Noxu", "Namespaced"), ("curlets", "Curlet", "Cluster")] {
        let crd = crd(plural, kind, scope);
        send("POST", CRDS, &crd.to_string());
        eventually("the resource to be served", || {
            let list = endpoint.get(Some(admin), &format!("/apis/{GROUP}/v2/{plural}"))?;
            if list.status == 200 { Ok(()) } else { Err(list.text()) }
        });
    }
    let object = |version: &str, kind: &str, name: &str, metadata: &str| {
        let metadata = format!(r#"{{"name":"{name}"{metadata}}}"#);
        format!(r#"{{{FIELDS},"metadata":{metadata},"kind":"{kind}","apiVersion":"{GROUP}/{version}"}}"#)
    };
    let noxus = format!("/apis/{GROUP}/v1/namespaces/default/noxus");
    let metadata = r#","labels":{"z":"1","a":"2"},"annotations":{"b":"<","a":"é"},"finalizers":["example.com/x"],
        "ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"c","uid":"u","controller":true}]"#;
    send("POST", &noxus, &object("v1", "Noxu", "a", metadata));
    send("POST", &noxus, &object("v1", "Noxu", "b", ""));
    send("PATCH", &format!("{noxus}/b"), r#"{"spec":{"z":1.50,"replicas":null},"metadata":{"labels":{}}}"#);
    // Deleted, but for its finalizer.
    send("POST", &noxus, &object("v1", "Noxu", "c", metadata));
    send("DELETE", &format!("{noxus}/c"), "");
    // In the version that is not stored.
    let curlets = format!("/apis/{GROUP}/v2/curlets");
    send("POST", &curlets, &object("v2", "Curlet", "a", ""));
    send("POST", &curlets, &object("v2", "Curlet", "b", ""));
    send("PATCH", &format!("{curlets}/b"), r#"{"status":{"most":0}}"#);
}

fn crd(plural: &str, kind: &str, scope: &str) -> Value {
    let version = |name: &str| {
        json!({
            "name": name, "served": true, "storage": name == "v1",
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                "spec": {"type": "object", "properties": {
                    "replicas": {"type": "integer", "default": 2}, "z": {"x-kubernetes-preserve-unknown-fields": true},
                    "nothing": {"type": "string", "nullable": true, "default": "y"},
                    "list": {"type": "array", "items": {"x-kubernetes-preserve-unknown-fields": true}},
                }},
                "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            }}},
        })
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": scope, "versions": [version("v1"), version("v2")],
            "names": {"plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List")},
        },
    })
}

/// The newest value of each key in a store file.
fn values_in_file(file: &Path) -> BTreeMap<String, String> {
    let connection = rusqlite::Connection::open(file).unwrap();
    let mut statement = connection.prepare("SELECT key, value, deleted FROM record ORDER BY revision").unwrap();
    let rows = statement
        .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Option<Vec<u8>>>(1)?, row.get::<_, bool>(2)?)));
    let mut values = BTreeMap::new();
    for row in rows.unwrap() {
        match row.unwrap() {
            (key, Some(value), false) => drop(values.insert(key, String::from_utf8(value).unwrap())),
            (key, ..) => drop(values.remove(&key)),
        }
    }
    values
}

/// A value without managedFields, uids and times.
fn comparable(value: &str) -> String {
    static TIME: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#""\d{4}-\d\d-\d\dT[^"]*Z""#).unwrap());
    static UID: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#""uid":"[0-9a-f-]{36}""#).unwrap());
    // The field after it begins with its name, and no text in it has such a beginning.
    static MANAGED_FIELDS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r#""managedFields":\[\{.*?\}\],"name":"#).unwrap());
    let value = MANAGED_FIELDS.replace(value, r#""name":"#);
    let value = TIME.replace_all(&value, r#""TIME""#);
    UID.replace_all(&value, r#""uid":"UID""#).into_owned()
}
