//! Malformed discovery documents: a backend that sends them does not affect a healthy one.

use std::net::SocketAddr;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::backend::{Answer, Backend, Settings, json as answer};
use crate::client::{Client, get};
use crate::world::{World, eventually};

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

fn settings(name: &str) -> Settings {
    let host: &'static str = format!("{name}-v1.{name}.svc").leak();
    Settings { names: vec![host], all: true, ..Settings::http1() }
}

/// What a server of `group` says of itself.
fn list(group: &str) -> Value {
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": [
        {"metadata": {"name": group}, "versions": [{"version": "v1", "freshness": "Current", "resources": [
            {"resource": "things", "responseKind": {"group": group, "version": "v1", "kind": "Thing"}, "scope": "Cluster",
             "singularResource": "thing", "verbs": ["get"]}]}]}]})
}

fn typed(body: &str, content_type: &str) -> Answer {
    let mut answer = answer(200, body);
    answer.headers_mut().insert("content-type", content_type.parse().unwrap());
    answer
}

/// Registers what listens at `address`.
fn register(world: &World, name: &str, address: SocketAddr) {
    let group = format!("{name}.example.com");
    world.registry(&format!("v1.{group}.yaml"), &world.manifests(&group, "v1", &[address], ""));
}

/// A backend that answers all questions with the same.
async fn saying(world: &World, name: &str, say: impl Fn() -> Answer + Send + Sync + 'static) -> Backend {
    let say = std::sync::Arc::new(say);
    let backend = Backend::start(world, settings(name), move |_| {
        let say = say.clone();
        async move { say() }
    })
    .await;
    register(world, name, backend.address);
    backend
}

/// A backend that sends `head` once, then `rest` without end.
async fn endless(world: &World, name: &str, head: &'static str, rest: String) -> Backend {
    let backend = Backend::raw(world, settings(name), move |mut stream| {
        let rest = rest.clone();
        async move {
            let mut going = stream.write_all(head.as_bytes()).await.is_ok();
            while going {
                going = stream.write_all(rest.as_bytes()).await.is_ok();
            }
        }
    })
    .await;
    register(world, name, backend.address);
    backend
}

async fn shown(client: &Client) -> Vec<String> {
    let document = client.ask(get("/apis", &[("accept", V2)])).await.json();
    let line = |item: &Value| {
        let name = item["metadata"]["name"].as_str()?.strip_suffix(".example.com")?.to_owned();
        let version = &item["versions"][0];
        let resources = version["resources"].as_array().map_or(0, Vec::len);
        Some(format!("{name} {} {resources}", version["freshness"].as_str()?))
    };
    document["items"].as_array().unwrap().iter().filter_map(line).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_backend_says_of_itself_the_others_are_as_they_were() {
    let world = World::new();
    let packed = {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut packer, &vec![b' '; 64 << 20]).unwrap();
        bytes::Bytes::from(packer.finish().unwrap())
    };
    let bomb = move || {
        let mut bomb = typed("", V2);
        let body = http_body_util::Full::new(packed.clone());
        *bomb.body_mut() =
            http_body_util::BodyExt::boxed(http_body_util::BodyExt::map_err(body, |never| match never {}));
        bomb.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        bomb
    };
    let elsewhere = || {
        let mut answer = answer(302, "");
        answer.headers_mut().insert("location", "https://127.0.0.1:1/apis".parse().unwrap());
        answer
    };
    let chunks = format!("4000\r\n{}\r\n", " ".repeat(0x4000));
    let hints = "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n".repeat(100);
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let _bad = [
        endless(&world, "chunks", chunked, chunks).await,
        endless(&world, "hints", "", hints).await,
        endless(&world, "header", "HTTP/1.1 200 OK\r\nx-long: ", "a".repeat(4096)).await,
        endless(&world, "large", "HTTP/1.1 200 OK\r\ncontent-length: 104857600\r\n\r\n", " ".repeat(1 << 16)).await,
        saying(&world, "bomb", bomb).await,
        saying(&world, "elsewhere", elsewhere).await,
        saying(&world, "other", || typed(&list("good.example.com").to_string(), V2)).await,
        saying(&world, "page", || typed("<html>log in</html>", "text/html")).await,
        saying(&world, "proto", || typed("k8s\0", "application/vnd.kubernetes.protobuf")).await,
        saying(&world, "unmodified", || answer(304, "")).await,
    ];
    let tags = std::sync::atomic::AtomicUsize::new(0);
    let _good = saying(&world, "good", move || {
        // A tag that means nothing: another one each time for the same.
        let mut answer = typed(&list("good.example.com").to_string(), V2);
        let tag = format!("W/\"{}\"", tags.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        answer.headers_mut().insert("etag", tag.parse().unwrap());
        answer
    })
    .await;
    let gateway = world.gateway(&[]);
    let client = Client::http2(&world, &gateway, Some(&world.user("jane", &[]))).await;
    let expected = [
        "bomb Stale 0",
        "chunks Stale 0",
        "elsewhere Stale 0",
        "good Current 1",
        "header Stale 0",
        "hints Stale 0",
        "large Stale 0",
        "other Stale 0",
        "page Stale 0",
        "proto Stale 0",
        "unmodified Stale 0",
    ];
    eventually("the good one", async || (shown(&client).await == expected).then_some(())).await;
    let problems = eventually("all the others to be named", async || {
        let status = crate::client::admin(&gateway, get("/status.json", &[])).await.json();
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
            .filter(|line| !line.starts_with("good"))
            .all(|line| named(line.split(' ').next().unwrap_or_default()));
        all.then_some(problems.clone())
    })
    .await;
    assert!(problems.iter().all(|problem| problem.as_str().unwrap().len() < 400), "{problems:?}");
    assert_eq!(shown(&client).await, expected);
    assert_eq!(client.get("/apis/good.example.com/v1/things").await.status, 200);
    // None of it is hoarded.
    assert!(gateway.resident() < 200_000, "{} kB", gateway.resident());
}
