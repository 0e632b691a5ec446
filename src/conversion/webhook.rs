//! One call of a conversion webhook.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kubeapi::Status;
use serde_json::Value;

use super::review::{ConversionOriginal, ConversionReview, ConversionReviewVersion, FailedConversion};
use crate::compute::{MAX_INLINE_BYTES, run_sized};
use crate::observe::metrics::{ConversionFailure, ConversionMetrics};
use crate::resources::MAX_BODY_BYTES;
use crate::resources::Resource;
use crate::resources::custom::{CustomResource, WebhookConversion};
use crate::webhook_client::{CallLimits, WebhookClient};

/// How many times as large as the request a response may be.
const RESPONSE_FACTOR: usize = 4;

/// Time limit of a call (`NewDefaultAuthenticationInfoResolver` in `k8s.io/apiserver/pkg/util/webhook`).
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest response to a request of so many bytes: converted objects may be several times as large, and one may be as
/// large as a request body.
fn max_response_bytes(request_bytes: usize) -> usize {
    MAX_BODY_BYTES + RESPONSE_FACTOR * request_bytes
}

/// Calls conversion webhooks.
pub(super) struct ConversionWebhooks {
    pub(super) client: WebhookClient,
    pub(super) metrics: Arc<ConversionMetrics>,
}

/// A resource whose objects a webhook converts.
#[derive(Clone, Copy)]
pub(super) struct WebhookResource<'r> {
    pub(super) resource: &'r Resource,
    pub(super) custom: &'r CustomResource,
    pub(super) webhook: &'r WebhookConversion,
}

impl<'r> WebhookResource<'r> {
    /// The resource, if a webhook converts its objects.
    pub(super) fn of(resource: &'r Resource) -> Option<WebhookResource<'r>> {
        let custom = resource.custom.as_ref()?;
        Some(WebhookResource { resource, custom, webhook: custom.conversion.as_ref()? })
    }
}

impl ConversionWebhooks {
    /// Converts objects, of which there is at least one, to the version `desired`, in one call. `size` is that of all in
    /// bytes. Their order stays; each converted object goes to `keep` with its place.
    ///
    /// # Errors
    /// 500 with upstream's text.
    pub(super) async fn convert<T: Send + 'static>(
        &self,
        of: WebhookResource<'_>,
        desired: &str,
        (objects, size): (Vec<Value>, usize),
        is_list: bool,
        keep: impl Fn(usize, Value) -> T + Send + 'static,
    ) -> Result<Vec<T>, Status> {
        let failed = |text: String| Status::new(500, "", text);
        let version = ConversionReviewVersion::negotiate(&of.webhook.review_versions).map_err(failed)?;
        let found = objects.first().and_then(|object| object["apiVersion"].as_str()).unwrap_or_default().to_owned();
        let kind = &of.resource.kind;
        let input = match is_list {
            true => format!("{desired}, Kind={}", of.resource.list_kind.as_deref().unwrap_or(kind)),
            false => format!("{found}, Kind={kind}"),
        };
        let uid = uuid::Uuid::new_v4().to_string();
        let review = ConversionReview { version, uid, desired: desired.to_owned(), input, is_list };
        let began = Instant::now();
        let result = self.call(of, review, (objects, size), keep).await;
        let name = |api_version: &'_ str| api_version.rsplit('/').next().unwrap_or_default().to_owned();
        let outcome = result.as_ref().map(|_| ()).map_err(|failed| failed.failure);
        self.metrics.record(&of.custom.crd_name, (&name(&found), &name(desired)), began.elapsed(), outcome);
        result.map_err(|FailedConversion { text, .. }| {
            tracing::warn!(crd = %of.custom.crd_name, "custom objects cannot be converted: {text}");
            failed(text)
        })
    }

    async fn call<T: Send + 'static>(
        &self,
        of: WebhookResource<'_>,
        review: ConversionReview,
        (objects, size): (Vec<Value>, usize),
        keep: impl Fn(usize, Value) -> T + Send + 'static,
    ) -> Result<Vec<T>, FailedConversion> {
        let no_thread = review.clone();
        let no_thread = |status: Status| no_thread.failed(ConversionFailure::Call, &status.message);
        let encode = move || {
            let body = review.request(&objects);
            let originals: Vec<_> = objects.into_iter().map(ConversionOriginal::new).collect();
            (review, originals, body)
        };
        let (review, originals, body) = run_sized(size, encode).await.map_err(&no_thread)?;
        let limits = CallLimits { timeout: CALL_TIMEOUT, response_bytes: max_response_bytes(body.len()) };
        let posted = self.client.post(&of.webhook.client_config, Bytes::from(body), limits).await;
        let response = posted.map_err(|why| review.failed(ConversionFailure::Call, &why))?;
        // A schema is needed, and may have to be compiled: that of a watch may have been dropped.
        let size = size.max(response.len()) + MAX_INLINE_BYTES;
        let read = move || review.converted_objects(&originals, &response, keep);
        run_sized(size, read).await.map_err(no_thread)?
    }
}
