//! Responses for refusals. The only place that encodes them.

use http::header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER, WARNING, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response, StatusCode};

use super::{Accept, Blame, Body, Refusal, rbac_proxy};

/// Form of error responses (`--error-format`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ErrorFormat {
    /// A `metav1.Status` for everything.
    #[default]
    Status,
    /// kube-aggregator's texts where it has them: routing, availability and backend failures. Responses for which
    /// k8s.io/apiserver sends a Status (400, 401, 403, 504, …) stay a Status.
    Text,
    /// Texts for everything, kube-rbac-proxy's where it has them.
    KubeRbacProxy,
}

/// Returns the response for `refusal`, without its cause.
pub fn respond(refusal: &Refusal, accept: &Accept, format: ErrorFormat) -> Response<Body> {
    if format == ErrorFormat::KubeRbacProxy {
        return rbac_proxy::respond(refusal);
    }
    let status = refusal.status();
    let (content_type, bytes) = match plain_text(refusal, format) {
        Some(text) => (HeaderValue::from_static("text/plain; charset=utf-8"), format!("{text}\n").into()),
        None => {
            let encoding = accept.encoding();
            (encoding.content_type(), kubeapi::encode(status, encoding))
        }
    };
    let mut response = Response::new(Body::from(bytes));
    // A Status with an invalid HTTP code is a bug of the gateway; the client still gets a response.
    *response.status_mut() = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, content_type);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    if let Some(seconds) = status.retry_after_header() {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    for warning in refusal.warnings().iter().filter_map(|text| warning(text)) {
        headers.append(WARNING, warning);
    }
    response
}

/// Returns the value of a `Warning` header, like `k8s.io/apimachinery/pkg/util/net.NewWarningHeader`; none for a text
/// that is not valid in a header.
pub fn warning(text: &str) -> Option<HeaderValue> {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    HeaderValue::from_str(&format!("299 - \"{text}\"")).ok()
}

fn plain_text(refusal: &Refusal, format: ErrorFormat) -> Option<&str> {
    if format == ErrorFormat::Status && !refusal.is_plain_text() {
        return None;
    }
    refusal.text().or(match (refusal.blame(), refusal.status().code) {
        (Blame::Gateway | Blame::Backend, 503) => Some("service unavailable"),
        (Blame::Gateway | Blame::Backend, 500 | 502) => Some(&refusal.status().message),
        (_, 429) => Some("Too many requests, please try again later."),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use http::header::ACCEPT;
    use http_body_util::BodyExt;
    use kubeapi::{RetryAfter, Status};

    use super::*;

    async fn read(response: Response<Body>) -> (u16, HeaderMap, String) {
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        (parts.status.as_u16(), parts.headers, String::from_utf8_lossy(&bytes).into_owned())
    }

    fn accept(value: &'static str) -> Accept {
        Accept::from_headers(&HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(value))]))
    }

    #[tokio::test]
    async fn status_encoded_as_client_accepts() {
        let status = Status::service_unavailable("the server is currently unable to handle the request")
            .with_cause("MissingEndpoints", "no ready endpoints")
            .with_retry_after(RetryAfter::Unavailable);
        let refusal = Refusal::new(Blame::Backend, status).with_cause("10.0.0.1 refused");
        let (code, headers, body) = read(respond(&refusal, &accept("application/yaml"), ErrorFormat::Status)).await;
        assert_eq!(code, 503);
        assert_eq!(headers[CONTENT_TYPE], "application/yaml");
        assert!(!headers.contains_key(RETRY_AFTER), "client-go would repeat the request ten times");
        assert!(body.contains("retryAfterSeconds: 5"));
        assert_eq!(headers[X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert_eq!(headers[CACHE_CONTROL], "no-cache, private");
        assert!(body.contains("reason: ServiceUnavailable") && body.contains("reason: MissingEndpoints"));
    }

    #[tokio::test]
    async fn plain_text_is_sent_to_every_client() {
        let refusal = Refusal::new(Blame::Client, Status::not_found()).with_plain_text("404 page not found");
        for (accepted, format) in [("application/json", ErrorFormat::Status), ("*/*", ErrorFormat::Text)] {
            let (code, headers, body) = read(respond(&refusal, &accept(accepted), format)).await;
            assert_eq!((code, &*body), (404, "404 page not found\n"));
            assert_eq!(headers[CONTENT_TYPE], "text/plain; charset=utf-8");
        }
    }

    #[tokio::test]
    async fn warning_header_is_quoted() {
        let refusal = Refusal::new(Blame::Client, Status::unauthorized()).with_warnings(["say \"hi\"".to_owned()]);
        let (_, headers, _) = read(respond(&refusal, &Accept::default(), ErrorFormat::Status)).await;
        assert_eq!(headers[WARNING], r#"299 - "say \"hi\"""#);
    }

    /// Internal errors go to the log only.
    #[tokio::test]
    async fn refusal_cause_not_sent_to_client() {
        let refusal =
            Refusal::new(Blame::Backend, Status::bad_gateway("no answer")).with_cause("dial tcp 10.96.0.1:443");
        for format in [ErrorFormat::Status, ErrorFormat::Text] {
            let (_, headers, body) = read(respond(&refusal, &accept("*/*"), format)).await;
            assert!(!body.contains("10.96"));
            assert!(!headers.values().any(|value| value.to_str().unwrap().contains("10.96")));
        }
    }

    #[tokio::test]
    async fn error_format_text_equals_kube_aggregator() {
        let status = Status::service_unavailable("long").with_retry_after(RetryAfter::TransientFault);
        let unavailable = Refusal::new(Blame::Gateway, status);
        let (code, headers, body) = read(respond(&unavailable, &accept("*/*"), ErrorFormat::Text)).await;
        assert_eq!((code, &*body), (503, "service unavailable\n"));
        assert_eq!(headers[CONTENT_TYPE], "text/plain; charset=utf-8");
        assert!(!headers.contains_key(RETRY_AFTER));

        let full = Refusal::new(Blame::Gateway, Status::too_many_requests("x", RetryAfter::Overloaded));
        for format in [ErrorFormat::Status, ErrorFormat::Text, ErrorFormat::KubeRbacProxy] {
            assert_eq!(read(respond(&full, &accept("*/*"), format)).await.1[RETRY_AFTER], "1");
        }

        let told =
            Refusal::new(Blame::Backend, Status::service_unavailable("x")).with_text("error trying to reach service");
        assert_eq!(read(respond(&told, &accept("*/*"), ErrorFormat::Text)).await.2, "error trying to reach service\n");

        for status in
            [Status::unauthorized(), Status::forbidden("no"), Status::bad_request("no"), Status::timeout("no")]
        {
            let refusal = Refusal::new(Blame::Client, status);
            let (_, headers, body) = read(respond(&refusal, &accept("*/*"), ErrorFormat::Text)).await;
            assert_eq!(headers[CONTENT_TYPE], "application/json");
            assert!(body.starts_with("{\"kind\":\"Status\""));
        }
    }

    #[tokio::test]
    async fn unauthorized_status_equals_upstream() {
        let refusal = Refusal::new(Blame::Client, Status::unauthorized()).with_cause("bearer token: unknown");
        let (code, headers, body) = read(respond(&refusal, &Accept::default(), ErrorFormat::Status)).await;
        assert_eq!(code, 401);
        assert!(!headers.contains_key("www-authenticate"));
        assert_eq!(
            body,
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"Unauthorized\",\"reason\":\"Unauthorized\",\"code\":401}\n"
        );
    }
}
