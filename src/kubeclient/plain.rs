//! Calls without TLS, each over a connection of its own: for who is on the same machine.

use std::time::Duration;

use http::header::HOST;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

use super::CallError;
use crate::egress::{Destination, DialError, DialPhase, Dialler, Way};
use crate::message::Body;

/// For name look-up and TCP together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends a request; the connection ends with its answer.
pub(super) async fn exchange(
    dialler: &Dialler,
    way: &Way,
    destination: &Destination,
    mut request: Box<Request<Body>>,
) -> Result<Response<Incoming>, CallError> {
    let opened = open(dialler, way, destination).await;
    let mut sender = opened.map_err(|error| CallError::Unreachable(error.cause))?;
    request.headers_mut().insert(HOST, host(destination).map_err(CallError::Nonsense)?);
    sender.send_request(*request).await.map_err(|error| CallError::Broken(error.to_string()))
}

/// A connection of its own, which an upgrade may turn into a tunnel.
pub(super) async fn open(
    dialler: &Dialler,
    way: &Way,
    destination: &Destination,
) -> Result<SendRequest<Body>, DialError> {
    let stream = dialler.open(way, destination, CONNECT_TIMEOUT).await?.stream;
    let greeted = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = greeted.map_err(|error| DialError {
        phase: DialPhase::Http,
        reason: "ProtocolError",
        cause: error.to_string(),
    })?;
    tokio::task::spawn_local(connection.with_upgrades());
    Ok(sender)
}

/// The Host header.
pub(super) fn host(destination: &Destination) -> Result<HeaderValue, String> {
    HeaderValue::try_from(destination.to_string()).map_err(|error| format!("{destination} is no host: {error}"))
}
