//! The ServiceCIDR `kubernetes`, with the ranges of `--service-cluster-ip-range`
//! (`pkg/controlplane/controller/defaultservicecidr`).
//!
//! It is created if there is none, gets a second range with the flag, and becomes ready if nothing was said about that. It is
//! left alone otherwise: a range that is not that of the flag is reported.

use std::time::Duration;

use kubeapi::Status;
use kubeapi::json::write_stored_json;
use kubeapi::object_meta::change_metadata;
use serde_json::{Map, Value, json};
use store::watch_cache::{Error, ResourceCollection};

use super::builtin_collection;
use super::runner::{Controller, FeedEvent};
use crate::conversion::stored_object;
use crate::observe::metrics::WorkQueueRegistry;
use crate::rest::{ApiServer, new_object, now, unavailable};
use crate::work_queue::{BackOff, WorkQueue};

/// The name of the ServiceCIDR of the flag.
const NAME: &str = "kubernetes";

/// Pauses after failures, at most the interval of kube-apiserver.
const BACK_OFF: BackOff = BackOff { initial: Duration::from_secs(1), max: Duration::from_secs(10) };

/// The controller of the ServiceCIDR `kubernetes`. Its only key is that name.
pub(super) struct DefaultServiceCidrController {
    service_cidrs: ResourceCollection,
    ranges: Vec<String>,
    queue: WorkQueue<&'static str>,
}

impl DefaultServiceCidrController {
    /// Creates the ServiceCIDR if there is none.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub(super) async fn start(
        api: &ApiServer,
        metrics: &WorkQueueRegistry,
    ) -> Result<DefaultServiceCidrController, Status> {
        let ranges = api.settings().services.cluster_ip_ranges().map(|range| range.to_string()).collect();
        let queue = WorkQueue::new(BACK_OFF, metrics.register("kubernetes_service_cidr"));
        let service_cidrs = builtin_collection(api, "networking.k8s.io", "servicecidrs")?;
        let controller = DefaultServiceCidrController { service_cidrs, ranges, queue };
        controller.sync().await?;
        Ok(controller)
    }

    /// The ServiceCIDRs.
    pub(super) fn collection(&self) -> &ResourceCollection {
        &self.service_cidrs
    }

    /// Adds the key when the ServiceCIDR changes, and when the watch starts.
    pub(super) fn observe(&self, event: &FeedEvent<'_>) {
        let is_of_key = match event {
            FeedEvent::Started => true,
            FeedEvent::Object(event) => event.object.as_ref().is_some_and(|object| object.name() == NAME),
        };
        if is_of_key {
            self.queue.add(NAME);
        }
    }

    async fn sync(&self) -> Result<(), Status> {
        let key = self.service_cidrs.prefix().key("", NAME).map_err(Status::internal_error)?;
        loop {
            let current = self.service_cidrs.get_latest(&key).await.map_err(|error| unavailable(&error))?;
            let written = match current {
                None => {
                    let mut object = Map::new();
                    object.insert("apiVersion".to_owned(), json!("networking.k8s.io/v1"));
                    object.insert("kind".to_owned(), json!("ServiceCIDR"));
                    object.insert("metadata".to_owned(), json!({"name": NAME}));
                    object.insert("spec".to_owned(), json!({"cidrs": self.ranges}));
                    let value = new_object("networking.k8s.io", "v1", "servicecidrs", object)?;
                    self.service_cidrs.create(&key, value, None).await
                }
                Some(current) if current.metadata().deletion_timestamp.is_some() => return Ok(()),
                Some(current) => {
                    let mut object = stored_object(&current).await?;
                    if !self.complete(&mut object) {
                        return Ok(());
                    }
                    let value = write_stored_json(&object).bytes;
                    self.service_cidrs.update(&key, current.revision(), value.into(), None).await
                }
            };
            match written {
                // Once more, to make it ready.
                Ok(_) | Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(unavailable(&error)),
            }
        }
    }

    /// Adds the second range of the flag, or the condition Ready. Returns whether the object changed.
    fn complete(&self, object: &mut Map<String, Value>) -> bool {
        let found = object.get("spec").map_or(&Value::Null, |spec| &spec["cidrs"]).clone();
        if let ([one], [first, _]) = (found.as_array().map_or(&[][..], Vec::as_slice), self.ranges.as_slice())
            && one == first
        {
            object.insert("spec".to_owned(), json!({"cidrs": self.ranges}));
            change_metadata(object, |metadata| {
                if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
                    metadata.insert("generation".to_owned(), json!(generation.saturating_add(1)));
                }
            });
            return true;
        }
        if found != json!(self.ranges) {
            let flag = self.ranges.join(",");
            tracing::warn!(
                "ServiceCIDR {NAME} has {found}, not {flag} of --service-cluster-ip-range; delete it to change that"
            );
            return false;
        }
        let status = object.entry("status").or_insert_with(|| json!({}));
        if !status.is_object() {
            *status = json!({});
        }
        let conditions = &mut status["conditions"];
        let is_ready = |condition: &Value| condition["type"] == "Ready";
        let known = conditions.as_array().into_iter().flatten().find(|condition| is_ready(condition));
        if known.is_some_and(|condition| condition["status"] != "Unknown") {
            return false;
        }
        let mut others: Vec<Value> = conditions.as_array().into_iter().flatten().cloned().collect();
        others.retain(|condition| !is_ready(condition));
        others.push(json!({
            "type": "Ready", "status": "True", "reason": "", "message": "Kubernetes default Service CIDR is ready",
            "lastTransitionTime": now(),
        }));
        *conditions = json!(others);
        true
    }
}

impl Controller for DefaultServiceCidrController {
    type Key = &'static str;

    const CONCURRENCY: usize = 1;

    fn queue(&self) -> &WorkQueue<&'static str> {
        &self.queue
    }

    async fn reconcile(&self, _: &&'static str) -> Result<(), Status> {
        self.sync().await
    }
}
