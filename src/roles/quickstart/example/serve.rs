//! The door: TLS, one judgement a connection, HTTP/1.1 and HTTP/2.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::ExampleApi;
use super::request::{self, Answer};
use crate::kubeapi::Status;
use crate::message::BodyError;
use crate::process::{Drain, Phase};
use crate::tls::PeerCertificate;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// After an accept that failed, most often for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Proof that the peer of a connection is the front proxy, whose word about the user counts.
#[derive(Clone)]
pub(super) struct FrontProxy(());

impl FrontProxy {
    /// Judges the certificate that the TLS layer has already verified against the request-header authority.
    fn judge(certificate: Option<&[u8]>, allowed_names: &[String]) -> Option<FrontProxy> {
        let name = PeerCertificate::parse(certificate?).ok()?.common_name?;
        allowed_names.contains(&name).then_some(FrontProxy(()))
    }

    #[cfg(test)]
    pub(super) fn for_tests() -> FrontProxy {
        FrontProxy(())
    }
}

/// Serves `api` on `listener` until `drain` says so: from `Draining` on no connection is accepted and
/// what runs is finished, from `Ending` on watches end too, and the rest is cut. Then it returns.
///
/// `tls` must ask for a client certificate and verify it against the request-header authority; its ALPN
/// should offer `h2` and `http/1.1`. Beyond that the certificate's common name must be one of
/// `allowed_names`; every request of another peer is 401, and without names that is everyone.
///
/// # Errors
///
/// When `listener` cannot be used by the runtime.
pub async fn serve(
    listener: std::net::TcpListener,
    tls: Arc<ServerConfig>,
    api: ExampleApi,
    allowed_names: Vec<String>,
    mut drain: Drain,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let acceptor = TlsAcceptor::from(tls);
    let allowed_names: Arc<[String]> = allowed_names.into();
    let mut connections = JoinSet::new();
    let mut leaving = drain.clone();
    loop {
        let stream = tokio::select! {
            () = leaving.reached(Phase::Draining) => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "the example API could not accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let (acceptor, api, drain) = (acceptor.clone(), api.clone(), drain.clone());
        let allowed_names = Arc::clone(&allowed_names);
        connections.spawn(async move {
            let _ = stream.set_nodelay(true);
            let stream = match tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => stream,
                Ok(Err(error)) => return tracing::debug!(%error, "a TLS handshake with the example API failed"),
                Err(_) => return tracing::debug!("a TLS handshake with the example API took too long"),
            };
            let (_, session) = stream.get_ref();
            let certificate = session.peer_certificates().and_then(|chain| chain.first());
            let front_proxy = FrontProxy::judge(certificate.map(AsRef::as_ref), &allowed_names);
            let http2 = session.alpn_protocol() == Some(b"h2");
            converse(stream, http2, api, front_proxy, drain).await;
        });
    }
    drop(listener);
    tokio::select! {
        () = async { while connections.join_next().await.is_some() {} } => {}
        () = async {
            drain.reached(Phase::Ending).await;
            // Watches end by themselves now; whoever does not within this time is cut.
            tokio::time::sleep(Duration::from_millis(500)).await;
        } => {}
    }
    Ok(())
}

/// Speaks HTTP on one connection until it ends.
pub(super) async fn converse<S>(
    stream: S,
    http2: bool,
    api: ExampleApi,
    front_proxy: Option<FrontProxy>,
    mut drain: Drain,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let watched = drain.clone();
    let service = service_fn(move |request| {
        let (api, front_proxy, drain) = (api.clone(), front_proxy.clone(), watched.clone());
        async move { Ok::<_, Infallible>(answer(&api, front_proxy.as_ref(), &drain, request).await) }
    });
    let stream = TokioIo::new(stream);
    let ended = if http2 {
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_concurrent_streams(1000).keep_alive_interval(Duration::from_secs(30));
        let mut connection = std::pin::pin!(builder.serve_connection(stream, service));
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = drain.reached(Phase::Draining) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    } else {
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
        let mut connection = std::pin::pin!(builder.serve_connection(stream, service));
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = drain.reached(Phase::Draining) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection to the example API broke off");
    }
}

async fn answer<B>(api: &ExampleApi, front_proxy: Option<&FrontProxy>, drain: &Drain, request: Request<B>) -> Answer
where
    B: http_body::Body<Data = Bytes, Error: Into<BodyError>>,
{
    match front_proxy {
        Some(FrontProxy(())) => request::answer(&api.0, drain, request).await,
        None => request::refuse(&Status::unauthorized(), request.headers()),
    }
}
