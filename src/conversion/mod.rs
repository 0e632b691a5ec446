//! Conversion of custom objects between versions by webhooks
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver/conversion`).
//!
//! A stored object becomes another stored object, in the version that a client wants: the code that encodes objects does
//! not know of webhooks. Objects that are in that version already, and all of other resources, stay what they are.

mod batch;
mod cache;
mod metadata;
mod review;
/// Schemas of custom resources: compiled on compute threads, and not used twice for one object.
pub mod schema_work;
mod selection;
mod stored_object;
mod webhook;

use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use serde::Deserialize;
use serde_json::{Map, Value};

pub use self::stored_object::stored_object;

use kubeapi::Status;
use kubeapi::json::write_stored_json;
use store::watch_cache::{ResourceCollection, Stored, WatchEvent};

use self::batch::{ConversionBatch, MAX_CONCURRENT_BATCHES, PendingConversion, split_batches};
use self::cache::{CacheLookup, ConversionCache, ConversionKey};
use self::stored_object::parse_stored_object;
use self::webhook::{ConversionWebhooks, WebhookResource};
use crate::compute::{MAX_INLINE_BYTES, map_size, run_sized, value_size};
use crate::kinds::custom_resource;
use crate::kinds::custom_resource::MalformedFields;
use crate::observe::metrics::ConversionMetrics;
use crate::resources::custom::CustomVersion;
use crate::resources::{Resource, ServedKind};
use crate::webhook_client::WebhookClient;

/// Bytes of the objects that one request converts at most. They are in memory until they are sent.
const MAX_CONVERTED_BYTES: usize = 128 << 20;

/// Converts objects between versions by webhooks. Cheap to clone.
#[derive(Clone, Default)]
pub struct ObjectConverter(Option<Arc<SharedConverter>>);

struct SharedConverter {
    webhooks: ConversionWebhooks,
    cache: Arc<ConversionCache>,
}

/// Whether a webhook converts objects of the kind.
pub fn has_webhook(kind: &ServedKind) -> bool {
    WebhookResource::of(&kind.resource).is_some()
}

/// The version in which objects of the kind are stored, if a webhook converts them to it.
fn converted_storage_version(kind: &ServedKind) -> Option<&Arc<CustomVersion>> {
    let (_, version) = kind.resource.storage.as_ref().filter(|(_, version)| *version != kind.version.version)?;
    WebhookResource::of(&kind.resource)?.custom.version(version)
}

/// The bytes of an object of a kind in the version in which it is stored; none if a webhook converts it.
///
/// # Errors
/// Those of [`custom_resource::convert_to_stored`].
pub fn local_bytes(kind: &ServedKind, object: &Map<String, Value>) -> Result<Option<Vec<u8>>, Status> {
    match converted_storage_version(kind) {
        Some(_) => Ok(None),
        None => local_stored_bytes(&kind.resource, object).map(Some),
    }
}

fn local_stored_bytes(resource: &Resource, object: &Map<String, Value>) -> Result<Vec<u8>, Status> {
    Ok(write_stored_json(&*custom_resource::convert_to_stored(resource, object)?).bytes)
}

impl ObjectConverter {
    /// A converter that calls webhooks.
    pub fn new(client: WebhookClient, metrics: Arc<ConversionMetrics>) -> ObjectConverter {
        let webhooks = ConversionWebhooks { client, metrics };
        ObjectConverter(Some(Arc::new(SharedConverter { webhooks, cache: Arc::default() })))
    }

    /// Converts an object to the version of a kind.
    ///
    /// # Errors
    /// 500 with upstream's text.
    pub async fn convert(
        &self,
        kind: &ServedKind,
        collection: &ResourceCollection,
        object: Arc<Stored>,
    ) -> Result<Arc<Stored>, Status> {
        if !has_webhook(kind) {
            return Ok(object);
        }
        let mut objects = [object];
        self.convert_all(kind, collection, &mut objects, false).await?;
        let [object] = objects;
        Ok(object)
    }

    /// A stored object as a value in the version of a kind, with its resourceVersion.
    ///
    /// # Errors
    /// 500 with upstream's text, and for a value that cannot be read.
    pub async fn served_object(
        &self,
        kind: &ServedKind,
        collection: &ResourceCollection,
        stored: &Arc<Stored>,
    ) -> Result<Map<String, Value>, Status> {
        let converted = self.convert(kind, collection, stored.clone()).await?;
        let kind = kind.clone();
        run_sized(schema_work::stored_work(&kind, &converted), move || {
            let mut object = parse_stored_object(&converted)?;
            schema_work::convert_stored(&kind, &converted, &mut object)?;
            Ok(object)
        })
        .await?
    }

    /// Converts the objects of events.
    ///
    /// # Errors
    /// 500 with upstream's text.
    pub async fn convert_events(
        &self,
        kind: &ServedKind,
        collection: &ResourceCollection,
        events: &mut [WatchEvent],
    ) -> Result<(), Status> {
        let mut objects: Vec<Arc<Stored>> = events.iter().filter_map(|event| event.object.clone()).collect();
        let is_list = objects.len() > 1;
        self.convert_all(kind, collection, &mut objects, is_list).await?;
        let with_object = events.iter_mut().filter(|event| event.object.is_some());
        with_object.zip(objects).for_each(|(event, object)| event.object = Some(object));
        Ok(())
    }

    /// The bytes of an object of a kind in the version in which it is stored.
    ///
    /// # Errors
    /// 500 with upstream's text.
    pub async fn stored_bytes(&self, kind: &ServedKind, object: Arc<Map<String, Value>>) -> Result<Vec<u8>, Status> {
        let size = map_size(&object);
        let Some(version) = converted_storage_version(kind) else {
            let resource = kind.resource.clone();
            return run_sized(size, move || local_stored_bytes(&resource, &object)).await?;
        };
        let copy = move || {
            let mut object = Arc::unwrap_or_clone(object);
            if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
                metadata.remove("resourceVersion");
            }
            object
        };
        let object = run_sized(size, copy).await?;
        let value = self.convert_value(kind, version, Value::Object(object)).await?;
        let write = |value: &Value| match value {
            Value::Object(object) => Ok(write_stored_json(object).bytes),
            _ => Err(Status::internal_error("the converted object is no object")),
        };
        run_sized(value_size(&value), move || write(&value)).await?
    }

    /// The object of a dry run as it would be read after it was stored (`DryRunnableStorage.copyInto` in
    /// `k8s.io/apiserver/pkg/registry/generic/registry/dryrun.go`), with the resourceVersion that it has.
    ///
    /// # Errors
    /// 500 with upstream's text.
    pub async fn dry_run_object(&self, kind: &ServedKind, object: Arc<Map<String, Value>>) -> Result<Value, Status> {
        let Some(version) = kind.version.custom() else {
            return Ok(Value::Object(Arc::unwrap_or_clone(object)));
        };
        let stored = self.stored_bytes(kind, object.clone()).await?;
        let is_converted = has_webhook(kind);
        let read = {
            let kind = kind.clone();
            move || {
                let mut value: Value = serde_json::from_slice(&stored).map_err(Status::internal_error)?;
                if is_converted {
                    custom_resource::refresh_stored(&kind, &mut value).map_err(Status::internal_error)?;
                } else if let Value::Object(read) = &mut value {
                    custom_resource::convert_from_stored(&kind, read).map_err(Status::internal_error)?;
                }
                Ok::<Value, Status>(value)
            }
        };
        let mut value = run_sized(map_size(&object), read).await??;
        if is_converted {
            value = self.convert_value(kind, version, value).await?;
        }
        let resource_version = object.get("metadata").and_then(|metadata| metadata.get("resourceVersion"));
        if let (Some(resource_version), Some(metadata)) = (resource_version, value.get_mut("metadata")) {
            metadata["resourceVersion"] = resource_version.clone();
        }
        Ok(value)
    }

    /// Converts a value by the webhook, unless it is in the version already.
    ///
    /// # Errors
    /// 500 with upstream's text.
    pub async fn convert_value(
        &self,
        kind: &ServedKind,
        version: &Arc<CustomVersion>,
        value: Value,
    ) -> Result<Value, Status> {
        let api_version = &*version.api_version;
        let Some(of) = WebhookResource::of(&kind.resource).filter(|_| value["apiVersion"] != *api_version) else {
            return Ok(value);
        };
        let size = value_size(&value);
        let keep = {
            let version = version.clone();
            move |_, mut value: Value| prune_converted(&version, &mut value).map(|()| value)
        };
        let mut converted = self.shared()?.webhooks.convert(of, api_version, (vec![value], size), false, keep).await?;
        converted.pop().ok_or_else(|| Status::internal_error("no object was converted"))?
    }

    /// Converts stored objects in their places: those in another version, by as few calls as the limits allow.
    ///
    /// # Errors
    /// 500 with upstream's text.
    pub async fn convert_all(
        &self,
        kind: &ServedKind,
        collection: &ResourceCollection,
        objects: &mut [Arc<Stored>],
        is_list: bool,
    ) -> Result<(), Status> {
        let Some(version) = kind.version.custom() else { return Ok(()) };
        // One that cannot be read stays as it is, and fails when it is encoded.
        let mut open = Vec::new();
        let mut parsed = 0;
        for (place, object) in objects.iter().enumerate() {
            let is_in_version = match object.leading_api_version() {
                _ if object.defect().is_some() => true,
                Some(found) => found == version.api_version,
                None => {
                    parsed += object.bytes().len();
                    if parsed > MAX_INLINE_BYTES {
                        parsed = 0;
                        tokio::task::yield_now().await;
                    }
                    let (object, version) = (object.clone(), version.clone());
                    run_sized(object.bytes().len(), move || is_parsed_in(&object, &version.api_version)).await?
                }
            };
            if !is_in_version {
                open.push(place);
            }
        }
        let mut converted_bytes = 0;
        while !open.is_empty() {
            let shared = self.shared()?;
            let (mut own, mut waiting) = (Vec::new(), Vec::new());
            for place in open.drain(..) {
                let object = &objects[place];
                let (key, revision) = (object.key().clone(), object.revision());
                match shared.cache.lookup(ConversionKey { version: version.id(), key, revision }) {
                    CacheLookup::Converted(converted) => objects[place] = converted,
                    CacheLookup::InFlight(receiver) => waiting.push((place, receiver)),
                    CacheLookup::Vacant(guard) => {
                        own.push(PendingConversion { place, object: object.clone(), guard });
                    }
                }
            }
            let batch = |pending| ConversionBatch { kind, collection, is_list, pending }.convert(&shared.webhooks);
            let mut batches = stream::iter(split_batches(own)).map(batch).buffer_unordered(MAX_CONCURRENT_BATCHES);
            while let Some(converted) = batches.try_next().await? {
                for (place, converted) in converted {
                    converted_bytes += converted.bytes().len();
                    objects[place] = converted;
                }
                if converted_bytes > MAX_CONVERTED_BYTES {
                    return Err(too_large_list(kind));
                }
            }
            drop(batches);
            for (place, mut receiver) in waiting {
                let result = receiver.wait_for(Option::is_some).await.ok().and_then(|result| result.clone());
                match result {
                    Some(result) => objects[place] = result?,
                    // The other caller gave up.
                    None => open.push(place),
                }
            }
        }
        Ok(())
    }

    fn shared(&self) -> Result<&Arc<SharedConverter>, Status> {
        self.0.as_ref().ok_or_else(|| Status::internal_error("this server calls no conversion webhooks"))
    }
}

/// Prunes what a webhook converted to the version.
///
/// # Errors
/// 500 with upstream's text.
fn prune_converted(version: &CustomVersion, value: &mut Value) -> Result<(), Status> {
    let pruned = custom_resource::prune_converted(version, value, MalformedFields::Refuse);
    pruned.map_err(|error| Status::new(500, "", error.to_string()))
}

/// 500 for a list whose converted objects take too much memory.
fn too_large_list(kind: &ServedKind) -> Status {
    let text = format!(
        "conversion webhook for {}, Kind={} failed: the converted objects have more than {MAX_CONVERTED_BYTES} bytes: list them in pages with limit",
        kind.api_version(),
        kind.resource.kind
    );
    Status::new(500, "", text)
}

/// Whether a stored object that does not begin with its version is in the version.
fn is_parsed_in(object: &Stored, api_version: &str) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ObjectApiVersion<'o> {
        api_version: &'o str,
    }
    serde_json::from_slice(object.bytes()).is_ok_and(|found: ObjectApiVersion<'_>| found.api_version == api_version)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use serde_json::json;
    use store::watch_cache::{CollectionSettings, Collections, HistoryLimits};
    use store::{KeyValue, MemoryStore, Prefix};

    use super::*;
    use crate::resources::custom::testing::served_kind;

    #[tokio::test]
    async fn conversion_parses_objects_that_do_not_begin_with_their_version_with_pauses() {
        let names = json!({"plural": "as", "singular": "a", "kind": "A", "listKind": "AList"});
        let kind = served_kind(&json!({
            "metadata": {"name": "as.b.io"},
            "spec": {"group": "b.io", "names": names, "scope": "Cluster",
                "versions": [{"name": "v1", "served": true, "storage": true}]},
            "status": {"acceptedNames": names},
        }));
        let prefix = Prefix::parse("/registry/b.io/as/").unwrap();
        let collections = Collections::new(Arc::new(MemoryStore::new()), HistoryLimits::default(), Arc::new(|| 0));
        let settings = CollectionSettings { prefix: prefix.clone(), fields: Arc::new([]), upgrade: None, repair: None };
        let collection = collections.collection(&settings);
        let objects = |begin: &str| -> Vec<Arc<Stored>> {
            let value = format!("{{{begin}\"metadata\":{{\"name\":\"x\"}},\"x\":\"{}\"}}", "x".repeat(1_000));
            let key = prefix.key("", "x").unwrap();
            let record = Arc::new(KeyValue { key, value: value.into(), created: 2, revision: 7, expires: None });
            std::iter::repeat_n(Arc::new(Stored::new(record, &prefix, &[])), 1_000).collect::<Vec<_>>()
        };
        let converter = ObjectConverter::default();
        for (begin, is_parsed) in
            [(r#""apiVersion":"b.io/v1","kind":"A","#, false), (r#""a":1,"apiVersion":"b.io/v1","kind":"A","#, true)]
        {
            let mut objects = objects(begin);
            let mut converted = pin!(converter.convert_all(&kind, &collection, &mut objects, true));
            let first = futures_util::poll!(&mut converted);
            assert_eq!(first.is_pending(), is_parsed, "{begin}");
            if is_parsed {
                converted.await.unwrap();
            }
        }
        // Objects in another version are for a webhook, which this server does not call.
        let mut other = objects(r#""apiVersion":"b.io/v2","kind":"A","#);
        assert!(converter.convert_all(&kind, &collection, &mut other, true).await.is_err());
    }
}
