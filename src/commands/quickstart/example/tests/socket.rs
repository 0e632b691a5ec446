//! Tests of the unix socket and its shutdown.

use std::os::unix::net::UnixListener;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::DOORS;
use crate::commands::quickstart::example::{ExampleApi, serve};
use crate::process::{Drain, ShutdownPhase};

/// Sends a GET; returns status code and body.
async fn get(socket: &std::path::Path, user: Option<&str>) -> (u16, Value) {
    let stream = UnixStream::connect(socket).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::get(DOORS).header("host", "localhost");
    if let Some(user) = user {
        request = request.header("x-remote-user", user);
    }
    let answer = sender.send_request(request.body(Full::<Bytes>::default()).unwrap()).await.unwrap();
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn request_without_user_header_unauthorized() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("example.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (drainer, drain) = Drain::new();
    let serving = tokio::spawn(serve(listener, ExampleApi::new(), drain));
    let (code, body) = get(&socket, Some("ann")).await;
    assert_eq!((code, &body["kind"]), (200, &json!("DoorList")));
    let (code, body) = get(&socket, None).await;
    assert_eq!((code, &body["message"]), (401, &json!("Unauthorized")));
    drainer.advance(ShutdownPhase::Ending);
    serving.await.unwrap().unwrap();
    assert!(UnixStream::connect(&socket).await.is_err());
}
