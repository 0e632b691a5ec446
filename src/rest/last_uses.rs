//! The label `kubernetes.io/legacy-token-last-used` of Secrets whose token is used
//! (`patchSecretWithLastUsedDate` in `pkg/serviceaccount/legacy.go`).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::{Timestamp, ToSpan as _};
use kubeapi::Status;
use kubeapi::json::write_stored_json;
use parking_lot::Mutex;
use serde_json::Value;
use store::Key;
use store::watch_cache::{ResourceCollection, Stored};

use super::errors::finish_write;
use crate::conversion::stored_object;

/// Label of a Secret with the day in UTC on which its token was used last (`LastUsedLabelKey`).
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";

/// Time after a failed write in which no other is tried: a store that takes no writes must not fill the log.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// Writes the label, once a day for each Secret.
#[derive(Clone, Default)]
pub(crate) struct LastUses {
    /// Secrets whose label is being written, or could not be written just now.
    writing: Arc<Mutex<HashSet<Key>>>,
}

impl LastUses {
    /// Records that the token of a Secret is used now. The write goes on after the return; one that fails is tried again
    /// at the first use after [`RETRY_DELAY`].
    pub(crate) fn record(&self, secrets: &ResourceCollection, secret: &Arc<Stored>) {
        let now = Timestamp::now();
        let day = |time: Timestamp| time.strftime("%Y-%m-%d").to_string();
        let last = secret.label(LAST_USED).unwrap_or_default();
        // The clock of another server may be ahead.
        if last == day(now) || last == day(now + 24.hours()) || !self.writing.lock().insert(secret.key().clone()) {
            return;
        }
        let (uses, secrets, secret) = (self.clone(), secrets.clone(), secret.clone());
        tokio::spawn(async move {
            if let Err(status) = write_label(&secrets, &secret, day(now)).await {
                tracing::warn!(
                    namespace = secret.namespace(),
                    secret = secret.name(),
                    error = status.message,
                    "the label {LAST_USED} was not written; it is tried again in a minute, when the token is used"
                );
                tokio::time::sleep(RETRY_DELAY).await;
            }
            uses.writing.lock().remove(secret.key());
        });
    }
}

async fn write_label(secrets: &ResourceCollection, secret: &Arc<Stored>, day: String) -> Result<(), Status> {
    let mut object = stored_object(secret).await?;
    let metadata = object.entry("metadata").or_insert(Value::Null);
    metadata["labels"][LAST_USED] = day.into();
    let value = write_stored_json(&object).bytes;
    finish_write(secrets.update(secret.key(), secret.revision(), value.into(), None).await)
}
