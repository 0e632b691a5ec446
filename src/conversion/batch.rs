//! Stored objects that are converted by one call.

use std::sync::Arc;

use kubeapi::Status;
use kubeapi::json::{json_size, write_stored_json};
use serde_json::Value;
use store::KeyValue;
use store::watch_cache::{ResourceCollection, Stored};

use super::cache::ConversionGuard;
use super::schema_work;
use super::webhook::{ConversionWebhooks, WebhookResource};
use super::{MAX_CONVERTED_BYTES, prune_converted, too_large_list};
use crate::compute::{MAX_INLINE_BYTES, run_sized};
use crate::kinds::custom_resource;
use crate::resources::ServedKind;

/// Objects of a call at most.
const MAX_OBJECTS: usize = 500;
/// Bytes of the objects of a call at most, unless it is one object.
const MAX_BYTES: usize = 2 << 20;
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
            move || read_all_stored(&kind, &sources)
        };
        // Schemas are needed, and may have to be compiled.
        let objects = run_sized(size + MAX_INLINE_BYTES, read).await??;
        let desired = self.kind.api_version();
        let (collection, kind) = (self.collection.clone(), self.kind.clone());
        let keep =
            move |index: usize, value: Value| sources.get(index).map(|one| replaced(&kind, &collection, one, value));
        let converted = webhooks.convert(of, &desired, (objects, size), self.is_list, keep).await?;
        converted.into_iter().flatten().collect()
    }
}

/// Stored objects as values. Their defaults may be much larger than they are.
fn read_all_stored(kind: &ServedKind, sources: &[Arc<Stored>]) -> Result<Vec<Value>, Status> {
    let (mut objects, mut bytes) = (Vec::with_capacity(sources.len()), 0);
    for source in sources {
        let object = read_stored(kind, source)?;
        bytes += json_size(&object);
        if bytes > MAX_CONVERTED_BYTES {
            return Err(too_large_list(kind));
        }
        objects.push(object);
    }
    Ok(objects)
}

/// A stored object as a value, with what the schema of its version adds since it was stored.
fn read_stored(kind: &ServedKind, stored: &Stored) -> Result<Value, Status> {
    let mut value: Value = serde_json::from_slice(stored.bytes()).map_err(|error| {
        Status::internal_error(format_args!("stored object {} cannot be parsed: {error}", stored.key()))
    })?;
    let refreshed = custom_resource::refresh_stored(kind, &mut value);
    if !refreshed.map_err(|error| schema_work::defaults_status(stored, error))? {
        let version = value["apiVersion"].as_str().unwrap_or_default();
        let text = format!("request to convert CR from an invalid group/version: {version}");
        return Err(Status::new(500, "", text));
    }
    Ok(value)
}

/// A stored object as a webhook converted it to the version of a kind. It is sent as it is.
///
/// # Errors
/// 500 for content that the schema of the version does not allow.
fn replaced(
    kind: &ServedKind,
    collection: &ResourceCollection,
    source: &Stored,
    mut value: Value,
) -> Result<Arc<Stored>, Status> {
    if let Some(version) = kind.version.custom() {
        prune_converted(version, &mut value)?;
    }
    let bytes = match &value {
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
    let converted = Stored::new(Arc::new(record), collection.prefix(), collection.declared_fields());
    if let Some(version) = kind.version.custom() {
        converted.schema_checks().record(version.id(), true);
    }
    Ok(Arc::new(converted))
}
