//! Calls of webhooks. One thread sends them, so that each webhook has one set of connections, whichever worker calls it.

mod destination;
mod error_response;
mod thread;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

pub use self::thread::WebhookThread;

use crate::resources::webhook_config::WebhookClientConfig;

/// Calls webhooks. Cheap to clone.
#[derive(Clone)]
pub struct WebhookClient(mpsc::UnboundedSender<WebhookCall>);

/// The calls that [`WebhookClient`]s make: input of the [`WebhookThread`].
pub struct WebhookCalls(mpsc::UnboundedReceiver<WebhookCall>);

/// A call of a webhook.
struct WebhookCall {
    config: Arc<WebhookClientConfig>,
    /// JSON.
    body: Bytes,
    limits: CallLimits,
    /// Gets the body of the response. Dropped by a caller that has no use for it any more.
    reply: oneshot::Sender<Result<Bytes, String>>,
}

/// Limits of one call.
#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    /// Time from the call to the end of the response.
    pub timeout: Duration,
    /// Largest body of a response in bytes.
    pub response_bytes: usize,
}

impl WebhookClient {
    /// Creates a client, and the calls that a thread should send.
    pub fn new() -> (WebhookClient, WebhookCalls) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (WebhookClient(sender), WebhookCalls(receiver))
    }

    /// Posts JSON to a webhook; returns the body of its response.
    ///
    /// # Errors
    /// There is no response of a 2xx code within the time and size; with the text of Go's HTTP client or of client-go.
    pub async fn post(
        &self,
        config: &Arc<WebhookClientConfig>,
        body: Bytes,
        limits: CallLimits,
    ) -> Result<Bytes, String> {
        let (reply, response) = oneshot::channel();
        let call = WebhookCall { config: config.clone(), body, limits, reply };
        let ended = || "webhooks are not called: the server is shutting down".to_owned();
        self.0.send(call).map_err(|_| ended())?;
        response.await.unwrap_or_else(|_| Err(ended()))
    }
}
