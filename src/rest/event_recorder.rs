//! Events that controllers of this server record (`k8s.io/client-go/tools/record`).

use jiff::Timestamp;
use kubeapi::Status;
use serde_json::{Map, Value, json};

use super::api_server::ApiServer;
use super::errors::cache_error;
use super::metadata::{new_object, now};
use super::namespace;
use super::target::ObjectTarget;
use crate::resources::builtin::builtin_kinds;

/// What an Event says of an object.
pub(crate) struct EventReport {
    /// The controller.
    pub(crate) component: &'static str,
    /// `Normal` or `Warning`.
    pub(crate) event_type: &'static str,
    /// Reason, for programs.
    pub(crate) reason: &'static str,
    /// Message, for people.
    pub(crate) message: String,
}

impl ApiServer {
    /// Records an Event about an object (`involvedObject`), in its namespace, or in `default`.
    ///
    /// # Errors
    /// 404 or 403 if the namespace does not exist or is being deleted, and errors of the store.
    pub(crate) async fn record_event(&self, involved: Value, report: EventReport) -> Result<(), Status> {
        let text = |field: &str| involved[field].as_str().unwrap_or_default().to_owned();
        let namespace = Some(text("namespace")).filter(|namespace| !namespace.is_empty());
        let namespace = namespace.unwrap_or_else(|| "default".to_owned());
        let name = format!("{}.{:x}", text("name"), Timestamp::now().as_nanosecond());
        let EventReport { component, event_type, reason, message } = report;
        let time = now();
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": namespace}, "type": event_type,
            "reason": reason, "message": message, "involvedObject": involved, "source": {"component": component},
            "reportingComponent": component, "reportingInstance": "", "firstTimestamp": time, "lastTimestamp": time,
            "eventTime": null, "count": 1,
        });
        let Value::Object(event) = event else { return Ok(()) };
        self.store_event(&namespace, &name, event).await
    }

    async fn store_event(&self, namespace: &str, name: &str, event: Map<String, Value>) -> Result<(), Status> {
        let kind = builtin_kinds().find("", "v1", "events").ok_or_else(|| Status::internal_error("no events"))?;
        let collection = self.collection(&kind.resource)?;
        let target = ObjectTarget::new(kind, namespace, name, "");
        let condition = namespace::check_active(self, &target, &event).await?;
        let (key, value) = (target.key(&collection)?, new_object("", "v1", "events", event)?);
        let conditions = condition.into_iter().collect();
        let created = collection.create_if(&key, value, Some(self.settings.event_ttl), conditions).await;
        created.map(drop).map_err(|error| cache_error(&target, error))
    }
}
