//! Conversion of custom objects between versions by webhooks
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver/conversion`).
//!
//! A stored object becomes another stored object, in the version that a client wants: the code that encodes objects does
//! not know of webhooks. Objects that are in that version already, and all of other resources, stay what they are.

mod batch;
mod cache;
mod metadata;
mod review;
mod selection;
mod webhook;

use std::sync::Arc;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use serde::Deserialize;
use serde_json::{Map, Value};

use self::batch::{ConversionBatch, MAX_CONCURRENT_BATCHES, PendingConversion, split_batches};
use self::cache::{CacheLookup, ConversionCache, ConversionKey};
use self::webhook::{ConversionWebhooks, WebhookResource};
use super::representation::{ReplyContent, ReplyObject};
use super::webhook_client::WebhookClient;
use super::{custom_object, stored_object};
use crate::kubeapi::Status;
use crate::kubeapi::json::write_stored_json;
use crate::observe::metrics::ConversionMetrics;
use crate::resources::ServedKind;
use crate::watch_cache::{ResourceCollection, Stored, WatchEvent};

/// Converts objects between versions by webhooks. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct ObjectConverter(Option<Arc<SharedConverter>>);

struct SharedConverter {
    webhooks: ConversionWebhooks,
    cache: Arc<ConversionCache>,
}

/// Whether a webhook converts objects of the kind.
pub(super) fn has_webhook(kind: &ServedKind) -> bool {
    WebhookResource::of(&kind.resource).is_some()
}

impl ObjectConverter {
    /// A converter that calls webhooks.
    pub(super) fn new(client: WebhookClient, metrics: Arc<ConversionMetrics>) -> ObjectConverter {
        let webhooks = ConversionWebhooks { client, metrics };
        ObjectConverter(Some(Arc::new(SharedConverter { webhooks, cache: Arc::default() })))
    }

    /// Converts an object to the version of a kind.
    ///
    /// # Errors
    /// 500 with upstream's text.
    async fn convert(
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
    pub(super) async fn served_object(
        &self,
        kind: &ServedKind,
        collection: &ResourceCollection,
        stored: &Arc<Stored>,
    ) -> Result<Map<String, Value>, Status> {
        let converted = self.convert(kind, collection, stored.clone()).await?;
        let mut object = stored_object(&converted).await?;
        custom_object::convert_stored(kind, &converted, &mut object);
        Ok(object)
    }

    /// Converts what a request is answered with.
    ///
    /// # Errors
    /// 500 with upstream's text. A list fails as a whole.
    pub(super) async fn convert_reply(
        &self,
        kind: &ServedKind,
        collection: &ResourceCollection,
        content: ReplyContent,
    ) -> Result<ReplyContent, Status> {
        if !has_webhook(kind) {
            return Ok(content);
        }
        Ok(match content {
            ReplyContent::List(mut list) => {
                self.convert_all(kind, collection, &mut list.objects, true).await?;
                ReplyContent::List(list)
            }
            ReplyContent::Object(ReplyObject::Stored(stored, revision)) => {
                let converted = self.convert(kind, collection, stored).await?;
                ReplyContent::Object(ReplyObject::Stored(converted, revision))
            }
            ReplyContent::Object(ReplyObject::Unstored(value)) => {
                let api_version = kind.api_version();
                let mut value = self.convert_value(kind, &api_version, value).await?;
                if let Value::Object(object) = &mut value {
                    custom_object::convert_from_stored(kind, object);
                }
                ReplyContent::Object(ReplyObject::Unstored(value))
            }
            status @ ReplyContent::Status(_) => status,
        })
    }

    /// Converts the objects of events.
    ///
    /// # Errors
    /// 500 with upstream's text.
    pub(super) async fn convert_events(
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
    pub(super) async fn stored_bytes(&self, kind: &ServedKind, object: &Map<String, Value>) -> Result<Vec<u8>, Status> {
        let storage = kind.resource.storage.as_ref().filter(|(_, version)| *version != kind.version.version);
        let (Some(of), Some((group, version))) = (WebhookResource::of(&kind.resource), storage) else {
            return Ok(custom_object::stored_bytes(&kind.resource, object));
        };
        let mut object = object.clone();
        if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
            metadata.remove("resourceVersion");
        }
        let api_version = format!("{group}/{version}");
        let mut value = self.convert_value(kind, &api_version, Value::Object(object)).await?;
        if let Some(version) = of.custom.version(version) {
            custom_object::prune_converted(version, &mut value);
        }
        match value {
            Value::Object(object) => Ok(write_stored_json(&object).bytes),
            _ => Err(Status::internal_error("the converted object is no object")),
        }
    }

    /// Converts a value, unless it is in the version already.
    async fn convert_value(&self, kind: &ServedKind, api_version: &str, value: Value) -> Result<Value, Status> {
        let Some(of) = WebhookResource::of(&kind.resource).filter(|_| value["apiVersion"] != *api_version) else {
            return Ok(value);
        };
        let size = value.to_string().len();
        let mut converted = self.shared()?.webhooks.convert(of, api_version, (vec![value], size), false).await?;
        converted.pop().ok_or_else(|| Status::internal_error("no object was converted"))
    }

    /// Converts stored objects in their places: those in another version, by as few calls as the limits allow.
    async fn convert_all(
        &self,
        kind: &ServedKind,
        collection: &ResourceCollection,
        objects: &mut [Arc<Stored>],
        is_list: bool,
    ) -> Result<(), Status> {
        let Some(version) = kind.version.custom() else { return Ok(()) };
        let is_other = |place: &usize| !is_in_version(&objects[*place], &version.api_version);
        let mut open: Vec<usize> = (0..objects.len()).filter(is_other).collect();
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
                converted.into_iter().for_each(|(place, converted)| objects[place] = converted);
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

/// Whether a stored object is in the version. One that cannot be read stays as it is, and fails when it is encoded.
fn is_in_version(object: &Stored, api_version: &str) -> bool {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ObjectApiVersion<'o> {
        api_version: &'o str,
    }
    let bytes = object.bytes();
    // As this server writes it: `apiVersion` is the first key.
    let begins = bytes.strip_prefix(b"{\"apiVersion\":\"").and_then(|rest| rest.strip_prefix(api_version.as_bytes()));
    if begins.is_some_and(|rest| rest.starts_with(b"\"")) || object.defect().is_some() {
        return true;
    }
    serde_json::from_slice(bytes).is_ok_and(|found: ObjectApiVersion<'_>| found.api_version == api_version)
}
