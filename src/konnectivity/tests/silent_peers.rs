//! Peers that connect and say nothing, or too little, or something else: their connection is closed. The clock of these tests
//! jumps to the next timer when all tasks wait.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep, timeout};

use super::Setup;
use crate::konnectivity::server::{ConnectEnd, serve_connect_frontend};

fn run_paused(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    LocalSet::new().block_on(&runtime, test);
}

/// Reads until the connection is closed: what came, and after which time.
async fn read_to_end(stream: &mut DuplexStream) -> (String, Duration) {
    let (began, mut all) = (Instant::now(), Vec::new());
    let read = timeout(Duration::from_secs(3600), stream.read_to_end(&mut all)).await;
    read.expect("the connection to be closed").unwrap();
    (String::from_utf8_lossy(&all).into_owned(), began.elapsed())
}

#[test]
fn silent_connect_client_is_closed_after_a_minute() {
    run_paused(async {
        let setup = Setup::new();
        let mut silent = setup.raw_connect();
        assert_eq!(read_to_end(&mut silent).await, (String::new(), Duration::from_secs(60)));
        // A byte now and then is no request.
        let mut slow = setup.raw_connect();
        let began = Instant::now();
        for byte in b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n" {
            if slow.write_all(&[*byte]).await.is_err() {
                break;
            }
            sleep(Duration::from_secs(5)).await;
        }
        read_to_end(&mut slow).await;
        assert!((60..70).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    });
}

/// TLS then sends a `close_notify`.
#[test]
fn connection_of_a_silent_connect_client_is_shut_down() {
    run_paused(async {
        let setup = Setup::new();
        let (mut client, mut accepted) = tokio::io::duplex(1024);
        let end = serve_connect_frontend(setup.server.clone(), &mut accepted).await;
        assert_eq!(end, ConnectEnd::Closed);
        // Not because it was dropped.
        assert_eq!(read_to_end(&mut client).await, (String::new(), Duration::ZERO));
        drop(accepted);
    });
}

#[test]
fn silent_grpc_clients_and_agents_are_closed_after_ten_seconds() {
    run_paused(async {
        let setup = Setup::new();
        for open in [Setup::grpc_connection, Setup::agent_connection] {
            assert_eq!(read_to_end(&mut open(&setup)).await.1, Duration::from_secs(10));
        }
        let refused = setup.server.report().refused_connections;
        let texts: Vec<&str> = refused.iter().map(|failure| &*failure.error).collect();
        assert_eq!(texts, ["no HTTP/2 preface within 10s"]);
    });
}

#[test]
fn connect_client_without_a_valid_request_gets_status_400() {
    run_paused(async {
        let setup = Setup::new();
        let long = format!("CONNECT a:1 HTTP/1.1\r\nX-Long: {}\r\n\r\n", "x".repeat(20 << 10));
        let many = format!("CONNECT a:1 HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(101));
        for invalid in ["\x16\x03\x01\x02\0\x01\0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &long, &many] {
            let mut client = setup.raw_connect();
            client.write_all(invalid.as_bytes()).await.unwrap();
            let (response, _) = read_to_end(&mut client).await;
            assert!(response.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{invalid:.20}: {response}");
        }
    });
}
