//! Malformed discovery documents: a backend that sends them does not affect a healthy one.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::support::backend::{Backend, BackendResponse, BackendSettings, json_response as response};
use crate::support::client::{Client, get};
use crate::support::fixtures::{TestEnvironment, eventually};

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn settings(name: &str) -> BackendSettings {
    let host: &'static str = format!("{name}-v1.{name}.svc").leak();
    BackendSettings { names: vec![host], handles_probes: true, ..BackendSettings::http1() }
}

/// What a server of `group` says of itself.
fn discovery_list(group: &str) -> Value {
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": [
        {"metadata": {"name": group}, "versions": [{"version": "v1", "freshness": "Current", "resources": [
            {"resource": "things", "responseKind": {"group": group, "version": "v1", "kind": "Thing"}, "scope": "Cluster",
             "singularResource": "thing", "verbs": ["get"]}]}]}]})
}

fn response_with_content_type(body: &str, content_type: &str) -> BackendResponse {
    let mut response = response(200, body);
    response.headers_mut().insert("content-type", content_type.parse().unwrap());
    response
}

/// Registers what listens at `address`.
fn gzipped(plain: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut packer, plain).unwrap();
    packer.finish().unwrap()
}

fn gzipped_response(packed: bytes::Bytes) -> BackendResponse {
    let mut response = response_with_content_type("", V2);
    let body = http_body_util::Full::new(packed);
    *response.body_mut() =
        http_body_util::BodyExt::boxed(http_body_util::BodyExt::map_err(body, |never| match never {}));
    response.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
    response
}

fn register_backend(environment: &TestEnvironment, name: &str, address: SocketAddr) {
    let group = format!("{name}.example.com");
    environment
        .write_registry(&format!("v1.{group}.yaml"), &environment.apiservice_manifests(&group, "v1", &[address], ""));
}

/// A backend that answers all questions with the same.
async fn start_fixed_backend(
    environment: &TestEnvironment,
    name: &str,
    say: impl Fn() -> BackendResponse + Send + Sync + 'static,
) -> Backend {
    let say = std::sync::Arc::new(say);
    let backend = Backend::start(environment, settings(name), move |_| {
        let say = say.clone();
        async move { say() }
    })
    .await;
    register_backend(environment, name, backend.address);
    backend
}

/// A backend that sends `head` once, then `rest` without end.
async fn start_endless_backend(environment: &TestEnvironment, name: &str, head: &'static str, rest: String) -> Backend {
    let backend = Backend::start_raw(environment, settings(name), move |mut stream| {
        let rest = rest.clone();
        async move {
            let mut going = stream.write_all(head.as_bytes()).await.is_ok();
            while going {
                going = stream.write_all(rest.as_bytes()).await.is_ok();
            }
        }
    })
    .await;
    register_backend(environment, name, backend.address);
    backend
}

async fn discovery_lines(client: &Client) -> Vec<String> {
    let document = client.send_and_read(get("/apis", &[("accept", V2)])).await.json();
    let line = |item: &Value| {
        let name = item["metadata"]["name"].as_str()?.strip_suffix(".example.com")?.to_owned();
        let version = &item["versions"][0];
        let resources = version["resources"].as_array().map_or(0, Vec::len);
        Some(format!("{name} {} {resources}", version["freshness"].as_str()?))
    };
    document["items"].as_array().unwrap().iter().filter_map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_discovery_of_one_backend_does_not_affect_others() {
    let environment = TestEnvironment::new();
    let bomb = bytes::Bytes::from(gzipped(&vec![b' '; 64 << 20]));
    let bomb = move || gzipped_response(bomb.clone());
    // Correct, and compressed unasked: Go's clients unpack it.
    let packed = bytes::Bytes::from(gzipped(discovery_list("packed.example.com").to_string().as_bytes()));
    let elsewhere = || {
        let mut response = response(302, "");
        response.headers_mut().insert("location", "https://127.0.0.1:1/apis".parse().unwrap());
        response
    };
    let chunks = format!("4000\r\n{}\r\n", " ".repeat(0x4000));
    let hints = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(100);
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let _bad = [
        start_endless_backend(&environment, "chunks", chunked, chunks).await,
        start_endless_backend(&environment, "hints", "", hints).await,
        start_endless_backend(&environment, "header", "HTTP/1.1 200 OK\r\nx-long: ", "a".repeat(4096)).await,
        start_endless_backend(
            &environment,
            "large",
            "HTTP/1.1 200 OK\r\ncontent-length: 104857600\r\n\r\n",
            " ".repeat(1 << 16),
        )
        .await,
        start_fixed_backend(&environment, "bomb", bomb).await,
        start_fixed_backend(&environment, "packed", move || gzipped_response(packed.clone())).await,
        start_fixed_backend(&environment, "elsewhere", elsewhere).await,
        start_fixed_backend(&environment, "other", || {
            response_with_content_type(&discovery_list("good.example.com").to_string(), V2)
        })
        .await,
        start_fixed_backend(&environment, "page", || response_with_content_type("<html>log in</html>", "text/html"))
            .await,
        start_fixed_backend(&environment, "proto", || {
            response_with_content_type("k8s\0", "application/vnd.kubernetes.protobuf")
        })
        .await,
        start_fixed_backend(&environment, "unmodified", || response(304, "")).await,
    ];
    let tags = std::sync::atomic::AtomicUsize::new(0);
    let _good = start_fixed_backend(&environment, "good", move || {
        // A tag that means nothing: another one each time for the same.
        let mut response = response_with_content_type(&discovery_list("good.example.com").to_string(), V2);
        let tag = format!("W/\"{}\"", tags.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        response.headers_mut().insert("etag", tag.parse().unwrap());
        response
    })
    .await;
    let gateway = environment.start_gateway(&[]);
    let client = Client::http2(&environment, &gateway, Some(&environment.issue_user("jane", &[]))).await;
    let expected = [
        "bomb Stale 0",
        "chunks Stale 0",
        "elsewhere Stale 0",
        "good Current 1",
        "header Stale 0",
        "hints Stale 0",
        "large Stale 0",
        "other Stale 0",
        "packed Current 1",
        "page Stale 0",
        "proto Stale 0",
        "unmodified Stale 0",
    ];
    eventually("the good one", async || (discovery_lines(&client).await == expected).then_some(())).await;
    let problems = eventually("all the others to be named", async || {
        let status = crate::support::client::admin_request(&gateway, get("/status.json", &[])).await.json();
        let problems = status["documentProblems"].as_array().unwrap().clone();
        let rows = status["apiservices"].as_array().unwrap().clone();
        // Of an APIService that is not available, its condition says why.
        let named = |name: &str| {
            let start = format!("v1.{name}.");
            problems.iter().any(|it| it.as_str().unwrap().starts_with(&start))
                || rows.iter().any(|it| it["name"].as_str().unwrap().starts_with(&start) && it["available"] == false)
        };
        let all = expected
            .iter()
            .filter(|line| !line.ends_with("Current 1"))
            .all(|line| named(line.split(' ').next().unwrap_or_default()));
        all.then_some(problems.clone())
    })
    .await;
    assert!(problems.iter().all(|problem| problem.as_str().unwrap().len() < 400), "{problems:?}");
    assert_eq!(discovery_lines(&client).await, expected);
    assert_eq!(client.get("/apis/good.example.com/v1/things").await.status, 200);
    // None of it is hoarded.
    assert!(gateway.resident_kilobytes() < 200_000, "{} kB", gateway.resident_kilobytes());
}
