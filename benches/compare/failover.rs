//! One of three backends dies under load: lost requests, and the longest delay.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::fixtures::{self, BenchEnvironment, Contender};

/// Clients that ask one after the other, half of them with GET, half with POST.
const CLIENTS: usize = 64;

struct TimedResponse {
    method: Method,
    started: Instant,
    ended: Instant,
    status: u16,
}

/// Prints what became of the requests before, during and after each fault; `seconds` between the fault and its end.
pub(crate) fn run(environment: &BenchEnvironment, seconds: u32) {
    println!("one of three backends; {CLIENTS} clients; the fault lasts {seconds} s (a stop ten longer)");
    println!(
        "{:<8} {:<6} {:>9} {:>10} {:>10} {:>12} {:>14} {:>14}",
        "backends", "fault", "requests", "GETs lost", "POSTs lost", "longest ms", "last slow, s", "p99 ms before"
    );
    for http1 in [false, true] {
        for fault in ["KILL", "STOP"] {
            let backends = environment.start_three_backends(http1);
            let proxy = environment.start_proxy(Contender::Narthex, http1);
            let pause = Duration::from_secs(u64::from(seconds) + if fault == "STOP" { 10 } else { 0 });
            let (fell, recorded) = load(environment, proxy.port, pause, || backends[2].signal(fault));
            let lost = |method| recorded.iter().filter(|one| one.method == method && one.status != 200).count();
            let took = |one: &TimedResponse| one.ended - one.started;
            let (before, after): (Vec<_>, Vec<_>) = recorded.iter().partition(|one| one.ended < fell);
            let mut usual: Vec<Duration> = before.iter().map(|one| took(one)).collect();
            usual.sort();
            let usual = usual[usual.len() * 99 / 100];
            let longest = after.iter().map(|one| took(one)).max().unwrap_or_default();
            // A request counts as slow after ten times the usual latency or a tenth of a second.
            let slow = after.iter().filter(|one| took(one) > (usual * 10).max(Duration::from_millis(100)));
            let last = slow.map(|one| one.ended.saturating_duration_since(fell)).max().unwrap_or_default();
            println!(
                "{:<8} {:<6} {:>9} {:>10} {:>10} {:>12.1} {:>14.2} {:>14.1}",
                if http1 { "http/1.1" } else { "h2" },
                fault,
                recorded.len(),
                lost(Method::GET),
                lost(Method::POST),
                longest.as_secs_f64() * 1000.0,
                last.as_secs_f64(),
                usual.as_secs_f64() * 1000.0
            );
            backends[2].signal("CONT");
        }
    }
}

/// All that was asked, and when the fault came.
fn load(
    environment: &BenchEnvironment,
    port: u16,
    pause: Duration,
    fault: impl FnOnce(),
) -> (Instant, Vec<TimedResponse>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let tls = tokio_rustls::TlsConnector::from(Arc::new(fixtures::client_config(environment.directory())));
    let token = format!("Bearer {}", environment.token);
    runtime.block_on(async {
        let over = Arc::new(AtomicBool::new(false));
        let mut clients = tokio::task::JoinSet::new();
        for connection in 0..8 {
            let socket = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("the proxy listens");
            socket.set_nodelay(true).expect("a socket");
            let stream = tls.connect("localhost".try_into().expect("a name"), socket).await.expect("TLS");
            let (sender, driver) =
                http2::Builder::new(TokioExecutor::new()).handshake(TokioIo::new(stream)).await.expect("HTTP/2");
            tokio::spawn(driver);
            for client in 0..CLIENTS / 8 {
                let (mut sender, over, token) = (sender.clone(), over.clone(), token.clone());
                let method = if (connection + client) % 2 == 0 { Method::GET } else { Method::POST };
                clients.spawn(async move {
                    let mut recorded = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        let body = if method == Method::GET { Bytes::new() } else { Bytes::from_static(b"{}") };
                        let request = Request::builder()
                            .method(&method)
                            .uri("https://localhost/apis/bench.narthex.dev/v1/small")
                            .header("authorization", &token)
                            .body(Full::new(body))
                            .expect("a request");
                        let began = Instant::now();
                        let status = match sender.send_request(request).await {
                            Ok(response) => {
                                let status = response.status().as_u16();
                                if response.into_body().collect().await.is_ok() { status } else { 0 }
                            }
                            Err(_) => 0,
                        };
                        recorded.push(TimedResponse {
                            method: method.clone(),
                            started: began,
                            ended: Instant::now(),
                            status,
                        });
                        // Not to find out how fast it is, but what is lost.
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    recorded
                });
            }
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        let fell = Instant::now();
        fault();
        tokio::time::sleep(pause).await;
        over.store(true, Ordering::Relaxed);
        (fell, clients.join_all().await.into_iter().flatten().collect())
    })
}
