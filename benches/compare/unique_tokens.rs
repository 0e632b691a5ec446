//! Load with a unique token per request, from a separate process.

use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::TokioIo;

use crate::fixtures::{self, BenchEnvironment, Proxy};

/// Over so many connections, with so many requests at once on each.
const CLIENTS: usize = 8;
const STREAMS: usize = 16;

/// Asks `proxy` with `count` tokens, the first of which is number `first`; how long that took.
///
/// # Panics
/// When any answer was not a success.
pub(crate) fn run(environment: &BenchEnvironment, proxy: &Proxy, first: usize, count: usize) -> Duration {
    let output = Command::new("taskset")
        .args(["-c", "0"])
        .arg(std::env::current_exe().expect("our own path"))
        .arg("unique-tokens")
        .arg(environment.directory())
        .args([proxy.port.to_string(), first.to_string(), count.to_string()])
        .output()
        .expect("the load starts");
    let output_text = String::from_utf8_lossy(&output.stdout);
    let took = output_text.trim().parse().map(Duration::from_micros);
    took.unwrap_or_else(|_| panic!("{output_text}{}\n{}", String::from_utf8_lossy(&output.stderr), proxy.log()))
}

/// `unique-tokens DIRECTORY PORT FIRST COUNT`
pub(crate) fn main(arguments: &[String]) {
    let [directory, numbers @ ..] = arguments else { panic!("unique-tokens DIRECTORY PORT FIRST COUNT") };
    let numbers: Vec<usize> = numbers.iter().map(|text| text.parse().expect("a number")).collect();
    let [port, first, count] = numbers[..] else { panic!("unique-tokens DIRECTORY PORT FIRST COUNT") };
    let tls = tokio_rustls::TlsConnector::from(Arc::new(fixtures::client_config(Path::new(directory))));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let work = async move {
        let next = Rc::new(Cell::new(first));
        let mut pending = tokio::task::JoinSet::new();
        let mut began = None;
        for _ in 0..CLIENTS {
            let socket = tokio::net::TcpStream::connect(("127.0.0.1", port as u16)).await.expect("a connection");
            let _ = socket.set_nodelay(true);
            let stream = tls.connect("localhost".try_into().expect("a name"), socket).await.expect("a handshake");
            let (sender, connection) =
                http2::handshake(LocalExecutor, TokioIo::new(stream)).await.expect("an HTTP/2 connection");
            tokio::task::spawn_local(connection);
            began.get_or_insert_with(Instant::now);
            for _ in 0..STREAMS {
                pending.spawn_local(send_requests(sender.clone(), next.clone(), first + count));
            }
        }
        while let Some(recorded) = pending.join_next().await {
            recorded.expect("good answers");
        }
        println!("{}", began.map_or(0, |began| began.elapsed().as_micros()));
    };
    tokio::task::LocalSet::new().block_on(&runtime, work);
}

async fn send_requests(mut sender: http2::SendRequest<Empty<Bytes>>, next: Rc<Cell<usize>>, end: usize) {
    loop {
        let number = next.get();
        if number >= end {
            return;
        }
        next.set(number + 1);
        let request = Request::get("https://localhost/apis/bench.narthex.dev/v1/namespaces/default/small")
            .header("authorization", format!("Bearer stranger-{number:08}"))
            .body(Empty::new())
            .expect("a request");
        let response = sender.send_request(request).await.expect("an answer");
        let status = response.status();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        assert!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
    }
}

/// Runs what hyper begins on this thread.
#[derive(Clone)]
pub(crate) struct LocalExecutor;

impl<F: Future<Output: 'static> + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(future);
    }
}
