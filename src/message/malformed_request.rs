//! A request that the HTTP libraries would refuse themselves, without a word.

use kubeapi::Status;

use super::{Blame, Refusal};

/// Why a request is malformed or beyond a limit, as an extension of what remains of it.
///
/// hyper and h2 answer such a request themselves: with an empty body or a reset, without a log line. So the listener
/// gives them an acceptable one in its place, and the service answers that with the [`MalformedRequest::refusal`].
#[derive(Clone, Debug)]
pub struct MalformedRequest(Status);

impl MalformedRequest {
    /// 400: the request is not valid HTTP.
    pub fn invalid(message: impl Into<String>) -> MalformedRequest {
        MalformedRequest(Status::bad_request(message))
    }

    /// 414: the URL is longer than `limit` bytes; with its length, if it is known.
    pub fn url_too_long(length: Option<usize>, limit: usize) -> MalformedRequest {
        MalformedRequest(Status::uri_too_long(match length {
            Some(length) => format!("the URL has {length} bytes, the most are {limit}"),
            None => format!("the URL has more than {limit} bytes"),
        }))
    }

    /// 431: the header is larger than a limit, which `message` names.
    pub fn header_too_large(message: impl Into<String>) -> MalformedRequest {
        MalformedRequest(Status::request_header_fields_too_large(message))
    }

    /// The refusal of the request.
    pub fn refusal(&self) -> Refusal {
        Refusal::new(Blame::Client, self.0.clone()).with_cause(format_args!("malformed request: {}", self.0.message))
    }

    /// Status code and message of the response.
    pub fn status(&self) -> &Status {
        &self.0
    }
}
