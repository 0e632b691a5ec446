//! Shutdown under load: every request is accounted for, on new and kept-alive connections of both protocols.

use std::collections::{BTreeMap, BTreeSet};

use std::sync::{Arc, Mutex};

use http::Method;
use tokio::net::TcpStream;

use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{Client, error_chain, read_response, request, tls_handshake};
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TestEnvironment, eventually};

const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

/// What became of the requests of one client under load.
#[derive(Default)]
struct ShutdownTally {
    /// Answered as they should be.
    answered: Mutex<BTreeSet<String>>,
    /// Not answered, and why the client may try again.
    retryable: Mutex<BTreeMap<String, String>>,
    /// Not answered although they should have been.
    lost: Mutex<Vec<String>>,
}

#[derive(Clone, Copy, Debug)]
struct ConnectionKind {
    is_http1: bool,
    is_kept_alive: bool,
}

/// Asks without a pause until the port is closed, and writes down what became of each request.
async fn generate_load(
    environment: &TestEnvironment,
    gateway: &GatewayProcess,
    pair: &CertKeyPair,
    kind: ConnectionKind,
    name: &str,
    tally: &ShutdownTally,
) {
    let mut number = 0;
    'connections: loop {
        let Ok(socket) = TcpStream::connect(gateway.address).await else { break };
        let protocols = if kind.is_http1 { ["http/1.1"] } else { ["h2"] };
        let Ok(stream) = tls_handshake(environment, socket, Some(pair), &protocols).await else {
            // The kernel took it in the instant the port closed: no request was on it.
            continue;
        };
        let client = Client::from_stream(stream, kind.is_http1).await;
        let mut first = true;
        loop {
            number += 1;
            let id = format!("{name}-{number}");
            // A request with a body is never sent twice.
            let (method, body) = if number % 2 == 0 { (Method::POST, "{}") } else { (Method::GET, "") };
            match client.send(request(method, THINGS, &[("audit-id", &id)], body)).await {
                Ok(response) => {
                    let closing = response.headers().get("connection").is_some_and(|value| value == "close");
                    let reply = read_response(response).await;
                    if reply.status == 200 && reply.is_complete && reply.text() == id {
                        tally.answered.lock().unwrap().insert(id);
                    } else {
                        tally.lost.lock().unwrap().push(format!("{id}: {} {:?}", reply.status, reply.text()));
                    }
                    if !kind.is_kept_alive || closing {
                        continue 'connections;
                    }
                }
                Err(error) => {
                    let text = error_chain(&error);
                    // HTTP/2 clients are told by GOAWAY, which may come before their first request.
                    if first && kind.is_http1 {
                        tally.lost.lock().unwrap().push(format!("{id}: on a new connection: {text}"));
                    } else {
                        tally.retryable.lock().unwrap().insert(id, text);
                    }
                    continue 'connections;
                }
            }
            first = false;
        }
    }
}

/// All clients run on one thread. On several, hyper's HTTP/2 client can report a GOAWAY as the error of a request that it
/// has already queued and still sends: `ClientTask` polls the connection a second time after `send_request`, and the
/// connection's own task may have read the GOAWAY in between (hyper 1.12, `proto/h2/client.rs`). The server answers such
/// a request, and its client drops the answer.
#[tokio::test]
async fn shutdown_under_load_answers_every_request_taken() {
    for (behind, arguments) in [
        (BackendSettings::http1(), "--shutdown-delay-duration=0s"),
        (BackendSettings::http2(), "--shutdown-delay-duration=300ms"),
    ] {
        let environment = Arc::new(TestEnvironment::new());
        let reached = Arc::new(Mutex::new(BTreeMap::<String, usize>::new()));
        let counter = reached.clone();
        let backend = Backend::start(&environment, behind, move |request| {
            let id = request.headers()["audit-id"].to_str().unwrap().to_owned();
            *counter.lock().unwrap().entry(id.clone()).or_default() += 1;
            async move {
                // Requests are always on their way when the end comes.
                tokio::time::sleep(std::time::Duration::from_millis(fastrand::u64(0..20))).await;
                json_response(200, &id)
            }
        })
        .await;
        environment.register_apiservice("things.example.com", "v1", &[&backend]);
        let gateway = Arc::new(environment.start_gateway(&["--access-log=all", "--access-log-format=json", arguments]));
        let jane = environment.issue_user("jane", &[]);
        let tally = Arc::new(ShutdownTally::default());
        let mut clients = tokio::task::JoinSet::new();
        for number in 0..12 {
            let kind = ConnectionKind { is_http1: number % 2 == 0, is_kept_alive: number % 4 < 2 };
            let (environment, gateway, jane, tally) =
                (environment.clone(), gateway.clone(), jane.clone(), tally.clone());
            clients.spawn(async move {
                generate_load(&environment, &gateway, &jane, kind, &format!("c{number}"), &tally).await
            });
        }
        eventually("load", async || (tally.answered.lock().unwrap().len() > 300).then_some(())).await;
        gateway.signal("TERM");
        while clients.join_next().await.is_some() {}
        let mut gateway = Arc::into_inner(gateway).unwrap();
        assert_eq!(gateway.wait_for_exit().await.code(), Some(0));

        let (answered, excused) = (tally.answered.lock().unwrap(), tally.retryable.lock().unwrap());
        let reached = reached.lock().unwrap();
        let lost = tally.lost.lock().unwrap();
        assert!(lost.is_empty(), "{lost:?}");
        for (id, why) in excused.iter() {
            assert!(!reached.contains_key(id), "{id} was taken and not answered: {why}");
        }
        for id in answered.iter() {
            assert_eq!(reached.get(id), Some(&1), "{id}");
        }
        assert_eq!(reached.len(), answered.len());
        // One record a request.
        let mut recorded = BTreeMap::<String, usize>::new();
        for line in gateway.log_lines() {
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            if line["kind"] == "access" && line["status"] == 200 && line["end"] == "complete" {
                *recorded.entry(line["audit"].as_str().unwrap().to_owned()).or_default() += 1;
            }
        }
        for id in answered.iter() {
            assert_eq!(recorded.get(id), Some(&1), "record of {id}");
        }
    }
}
