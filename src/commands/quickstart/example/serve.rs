//! The HTTP/1.1 server on a unix socket, to which the sidecar connects.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixListener;
use tokio::task::JoinSet;

use super::ExampleApi;
use super::respond;
use crate::process::{Drain, ShutdownPhase};

const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept, most often for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `api` on `listener` until `drain` ends: from `Draining` on no connection is accepted and running requests
/// finish; from `Ending` on watches end and remaining connections are closed. Then it returns.
///
/// The user headers of any client are trusted: only the sidecar may be able to connect.
///
/// # Errors
///
/// The runtime cannot use `listener`.
pub async fn serve(listener: std::os::unix::net::UnixListener, api: ExampleApi, mut drain: Drain) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = UnixListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    let mut leaving = drain.clone();
    loop {
        let stream = tokio::select! {
            () = leaving.wait_for(ShutdownPhase::Draining) => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "example API: cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        connections.spawn(serve_connection(stream, api.clone(), drain.clone()));
    }
    drop(listener);
    tokio::select! {
        () = async { while connections.join_next().await.is_some() {} } => {}
        () = async {
            drain.wait_for(ShutdownPhase::Ending).await;
            // Time for watches to end by themselves.
            tokio::time::sleep(Duration::from_millis(500)).await;
        } => {}
    }
    Ok(())
}

/// Serves HTTP/1.1 on one connection until it closes.
pub(super) async fn serve_connection<S>(stream: S, api: ExampleApi, mut drain: Drain)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let watched = drain.clone();
    let service = service_fn(move |request| {
        let (api, drain) = (api.clone(), watched.clone());
        async move { Ok::<_, Infallible>(respond::respond(&api.0, &drain, request).await) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = drain.wait_for(ShutdownPhase::Draining) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "example API: connection failed");
    }
}
