//! The identity Leases of kube-apiservers (KEP-1965, `pkg/controlplane/controller/leasegarbagecollector`): they tell that one
//! uses the same etcd.

use std::sync::Arc;

use jiff::Timestamp;
use kubeapi::Status;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::Value;
use store::watch_cache::Stored;

use super::builtin_collection;
use crate::conversion::stored_object;
use crate::rest::{ApiServer, unavailable};

/// Label of an identity Lease, and its value for a kube-apiserver.
const IDENTITY_LABEL: (&str, &str) = ("apiserver.kubernetes.io/identity", "kube-apiserver");

/// Seconds after which a kube-apiserver that has not renewed its Lease has ended. It renews every ten seconds, and the
/// duration in the Lease, an hour, is for its collection.
const ALIVE_SECONDS: i64 = 60;

/// Refuses to write to the etcd of a kube-apiserver that is alive: its admission would not be asked about what is written
/// here.
///
/// # Errors
/// One is alive, or the store cannot be read.
pub(super) async fn refuse_living_kube_apiserver(api: &ApiServer) -> Result<(), Status> {
    let leases = builtin_collection(api, "coordination.k8s.io", "leases")?;
    leases.ensure_loaded().await.map_err(|error| unavailable(&error))?;
    let snapshot = leases.snapshot();
    let own = leases.prefix().namespace("kube-system").map_err(Status::internal_error)?;
    for lease in snapshot.range(&own, None) {
        if let Some(age) = seconds_since_renewal(lease).await.filter(|age| *age < ALIVE_SECONDS) {
            let name = lease.name();
            return Err(Status::service_unavailable(format!(
                "a kube-apiserver uses this etcd (its Lease kube-system/{name} was renewed {} s ago), and its admission \
                 would not be asked about what this gateway writes: give --etcd-access=read-only, or stop it",
                age.max(0)
            )));
        }
    }
    Ok(())
}

/// Seconds since the renewal of the identity Lease of a kube-apiserver; none for another Lease.
async fn seconds_since_renewal(lease: &Arc<Stored>) -> Option<i64> {
    let object = stored_object(lease).await.ok()?;
    if ObjectMetaView::of_map(&object).label(IDENTITY_LABEL.0) != Some(IDENTITY_LABEL.1) {
        return None;
    }
    let renewed: Timestamp =
        object.get("spec").map_or(&Value::Null, |spec| &spec["renewTime"]).as_str()?.parse().ok()?;
    Some(Timestamp::now().duration_since(renewed).as_secs())
}
