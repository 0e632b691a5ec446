//! A backend whose response says whose request it was, which, and how often it was carried out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Request;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::support::backend::{
    Backend, BackendResponse, BackendSettings, data_frame, json_response, streamed_response,
};
use crate::support::fixtures::TestEnvironment;

/// Header with the client's name of a request.
pub(crate) const REQUEST_ID: &str = "x-request-number";

/// How often each request with a body was carried out, by all backends of a test.
#[derive(Clone, Default)]
pub(crate) struct ExecutionLedger(Arc<Mutex<HashMap<String, usize>>>);

impl ExecutionLedger {
    pub(crate) fn executions(&self, id: &str) -> usize {
        self.0.lock().unwrap().get(id).copied().unwrap_or_default()
    }
}

/// The response to request `id` of `user` with this body, of `size` more bytes.
pub(crate) fn echo_text(id: &str, user: &str, body: &str, size: usize, executions: usize) -> String {
    let filling = id.repeat(size / id.len().max(1));
    format!(r#"{{"id":"{id}","user":"{user}","executions":{executions},"body":"{body}","filling":"{filling}"}}"#)
}

pub(crate) async fn start_echo_backend(
    environment: &TestEnvironment,
    settings: BackendSettings,
    ledger: &ExecutionLedger,
) -> Backend {
    let ledger = ledger.clone();
    Backend::start(environment, settings, move |request| echo(ledger.clone(), request)).await
}

async fn echo(ledger: ExecutionLedger, request: Request<Incoming>) -> BackendResponse {
    let (head, body) = request.into_parts();
    let header = |name: &str| head.headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    let (id, user) = (header(REQUEST_ID), header("x-remote-user"));
    let query = head.uri.query().unwrap_or_default();
    if query.contains("watch=1") {
        return echo_watch(&user);
    }
    let size = query.split('&').find_map(|pair| pair.strip_prefix("size=")?.parse().ok());
    // A body that breaks off is of a request that its client knows to have failed.
    let Ok(body) = body.collect().await else { return json_response(400, "{}") };
    let body = String::from_utf8(body.to_bytes().into()).unwrap();
    let executions = if body.is_empty() {
        1
    } else {
        let mut ledger = ledger.0.lock().unwrap();
        let count = ledger.entry(id.clone()).or_default();
        *count += 1;
        *count
    };
    // Requests are always under way when a fault comes.
    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..10))).await;
    json_response(200, &echo_text(&id, &user, &body, size.unwrap_or_default(), executions))
}

/// A watch that sends whose it is, until its client goes.
fn echo_watch(user: &str) -> BackendResponse {
    let (writer, response) = streamed_response(200);
    let event = format!("{{\"user\":\"{user}\"}}\n");
    tokio::spawn(async move {
        while writer.send(data_frame(&event)).is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    response
}
