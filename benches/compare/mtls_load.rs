//! Load by clients with certificates, which h2load and wrk do not support; and concurrent first requests with one
//! token.

use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::TokioIo;

use crate::fixtures::{self, BenchEnvironment, Proxy};
use crate::unique_tokens::LocalExecutor;

const PATH: &str = "/apis/bench.narthex.dev/v1/namespaces/default/small";

/// Loads `proxy` for `seconds` from clients with a certificate; the number of answers.
///
/// # Panics
/// When any answer was not a success.
pub(crate) fn run_with_certificates(environment: &BenchEnvironment, proxy: &Proxy, http1: bool, seconds: u32) -> u64 {
    run(environment, proxy, &[if http1 { "h1" } else { "h2" }, &seconds.to_string(), "-"])
}

/// Has 32 clients ask `proxy` at once, each on a connection of its own, with the one token.
///
/// # Panics
/// When any answer was not a success.
pub(crate) fn request_all_at_once(environment: &BenchEnvironment, proxy: &Proxy, token: &str) {
    assert_eq!(run(environment, proxy, &["h1", "0", token]), 32);
}

fn run(environment: &BenchEnvironment, proxy: &Proxy, words: &[&str]) -> u64 {
    let output = Command::new("taskset")
        .args(["-c", "0"])
        .arg(std::env::current_exe().expect("our own path"))
        .arg("mtls-load")
        .arg(environment.directory())
        .arg(proxy.port.to_string())
        .args(words)
        .output()
        .expect("the load starts");
    let output_text = String::from_utf8_lossy(&output.stdout);
    let count = output_text.trim().parse();
    count.unwrap_or_else(|_| panic!("{output_text}{}\n{}", String::from_utf8_lossy(&output.stderr), proxy.log()))
}

enum Sender {
    Http1(http1::SendRequest<Empty<Bytes>>),
    Http2(http2::SendRequest<Empty<Bytes>>),
}

/// `mtls-load DIRECTORY PORT h1|h2 SECONDS TOKEN`; the token `-` is a certificate, no seconds are one request each.
pub(crate) fn main(arguments: &[String]) {
    let [directory, port, protocol, seconds, token] = arguments else {
        panic!("mtls-load DIRECTORY PORT h1|h2 SECONDS TOKEN")
    };
    let (port, seconds): (u16, u64) = (port.parse().expect("a port"), seconds.parse().expect("a number"));
    let certificate = token == "-";
    let mut config = match certificate {
        true => fixtures::client_with_certificate(Path::new(directory)),
        false => fixtures::client_config(Path::new(directory)),
    };
    config.alpn_protocols = vec![if protocol == "h1" { b"http/1.1".to_vec() } else { b"h2".to_vec() }];
    let tls = tokio_rustls::TlsConnector::from(Arc::new(config));
    let authorization = (!certificate).then(|| format!("Bearer {token}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let work = async move {
        let mut senders = Vec::new();
        for _ in 0..if protocol == "h1" { 32 } else { 8 } {
            let socket = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
            let _ = socket.set_nodelay(true);
            let stream = tls.connect("localhost".try_into().expect("a name"), socket).await.expect("a handshake");
            if protocol == "h1" {
                let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.expect("HTTP/1.1");
                tokio::task::spawn_local(connection);
                senders.push(Sender::Http1(sender));
            } else {
                let (sender, connection) = http2::handshake(LocalExecutor, TokioIo::new(stream)).await.expect("HTTP/2");
                tokio::task::spawn_local(connection);
                senders.extend((0..16).map(|_| Sender::Http2(sender.clone())));
            }
        }
        let (count, end) = (Rc::new(Cell::new(0_u64)), Instant::now() + Duration::from_secs(seconds));
        let mut pending = tokio::task::JoinSet::new();
        for sender in senders {
            pending.spawn_local(send_requests(sender, authorization.clone(), count.clone(), end));
        }
        while let Some(recorded) = pending.join_next().await {
            recorded.expect("good answers");
        }
        println!("{}", count.get());
    };
    tokio::task::LocalSet::new().block_on(&runtime, work);
}

async fn send_requests(mut sender: Sender, authorization: Option<String>, count: Rc<Cell<u64>>, end: Instant) {
    loop {
        let mut request = match sender {
            Sender::Http1(_) => Request::get(PATH).header("host", "localhost"),
            Sender::Http2(_) => Request::get(format!("https://localhost{PATH}")),
        };
        if let Some(authorization) = &authorization {
            request = request.header("authorization", authorization);
        }
        let request = request.body(Empty::new()).expect("a request");
        let response = match &mut sender {
            Sender::Http1(sender) => sender.send_request(request).await,
            Sender::Http2(sender) => sender.send_request(request).await,
        };
        let response = response.expect("an answer");
        let status = response.status();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        assert!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
        count.set(count.get() + 1);
        if Instant::now() >= end {
            return;
        }
    }
}
