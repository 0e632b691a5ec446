//! What stands in for a kube-apiserver: it knows every token, and allows everything. It costs less than a real one,
//! which is as well: it is no part of what is measured.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};

use crate::world;

/// `reviewer DIRECTORY PORT`
pub(crate) fn main(arguments: &[String]) {
    let [directory, port] = arguments else { panic!("reviewer DIRECTORY PORT") };
    let tls = tokio_rustls::TlsAcceptor::from(Arc::new(world::reviewer_config(Path::new(directory))));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await.expect("the port is free");
        loop {
            let Ok((socket, _)) = listener.accept().await else { continue };
            let _ = socket.set_nodelay(true);
            let tls = tls.clone();
            tokio::spawn(async move {
                let Ok(stream) = tls.accept(socket).await else { return };
                let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let service = hyper::service::service_fn(answer);
                if h2 {
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

/// Reviews so far.
static COUNT: AtomicU64 = AtomicU64::new(0);

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() == "/count" {
        return Ok(Response::new(Full::from(COUNT.load(Ordering::Relaxed).to_string())));
    }
    COUNT.fetch_add(1, Ordering::Relaxed);
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut review: Value = serde_json::from_slice(&body).unwrap_or_default();
    let slow = |text: &Value| text.as_str().is_some_and(|text| text.contains("slow-token"));
    if slow(&review["spec"]["token"]) || slow(&review["spec"]["user"]) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    review["status"] = match review["spec"]["token"].as_str() {
        // A token is its user's name: a new one is a new user.
        Some(token) => json!({"authenticated": true, "audiences": review["spec"]["audiences"],
            "user": {"username": format!("system:serviceaccount:bench:{token}"), "uid": "42",
                "groups": ["system:serviceaccounts", "system:serviceaccounts:bench", "system:authenticated"]}}),
        None => json!({"allowed": true, "reason": "all are"}),
    };
    let mut response = Response::new(Full::from(review.to_string()));
    *response.status_mut() = http::StatusCode::CREATED;
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
    Ok(response)
}
