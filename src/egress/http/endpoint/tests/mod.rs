//! Endpoints without TLS, and over Unix domain sockets.

mod server;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http::header::{CONNECTION, TE, UPGRADE};
use http::{HeaderMap, Method, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

use self::server::EchoServer;
use super::*;
use crate::egress::{BackendTls, EgressRoute, Host, Pool, Resolver};
use crate::message::BodyError;
use crate::tls::client::ClientSettings;
use crate::tls::{Authority, CertificateSpec as Wanted};

const PLAINTEXT_HTTP1: TransportSecurity = TransportSecurity::Plaintext(HttpVersion::Http1);
const PLAINTEXT_HTTP2: TransportSecurity = TransportSecurity::Plaintext(HttpVersion::Http2);

fn upstream(address: &Address, wire: TransportSecurity) -> EndpointKey {
    let connect_timeout = Duration::from_secs(5);
    EndpointKey {
        address: address.clone(),
        security: wire,
        connect_timeout,
        egress_route: EgressRoute::Direct,
        preserve_host: false,
    }
}

fn endpoint(address: &Address, wire: TransportSecurity) -> Rc<Endpoint> {
    Pool::new(Resolver::System).endpoint(&upstream(address, wire))
}

fn get(path: &str) -> Box<Request<Body>> {
    let mut request = Box::new(Request::new(Body::Empty));
    *request.uri_mut() = path.parse().unwrap();
    request
}

/// The complete response body and its trailers; the connection can be reused afterwards.
async fn send_and_read(
    endpoint: &Rc<Endpoint>,
    request: Box<Request<Body>>,
) -> Result<(String, Option<HeaderMap>), SendError> {
    let EndpointResponse { response, guard: mut lease, .. } = endpoint.send(request).await?;
    let body = response.into_body().collect().await.unwrap_or_else(|error| panic!("{error}"));
    lease.finish();
    let trailers = body.trailers().cloned();
    Ok((String::from_utf8(body.to_bytes().to_vec()).unwrap(), trailers))
}

async fn text(endpoint: &Rc<Endpoint>, request: Box<Request<Body>>) -> String {
    match send_and_read(endpoint, request).await {
        Ok((text, _)) => text,
        Err(SendError::NotSent { error, .. } | SendError::Refused(error)) => panic!("{}", error.cause),
        Err(SendError::InvalidResponse(error) | SendError::Broken(error) | SendError::StaleConnection(error)) => {
            panic!("{error}")
        }
    }
}

#[tokio::test]
async fn endpoint_plaintext_over_tcp_and_unix_reuses_connections() {
    let folder = tempfile::tempdir().unwrap();
    let test = async {
        for (wire, speaks) in [(PLAINTEXT_HTTP1, HttpVersion::Http1), (PLAINTEXT_HTTP2, HttpVersion::Http2)] {
            let path = folder.path().join(speaks.as_str().replace('/', "-"));
            for server in [EchoServer::tcp(speaks).await, EchoServer::unix(&path, speaks, None)] {
                let host = match &server.address {
                    Address::Tcp(destination) => destination.to_string(),
                    Address::Unix(_) => "localhost".to_owned(),
                };
                let expected = match speaks {
                    HttpVersion::Http1 => format!("HTTP/1.1 GET /a?b {host} - b\"\""),
                    HttpVersion::Http2 => format!("HTTP/2.0 GET http://{host}/a?b - - b\"\""),
                };
                let endpoint = endpoint(&server.address, wire.clone());
                for _ in 0..5 {
                    assert_eq!(text(&endpoint, get("/a?b")).await, expected);
                }
                assert_eq!((server.connections(), endpoint.http_version()), (1, Some(speaks)));
            }
        }
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn endpoint_preserves_client_host_when_configured() {
    let test = async {
        for (wire, speaks) in [(PLAINTEXT_HTTP1, HttpVersion::Http1), (PLAINTEXT_HTTP2, HttpVersion::Http2)] {
            let server = EchoServer::tcp(speaks).await;
            let pool = Pool::new(Resolver::System);
            let keeping = EndpointKey { preserve_host: true, ..upstream(&server.address, wire.clone()) };
            for (upstream, kept) in [(keeping, true), (upstream(&server.address, wire), false)] {
                let mut request = get("/");
                request.headers_mut().insert(HOST, HeaderValue::from_static("app.example"));
                let said = text(&pool.endpoint(&upstream), request).await;
                assert_eq!(said.contains("app.example"), kept, "{said}");
                let said = text(&pool.endpoint(&upstream), get("/")).await;
                assert!(said.contains(&server.address.to_string()), "without a Host header it is the address: {said}");
            }
        }
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn endpoint_tls_over_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let authority = Authority::generate("app");
    let pair = authority.pair(&Wanted::serving(&["app.example".to_owned()]));
    let mut config = rustls::ServerConfig::builder_with_provider(crate::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(pair.certified().as_ref().clone())));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let settings = ClientSettings {
        ca_bundle: Some(authority.bundle()),
        insecure_skip_verify: false,
        identity: None,
        alpn: Vec::new(),
    };
    let tls = Arc::new(BackendTls::new("app.example", settings).unwrap());
    let test = async {
        let server = EchoServer::unix(&path, HttpVersion::Http2, Some(Arc::new(config).into()));
        let endpoint = endpoint(&server.address, TransportSecurity::Tls(tls));
        assert_eq!(text(&endpoint, get("/a")).await, "HTTP/2.0 GET https://localhost/a - - b\"\"");
    };
    LocalSet::new().run_until(test).await;
}

/// Like a gRPC call: a streamed body, `te: trailers`, and trailers in both directions.
#[tokio::test]
async fn endpoint_http2_trailers_in_both_directions() {
    let test = async {
        let server = EchoServer::tcp(HttpVersion::Http2).await;
        let endpoint = endpoint(&server.address, PLAINTEXT_HTTP2);
        let status = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]);
        let frames: [Result<_, BodyError>; 3] = [
            Ok(Frame::data(Bytes::from_static(b"one "))),
            Ok(Frame::data(Bytes::from_static(b"two"))),
            Ok(Frame::trailers(status.clone())),
        ];
        let mut request = get("/grpc.Service/Call");
        *request.method_mut() = Method::POST;
        request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
        *request.body_mut() = Body::stream(StreamBody::new(stream::iter(frames)));
        let Ok((said, trailers)) = send_and_read(&endpoint, request).await else { panic!("no answer") };
        assert!(said.ends_with("/grpc.Service/Call - trailers b\"one two\""), "{said}");
        assert_eq!(trailers, Some(status));
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn endpoint_upgrade_over_unix_socket_beside_h2c() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let test = async {
        let server = EchoServer::unix(&path, HttpVersion::Http1, None);
        for wire in [PLAINTEXT_HTTP1, PLAINTEXT_HTTP2] {
            let endpoint = endpoint(&server.address, wire);
            let (mut line, _) = endpoint.open_dedicated().await.unwrap();
            let mut request = get("/exec");
            request.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            request.headers_mut().insert(UPGRADE, HeaderValue::from_static("echo"));
            endpoint.set_origin_form(&mut request);
            let response = line.send(*request).await.unwrap();
            assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
            drop(response);
            let mut pipe = line.into_upgraded().unwrap();
            pipe.write_all(b"there and back").await.unwrap();
            pipe.shutdown().await.unwrap();
            let mut heard = String::new();
            pipe.read_to_string(&mut heard).await.unwrap();
            assert_eq!(heard, "there and back");
        }
    };
    LocalSet::new().run_until(test).await;
}

/// Accepts two connections; sends GOAWAY on the first, whose streams stay open, once `leave` is sent.
async fn serve_with_goaway(listener: TcpListener, mut leave: oneshot::Receiver<()>) {
    let accept = async || h2::server::handshake(listener.accept().await.unwrap().0).await.unwrap();
    let mut leaving = accept().await;
    let mut streams = Vec::new();
    loop {
        let (_, mut respond) = tokio::select! {
            request = leaving.accept() => request.unwrap().unwrap(),
            left = &mut leave => break left.unwrap(),
        };
        streams.push(respond.send_response(Response::new(()), false).unwrap());
    }
    leaving.graceful_shutdown();
    let ended = async { while leaving.accept().await.is_some() {} };
    let next = async {
        let mut next = accept().await;
        while let Some(request) = next.accept().await {
            request.unwrap().1.send_response(Response::new(()), true).unwrap();
        }
    };
    tokio::join!(ended, next);
}

#[tokio::test]
async fn endpoint_replaces_connection_that_closed_before_request_was_sent() {
    let test = async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (leave, left) = oneshot::channel();
        tokio::task::spawn_local(serve_with_goaway(listener, left));
        let endpoint = endpoint(&Address::tcp(Host::Ip(at.ip()), at.port()), PLAINTEXT_HTTP2);
        let _open = endpoint.send(get("/a")).await.ok().expect("a response");
        let connection = endpoint.http2_connections.borrow()[0].clone();
        let count = connection.read_count();
        leave.send(()).unwrap();
        while connection.read_count() == count {
            tokio::task::yield_now().await;
        }
        assert!(connection.is_usable(), "the endpoint does not know yet");
        assert!(endpoint.send(get("/b")).await.is_ok());
        assert!(!connection.is_usable());
    };
    LocalSet::new().run_until(test).await;
}

async fn missing(endpoint: &Rc<Endpoint>, path: &Path) {
    let Err(SendError::NotSent { error, request }) = endpoint.send(get("/a")).await.map(drop) else {
        panic!("there is no socket")
    };
    assert_eq!((error.phase, error.reason), (DialPhase::Connect, "ConnectionRefused"));
    assert_eq!(error.cause, format!("unix:{}: the socket does not exist (yet)", path.display()));
    assert_eq!(request.uri(), "/a", "it is given back whole");
    assert!(!endpoint.is_usable());
}

#[tokio::test]
async fn endpoint_with_missing_socket_is_ejected_until_it_appears() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let back = async |endpoint: &Rc<Endpoint>| {
        while !endpoint.is_usable() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let test = async {
        let endpoint = endpoint(&Address::Unix(path.clone()), PLAINTEXT_HTTP1);
        missing(&endpoint, &path).await;
        let server = EchoServer::unix(&path, HttpVersion::Http1, None);
        back(&endpoint).await;
        text(&endpoint, get("/a")).await;
        // The server stops and its socket is removed; then another starts.
        drop(server);
        std::fs::remove_file(&path).unwrap();
        while send_and_read(&endpoint, get("/a")).await.is_ok() || endpoint.is_usable() {
            tokio::task::yield_now().await;
        }
        missing(&endpoint, &path).await;
        let _server = EchoServer::unix(&path, HttpVersion::Http1, None);
        back(&endpoint).await;
        text(&endpoint, get("/a")).await;
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn endpoint_with_other_http_version_has_own_error() {
    let test = async {
        let old = EchoServer::tcp(HttpVersion::Http1).await;
        let Err(SendError::NotSent { error, .. }) =
            endpoint(&old.address, PLAINTEXT_HTTP2).send(get("/")).await.map(drop)
        else {
            panic!("it does not speak HTTP/2")
        };
        assert_eq!(error.phase, DialPhase::Http);
        assert!(error.cause.ends_with("; check that it supports HTTP/2 without TLS (h2c)"), "{}", error.cause);
        let new = EchoServer::tcp(HttpVersion::Http2).await;
        // Its SETTINGS may arrive before our request or after it.
        assert!(endpoint(&new.address, PLAINTEXT_HTTP1).send(get("/")).await.is_err(), "it does not speak HTTP/1.1");
    };
    LocalSet::new().run_until(test).await;
}
