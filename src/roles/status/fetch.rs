//! Asking a running process for its report.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;

use crate::admin::AdminToken;

/// How long the running process may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest report we read.
const LONGEST: usize = 64 * 1024 * 1024;

/// The report of the process whose admin listener stands at `address`, as JSON.
///
/// # Errors
/// Why there is none, and what to do.
pub(super) fn report(address: &str, token: Option<&AdminToken>) -> Result<Bytes, String> {
    // As a listener takes it, `:6480` is every address of this machine.
    let local = address.starts_with(':').then(|| format!("localhost{address}"));
    let address = local.as_deref().unwrap_or(address);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, get(address, token))
            .await
            .unwrap_or_else(|_| Err(format!("{address} did not answer within {} s", PATIENCE.as_secs())))
    })
}

async fn get(address: &str, token: Option<&AdminToken>) -> Result<Bytes, String> {
    let stream = tokio::net::TcpStream::connect(address).await.map_err(|error| {
        format!(
            "nothing answers at {address} ({error}). Is Narthex running? If its admin listener stands elsewhere, say \
             so with --admin-address"
        )
    })?;
    let broke = |error: hyper::Error| format!("{address} does not speak HTTP as a Narthex does: {error}");
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
        .map_err(|error| format!("{address:?} is no address: {error}"))?;
    let response = sender.send_request(request).await.map_err(broke)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), LONGEST).collect().await;
    connection.abort();
    let body = body.map_err(|error| format!("the answer of {address} broke off: {error}"))?.to_bytes();
    match status {
        StatusCode::OK => Ok(body),
        StatusCode::UNAUTHORIZED => Err(match token {
            Some(_) => format!("{address} does not accept the token of --admin-token-file"),
            None => format!("{address} asks for a token: give its file with --admin-token-file"),
        }),
        StatusCode::FORBIDDEN => Err(format!(
            "{address} refuses to be asked by that name: use the address that its --admin-address names, or loopback"
        )),
        other => Err(format!("{address} answered {other}: is this the admin address of a Narthex?")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_there_is_said_clearly() {
        // Bound and not listening: nobody else can stand there meanwhile.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap().to_string();
        let error = report(&address, None).unwrap_err();
        assert!(error.contains(&address) && error.contains("Is Narthex running?"), "{error}");
    }
}
