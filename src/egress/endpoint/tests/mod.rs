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
use tokio::task::LocalSet;

use self::server::Server;
use super::*;
use crate::egress::{BackendTls, Pool, Resolver, Way};
use crate::message::BodyError;
use crate::tls::client::ClientSettings;
use crate::tls::{Authority, Request as Wanted};

const ONE: Wire = Wire::Plain(Protocol::Http1);
const TWO: Wire = Wire::Plain(Protocol::Http2);

fn upstream(address: &Address, wire: Wire) -> Upstream {
    let connect_timeout = Duration::from_secs(5);
    Upstream { address: address.clone(), wire, connect_timeout, way: Way::Direct, keeps_host: false }
}

fn endpoint(address: &Address, wire: Wire) -> Rc<Endpoint> {
    Pool::new(Resolver::System).endpoint(&upstream(address, wire))
}

fn get(path: &str) -> Box<Request<Body>> {
    let mut request = Box::new(Request::new(Body::Empty));
    *request.uri_mut() = path.parse().unwrap();
    request
}

/// The complete response body and its trailers; the connection can be reused afterwards.
async fn ask(endpoint: &Rc<Endpoint>, request: Box<Request<Body>>) -> Result<(String, Option<HeaderMap>), SendError> {
    let Sent { response, mut lease, .. } = endpoint.send(request).await?;
    let body = response.into_body().collect().await.unwrap_or_else(|error| panic!("{error}"));
    lease.finished();
    let trailers = body.trailers().cloned();
    Ok((String::from_utf8(body.to_bytes().to_vec()).unwrap(), trailers))
}

async fn text(endpoint: &Rc<Endpoint>, request: Box<Request<Body>>) -> String {
    match ask(endpoint, request).await {
        Ok((text, _)) => text,
        Err(SendError::NotSent { error, .. } | SendError::Refused(error)) => panic!("{}", error.cause),
        Err(SendError::Nonsense(error) | SendError::Broken(error) | SendError::Unheard(error)) => panic!("{error}"),
    }
}

#[tokio::test]
async fn without_tls_over_tcp_and_unix_and_connections_are_used_again() {
    let folder = tempfile::tempdir().unwrap();
    let test = async {
        for (wire, speaks) in [(ONE, Protocol::Http1), (TWO, Protocol::Http2)] {
            let path = folder.path().join(speaks.as_str().replace('/', "-"));
            for server in [Server::tcp(speaks).await, Server::unix(&path, speaks, None)] {
                let host = match &server.address {
                    Address::Tcp(destination) => destination.to_string(),
                    Address::Unix(_) => "localhost".to_owned(),
                };
                let expected = match speaks {
                    Protocol::Http1 => format!("HTTP/1.1 GET /a?b {host} - b\"\""),
                    Protocol::Http2 => format!("HTTP/2.0 GET http://{host}/a?b - - b\"\""),
                };
                let endpoint = endpoint(&server.address, wire.clone());
                for _ in 0..5 {
                    assert_eq!(text(&endpoint, get("/a?b")).await, expected);
                }
                assert_eq!((server.connections(), endpoint.protocol()), (1, Some(speaks)));
            }
        }
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_clients_host_is_kept_where_that_is_wanted() {
    let test = async {
        for (wire, speaks) in [(ONE, Protocol::Http1), (TWO, Protocol::Http2)] {
            let server = Server::tcp(speaks).await;
            let pool = Pool::new(Resolver::System);
            let keeping = Upstream { keeps_host: true, ..upstream(&server.address, wire.clone()) };
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
async fn tls_over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let authority = Authority::made("app");
    let pair = authority.pair(&Wanted::serving(&["app.example".to_owned()]));
    let mut config = rustls::ServerConfig::builder_with_provider(crate::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(pair.certified().as_ref().clone())));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let settings = ClientSettings {
        authorities: Some(authority.bundle()),
        insecure_skip_verify: false,
        identity: None,
        alpn: Vec::new(),
    };
    let tls = Arc::new(BackendTls::new("app.example", settings).unwrap());
    let test = async {
        let server = Server::unix(&path, Protocol::Http2, Some(Arc::new(config).into()));
        let endpoint = endpoint(&server.address, Wire::Tls(tls));
        assert_eq!(text(&endpoint, get("/a")).await, "HTTP/2.0 GET https://localhost/a - - b\"\"");
    };
    LocalSet::new().run_until(test).await;
}

/// Like a gRPC call: a streamed body, `te: trailers`, and trailers in both directions.
#[tokio::test]
async fn trailers_go_both_ways_over_http2() {
    let test = async {
        let server = Server::tcp(Protocol::Http2).await;
        let endpoint = endpoint(&server.address, TWO);
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
        let Ok((said, trailers)) = ask(&endpoint, request).await else { panic!("no answer") };
        assert!(said.ends_with("/grpc.Service/Call - trailers b\"one two\""), "{said}");
        assert_eq!(trailers, Some(status));
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn an_upgrade_over_a_unix_socket_is_a_pipe_also_beside_h2c() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let test = async {
        let server = Server::unix(&path, Protocol::Http1, None);
        for wire in [ONE, TWO] {
            let endpoint = endpoint(&server.address, wire);
            let (mut line, _) = endpoint.open_private().await.unwrap();
            let mut request = get("/exec");
            request.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            request.headers_mut().insert(UPGRADE, HeaderValue::from_static("echo"));
            endpoint.in_origin_form(&mut request);
            let response = line.ask(*request).await.unwrap();
            assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
            drop(response);
            let mut pipe = line.switch().unwrap();
            pipe.write_all(b"there and back").await.unwrap();
            pipe.shutdown().await.unwrap();
            let mut heard = String::new();
            pipe.read_to_string(&mut heard).await.unwrap();
            assert_eq!(heard, "there and back");
        }
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
async fn an_endpoint_whose_socket_is_missing_is_out_until_it_appears() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let back = async |endpoint: &Rc<Endpoint>| {
        while !endpoint.is_usable() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let test = async {
        let endpoint = endpoint(&Address::Unix(path.clone()), ONE);
        missing(&endpoint, &path).await;
        let server = Server::unix(&path, Protocol::Http1, None);
        back(&endpoint).await;
        text(&endpoint, get("/a")).await;
        // The server stops and its socket is removed; then another starts.
        drop(server);
        std::fs::remove_file(&path).unwrap();
        while ask(&endpoint, get("/a")).await.is_ok() || endpoint.is_usable() {
            tokio::task::yield_now().await;
        }
        missing(&endpoint, &path).await;
        let _server = Server::unix(&path, Protocol::Http1, None);
        back(&endpoint).await;
        text(&endpoint, get("/a")).await;
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn who_speaks_another_version_is_told_apart_from_who_is_not_there() {
    let test = async {
        let old = Server::tcp(Protocol::Http1).await;
        let Err(SendError::NotSent { error, .. }) = endpoint(&old.address, TWO).send(get("/")).await.map(drop) else {
            panic!("it does not speak HTTP/2")
        };
        assert_eq!(error.phase, DialPhase::Http);
        assert!(error.cause.ends_with("; check that it supports HTTP/2 without TLS (h2c)"), "{}", error.cause);
        let new = Server::tcp(Protocol::Http2).await;
        // Its SETTINGS may arrive before our request or after it.
        assert!(endpoint(&new.address, ONE).send(get("/")).await.is_err(), "it does not speak HTTP/1.1");
    };
    LocalSet::new().run_until(test).await;
}
