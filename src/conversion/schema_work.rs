//! The work that schemas make of objects of custom resources: compiled on a compute thread, and not done twice.

use std::sync::Arc;

use kubeapi::Status;
use kubeapi::schema::{DefaultsTooLarge, Schema};
use serde_json::{Map, Value, json};
use store::watch_cache::Stored;

use crate::compute::{MAX_INLINE_BYTES, map_size, run_for_server};
use crate::kinds::crd::is_crd;
use crate::kinds::custom_resource::{convert_from_stored, refresh};
use crate::resources::ServedKind;

/// The schemas that requests for a kind need, compiled on a compute thread. They stay compiled while they are held.
///
/// Objects may be stored in other versions, whose schemas are compiled where [`stored_work`] says that there is much work.
///
/// # Errors
/// 500 if a schema cannot be compiled.
pub async fn compile_schemas(kind: &ServedKind) -> Result<Vec<Arc<Schema>>, Status> {
    let (Some(resource), Some(version)) = (&kind.resource.custom, kind.version.custom()) else { return Ok(Vec::new()) };
    let storage = kind.resource.storage.as_ref().and_then(|(_, name)| resource.version(name));
    let mut schemas = Vec::new();
    for version in [Some(version), storage].into_iter().flatten() {
        schemas.push(match version.compiled_schema() {
            Some(schema) => schema,
            // A small schema may have patterns that take long.
            None => {
                let version = version.clone();
                run_for_server(move || version.schema()).await?
            }
        });
    }
    Ok(schemas)
}

/// Whether a small object of a kind may need many steps: one that a schema validates, or a schema.
pub fn has_schema_work(kind: &ServedKind) -> bool {
    kind.resource.custom.is_some() || is_crd(&kind.resource)
}

/// Whether a stored object is sent in the version of a kind without its schemas: they are known to change nothing.
pub fn is_sent_as_stored(kind: &ServedKind, stored: &Stored) -> bool {
    kind.version.custom().is_none_or(|version| stored.schema_checks().result(version.id()) == Some(true))
}

/// How much work it is to read or send a stored object in the version of a kind, in bytes. More than is done on a worker
/// thread if schemas are needed: they may have to be compiled, and may add large defaults to a small object.
pub fn stored_work(kind: &ServedKind, stored: &Stored) -> usize {
    let size = stored.bytes().len();
    if is_sent_as_stored(kind, stored) { size } else { size + MAX_INLINE_BYTES + 1 }
}

/// 500 for a stored object that cannot be sent because its schema has large defaults.
pub fn defaults_status(stored: &Stored, error: DefaultsTooLarge) -> Status {
    Status::internal_error(format_args!(
        "{} cannot be sent: {error}, the most that an object may have; shorten the defaults in the CustomResourceDefinition",
        stored.key()
    ))
}

/// As [`convert_from_stored`], for an object that was just read. Nothing is done twice if it was found to be unchanged.
///
/// # Errors
/// 500 if the schemas add too much.
pub fn convert_stored(kind: &ServedKind, stored: &Stored, object: &mut Map<String, Value>) -> Result<(), Status> {
    let Some(version) = kind.version.custom() else { return Ok(()) };
    if is_sent_as_stored(kind, stored) {
        object.insert("apiVersion".to_owned(), json!(version.api_version));
        return Ok(());
    }
    convert_from_stored(kind, object).map_err(|error| defaults_status(stored, error))
}

/// Whether an object that is to be stored in the version of the request can be sent as it is. None if that is found out when
/// it is first read: it is large, or in another version.
pub fn is_complete(kind: &ServedKind, object: &Map<String, Value>) -> Option<bool> {
    let version = kind.version.custom()?;
    let is_storage = kind.resource.storage.as_ref().is_some_and(|(_, storage)| *storage == kind.version.version);
    if !is_storage || map_size(object) > MAX_INLINE_BYTES {
        return None;
    }
    let mut refreshed = Value::Object(object.clone());
    Some(refresh(version, &mut refreshed).is_ok() && refreshed.as_object() == Some(object))
}

/// Records what [`is_complete`] found of an object that was stored meanwhile.
pub fn record_completeness(kind: &ServedKind, stored: &Stored, is_complete: Option<bool>) {
    if let (Some(version), Some(is_complete)) = (kind.version.custom(), is_complete) {
        stored.schema_checks().record(version.id(), is_complete);
    }
}
