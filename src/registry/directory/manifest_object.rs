//! One object of the registry directory: the supported kinds, and strict parsing of a document.

use std::sync::Arc;
use std::time::SystemTime;

use kubeapi::object_meta::OBJECT_META_FIELDS;

use crate::process::{ManifestDocument, Problem, Problems};
use crate::registry::layered_sources::DirtySet;
use crate::registry::objects::annotations::closest_match;
use crate::registry::objects::api_service::ApiService;
use crate::registry::objects::endpoints::EndpointSlice;
use crate::registry::objects::service::{Service, service_key};
use crate::registry::settings::Settings;

/// Kind, namespace and name of an object.
pub(in crate::registry) type ManifestKey = (&'static str, String, String);

/// A parsed object of a supported kind.
#[derive(Clone)]
pub(in crate::registry) enum RegistryObject {
    ApiService(Arc<ApiService>),
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
}

/// Supported kinds and their `apiVersion`.
const KINDS: [(&str, &str); 4] = [
    (API_SERVICE, "apiregistration.k8s.io/v1"),
    (SERVICE, "v1"),
    ("EndpointSlice", "discovery.k8s.io/v1"),
    ("Endpoints", "v1"),
];
pub(in crate::registry) const API_SERVICE: &str = "APIService";
pub(in crate::registry) const SERVICE: &str = "Service";

impl RegistryObject {
    /// Parses and checks one document. Adds its errors to `problems`.
    pub(in crate::registry) fn parse(
        settings: &Settings,
        document: ManifestDocument,
        modified: SystemTime,
        problems: &mut Problems,
    ) -> Option<RegistryObject> {
        let location = &document.location;
        let parser = KINDS.iter().find(|(kind, _)| *kind == document.kind);
        match parser {
            _ if document.kind.is_empty() => {
                problems.0.push(Problem::at_field(location, "kind", "required"));
                return None;
            }
            None => {
                let kinds: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
                let near = closest_match(&document.kind, &kinds).map(|kind| format!(", did you mean {kind}?"));
                let message = format!(
                    "unknown kind {:?} ({:?}){}: a registry directory holds {} and List",
                    document.kind,
                    document.api_version,
                    near.unwrap_or_default(),
                    kinds.join(", ")
                );
                problems.0.push(Problem::at_field(location, "kind", message));
                return None;
            }
            Some((kind, version)) if *version != document.api_version => {
                let message = format!("{kind} is supported as {version}, not as {:?}", document.api_version);
                problems.0.push(Problem::at_field(location, "apiVersion", message));
                return None;
            }
            Some(_) => {}
        }
        let before = problems.0.len();
        unknown_fields(&document, problems);
        if problems.0.len() > before {
            // Parsed nevertheless, so that all errors are reported at once.
            RegistryObject::parse_kind(settings, document, modified, problems);
            return None;
        }
        RegistryObject::parse_kind(settings, document, modified, problems)
    }

    fn parse_kind(
        settings: &Settings,
        document: ManifestDocument,
        modified: SystemTime,
        problems: &mut Problems,
    ) -> Option<RegistryObject> {
        match document.kind.as_str() {
            "APIService" => ApiService::parse(document, modified, settings, problems).map(RegistryObject::api_service),
            "Service" => Service::parse(document, problems).map(|one| RegistryObject::Service(Arc::new(one))),
            "EndpointSlice" => EndpointSlice::parse(document, problems).map(RegistryObject::endpoint_slice),
            _ => EndpointSlice::parse_endpoints(document, problems).map(RegistryObject::endpoint_slice),
        }
    }

    fn api_service(one: ApiService) -> RegistryObject {
        RegistryObject::ApiService(Arc::new(one))
    }

    fn endpoint_slice(one: EndpointSlice) -> RegistryObject {
        RegistryObject::EndpointSlice(Arc::new(one))
    }

    /// Key of the object.
    pub(in crate::registry) fn key(&self) -> ManifestKey {
        match self {
            RegistryObject::ApiService(one) => (API_SERVICE, String::new(), one.name.clone()),
            RegistryObject::Service(one) => (SERVICE, one.namespace.clone(), one.name.clone()),
            RegistryObject::EndpointSlice(one) => {
                let kind = if one.legacy { "Endpoints" } else { "EndpointSlice" };
                (kind, one.namespace.clone(), one.name.clone())
            }
        }
    }

    /// Whether the two have the same content.
    pub(in crate::registry) fn is_same(&self, other: &RegistryObject) -> bool {
        match (self, other) {
            (RegistryObject::ApiService(a), RegistryObject::ApiService(b)) => a.is_equivalent(b),
            (RegistryObject::Service(a), RegistryObject::Service(b)) => a == b,
            (RegistryObject::EndpointSlice(a), RegistryObject::EndpointSlice(b)) => a == b,
            _ => false,
        }
    }
}

/// Reports unknown fields at the top level and in `metadata`, which would be ignored silently otherwise. Below that,
/// only the spec of an APIService is read strictly.
fn unknown_fields(document: &ManifestDocument, problems: &mut Problems) {
    let own: &[&str] = match document.kind.as_str() {
        "EndpointSlice" => &["apiVersion", "kind", "metadata", "addressType", "endpoints", "ports"],
        "Endpoints" => &["apiVersion", "kind", "metadata", "subsets"],
        _ => &["apiVersion", "kind", "metadata", "spec", "status"],
    };
    for (path, value, known_fields) in
        [("", Some(&document.value), own), ("metadata.", document.value.get("metadata"), &OBJECT_META_FIELDS)]
    {
        let fields = value.and_then(serde_json::Value::as_object).into_iter().flat_map(|fields| fields.keys());
        for field in fields.filter(|field| !known_fields.contains(&field.as_str())) {
            let near = closest_match(field, known_fields)
                .map(|nearest| format!(", did you mean {nearest}?"))
                .unwrap_or_default();
            problems.0.push(Problem::at_field(
                &document.location,
                format_args!("{path}{field}"),
                format_args!("unknown field{near}"),
            ));
        }
    }
}

impl DirtySet {
    /// Adds the name of `object`.
    pub(in crate::registry) fn add_object(&mut self, object: &RegistryObject) {
        match object {
            RegistryObject::ApiService(one) => drop(self.api_services.insert(one.name.clone())),
            RegistryObject::Service(one) => drop(self.services.insert(service_key(&one.namespace, &one.name))),
            RegistryObject::EndpointSlice(one) => drop(self.services.insert(service_key(&one.namespace, &one.service))),
        }
    }
}
