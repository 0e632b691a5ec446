//! One control plane's backends are no other's: upgrades, limits, connections, health, objects, documents on disk.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use http::Request;
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::control_planes::fixture::{
    TestControlPlane, connect, flag, get_with_token, open, start_gateway, start_two, status_of, wait_for_state,
    write_control_planes, write_kubeconfig, write_token,
};
use crate::relay::upgrades::{RawUpgrade, WEBSOCKET};
use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{self, Client, admin_request, get, metric_value, next_chunk};
use crate::support::fixtures::{GatewayProcess, TEST_TIMEOUT, TestEnvironment, eventually};
use crate::support::raw_backend::{self, RawConnection};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// Settings of an API server at a loopback address that answers probes, too.
fn api_server(settings: BackendSettings) -> BackendSettings {
    BackendSettings { names: vec!["127.0.0.1"], handles_probes: true, ..settings }
}

/// An API server that opens a tunnel, says its name in it, and echoes; and the heads of the requests for one.
async fn start_exec_server(environment: &TestEnvironment, name: &'static str) -> (Backend, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::<Mutex<Vec<String>>>::default();
    let kept = heads.clone();
    let settings = api_server(BackendSettings::http1());
    let backend = raw_backend::http1(environment, settings, move |mut connection: RawConnection| {
        kept.lock().push(connection.head.to_lowercase());
        async move {
            let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";
            connection.write(format!("{head}{name}:")).await;
            loop {
                let bytes = std::mem::take(&mut connection.buffered);
                connection.write(&bytes).await;
                if connection.read_more().await.is_none() {
                    break;
                }
            }
            connection.close().await;
        }
    })
    .await;
    write_kubeconfig(environment, name, backend.address);
    (backend, heads)
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_upgrade_reaches_its_backend_with_its_identity_only() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    let (_server_of_c, heads_of_c) = start_exec_server(&environment, "c").await;
    let (_server_of_d, heads_of_d) = start_exec_server(&environment, "d").await;
    // The same token, path and connection settings; another user at each.
    write_token(&environment, "c", "shared", "alice");
    write_token(&environment, "d", "shared", "dora");
    let gateway = start_gateway(&environment, &[c.by_path(""), d.by_path("")], &[]);
    let mut tunnels = Vec::new();
    for name in ["c", "d", "c", "d"] {
        let stream = client::connect(&environment, gateway.address, None, &["http/1.1"]).await;
        let request = format!(
            "GET /clusters/{name}{PODS}/one/exec?command=sh HTTP/1.1\r\nhost: localhost\r\n\
             authorization: Bearer shared\r\nx-remote-user: root\r\n{WEBSOCKET}\r\n"
        );
        let mut tunnel = RawUpgrade::start_on(stream, &request).await;
        assert!(tunnel.read_head().await.starts_with("http/1.1 101 "), "{name}");
        tunnel.expect_text(&format!("{name}:")).await;
        tunnels.push((name, tunnel));
    }
    // Bytes of tunnels that are open at the same time stay apart.
    for (number, (name, tunnel)) in tunnels.iter_mut().enumerate() {
        tunnel.write(&format!("{name}{number}")).await;
    }
    for (number, (name, tunnel)) in tunnels.iter_mut().enumerate() {
        tunnel.expect_text(&format!("{name}{number}")).await;
    }
    for (heads, user) in [(&heads_of_c, "alice"), (&heads_of_d, "dora")] {
        let heads = heads.lock();
        assert_eq!(heads.len(), 2, "{heads:?}");
        for head in heads.iter() {
            let users: Vec<&str> = head.lines().filter_map(|line| line.strip_prefix("x-remote-user: ")).collect();
            assert_eq!(users, [user], "{head}");
            assert!(head.starts_with(&format!("get {PODS}/one/exec?command=sh ")), "{head}");
            assert!(!head.contains("shared"), "{head}");
        }
    }
}

/// An API server that does not answer requests for `…/stall`.
async fn start_stalling_server(environment: &TestEnvironment, settings: BackendSettings) -> Backend {
    Backend::start(environment, api_server(settings), |request: Request<Incoming>| async move {
        if request.uri().path().ends_with("/stall") {
            std::future::pending::<()>().await;
        }
        json_response(200, "{}")
    })
    .await
}

/// Requests for `…/stall` of the control plane `name` that are sent at once and not answered.
fn stall(client: &Client, name: &'static str, count: usize) -> Vec<tokio::task::JoinHandle<u16>> {
    let send = |_| {
        let client = client.clone();
        tokio::spawn(async move {
            get_with_token(&client, name, "/api/v1/namespaces/default/pods/stall", "shared").await.status.as_u16()
        })
    };
    (0..count).map(send).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_at_its_inflight_limit_takes_no_permit_of_another() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    let server = start_stalling_server(&environment, BackendSettings::http2()).await;
    for name in ["c", "d"] {
        write_kubeconfig(&environment, name, server.address);
        write_token(&environment, name, "shared", "alice");
    }
    let limits = ", maxRequestsInflight: 1, maxMutatingRequestsInflight: 1";
    let gateway = start_gateway(&environment, &[c.by_path(limits), d.by_path(limits)], &[]);
    let client = connect(&environment, &gateway, "localhost", None, "h2").await;
    let stalled = stall(&client, "c", 1);
    eventually("the request to be in flight", async || {
        status_of(&gateway, "c").await.filter(|row| row["inflight"] == 1).map(drop)
    })
    .await;
    for _ in 0..3 {
        get_with_token(&client, "c", PODS, "shared").await.assert_failure(429, "TooManyRequests");
        assert_eq!(get_with_token(&client, "d", PODS, "shared").await.status, 200);
    }
    assert_eq!(status_of(&gateway, "d").await.unwrap()["inflight"], 0);
    stalled.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_at_its_connection_limit_takes_no_connection_of_another() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    // One backend for both; each request in flight has a connection.
    let server = start_stalling_server(&environment, BackendSettings::http1()).await;
    for name in ["c", "d"] {
        write_kubeconfig(&environment, name, server.address);
        write_token(&environment, name, "shared", "alice");
    }
    write_control_planes(&environment, &[c.by_path(""), d.by_path("")]);
    let gateway = GatewayProcess::start_with_descriptors(256, &environment.gateway_arguments(&[&flag(&environment)]));
    // One client connection, so that one worker has all connections: at most as many as an endpoint may have.
    let client = connect(&environment, &gateway, "localhost", None, "h2").await;
    let mut stalled = stall(&client, "c", 80);
    let refused = eventually("requests beyond the limit to be refused", async || {
        let position = stalled.iter().position(|request| request.is_finished())?;
        Some(stalled.swap_remove(position))
    })
    .await;
    assert_eq!(refused.await.unwrap(), 503);
    for _ in 0..3 {
        assert_eq!(get_with_token(&client, "d", PODS, "shared").await.status, 200);
    }
    stalled.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_that_distrusts_a_backend_ejects_it_for_itself_only() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    // The same backend; c expects a certificate of another CA.
    let distrusting = environment.read_file("c.kubeconfig").replace("backend-ca.crt", "serving-ca.crt");
    fs::write(environment.path("c.kubeconfig"), distrusting).unwrap();
    write_kubeconfig(&environment, "d", c.server.address);
    for name in ["c", "d"] {
        write_token(&environment, name, "shared", "alice");
    }
    let gateway = start_gateway(&environment, &[c.by_path(""), d.by_path("")], &[]);
    let client = connect(&environment, &gateway, "localhost", None, "http/1.1").await;
    for _ in 0..10 {
        get_with_token(&client, "c", PODS, "shared").await.assert_failure(503, "ServiceUnavailable");
        assert_eq!(get_with_token(&client, "d", PODS, "shared").await.status, 200);
    }
    assert_eq!(c.client_requests().iter().filter(|path| *path == PODS).count(), 10);
    assert!(d.client_requests().is_empty());
    let metrics = admin_request(&gateway, get("/metrics", &[])).await.text();
    let failures_of = |name: &str| {
        let label = format!("control_plane=\"{name}\"");
        let samples = metrics.lines().filter(|line| line.contains(&label));
        let requests =
            samples.filter(|line| line.starts_with("apiserver_request_total{") && line.contains("code=\"503\""));
        requests.count()
    };
    assert_eq!((failures_of("c"), failures_of("d")), (1, 0), "{metrics}");
}

/// An APIService of `things.example.com/v1` in the registry directory `directory`.
fn write_apiservice(environment: &TestEnvironment, directory: &str, server: &Backend, priority: u32) {
    let probes = "  annotations: {narthex.dev/probe-interval: 1s}\n";
    let text = environment.apiservice_manifests("things.example.com", "v1", &[server.address], probes);
    let text = text.replace("versionPriority: 15", &format!("versionPriority: {priority}"));
    let directory = environment.path(directory);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join(".things.tmp"), text).unwrap();
    fs::rename(directory.join(".things.tmp"), directory.join("things.yaml")).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_apiservices_of_the_same_name_have_their_own_objects_watches_and_availability() {
    const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";
    const OBJECTS: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
    let environment = TestEnvironment::new();
    let mut servers = Vec::new();
    for (number, name) in ["c", "d"].into_iter().enumerate() {
        let answer = move |_| async move { json_response(200, &json!({"of": name}).to_string()) };
        let server = Backend::start(&environment, BackendSettings::default(), answer).await;
        write_apiservice(&environment, &format!("registry-{name}"), &server, 10 + u32::try_from(number).unwrap());
        write_token(&environment, name, "shared", "alice");
        servers.push(server);
    }
    let entry = |name: &str| {
        format!(
            "- {{name: {name}, pathPrefix: /clusters/{name}, registryDir: registry-{name}, \
             tokenAuthFile: {name}-tokens.csv}}\n"
        )
    };
    let gateway = start_gateway(&environment, &[entry("c"), entry("d")], &[]);
    let client = connect(&environment, &gateway, "localhost", None, "h2").await;
    let object = async |name: &str| {
        get_with_token(&client, name, &format!("{OBJECTS}/v1.things.example.com"), "shared").await.json()
    };
    let priority = async |name: &str| object(name).await["spec"]["versionPriority"].clone();
    assert_eq!((priority("c").await, priority("d").await), (json!(10), json!(11)));
    for name in ["c", "d"] {
        let response = get_with_token(&client, name, THINGS, "shared").await;
        assert_eq!(response.json(), json!({"of": name}), "{}", response.text());
    }
    // A change in one is no event of the other. Its own event comes later, and is the first.
    let version = async |name: &str| {
        let list = get_with_token(&client, name, OBJECTS, "shared").await.json();
        list["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    };
    let query = format!("{OBJECTS}?watch=1&resourceVersion={}", version("d").await);
    let token = [("authorization", "Bearer shared")];
    let mut watch = open(&client, "localhost", &format!("/clusters/d{query}"), &token).await.into_body();
    write_apiservice(&environment, "registry-c", &servers[0], 20);
    eventually("the change of c", async || (priority("c").await == 20).then_some(())).await;
    write_apiservice(&environment, "registry-d", &servers[1], 30);
    let event = tokio::time::timeout(TEST_TIMEOUT, next_chunk(&mut watch)).await.unwrap().unwrap().unwrap();
    let event: Value = serde_json::from_slice(event.split(|byte| *byte == b'\n').next().unwrap()).unwrap();
    assert_eq!(event["object"]["spec"]["versionPriority"], 30, "{event}");
    // The backend of c goes; the APIService of that name stays available at d.
    servers.remove(0).stop().await;
    let available = async |name: &str| {
        let object = object(name).await;
        object["status"]["conditions"][0]["status"].as_str().unwrap_or_default().to_owned()
    };
    eventually("the APIService of c to be unavailable", async || (available("c").await == "False").then_some(())).await;
    assert_eq!(available("d").await, "True");
    assert_eq!(get_with_token(&client, "d", THINGS, "shared").await.status, 200);
    get_with_token(&client, "c", THINGS, "shared").await.assert_failure(503, "ServiceUnavailable");
    for (name, value) in [("c", 1.0), ("d", 0.0)] {
        let sample =
            format!("aggregator_unavailable_apiservice{{name=\"v1.things.example.com\",control_plane=\"{name}\"}}");
        eventually(&sample, async || (metric_value(&gateway, &sample).await == Some(value)).then_some(())).await;
    }
    assert_eq!(status_of(&gateway, "d").await.unwrap()["unavailable"], json!([]));
    // The refusal is the operator's to see, with the control plane.
    let report = admin_request(&gateway, get("/status.json", &[])).await.json();
    let refusals = report["refusals"].as_array().unwrap();
    let paths: BTreeSet<&str> = refusals.iter().map(|row| row["path"].as_str().unwrap()).collect();
    assert_eq!(paths, BTreeSet::from([format!("c {THINGS}").as_str()]), "{refusals:?}");
}

/// The groups that a control plane serves now.
async fn groups(client: &Client, name: &str) -> BTreeSet<String> {
    let list = get_with_token(client, name, "/apis", "shared").await.json();
    let names = list["groups"].as_array().into_iter().flatten().map(|group| group["name"].as_str().unwrap().to_owned());
    names.filter(|name| name.ends_with(".example.com")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_documents_on_disk_are_of_one_control_plane_and_backend() {
    let environment = TestEnvironment::new();
    let (c, d) = start_two(&environment).await;
    let entries = [c.by_path(""), d.by_path("")];
    let mut gateway = start_gateway(&environment, &entries, &[]);
    let client = connect(&environment, &gateway, "localhost", None, "h2").await;
    let own = |name: &str| BTreeSet::from([format!("{name}.example.com")]);
    for name in ["c", "d"] {
        eventually(name, async || (groups(&client, name).await == own(name)).then_some(())).await;
        // The directory is made before the document is written.
        let saved = environment.path(&format!("data/control-planes/{name}/last-good/discovery"));
        let is_document = |file: &fs::DirEntry| file.path().extension().is_some_and(|extension| extension == "gz");
        eventually("a saved document", async || {
            fs::read_dir(&saved).ok()?.filter_map(Result::ok).find(is_document).map(drop)
        })
        .await;
    }
    drop(client);
    gateway.signal("TERM");
    assert!(gateway.wait_for_exit().await.success());
    // The saved documents are served while the backends are gone; each control plane has its own.
    c.server.stop().await;
    d.server.stop().await;
    let mut gateway = start_gateway(&environment, &entries, &[]);
    let client = connect(&environment, &gateway, "localhost", None, "h2").await;
    for name in ["c", "d"] {
        eventually(name, async || (groups(&client, name).await == own(name)).then_some(())).await;
    }
    drop(client);
    gateway.signal("TERM");
    assert!(gateway.wait_for_exit().await.success());
    // A control plane with another backend serves neither the documents of its name nor those of that backend.
    let (of_c, of_d) = (environment.read_file("c.kubeconfig"), environment.read_file("d.kubeconfig"));
    fs::write(environment.path("c.kubeconfig"), of_d).unwrap();
    fs::write(environment.path("d.kubeconfig"), of_c).unwrap();
    let gateway = start_gateway(&environment, &entries, &[]);
    let client = connect(&environment, &gateway, "localhost", None, "h2").await;
    for name in ["c", "d"] {
        wait_for_state(&gateway, name, "serving").await;
        assert_eq!(groups(&client, name).await, BTreeSet::new(), "{name}");
    }
}
