//! Refusals with kube-rbac-proxy's texts (`--error-format=kube-rbac-proxy`), as written by Go's `http.Error`.

use std::borrow::Cow;

use http::header::{CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response, StatusCode};

use super::{Blame, Body, Refusal};

/// Returns the response for `refusal`. Any failure of the backend is a 502 without a body, as in Go's `ReverseProxy`.
pub(super) fn respond(refusal: &Refusal) -> Response<Body> {
    let status = refusal.status();
    let mut response = Response::new(Body::Empty);
    if refusal.blame() == Blame::Backend && matches!(status.code, 500 | 502 | 503) {
        *response.status_mut() = StatusCode::BAD_GATEWAY;
    } else {
        *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        *response.body_mut() = Body::from(bytes::Bytes::from(format!("{}\n", text(refusal))));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    if let Some(seconds) = status.retry_after_header() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn text(refusal: &Refusal) -> Cow<'_, str> {
    let status = refusal.status();
    if let Some(text) = refusal.rbac_proxy_text() {
        return text.into();
    }
    if let (Some(judged), Some(what)) = (refusal.attributes(), decision_text(status.code)) {
        let (user, verb, resource, subresource) = (&judged.user, &judged.verb, &judged.resource, &judged.subresource);
        return format!("{what} (user={user}, verb={verb}, resource={resource}, subresource={subresource})").into();
    }
    match status.code {
        401 => "Unauthorized".into(),
        404 => "404 page not found".into(),
        _ => status.message.as_str().into(),
    }
}

fn decision_text(code: u16) -> Option<&'static str> {
    match code {
        403 => Some("Forbidden"),
        500 => Some("Authorization error"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http_body_util::BodyExt;
    use kubeapi::{RetryAfter, Status};

    use super::*;
    use crate::message::{Accept, ErrorFormat, ReviewedAttributes};

    async fn read(refusal: &Refusal) -> (u16, HeaderMap, String) {
        let response = crate::message::respond(refusal, &Accept::default(), ErrorFormat::KubeRbacProxy);
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), parts.headers, String::from_utf8_lossy(&bytes).into_owned())
    }

    fn judged(status: Status) -> Refusal {
        let judged = ReviewedAttributes {
            user: "jane".into(),
            verb: "*".into(),
            resource: "pods".into(),
            subresource: "".into(),
        };
        Refusal::new(Blame::Client, status).with_cause("secret").with_attributes(judged)
    }

    #[tokio::test]
    async fn rbac_proxy_error_texts() {
        let asked = Refusal::new(Blame::Client, Status::bad_request("x")).with_rbac_proxy_text("Bad Request.");
        for (refusal, code, body) in [
            (Refusal::new(Blame::Client, Status::unauthorized()), 401, "Unauthorized\n"),
            (judged(Status::forbidden("x")), 403, "Forbidden (user=jane, verb=*, resource=pods, subresource=)\n"),
            (
                judged(Status::internal_error("x")),
                500,
                "Authorization error (user=jane, verb=*, resource=pods, subresource=)\n",
            ),
            (Refusal::new(Blame::Client, Status::not_found()), 404, "404 page not found\n"),
            (asked, 400, "Bad Request.\n"),
            (Refusal::new(Blame::Client, Status::bad_request("a path with dots")), 400, "a path with dots\n"),
            (Refusal::new(Blame::Backend, Status::timeout("too late")), 504, "Timeout: too late\n"),
        ] {
            let (found, headers, text) = read(&refusal).await;
            assert_eq!((found, &*text), (code, body));
            assert_eq!(headers[CONTENT_TYPE], "text/plain; charset=utf-8");
            assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
            assert_eq!(headers.len(), 2);
        }
    }

    #[tokio::test]
    async fn rbac_proxy_backend_failure_is_502_without_body() {
        for status in [
            Status::service_unavailable("x").with_retry_after(RetryAfter::TransientFault),
            Status::bad_gateway("x").with_retry_after(RetryAfter::TransientFault),
        ] {
            let (code, headers, text) = read(&Refusal::new(Blame::Backend, status)).await;
            assert_eq!((code, &*text), (502, ""));
            assert!(headers.is_empty(), "{headers:?}");
        }
    }
}
