//! The text of an error response (`NewGenericServerResponse` in `k8s.io/apimachinery/pkg/api/errors/errors.go`).

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use serde::Deserialize;

use kubeapi::GoQuoted;

/// The fields of a `metav1.Status` that say what failed.
#[derive(Deserialize)]
struct FailureStatus {
    kind: String,
    status: String,
    #[serde(default)]
    message: String,
}

/// The text of a response with a code that is no success.
pub(super) fn error_response_text(code: u16, headers: &HeaderMap, body: &[u8]) -> String {
    let status = serde_json::from_slice::<FailureStatus>(body);
    if let Ok(status) = status
        && status.kind == "Status"
        && status.status == "Failure"
    {
        return status.message;
    }
    let is_text = headers.get(CONTENT_TYPE).is_some_and(|media_type| media_type.as_bytes().starts_with(b"text/"));
    let text = if is_text { String::from_utf8_lossy(body).trim().to_owned() } else { "unknown".to_owned() };
    let fixed = match code {
        400 => "the server rejected our request for an unknown reason",
        401 => "the server has asked for the client to provide credentials",
        403 | 415 => return text,
        404 => "the server could not find the requested resource",
        405 => "the server does not allow this method on the requested resource",
        406 if text.is_empty() || text == "unknown" => {
            "the server was unable to respond with a content type that the client supports"
        }
        406 => return text,
        409 => "the server reported a conflict",
        422 => "the server rejected our request due to an error in our request",
        429 => "the server has received too many requests and has asked us to try again later",
        503 => "the server is currently unable to handle the request",
        504 => {
            "the server was unable to return a response in the time allotted, but may still be processing the request"
        }
        500.. => {
            return format!("an error on the server ({}) has prevented the request from succeeding", GoQuoted(&text));
        }
        _ => return format!("the server responded with the status code {code} but did not return more information"),
    };
    fixed.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_response_has_text_of_client_go() {
        let mut headers = HeaderMap::new();
        let json = br#"{"kind":"Status","status":"Failure","message":"why"}"#;
        assert_eq!(error_response_text(500, &headers, json), "why");
        let redirect = "the server responded with the status code 307 but did not return more information";
        assert_eq!(error_response_text(307, &headers, b""), redirect);
        let unknown = r#"an error on the server ("unknown") has prevented the request from succeeding"#;
        assert_eq!(error_response_text(500, &headers, b"x"), unknown);
        headers.insert(CONTENT_TYPE, "text/plain".parse().unwrap());
        let quoted = r#"an error on the server ("a \"b\"") has prevented the request from succeeding"#;
        assert_eq!(error_response_text(502, &headers, b"a \"b\"\n"), quoted);
        assert_eq!(error_response_text(404, &headers, b"x"), "the server could not find the requested resource");
    }
}
