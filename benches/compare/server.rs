//! A single-threaded HTTP/1.1 and HTTP/2 server for the fake peers.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};

/// Serves until the process ends: with TLS what ALPN chooses, without it HTTP/1.1.
pub(crate) fn serve<F, B>(
    port: &str,
    tls: Option<rustls::ServerConfig>,
    response: impl Fn(Request<Incoming>) -> F + Clone + Send + 'static,
) where
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error = Infallible> + Send + 'static,
{
    let tls = tls.map(|tls| tokio_rustls::TlsAcceptor::from(Arc::new(tls)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await.expect("the port is free");
        loop {
            let Ok((socket, _)) = listener.accept().await else { continue };
            let _ = socket.set_nodelay(true);
            let (tls, response) = (tls.clone(), response.clone());
            tokio::spawn(async move {
                let service = hyper::service::service_fn(move |request| {
                    let response = response(request);
                    async move { Ok::<_, Infallible>(response.await) }
                });
                let Some(tls) = tls else {
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
                    return;
                };
                let Ok(stream) = tls.accept(socket).await else { return };
                if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                    let mut builder = http2::Builder::new(TokioExecutor::new());
                    builder.max_concurrent_streams(1000);
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                } else {
                    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
                }
            });
        }
    });
}
