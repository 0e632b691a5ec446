//! Objects that the process itself makes and keeps current, for clients to read and watch.

use kubeapi::json::write_stored_json;
use kubeapi::object_meta::change_metadata;
use serde_json::{Map, Value, json};
use store::Key;
use store::watch_cache::{Error, ResourceCollection, Stored};

use super::api_server::ApiServer;
use super::metadata;

/// Writes the objects of one resource that the process makes. Cheap to clone.
#[derive(Clone)]
pub struct ObjectPublisher {
    collection: ResourceCollection,
}

impl ApiServer {
    /// A publisher of objects of a resource; none if the catalog does not have it.
    pub fn publisher(&self, group: &str, version: &str, plural: &str) -> Option<ObjectPublisher> {
        let catalog = self.catalog.get();
        let entry = catalog.find(group, version, plural)?;
        Some(ObjectPublisher { collection: self.collection(&entry.kind.resource).ok()? })
    }
}

impl ObjectPublisher {
    /// Stores an object, or removes it if there is none. An unchanged object keeps its `resourceVersion`. A uid and a
    /// creationTimestamp that the object lacks are made once.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn publish(&self, namespace: &str, name: &str, object: Option<Map<String, Value>>) -> Result<(), Error> {
        let key = self.collection.prefix().key(namespace, name).map_err(Error::from)?;
        self.collection.ensure_loaded().await?;
        loop {
            let current = self.collection.get(&key);
            match self.write(&key, current.as_deref(), object.clone()).await {
                Err(Error::Conflict { .. }) => {}
                outcome => return outcome,
            }
        }
    }

    async fn write(
        &self,
        key: &Key,
        current: Option<&Stored>,
        object: Option<Map<String, Value>>,
    ) -> Result<(), Error> {
        let Some(mut object) = object else {
            return match current {
                Some(current) => self.collection.delete(key, current.revision()).await.map(drop),
                None => Ok(()),
            };
        };
        let old = current.and_then(|current| serde_json::from_slice::<Value>(current.bytes()).ok()).unwrap_or_default();
        change_metadata(&mut object, |meta| {
            let kept = |field: &str| old["metadata"].get(field).cloned();
            meta.entry("uid").or_insert_with(|| kept("uid").unwrap_or_else(|| json!(uuid::Uuid::new_v4().to_string())));
            meta.entry("creationTimestamp")
                .or_insert_with(|| kept("creationTimestamp").unwrap_or_else(|| json!(metadata::now())));
        });
        let value = write_stored_json(&object).bytes;
        match current {
            Some(current) if current.bytes() == value.as_slice() => Ok(()),
            Some(current) => self.collection.update(key, current.revision(), value.into(), None).await.map(drop),
            None => self.collection.create(key, value.into(), None).await.map(drop),
        }
    }
}
