//! The header `Retry-After`: only where kube-apiserver sends it. kubectl retries a request whose response has it ten
//! times before it prints the error.

use http::Method;

use crate::backend::Settings;
use crate::client::request;
use crate::raw::{self, Talk};
use crate::refused::{cause, retry_after_seconds, says};
use crate::scene::{Scene, THINGS, register};
use crate::world::{World, eventually};

/// An address where nothing listens.
fn nobody() -> std::net::SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_header_absent_while_backend_is_down() {
    let scene = Scene::at(World::new(), &[nobody()], &[]);
    let clients = scene.both().await;
    for client in &clients {
        for method in [Method::GET, Method::POST] {
            let answer = client.ask(request(method, THINGS, &[], "{}")).await;
            says(&answer.refused(503, "ServiceUnavailable"), "ConnectionRefused");
            assert!(retry_after_seconds(&answer).is_some());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_header_absent_while_circuit_is_open() {
    let world = World::new();
    let backend = raw::http1(&world, Settings::http1(), async |mut talk: Talk| {
        talk.say("\0\u{1}\r\n\r\n").await;
        talk.close().await;
    })
    .await;
    // No probe of ours makes it unavailable meanwhile.
    let scene = Scene::new(world, &[&backend], &[("probe-interval", "24h")]);
    let clients = scene.both().await;
    eventually("the circuit to open", async || {
        let answer = clients[0].get(THINGS).await;
        (cause(&answer.json()) == "CircuitOpen").then_some(())
    })
    .await;
    for client in &clients {
        let answer = client.get(THINGS).await;
        // One of them may be the request that is let through to see whether the backend answers again.
        assert!(matches!(answer.status.as_u16(), 502 | 503), "{}", answer.status);
        assert!(retry_after_seconds(&answer).is_some());
        let answer = client.ask(request(Method::POST, THINGS, &[], "{}")).await;
        assert!(matches!(answer.status.as_u16(), 502 | 503), "{}", answer.status);
        assert_eq!(retry_after_seconds(&answer).is_some(), cause(&answer.json()) == "CircuitOpen");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_header_absent_in_text_format() {
    let world = World::new();
    register(&world, &[nobody()], &[]);
    let scene = Scene::of(world, &["--error-format=text"]);
    for client in scene.both().await {
        let answer = client.get(THINGS).await;
        assert_eq!((answer.status.as_u16(), &*answer.text()), (503, "service unavailable\n"));
        assert!(!answer.headers.contains_key("retry-after"));
    }
}
