//! kube-controller-manager with the controllers of namespaces, ServiceAccounts and root CAs, at the embedded API server.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::kube_schedulers::failed_watches;
use crate::environment::{Gateway, HttpsEndpoint, Identity, Process, TestEnvironment, eventually, kubeconfig, peer};

const CONTROLLERS: &str = "serviceaccount-controller,root-ca-certificate-publisher-controller,namespace-controller";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager";

pub(super) fn fills_and_deletes_namespaces(environment: &TestEnvironment) {
    let directory = environment.scratch("embedded-controller-manager");
    let admin = environment.cluster.admin();
    let mut embedded = Gateway::start_embedded_api(&environment.cluster, &directory, "embedded", &[]);
    let endpoint = embedded.endpoint.clone();
    let authority = &endpoint.authority;
    let kubeconfig = kubeconfig::write(&directory, "manager", &endpoint.url(), authority, Some(admin));
    let arguments = [
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--controllers={CONTROLLERS}"),
        format!("--root-ca-file={}", authority.display()),
        "--leader-elect=true".to_owned(),
        "--secure-port=0".to_owned(),
        "--v=2".to_owned(),
    ];
    let manager = Process::start("kube-controller-manager", &peer("kube-controller-manager"), arguments, &directory);

    create_namespace(&endpoint, admin, "first");
    wait_for_content(&endpoint, admin, "first", authority);
    let holder = lease(&endpoint, admin).unwrap()["holderIdentity"].clone();
    assert!(holder.as_str().is_some_and(|holder| !holder.is_empty()));
    // What a controller deletes is made again.
    let path = "/api/v1/namespaces/first/serviceaccounts/default";
    let deleted = endpoint.send(Some(admin), "DELETE", path, &[], b"").unwrap().json();
    let uid = deleted["details"]["uid"].as_str().or(deleted["metadata"]["uid"].as_str()).unwrap().to_owned();
    eventually("the ServiceAccount made again", || {
        let account = endpoint.get(Some(admin), path)?.json();
        if account["metadata"]["uid"].as_str().is_some_and(|new| new != uid) {
            Ok(())
        } else {
            Err(account.to_string())
        }
    });

    delete_namespace_with_finalizer(&endpoint, admin);

    let renewed = lease(&endpoint, admin).unwrap()["renewTime"].clone();
    embedded.process.signal(Signal::KILL);
    embedded.restart();
    create_namespace(&endpoint, admin, "after-restart");
    wait_for_content(&endpoint, admin, "after-restart", authority);
    eventually("the Lease renewed after the restart", || {
        let spec = lease(&endpoint, admin)?;
        let is_renewed = spec["renewTime"].as_str() > renewed.as_str();
        if is_renewed && spec["holderIdentity"] == holder { Ok(()) } else { Err(spec.to_string()) }
    });
    assert_eq!(manager.log().matches("Successfully acquired lease").count(), 1);
    assert_eq!(failed_watches(&manager.log()), [""; 0]);
}

/// A namespace with an object that a finalizer holds stays until the finalizer is gone; everything else is deleted.
fn delete_namespace_with_finalizer(endpoint: &HttpsEndpoint, admin: &Identity) {
    create_namespace(endpoint, admin, "held");
    let maps = "/api/v1/namespaces/held/configmaps";
    let held = format!("{maps}/held");
    endpoint.create(admin, maps, &json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}}));
    endpoint.create(admin, maps, &json!({"metadata": {"name": "free"}}));
    endpoint.create(admin, "/api/v1/namespaces/held/secrets", &json!({"metadata": {"name": "free"}}));
    let response = endpoint.send(Some(admin), "DELETE", "/api/v1/namespaces/held", &[], b"").unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
    eventually("everything deleted but what the finalizer holds", || {
        let secrets = endpoint.get(Some(admin), "/api/v1/namespaces/held/secrets")?.json();
        let left = endpoint.get(Some(admin), maps)?.json();
        let items = left["items"].as_array().cloned().unwrap_or_default();
        let is_marked = |item: &Value| item["metadata"]["deletionTimestamp"].is_string();
        match items.len() == 1 && items.iter().all(is_marked) && secrets["items"] == json!([]) {
            true => Ok(()),
            false => Err(format!("{left} {secrets}")),
        }
    });
    let namespace = endpoint.get(Some(admin), "/api/v1/namespaces/held").unwrap().json();
    assert_eq!(namespace["status"]["phase"], "Terminating");
    let patch = json!({"metadata": {"finalizers": null}}).to_string();
    let headers = [("content-type", "application/merge-patch+json")];
    let response = endpoint.send(Some(admin), "PATCH", &held, &headers, patch.as_bytes()).unwrap();
    assert_eq!(response.status, 200, "{}", response.text());
    eventually("the namespace deleted", || {
        let response = endpoint.get(Some(admin), "/api/v1/namespaces/held")?;
        if response.status == 404 { Ok(()) } else { Err(response.text()) }
    });
}

fn create_namespace(endpoint: &HttpsEndpoint, admin: &Identity, name: &str) {
    endpoint.create(admin, "/api/v1/namespaces", &json!({"metadata": {"name": name}}));
}

/// Waits for the ServiceAccount `default` and for the ConfigMap `kube-root-ca.crt` with `authority`.
fn wait_for_content(endpoint: &HttpsEndpoint, admin: &Identity, namespace: &str, authority: &std::path::Path) {
    let authority = std::fs::read_to_string(authority).unwrap();
    eventually(&format!("objects of the controllers in {namespace}"), || {
        let path = format!("/api/v1/namespaces/{namespace}");
        let account = endpoint.get(Some(admin), &format!("{path}/serviceaccounts/default"))?;
        let map = endpoint.get(Some(admin), &format!("{path}/configmaps/kube-root-ca.crt"))?;
        match account.status == 200 && map.json()["data"]["ca.crt"] == *authority {
            true => Ok(()),
            false => Err(format!("{} {}", account.text(), map.text())),
        }
    });
}

fn lease(endpoint: &HttpsEndpoint, admin: &Identity) -> Result<Value, String> {
    Ok(endpoint.get(Some(admin), LEASE)?.json()["spec"].clone())
}
