//! A conversion webhook in this process, which changes `apiVersion` alone.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::fixtures::{self, BenchEnvironment};

/// Starts the webhook; how it is reached, as `clientConfig`.
pub(super) async fn start(environment: &BenchEnvironment) -> Value {
    let mut config = fixtures::reviewer_config(environment.directory());
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        loop {
            let Ok((socket, _)) = listener.accept().await else { return };
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(socket).await else { return };
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(convert)).await;
            });
        }
    });
    json!({"url": format!("https://127.0.0.1:{port}/convert"), "caBundle": environment.authority_base64()})
}

async fn convert(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut review: Value = serde_json::from_slice(&body).unwrap_or_default();
    let mut request = review["request"].take();
    let desired = request["desiredAPIVersion"].take();
    let mut objects = request["objects"].take();
    for object in objects.as_array_mut().into_iter().flatten() {
        object["apiVersion"] = desired.clone();
    }
    let answer = json!({
        "apiVersion": review["apiVersion"], "kind": "ConversionReview",
        "response": {"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects},
    });
    let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
    Ok(response)
}
