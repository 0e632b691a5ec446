//! The backend of the comparison: TLS with client certificates, serving 1 KiB, 64 KiB, or a watch.

use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::{fixtures, server};

/// `backend DIRECTORY PORT h1|h2|tls|plain`
pub(crate) fn main(arguments: &[String]) {
    let [directory, port, protocol] = arguments else { panic!("backend DIRECTORY PORT h1|h2|tls|plain") };
    let directory = Path::new(directory);
    let tls = match protocol.as_str() {
        "plain" => None,
        "tls" => Some(fixtures::open_backend_config(directory)),
        "h1" => Some(fixtures::backend_config(directory, &[b"http/1.1"])),
        _ => Some(fixtures::backend_config(directory, &[b"h2", b"http/1.1"])),
    };
    let small = Bytes::from(vec![b'x'; 1 << 10]);
    let big = Bytes::from(vec![b'y'; 64 << 10]);
    server::serve(port, tls, move |request| std::future::ready(respond(&request, &small, &big)));
}

/// So that what is asked for is known to be a resource, as behind a real API server.
fn api_resource_list(group: &str) -> Bytes {
    let list = |name: &str, verbs: &str| {
        format!(r#"{{"name":"{name}","singularName":"{name}","namespaced":true,"kind":"{name}","verbs":[{verbs}]}}"#)
    };
    let mut all = vec![list("small", r#""list""#), list("big", r#""list""#), list("watches", r#""list","watch""#)];
    // As many as a group of Kubernetes has.
    all.extend((0..7).map(|one| {
        let verbs = r#""create","delete","deletecollection","get","list","patch","update","watch""#;
        list(&format!("others{one}"), verbs)
    }));
    let all = all.join(",");
    format!(r#"{{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"{group}/v1","resources":[{all}]}}"#).into()
}

fn respond(request: &Request<Incoming>, small: &Bytes, big: &Bytes) -> Response<BackendBody> {
    let mut backwards = request.uri().path().rsplit('/');
    let body = match (backwards.next(), backwards.next()) {
        (Some("watches"), _) => BackendBody { first: Some(small.slice(..512)), is_endless: true },
        (Some("big"), _) => BackendBody { first: Some(big.clone()), is_endless: false },
        (Some("v1"), Some(group)) => BackendBody { first: Some(api_resource_list(group)), is_endless: false },
        _ => BackendBody { first: Some(small.clone()), is_endless: false },
    };
    let mut response = Response::new(body);
    // Like a backend that has only the old form of discovery.
    if matches!(request.uri().path(), "/api" | "/apis" | "/openapi/v2" | "/openapi/v3") {
        *response.status_mut() = http::StatusCode::NOT_FOUND;
    }
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/json"));
    headers.insert("audit-id", HeaderValue::from_static("d7f9c3b0-1a2b-4c3d-8e9f-000000000000"));
    headers.insert("cache-control", HeaderValue::from_static("no-cache, private"));
    response
}

struct BackendBody {
    first: Option<Bytes>,
    is_endless: bool,
}

impl Body for BackendBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.first.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None if self.is_endless => Poll::Pending,
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && !self.is_endless
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.first, self.is_endless) {
            (Some(bytes), false) => SizeHint::with_exact(bytes.len() as u64),
            (None, false) => SizeHint::with_exact(0),
            _ => SizeHint::default(),
        }
    }
}
