//! A call without TLS, over a connection of its own: for collectors of events on the same machine.

use std::time::Duration;

use http::header::HOST;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;

use super::CallError;
use crate::egress::{Destination, Dialler, Way};
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
    let host = HeaderValue::try_from(destination.to_string())
        .map_err(|error| CallError::Nonsense(format!("{destination} is no host: {error}")))?;
    request.headers_mut().insert(HOST, host);
    let broken = |error: hyper::Error| CallError::Broken(error.to_string());
    let opened = dialler.open(way, destination, CONNECT_TIMEOUT).await;
    let stream = opened.map_err(|error| CallError::Unreachable(error.cause))?.stream;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::task::spawn_local(connection);
    sender.send_request(*request).await.map_err(broken)
}
