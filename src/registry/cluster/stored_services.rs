//! Services of the embedded API server, resolved for its own calls, of which no APIService knows.

use std::sync::Arc;

use serde_json::value::RawValue;
use store::watch_cache::{ResourceCollection, Stored};

use super::object_parser;
use super::watched_resource::{EMBEDDED_API_SERVER, WatchedResource};
use crate::egress::Destination;
use crate::process::Problems;
use crate::registry::objects::api_service::ServiceReference;
use crate::registry::objects::endpoints::{EndpointSlice, SERVICE_NAME};
use crate::registry::objects::service::Service;
use crate::registry::resolve::{ResolveError, ResolveRules, service_endpoints};

/// The collections with Services and their endpoints.
#[derive(Clone)]
pub struct StoredServices {
    /// Services.
    pub services: ResourceCollection,
    /// EndpointSlices.
    pub endpoint_slices: ResourceCollection,
    /// Settings of the operator.
    pub rules: ResolveRules,
}

impl StoredServices {
    /// The endpoints of a Service as they are stored now, the preferred ones first, and how many these are.
    ///
    /// # Errors
    /// As for the Service of an APIService.
    pub async fn resolve(&self, reference: &ServiceReference) -> Result<(Vec<Destination>, usize), ResolveError> {
        let mut lookup_error = None;
        for collection in [&self.services, &self.endpoint_slices] {
            if let Err(error) = collection.ensure_loaded().await {
                lookup_error = Some(error.to_string());
            }
        }
        let mut problems = Problems::default();
        let service = self.service(reference, &mut problems);
        let slices = self.slices(reference, &mut problems);
        if !problems.0.is_empty() && lookup_error.is_none() {
            lookup_error = Some(problems.to_string());
        }
        service_endpoints(reference, service.as_ref(), &slices, lookup_error.as_deref(), self.rules)
    }

    fn service(&self, reference: &ServiceReference, problems: &mut Problems) -> Option<Service> {
        let kind = WatchedResource::Services(reference.namespace.clone());
        let key = self.services.prefix().key(&reference.namespace, &reference.name).ok()?;
        let text = raw_object(&*self.services.get(&key)?)?;
        let document = object_parser::parse_document(EMBEDDED_API_SERVER, &kind, &text, problems)?;
        object_parser::parse_service(document, problems)
    }

    fn slices(&self, reference: &ServiceReference, problems: &mut Problems) -> Vec<Arc<EndpointSlice>> {
        let kind = WatchedResource::EndpointSlices(reference.namespace.clone());
        let Ok(prefix) = self.endpoint_slices.prefix().namespace(&reference.namespace) else { return Vec::new() };
        let snapshot = self.endpoint_slices.snapshot();
        let of_service = |stored: &&Arc<Stored>| stored.label(SERVICE_NAME) == Some(&*reference.name);
        let documents = snapshot.range(&prefix, None).filter(of_service).filter_map(|stored| raw_object(stored));
        let slices = documents.filter_map(|text| {
            let document = object_parser::parse_document(EMBEDDED_API_SERVER, &kind, &text, problems)?;
            object_parser::parse_endpoint_slice(document, problems).ok().flatten().map(Arc::new)
        });
        slices.collect()
    }
}

/// The stored JSON.
fn raw_object(stored: &Stored) -> Option<Box<RawValue>> {
    serde_json::from_slice(stored.bytes()).ok()
}
