//! The Lease by which servers with one store agree on their leader.

use kubeapi::Status;
use kubeapi::json::write_stored_json;
use kubeapi::object_meta::change_metadata;
use serde_json::{Map, Value};
use store::watch_cache::{Error, ResourceCollection, Stored};

use super::{builtin_collection, read_latest};
use crate::conversion::stored_object;
use crate::kubeclient::election::{Lease, LeaseRequest, LeaseResponse, LeaseTarget, Settings};
use crate::rest::{ApiServer, new_object};

/// The Leases of the store.
pub struct StoredLeases(ResourceCollection);

impl StoredLeases {
    /// # Errors
    /// 500 if the server has no Leases.
    pub fn new(api: &ApiServer) -> Result<StoredLeases, Status> {
        builtin_collection(api, "coordination.k8s.io", "leases").map(StoredLeases)
    }

    async fn respond(&self, settings: &Settings, request: &LeaseRequest) -> Result<LeaseResponse, Status> {
        let (key, current) = read_latest(&self.0, &settings.namespace, &settings.name).await?;
        let written = match (request, current) {
            (LeaseRequest::Get, Some(current)) => return Ok(parse(&current)),
            (LeaseRequest::Get | LeaseRequest::Update(_), None) => return Ok(LeaseResponse::Missing),
            (LeaseRequest::Create(_), Some(_)) => return Ok(LeaseResponse::Failed),
            (LeaseRequest::Create(lease), None) => {
                let value = new_object("coordination.k8s.io", "v1", "leases", map_of(lease))?;
                self.0.create(&key, value, None).await
            }
            (LeaseRequest::Update(lease), Some(current)) => {
                let revision = current.revision().to_string();
                if lease["metadata"]["resourceVersion"].as_str() != Some(&*revision) {
                    return Ok(LeaseResponse::Failed);
                }
                let mut object = stored_object(&current).await?;
                object.insert("spec".to_owned(), lease["spec"].clone());
                let value = write_stored_json(&object).bytes;
                self.0.update(&key, current.revision(), value.into(), None).await
            }
        };
        match written {
            Ok(stored) => Ok(parse(&stored)),
            // Another candidate was faster.
            Err(Error::Conflict { .. }) => Ok(LeaseResponse::Failed),
            Err(error) => Err(crate::rest::unavailable(&error)),
        }
    }
}

impl LeaseTarget for StoredLeases {
    fn server(&self) -> String {
        "etcd".to_owned()
    }

    async fn send(&self, settings: &Settings, request: &LeaseRequest) -> Result<LeaseResponse, String> {
        // Several requests and a pause must fit into the renew deadline.
        let response = tokio::time::timeout(settings.renew_deadline / 2, self.respond(settings, request)).await;
        response
            .map_err(|_| "no answer of etcd within half of the renew deadline".to_owned())?
            .map_err(|status| status.message)
    }
}

/// A stored Lease, as a client reads it.
fn parse(stored: &Stored) -> LeaseResponse {
    let Ok(mut object) = serde_json::from_slice::<Map<String, Value>>(stored.bytes()) else {
        return LeaseResponse::Failed;
    };
    change_metadata(&mut object, |metadata| {
        metadata.insert("resourceVersion".to_owned(), stored.revision().to_string().into());
    });
    let text = Value::Object(object).to_string();
    Lease::parse(text.as_bytes()).map_or(LeaseResponse::Failed, LeaseResponse::Lease)
}

fn map_of(lease: &Value) -> Map<String, Value> {
    lease.as_object().cloned().unwrap_or_default()
}
