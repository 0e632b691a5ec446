//! Reviews that the gateway answers itself: of the caller (`kubectl auth`), and for backends.

use std::time::Duration;

use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use kubeapi::{RetryAfter, Status};

use super::target::{ParsedRequest, client_error};
use crate::authorize::{self, Permit, ReviewBody, SelfReview};
use crate::delegation_server::{self, DelegationRequest};
use crate::message::negotiate::is_pretty_print;
use crate::message::{Body, IncomingBody, Refusal};
use crate::observe::access::BodyCounter;
use crate::rest::check_create_options;

/// Timeout for the body of a review to arrive, and for waiting until a large one can be parsed.
const REVIEW_BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The response to a SelfSubjectReview, SelfSubjectAccessReview or SelfSubjectRulesReview.
///
/// # Errors
/// 405 for other verbs than create; 413, 415, 400 and 422 for an invalid body.
pub(super) async fn self_review(
    parsed: &ParsedRequest<'_>,
    review: SelfReview,
    permit: &Permit<'_>,
    request: Request<IncomingBody>,
    counter: &BodyCounter,
) -> Result<Response<Body>, Refusal> {
    let (shared, is_indented) = (parsed.shared, is_pretty_print(&parsed.target.query, request.headers()));
    let body = read_review_body(parsed, permit, review.review_body(), request, counter).await?;
    let review = review.answer(&shared.access.authorizer, permit.user(), &body).await;
    review.map(|review| created_response(&review, is_indented)).map_err(client_error)
}

/// The response to a TokenReview, SubjectAccessReview or LocalSubjectAccessReview (`--serve-delegation`, `--embedded-api`).
///
/// # Errors
/// As [`self_review`].
pub(super) async fn delegation_review(
    parsed: &ParsedRequest<'_>,
    request_kind: DelegationRequest,
    permit: &Permit<'_>,
    request: Request<IncomingBody>,
    counter: &BodyCounter,
) -> Result<Response<Body>, Refusal> {
    let (shared, is_indented) = (parsed.shared, is_pretty_print(&parsed.target.query, request.headers()));
    let body = read_review_body(parsed, permit, request_kind.review_body(), request, counter).await?;
    let review = match request_kind {
        DelegationRequest::TokenReview => delegation_server::token_review(&shared.access.authenticator, &body).await,
        DelegationRequest::SubjectAccessReview | DelegationRequest::LocalSubjectAccessReview => {
            let (authorizer, believed) = (&shared.access.authorizer, shared.access.authenticator.groups());
            authorize::subject_access_review(authorizer, believed, permit.request().namespace, &body).await
        }
    };
    review.map(|review| created_response(&review, is_indented)).map_err(client_error)
}

/// Reads the body of a review, as JSON.
async fn read_review_body(
    parsed: &ParsedRequest<'_>,
    permit: &Permit<'_>,
    review_body: ReviewBody,
    request: Request<IncomingBody>,
    counter: &BodyCounter,
) -> Result<Vec<u8>, Refusal> {
    if !permit.request().name.is_empty() {
        // Reviews are not stored.
        return Err(client_error(Status::not_found()));
    }
    if permit.request().verb != "create" {
        let message = "the server does not allow this method on the requested resource";
        return Err(client_error(Status::method_not_allowed(message)));
    }
    let (head, body) = request.into_parts();
    check_create_options(&parsed.target.query).map_err(client_error)?;
    let max_bytes = review_body.max_bytes();
    let read = tokio::time::timeout(REVIEW_BODY_TIMEOUT, Limited::new(body, max_bytes).collect()).await;
    let read = read.map_err(|_| client_error(Status::request_timeout("the body did not arrive in time")))?;
    let body = read.map_err(|error| {
        if error.is::<LengthLimitError>() {
            client_error(Status::request_entity_too_large(format_args!("limit is {max_bytes}")))
        } else {
            client_error(Status::bad_request("the request body is incomplete")).with_cause(error)
        }
    })?;
    let content_type = head.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let body = body.to_bytes();
    counter.record(&body);
    if !ReviewBody::is_slow(content_type, body.len()) {
        return review_body.read(content_type, &body).map_err(client_error);
    }
    // On a blocking thread, so that other requests of this worker do not wait.
    let turn = parsed.shared.review_turns.wait(&permit.user().name);
    let Ok(Some(_turn)) = tokio::time::timeout(REVIEW_BODY_TIMEOUT, turn).await else {
        return Err(client_error(Status::too_many_requests(
            "too many large reviews at once, please try again later",
            RetryAfter::Overloaded,
        )));
    };
    let content_type = content_type.to_owned();
    let read = tokio::task::spawn_blocking(move || review_body.read(&content_type, &body)).await;
    read.map_err(|error| client_error(Status::internal_error("the body could not be read")).with_cause(error))?
        .map_err(client_error)
}

fn created_response(review: &serde_json::Value, is_indented: bool) -> Response<Body> {
    let text = if is_indented { format!("{review:#}") } else { format!("{review}\n") };
    let mut response = Response::new(text.into());
    *response.status_mut() = StatusCode::CREATED;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}
