//! Tests of the example API over HTTP, as the front proxy.

mod objects;
mod socket;
mod watch;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;

use super::ExampleApi;
use super::serve::serve_connection;
use crate::process::{Drain, Drainer};

const GREETINGS: &str = "/apis/example.narthex.dev/v1/namespaces/default/greetings";
const DOORS: &str = "/apis/example.narthex.dev/v1alpha1/doors";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

/// The example API with its initial objects, and its drain.
struct ExampleServer {
    api: ExampleApi,
    drainer: Drainer,
    drain: Drain,
}

/// A complete response.
struct TestResponse {
    code: u16,
    headers: HeaderMap,
    body: Value,
}

impl ExampleServer {
    /// The initial objects have the revisions 1001 to 1005.
    fn new() -> ExampleServer {
        ExampleServer::with(64, Duration::from_secs(3600))
    }

    fn with(history: usize, bookmark_every: Duration) -> ExampleServer {
        let (drainer, drain) = Drain::new();
        ExampleServer { api: ExampleApi::with(1000, history, bookmark_every), drainer, drain }
    }

    /// Sends a request over a new connection.
    async fn send(&self, request: Request<Full<Bytes>>) -> http::Response<Incoming> {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        tokio::spawn(serve_connection(theirs, self.api.clone(), self.drain.clone()));
        let (mut sender, connection) = http1::handshake(TokioIo::new(ours)).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    }

    async fn call(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> TestResponse {
        let mut request = Request::builder().method(method).uri(path).header("x-remote-user", "ann");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, body) = self.send(request.body(Full::from(body.to_owned())).unwrap()).await.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let body =
            serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into()));
        TestResponse { code: head.status.as_u16(), headers: head.headers, body }
    }

    async fn get(&self, path: &str) -> TestResponse {
        self.call(Method::GET, path, &[], "").await
    }

    async fn post(&self, path: &str, body: Value) -> TestResponse {
        self.call(Method::POST, path, &[("content-type", "application/json")], &body.to_string()).await
    }

    async fn put(&self, path: &str, body: &Value) -> TestResponse {
        self.call(Method::PUT, path, &[("content-type", "application/json")], &body.to_string()).await
    }

    async fn delete(&self, path: &str, body: &str) -> TestResponse {
        self.call(Method::DELETE, path, &[("content-type", "application/json")], body).await
    }

    /// `form` is the media type without `application/`, for example `merge-patch+json`.
    async fn patch(&self, path: &str, form: &str, body: Value) -> TestResponse {
        let form = format!("application/{form}");
        self.call(Method::PATCH, path, &[("content-type", &form)], &body.to_string()).await
    }

    /// Starts a watch of `path`, which includes its query.
    async fn watch(&self, path: &str, accept: &str) -> WatchEvents {
        let request = Request::get(path).header("x-remote-user", "ann").header("accept", accept);
        let answer = self.send(request.body(Full::default()).unwrap()).await;
        assert_eq!(answer.status(), StatusCode::OK);
        WatchEvents { body: answer.into_body(), buffer: Vec::new() }
    }
}

impl TestResponse {
    fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    /// The names of the items of a list.
    fn names(&self) -> Vec<&str> {
        let items = self.body["items"].as_array().unwrap();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
    }
}

/// The events of a watch.
struct WatchEvents {
    body: Incoming,
    buffer: Vec<u8>,
}

impl WatchEvents {
    /// The next event; `None` if the watch has ended.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame = self.body.frame().await?.unwrap();
            self.buffer.extend_from_slice(&frame.into_data().unwrap());
        }
    }

    /// The next event as `TYPE name`.
    async fn next_summary(&mut self) -> String {
        let event = self.next().await.unwrap();
        format!("{} {}", event["type"].as_str().unwrap(), event["object"]["metadata"]["name"].as_str().unwrap_or("-"))
    }
}
