//! Many clients with one idle HTTP/2 watch each, in a separate process.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::fixtures::{self, BenchEnvironment, Proxy};

/// The clients; they leave when dropped.
pub(crate) struct Watchers {
    child: Child,
    open_count: usize,
}

impl Watchers {
    /// How many watches got their first event.
    pub(crate) fn open_count(&self) -> usize {
        self.open_count
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Opens `watches` clients against `proxy` and waits until each has got an event or failed.
pub(crate) fn spawn(environment: &BenchEnvironment, proxy: &Proxy, watches: usize) -> Watchers {
    let mut child = Command::new("taskset")
        .args(["-c", "0"])
        .arg(std::env::current_exe().expect("our own path"))
        .arg("watch")
        .arg(environment.directory())
        .args([proxy.port.to_string(), watches.to_string(), environment.token.clone()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the watchers start");
    let mut line = String::new();
    let output = child.stdout.take().expect("a pipe");
    BufReader::new(output).read_line(&mut line).expect("the watchers say how many they hold");
    Watchers { child, open_count: line.trim().parse().expect("a number") }
}

/// `watch DIRECTORY PORT COUNT TOKEN`
pub(crate) fn main(arguments: &[String]) {
    let [directory, port, count, token] = arguments else { panic!("watch DIRECTORY PORT COUNT TOKEN") };
    let (port, count): (u16, usize) = (port.parse().expect("a port"), count.parse().expect("a number"));
    narthex::listen::raise_descriptor_limit();
    let tls = tokio_rustls::TlsConnector::from(Arc::new(fixtures::client_config(Path::new(directory))));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let gate = Arc::new(tokio::sync::Semaphore::new(32));
        let clients: Vec<_> = (0..count)
            .map(|_| {
                let (tls, token, gate) = (tls.clone(), token.clone(), gate.clone());
                tokio::spawn(async move {
                    let _permit = gate.acquire_owned().await;
                    open(tls, port, &token).await.inspect_err(|error| eprintln!("watch: {error}")).ok()
                })
            })
            .collect();
        let mut open = Vec::new();
        for client in clients {
            open.extend(client.await.ok().flatten());
        }
        println!("{}", open.len());
        std::future::pending::<()>().await;
    });
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn open(tls: tokio_rustls::TlsConnector, port: u16, token: &str) -> Result<impl Sized + use<>, Failure> {
    let socket = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
    socket.set_nodelay(true)?;
    let stream = tls.connect("localhost".try_into()?, socket).await?;
    let (mut sender, connection) = http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            eprintln!("watch: {error}");
        }
    });
    let request = Request::get("https://localhost/apis/bench.narthex.dev/v1/watches?watch=1")
        .header("authorization", format!("Bearer {token}"))
        .body(Empty::<Bytes>::new())?;
    let mut response = sender.send_request(request).await?;
    if response.status() != 200 {
        return Err(format!("status {}", response.status()).into());
    }
    response.frame().await.ok_or("the watch ended")??;
    Ok((sender, response))
}
