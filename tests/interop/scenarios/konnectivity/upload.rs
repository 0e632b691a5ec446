//! Uploads to a backend that does not read request bodies. A target that does not read its connection blocks the
//! reference agent for all; HTTP/2 flow control stops only the one body.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Method, Response};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::pattern;
use super::upgrade::{BASE, DOCUMENT, serving, start_gateway_with_agent};
use crate::environment::{KonnectivityMode, TestEnvironment, runtime};

pub(super) fn unread_upload_isolated(environment: &TestEnvironment) {
    let begun = Arc::new(AtomicUsize::new(0));
    let (gateway, konnectivity) = start_gateway_with_agent(
        environment,
        KonnectivityMode::GrpcUnix,
        "deaf-backend",
        backend(environment, begun.clone()),
    );
    let admin = environment.cluster.admin();
    runtime().block_on(async {
        // 40 MiB: three times what blocks the agent without flow control.
        let body = pattern(2 << 20);
        let mut uploads = join_all((0..20).map(async |_| {
            let mut stream = gateway.endpoint.connect(Some(admin), b"http/1.1").await.unwrap();
            let head = format!(
                "POST {BASE}/namespaces/a/things HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\n\r\n",
                body.len()
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            let _ = timeout(Duration::from_secs(3), stream.write_all(&body)).await;
            stream
        }))
        .await;
        for _ in 0..100 {
            let (endpoint, admin) = (gateway.endpoint.clone(), admin.clone());
            let asked = tokio::task::spawn_blocking(move || endpoint.get(Some(&admin), BASE).unwrap());
            assert_eq!(asked.await.unwrap().status, 200);
        }
        assert_eq!(begun.load(Relaxed), 20, "uploads that reached the backend");
        for upload in &mut uploads {
            assert!(timeout(Duration::from_millis(10), upload.read_u8()).await.is_err(), "an upload got a response");
        }
    });
    let agent_connections = konnectivity.agents[0].count("konnectivity_network_proxy_agent_open_endpoint_connections");
    assert!(agent_connections > 0.0, "no connection at the agent");
}

/// Responds to requests without a body; leaves others pending.
fn backend(environment: &TestEnvironment, begun: Arc<AtomicUsize>) -> u16 {
    let acceptor = TlsAcceptor::from(serving(environment, Some(b"h2")));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, begun) = (acceptor.clone(), begun.clone());
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(acceptor.accept(socket).await.ok()?).await.ok()?;
                    let mut unread = Vec::new();
                    while let Some(Ok((request, mut response))) = connection.accept().await {
                        if request.method() == Method::POST {
                            begun.fetch_add(1, Relaxed);
                            unread.push((request, response));
                            continue;
                        }
                        let head = Response::builder().header("content-type", "application/json").body(()).unwrap();
                        let mut body = response.send_response(head, false).ok()?;
                        body.send_data(Bytes::from_static(DOCUMENT.as_bytes()), true).ok()?;
                    }
                    Some(())
                });
            }
        });
    });
    port
}
