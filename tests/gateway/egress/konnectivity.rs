//! Konnectivity over gRPC: a fake server (with its agent inside) and the gateway as its client.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use konnectivity_client::{Packet, PacketDecoder};
use serde_json::json as value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::egress::selections::{assert_egress_failure, start_gateway_behind_failing_proxy};
use crate::support::backend::{BackendSettings, data_frame, start_watch_backend};
use crate::support::client::{admin_request, get, metric_value, next_chunk};
use crate::support::fake_egress_proxy::{
    EgressProxyRequest, FakeEgressProxy, ProxyAction, ProxyClientStream, ProxyPolicy, ProxyProtocol,
};
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, open_watch, register_things};

/// Where no packet gets (RFC 5737).
const UNROUTABLE: &str = "192.0.2.10:8443";

/// Serves one connection: every stream of it is a tunnel.
pub(crate) async fn serve_grpc(
    stream: Box<dyn ProxyClientStream>,
    policy: ProxyPolicy,
    kept: Arc<Mutex<Vec<EgressProxyRequest>>>,
) -> Option<()> {
    // As gRPC's Go implementation, which gives the connection's window back as bytes come.
    let mut connection =
        h2::server::Builder::new().initial_connection_window_size(64 << 20).handshake(stream).await.ok()?;
    let mut tunnels = JoinSet::new();
    while let Some(accepted) = connection.accept().await {
        let (request, response) = accepted.ok()?;
        assert_eq!(request.uri().path(), "/ProxyService/Proxy");
        tunnels.spawn(serve_tunnel(request.into_body(), response, policy.clone(), kept.clone()));
        while tunnels.try_join_next().is_some() {}
    }
    Some(())
}

async fn serve_tunnel(
    mut from: RecvStream,
    mut response: SendResponse<Bytes>,
    policy: ProxyPolicy,
    kept: Arc<Mutex<Vec<EgressProxyRequest>>>,
) -> Option<()> {
    let mut frames = PacketDecoder::default();
    let first = next_packet(&mut from, &mut frames, &mut Bytes::new()).await?;
    let Packet::DialRequest { protocol, address, random } = first else { panic!("{first:?}") };
    assert_eq!(protocol, "tcp");
    let recorded = EgressProxyRequest { target: address, credentials: String::new(), head: String::new() };
    let deed = policy(&recorded);
    kept.lock().unwrap().push(recorded);
    let head = http::Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let mut to = response.send_response(head, false).ok()?;
    let mut refuse =
        |error: String| to.send_data(Packet::DialResponse { error, connection: 0, random }.encode_frame(), false).ok();
    let far = match deed {
        ProxyAction::Connect(far) | ProxyAction::ConnectAndReply(far, _) => far,
        ProxyAction::Reply(words) => {
            refuse(String::from_utf8(words).unwrap())?;
            return wait_for_end(&mut from).await;
        }
        ProxyAction::Hang => return wait_for_end(&mut from).await,
    };
    let far = match TcpStream::connect(far).await {
        Ok(far) => far,
        Err(error) => {
            refuse(format!("dial tcp {far}: connect: {error}").to_lowercase())?;
            return wait_for_end(&mut from).await;
        }
    };
    far.set_nodelay(true).ok()?;
    to.send_data(Packet::DialResponse { error: String::new(), connection: 7, random }.encode_frame(), false).ok()?;
    let (reader, mut writer) = far.into_split();
    let upwards = async {
        let mut piece = Bytes::new();
        while let Some(packet) = next_packet(&mut from, &mut frames, &mut piece).await {
            match packet {
                Packet::Data { connection: 7, data } => writer.write_all(&data).await.ok()?,
                Packet::CloseRequest { connection: 7 } => break,
                other => panic!("{other:?}"),
            }
        }
        Some(())
    };
    tokio::select! {
        _ = upwards => {}
        _ = copy_to_client(reader, &mut to) => {}
    }
    to.send_data(Packet::CloseResponse { error: String::new(), connection: 7 }.encode_frame(), false).ok()?;
    wait_for_end(&mut from).await
}

/// As an agent of the reference reads: 4 KiB at a time.
async fn copy_to_client(mut far: tokio::net::tcp::OwnedReadHalf, to: &mut SendStream<Bytes>) -> Option<()> {
    let mut buffer = vec![0; 4096];
    loop {
        let length @ 1.. = far.read(&mut buffer).await.ok()? else { return Some(()) };
        let mut bytes = Packet::Data { connection: 7, data: Bytes::copy_from_slice(&buffer[..length]) }.encode_frame();
        while !bytes.is_empty() {
            to.reserve_capacity(bytes.len());
            let mut room = to.capacity();
            if room == 0 {
                room = std::future::poll_fn(|cx| to.poll_capacity(cx)).await?.ok()?;
            }
            to.send_data(bytes.split_to(room.min(bytes.len())), false).ok()?;
        }
    }
}

async fn next_packet(from: &mut RecvStream, frames: &mut PacketDecoder, piece: &mut Bytes) -> Option<Packet> {
    loop {
        if let Some(read) = frames.decode(piece).unwrap() {
            return Some(read.packet);
        }
        *piece = from.data().await?.ok()?;
        let _ = from.flow_control().release_capacity(piece.len());
    }
}

/// Waits until the client leaves.
async fn wait_for_end(from: &mut RecvStream) -> Option<()> {
    while from.data().await?.is_ok() {}
    Some(())
}

/// A gateway with a backend behind the Konnectivity server at this socket, configured as for kube-apiserver.
fn start_gateway(environment: TestEnvironment, socket: &Path) -> GatewayFixture {
    let path = environment.path("selector.yaml");
    let text = format!(
        "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n- name: cluster\n  \
         connection: {{proxyProtocol: GRPC, transport: {{uds: {{udsName: {}}}}}}}\n",
        socket.display()
    );
    std::fs::write(&path, text).unwrap();
    register_things(&environment, &[UNROUTABLE.parse().unwrap()], &[]);
    GatewayFixture::from_registry(
        environment,
        &[&format!("--egress-selector-config-file={}", path.display()), "--access-log=all"],
    )
}

fn connect_to(address: SocketAddr) -> impl Fn(&EgressProxyRequest) -> ProxyAction + Send + Sync + 'static {
    move |_| ProxyAction::Connect(address)
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_carries_requests_watches_and_probes() {
    let environment = TestEnvironment::new();
    let (backend, writers) = start_watch_backend(&environment, BackendSettings::default()).await;
    let socket = environment.path("konnectivity.sock");
    let server = FakeEgressProxy::start_unix(ProxyProtocol::Konnectivity, &socket, connect_to(backend.address));
    let setup = start_gateway(environment, &socket);
    let client = setup.http2().await;
    assert_eq!(client.get(THINGS).await.status, 200);
    let mut watch = open_watch(&client).await;
    writers.lock().unwrap()[0].send(data_frame("second\n")).unwrap();
    assert_eq!(next_chunk(&mut watch).await.unwrap().unwrap(), "second\n");
    let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1.things.example.com";
    let probed = eventually("a probe through the tunnel", async || {
        let status = client.get(path).await.json();
        (status["status"]["conditions"][0]["status"] == "True").then_some(())
    });
    probed.await;
    assert_eq!(server.targets(), [UNROUTABLE], "the far end is told what is registered, and nothing else");
    let dials = server.requests().len();
    let responses = futures_util::future::join_all((0..100).map(|_| client.get(THINGS))).await;
    assert!(responses.iter().all(|response| response.status == 200) && server.requests().len() == dials);
    let now = admin_request(&setup.gateway, get("/status.json", &[])).await.json();
    assert_eq!(now["apiservices"][0]["egressRoute"], "cluster (grpc)");
    assert_eq!(now["egress"][0]["state"], value!("serves"));
    let started = "apiserver_egress_dialer_dial_start_total{protocol=\"grpc\",transport=\"uds\"}";
    assert!(metric_value(&setup.gateway, started).await.unwrap() >= 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_dial_failures_mapped_to_statuses() {
    let refused = "dial tcp: lookup things on 10.96.0.10:53: read udp 10.0.0.9:3->10.96.0.10:53: connection refused";
    let cases: [(u8, &str, u16, &str, &str); 8] = [
        (1, "No agent available", 503, "ServiceUnavailable", "NoAgent"),
        (2, "dial tcp 192.0.2.2:443: connect: connection refused", 502, "InternalError", "ConnectionRefused"),
        (3, "dial tcp 192.0.2.3:443: i/o timeout", 504, "Timeout", "ProxyTimeout"),
        (4, "dial tcp: lookup things: no such host", 502, "InternalError", "NameNotResolved"),
        (5, "dial tcp 192.0.2.5:443: connect: no route to host", 502, "InternalError", "HostUnreachable"),
        (6, "dial tcp 192.0.2.6:443: socket: too many open files", 502, "InternalError", "ProxyFailed"),
        (7, "", 504, "Timeout", "ProxyTimeout"),
        (8, refused, 502, "InternalError", "NameNotResolved"),
    ];
    let numbers = cases.map(|case| case.0);
    let (setup, client, _server) =
        start_gateway_behind_failing_proxy(ProxyProtocol::Konnectivity, &numbers, move |number| {
            match cases.iter().find(|case| case.0 == number) {
                Some((_, words, ..)) if !words.is_empty() => ProxyAction::Reply(words.as_bytes().to_vec()),
                _ => ProxyAction::Hang,
            }
        })
        .await;
    for (number, _, code, reason, cause) in cases {
        assert_egress_failure(&client, number, code, reason, cause).await;
    }
    setup.gateway.wait_for_log(&["No agent available"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_server_restart_ends_watches_and_recovers() {
    let environment = TestEnvironment::new();
    let (backend, _writers) = start_watch_backend(&environment, BackendSettings::default()).await;
    let socket = environment.path("konnectivity.sock");
    let server = FakeEgressProxy::start_unix(ProxyProtocol::Konnectivity, &socket, connect_to(backend.address));
    let setup = start_gateway(environment, &socket);
    let client = setup.http2().await;
    let mut watch = open_watch(&client).await;
    server.stop().await;
    std::fs::remove_file(&socket).unwrap();
    // Between two events a watch ends, and its client asks for the rest.
    assert!(next_chunk(&mut watch).await.is_none_or(|rest| rest.is_err()));
    let gone = eventually("the word that it is gone", async || {
        let response = client.get(THINGS).await;
        (response.status == 503 && response.text().contains("ProxyUnreachable")).then_some(())
    });
    gone.await;
    let _server = FakeEgressProxy::start_unix(ProxyProtocol::Konnectivity, &socket, connect_to(backend.address));
    eventually("the server", async || (client.get(THINGS).await.status == 200).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_connect_timeout_reported_as_unreachable() {
    // The kernel accepts the connection, and no data ever arrives.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let environment = TestEnvironment::new();
    let text = format!(
        "apiVersion: narthex.dev/v1alpha1\nkind: EgressConfiguration\negressSelections:\n- name: cluster\n  \
         connection: {{proxyProtocol: GRPC, transport: {{tcp: {{url: http://{}}}}}}}\n  dialTimeout: 1s\n",
        silent.local_addr().unwrap()
    );
    let path = environment.path("egress.yaml");
    std::fs::write(&path, text).unwrap();
    register_things(&environment, &[UNROUTABLE.parse().unwrap()], &[]);
    let setup =
        GatewayFixture::from_registry(environment, &[&format!("--egress-selector-config-file={}", path.display())]);
    let client = setup.http2().await;
    let message = eventually("the word that it cannot be reached", async || {
        let response = client.get(THINGS).await;
        (response.status == 503 && response.text().contains("ProxyUnreachable")).then_some(())
    });
    message.await;
    let now = admin_request(&setup.gateway, get("/status.json", &[])).await.json();
    let state = now["egress"][0]["state"].as_str().unwrap();
    assert!(state.starts_with("fails since ") && state.contains("ProxyUnreachable"), "{state}");
    let failed = |fixture| {
        format!("apiserver_egress_dialer_dial_failure_count{{protocol=\"grpc\",stage=\"{fixture}\",transport=\"tcp\"}}")
    };
    assert!(metric_value(&setup.gateway, &failed("connect")).await.unwrap() >= 1.0);
    assert_eq!(metric_value(&setup.gateway, &failed("proxy")).await.unwrap_or_default(), 0.0);
}
