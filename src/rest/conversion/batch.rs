//! Stored objects that are converted by one call.

use std::sync::Arc;

use serde_json::Value;

use super::cache::ConversionGuard;
use super::webhook::{ConversionWebhooks, WebhookResource};
use crate::kubeapi::Status;
use crate::kubeapi::json::write_stored_json;
use crate::resources::ServedKind;
use crate::rest::compute::run_sized;
use crate::rest::custom_object;
use crate::storage::KeyValue;
use crate::watch_cache::{ResourceCollection, Stored};

/// Objects of a call at most.
const MAX_OBJECTS: usize = 500;
/// Bytes of the objects of a call at most, unless it is one object.
const MAX_BYTES: usize = 8 << 20;
/// Calls for one request at a time.
pub(super) const MAX_CONCURRENT_BATCHES: usize = 4;

/// An object to convert.
pub(super) struct PendingConversion {
    /// Its place among the objects of the request.
    pub(super) place: usize,
    pub(super) object: Arc<Stored>,
    pub(super) guard: ConversionGuard,
}

/// Objects that are converted by one call.
pub(super) struct ConversionBatch<'r> {
    pub(super) kind: &'r ServedKind,
    pub(super) collection: &'r ResourceCollection,
    pub(super) is_list: bool,
    pub(super) pending: Vec<PendingConversion>,
}

/// Splits objects into the batches of calls, in their order.
pub(super) fn split_batches(pending: Vec<PendingConversion>) -> Vec<Vec<PendingConversion>> {
    let mut batches: Vec<Vec<PendingConversion>> = Vec::new();
    let mut bytes = 0;
    for one in pending {
        let size = one.object.bytes().len();
        match batches.last_mut() {
            Some(batch) if batch.len() < MAX_OBJECTS && bytes + size <= MAX_BYTES => {
                bytes += size;
                batch.push(one);
            }
            _ => {
                bytes = size;
                batches.push(vec![one]);
            }
        }
    }
    batches
}

impl ConversionBatch<'_> {
    /// Converts the objects; returns each with its place. The result is given to all that wait for it.
    ///
    /// # Errors
    /// 500 with upstream's text.
    pub(super) async fn convert(self, webhooks: &ConversionWebhooks) -> Result<Vec<(usize, Arc<Stored>)>, Status> {
        let sources: Arc<[Arc<Stored>]> = self.pending.iter().map(|one| one.object.clone()).collect();
        let result = self.converted(webhooks, sources).await;
        match result {
            Ok(converted) => {
                let finish = |(one, converted): (PendingConversion, Arc<Stored>)| {
                    one.guard.finish(Ok(converted.clone()));
                    (one.place, converted)
                };
                Ok(self.pending.into_iter().zip(converted).map(finish).collect())
            }
            Err(status) => {
                self.pending.into_iter().for_each(|one| one.guard.finish(Err(status.clone())));
                Err(status)
            }
        }
    }

    async fn converted(
        &self,
        webhooks: &ConversionWebhooks,
        sources: Arc<[Arc<Stored>]>,
    ) -> Result<Vec<Arc<Stored>>, Status> {
        let Some(of) = WebhookResource::of(&self.kind.resource) else { return Ok(sources.to_vec()) };
        let size = sources.iter().map(|source| source.bytes().len()).sum();
        let read = {
            let (kind, sources) = (self.kind.clone(), sources.clone());
            move || sources.iter().map(|source| read_stored(&kind, source)).collect::<Result<Vec<Value>, Status>>()
        };
        let objects = run_sized(size, read).await??;
        let desired = self.kind.api_version();
        let converted = webhooks.convert(of, &desired, (objects, size), self.is_list).await?;
        let collection = self.collection.clone();
        let store = move || {
            let pairs = sources.iter().zip(converted);
            pairs.map(|(source, value)| replaced(&collection, source, &value)).collect()
        };
        run_sized(size, store).await
    }
}

/// A stored object as a value, with what the schema of its version adds since it was stored.
fn read_stored(kind: &ServedKind, stored: &Stored) -> Result<Value, Status> {
    let mut value: Value = serde_json::from_slice(stored.bytes()).map_err(|error| {
        Status::internal_error(format_args!("stored object {} cannot be parsed: {error}", stored.key()))
    })?;
    if !custom_object::refresh_stored(kind, &mut value) {
        let version = value["apiVersion"].as_str().unwrap_or_default();
        let text = format!("request to convert CR from an invalid group/version: {version}");
        return Err(Status::new(500, "", text));
    }
    Ok(value)
}

/// A stored object with other content.
fn replaced(collection: &ResourceCollection, source: &Stored, value: &Value) -> Arc<Stored> {
    let bytes = match value {
        Value::Object(object) => write_stored_json(object).bytes,
        other => other.to_string().into_bytes(),
    };
    let record = KeyValue {
        key: source.key().clone(),
        value: bytes.into(),
        created: source.created(),
        revision: source.revision(),
        expires: None,
    };
    Arc::new(Stored::new(Arc::new(record), collection.prefix(), collection.declared_fields()))
}
