//! One connection of an admin listener.

use std::cell::Cell;
use std::convert::Infallible;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use super::response::AdminBody;
use super::write_timeout::WriteTimeout;

/// Maximum lifetime of a connection without an event stream, so that a slow client does not hold its slot forever.
const MAX_CONNECTION_LIFETIME: Duration = Duration::from_secs(300);
/// Maximum time for which a client may read nothing of a response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves `stream` until its client leaves or is too slow. `head_timeout` is that of request headers, and of an idle
/// connection.
///
/// # Errors
/// The connection broke.
pub async fn serve_connection(
    stream: TcpStream,
    head_timeout: Duration,
    respond: impl AsyncFn(Request<Incoming>) -> Response<AdminBody>,
) -> Result<(), hyper::Error> {
    let has_stream = Cell::new(false);
    let service = service_fn(async |request| {
        let response = respond(request).await;
        has_stream.set(matches!(response.body(), Either::Right(_)));
        Ok::<_, Infallible>(response)
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(WriteTimeout::new(stream, WRITE_TIMEOUT)), service);
    // An event stream lasts until its client leaves; their number is limited.
    let lifetime = async {
        loop {
            tokio::time::sleep(MAX_CONNECTION_LIFETIME).await;
            if !has_stream.get() {
                break;
            }
        }
    };
    tokio::select! {
        result = connection => result,
        () = lifetime => Ok(()),
    }
}
