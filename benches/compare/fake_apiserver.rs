//! A fake kube-apiserver that accepts every token and allows everything. It costs less than a real one, which is no
//! part of the measurement.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};

use crate::{fixtures, server};

/// `fake-apiserver DIRECTORY PORT`
pub(crate) fn main(arguments: &[String]) {
    let [directory, port] = arguments else { panic!("fake-apiserver DIRECTORY PORT") };
    server::serve(port, Some(fixtures::reviewer_config(Path::new(directory))), respond);
}

/// Reviews so far.
static COUNT: AtomicU64 = AtomicU64::new(0);

async fn respond(request: Request<Incoming>) -> Response<Full<Bytes>> {
    if request.uri().path() == "/count" {
        return Response::new(Full::from(COUNT.load(Ordering::Relaxed).to_string()));
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
    response
}
