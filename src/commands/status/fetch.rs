//! Fetching the report of a running process.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;

use crate::admin::AdminToken;

/// Timeout for the whole exchange.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Size limit of a report.
const MAX_REPORT_BYTES: usize = 64 * 1024 * 1024;

/// Fetches the report from the admin listener at `address`, as JSON.
///
/// # Errors
/// The reason and what to do about it.
pub(super) async fn fetch_report(address: &str, token: Option<&AdminToken>) -> Result<Bytes, String> {
    // For a listener `:6480` means every address of this machine; connect to localhost.
    let local = address.starts_with(':').then(|| format!("localhost{address}"));
    let address = local.as_deref().unwrap_or(address);
    tokio::time::timeout(TIMEOUT, get(address, token))
        .await
        .unwrap_or_else(|_| Err(format!("{address} did not answer within {} s", TIMEOUT.as_secs())))
}

async fn get(address: &str, token: Option<&AdminToken>) -> Result<Bytes, String> {
    let stream = tokio::net::TcpStream::connect(address).await.map_err(|error| {
        format!(
            "cannot connect to {address}: {error}. Is Narthex running? If its admin listener has another address, set \
             --admin-address"
        )
    })?;
    let broke = |error: hyper::Error| format!("HTTP request to {address} failed: {error}");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broke)?;
    let connection = tokio::spawn(connection);
    let request = Request::get("/status.json");
    let request = match token {
        Some(token) => request.header(AUTHORIZATION, token.authorization()),
        None => request,
    };
    let request = request
        .header(HOST, address)
        .header(ACCEPT, "application/json")
        .body(Empty::<Bytes>::new())
        .map_err(|error| format!("{address:?} is not a valid address: {error}"))?;
    let response = sender.send_request(request).await.map_err(broke)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_REPORT_BYTES).collect().await;
    connection.abort();
    let body = body.map_err(|error| format!("response of {address} incomplete: {error}"))?.to_bytes();
    match status {
        StatusCode::OK => Ok(body),
        StatusCode::UNAUTHORIZED => Err(match token {
            Some(_) => format!("{address} rejected the token of --admin-token-file"),
            None => format!("{address} requires a token: set --admin-token-file"),
        }),
        StatusCode::FORBIDDEN => Err(format!(
            "{address} rejected the host name in the request: use the address of its --admin-address, or loopback"
        )),
        other => Err(format!("{address} answered {other}: is this the admin address of a Narthex process?")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn status_error_when_connection_refused() {
        // Bound and not listening: no other process can take the port meanwhile.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap().to_string();
        let error = fetch_report(&address, None).await.unwrap_err();
        assert!(error.contains(&address) && error.contains("Is Narthex running?"), "{error}");
    }
}
