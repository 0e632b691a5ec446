//! One connection of an admin listener.

use std::cell::Cell;
use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use super::connection_table::ConnectionUse;
use super::response::{AdminBody, finish, plain_text};
use super::write_timeout::WriteTimeout;
use crate::listen::{HTTP1_MAX_HEADERS, review_http1};
use crate::message::MalformedRequest;

/// Maximum lifetime of a connection without an event stream, so that a slow client does not hold its slot forever.
const MAX_CONNECTION_LIFETIME: Duration = Duration::from_secs(300);
/// Maximum time for which a client may read nothing of a response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a request's head.
const MAX_HEAD_BYTES: usize = 8 * 1024;

/// The answer to a request that hyper would answer with an empty body.
fn malformed_response(malformed: &MalformedRequest, path: &str) -> Response<AdminBody> {
    let status = malformed.status();
    tracing::info!(path, status = status.code, reason = status.message, "admin listener refused a malformed request");
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::BAD_REQUEST);
    finish(plain_text(code, format!("{}\n", status.message)))
}

/// Serves `stream` until its client leaves or is too slow. `head_timeout` is that of request headers, and of an idle
/// connection. `usage` is kept up to date.
///
/// # Errors
/// The connection broke.
pub async fn serve_connection(
    stream: TcpStream,
    head_timeout: Duration,
    usage: &Cell<ConnectionUse>,
    respond: impl AsyncFn(Request<Incoming>) -> Response<AdminBody>,
) -> Result<(), hyper::Error> {
    let (stream, refused) = review_http1(WriteTimeout::new(stream, WRITE_TIMEOUT), MAX_HEAD_BYTES);
    let service = service_fn(async |request: Request<Incoming>| {
        let response = match refused.next() {
            Some(malformed) => malformed_response(&malformed, request.uri().path()),
            None => respond(request).await,
        };
        usage.set(match response.body() {
            Either::Right(_) => ConnectionUse::Streaming,
            Either::Left(_) => ConnectionUse::Answered,
        });
        Ok::<_, Infallible>(response)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(2 * MAX_HEAD_BYTES)
        .max_headers(HTTP1_MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service);
    // An event stream lasts until its client leaves; their number is limited.
    let lifetime = async {
        loop {
            tokio::time::sleep(MAX_CONNECTION_LIFETIME).await;
            if usage.get() != ConnectionUse::Streaming {
                break;
            }
        }
    };
    tokio::select! {
        result = connection => result,
        () = lifetime => Ok(()),
    }
}
