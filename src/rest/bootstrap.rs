//! Creation of the objects that every server has: the system namespaces and the Local APIServices.

use kubeapi::Status;
use kubeapi::json::write_stored_json;
use serde_json::{Map, Value, json};
use store::watch_cache::Error;

use super::api_server::ApiServer;
use super::errors::cache_error;
use super::metadata;
use super::target::ObjectTarget;
use crate::resources::builtin::builtin_kinds;

/// Namespaces that kube-apiserver creates (`pkg/controlplane/controller/systemnamespaces`).
const SYSTEM_NAMESPACES: [&str; 4] = ["default", "kube-system", "kube-public", "kube-node-lease"];

/// Creates the system namespaces and the Local APIServices that do not exist, and goes on with the removal of namespaces
/// that are marked.
///
/// # Errors
/// The store cannot be written.
pub async fn create_initial_objects(api: &ApiServer) -> Result<(), Status> {
    let kinds = builtin_kinds();
    let Some(kind) = kinds.find("", "v1", "namespaces") else { return Ok(()) };
    let collection = api.collection(&kind.resource)?;
    // First: a system namespace that is created deletes what it finds.
    api.report_leftovers().await?;
    for name in SYSTEM_NAMESPACES {
        let target = ObjectTarget::new(kind.clone(), "", name, "");
        let mut object: Map<String, Value> = Map::new();
        object.insert("apiVersion".to_owned(), json!("v1"));
        object.insert("kind".to_owned(), json!("Namespace"));
        object.insert("metadata".to_owned(), json!({"name": name}));
        metadata::fill_new_object(&target, &mut object);
        (target.rules.prepare_new)(&target.kind, &mut object);
        let key = target.key(&collection)?;
        match super::namespace::create_empty(api, &collection, &key, write_stored_json(&object).bytes.into()).await {
            Ok(_) | Err(Error::Conflict { .. }) => {}
            Err(error) => return Err(cache_error(&target, error)),
        }
    }
    super::local_api_services::register_local_groups(api).await?;
    collection.ensure_loaded().await.map_err(|error| Status::service_unavailable(error.to_string()))?;
    for namespace in collection.list(&Default::default()).await.map(|list| list.objects).unwrap_or_default() {
        if namespace.metadata().deletion_timestamp.is_some() {
            super::namespace::start_removal(api, namespace.name().to_owned());
        }
    }
    Ok(())
}
