//! Custom resources: what a CustomResourceDefinition makes of its versions.

/// Approval of APIs in groups of the Kubernetes community.
pub mod api_approval;
/// Cells of a Table.
pub mod cells;
mod compiled_schema;
/// CustomResourceDefinitions as they are stored.
pub mod crd;
#[cfg(test)]
pub mod testing;
/// A version of a custom resource: its schema, compiled on first use.
pub mod version;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

pub use self::crd::{Crd, CrdNames};
pub use self::version::CustomVersion;

use kubeapi::compare_kube_aware;
use store::watch_cache::Stored;

use self::cells::table_columns;
use self::crd::{CrdSpec, CrdVersion};
use super::catalog::{CUSTOM_VERBS, CatalogEntry};
use super::webhook_config::WebhookClientConfig;
use super::{ObjectFormat, Resource, ResourceVersion, ServedKind, ServedSubresource};

/// Verbs of a custom resource whose CRD is being deleted.
const TERMINATING_VERBS: [&str; 5] = ["delete", "deletecollection", "get", "list", "watch"];
const SUBRESOURCE_VERBS: [&str; 3] = ["get", "patch", "update"];

/// What a custom resource has besides a built-in one.
#[derive(Debug)]
pub struct CustomResource {
    /// Name of the CustomResourceDefinition.
    pub crd_name: String,
    /// `metadata.uid` of the CustomResourceDefinition.
    pub uid: String,
    /// `metadata.generation` of the CustomResourceDefinition.
    pub generation: i64,
    /// Whether the CustomResourceDefinition is being deleted, so that no object can be created.
    pub is_terminating: bool,
    /// How a webhook converts objects; none if only their `apiVersion` changes.
    pub conversion: Option<WebhookConversion>,
    /// All versions in the order of the CRD, also those that are not served: stored objects may be in them.
    pub versions: Vec<Arc<CustomVersion>>,
}

/// How a webhook converts the objects of a custom resource.
#[derive(Clone, Debug)]
pub struct WebhookConversion {
    /// How it is reached.
    pub client_config: Arc<WebhookClientConfig>,
    /// Versions of `ConversionReview` that it knows, the preferred one first.
    pub review_versions: Vec<String>,
}

impl CustomResource {
    /// Finds a version by its name, served or not.
    pub fn version(&self, name: &str) -> Option<&Arc<CustomVersion>> {
        self.versions.iter().find(|version| version.name == name)
    }
}

/// The entries of the catalog that a CRD makes: one for each served version, in the order of their priority.
/// None until the names are accepted. Names are the accepted ones. `before` is the resource of the same specification,
/// whose versions go on to be used.
pub fn custom_entries(crd: &Crd, stored: &Arc<Stored>, before: Option<&CustomResource>) -> Vec<CatalogEntry> {
    let resource = Arc::new(custom_resource(crd, stored, before));
    let served =
        resource.versions.iter().map(|version| ServedKind { resource: resource.clone(), version: version.clone() });
    served.map(CatalogEntry::of_custom).collect()
}

fn custom_resource(crd: &Crd, stored: &Arc<Stored>, before: Option<&CustomResource>) -> Resource {
    let (spec, names) = (&crd.spec, &crd.status.accepted_names);
    let is_terminating = crd.metadata.deletion_timestamp.is_some();
    let storage = spec.versions.iter().find(|version| version.storage).map(|version| version.name.clone());
    let new_versions = || {
        let current = spec.versions.iter().filter(|version| version.served && !version.deprecated);
        let newest = current.map(|version| &*version.name).min_by(|a, b| by_priority(a, b));
        let all = spec.versions.iter().enumerate();
        let crd = (stored, &Arc::default());
        all.map(|(index, version)| Arc::new(CustomVersion::new(spec, version, index, newest, crd))).collect()
    };
    let versions: Vec<Arc<CustomVersion>> = before.map_or_else(new_versions, |before| before.versions.clone());
    let mut served: Vec<(&CrdVersion, &Arc<CustomVersion>)> =
        spec.versions.iter().zip(&versions).filter(|(version, _)| version.served).collect();
    served.sort_by(|a, b| by_priority(&a.0.name, &b.0.name));
    let resource_version = |(version, custom): (&CrdVersion, &Arc<CustomVersion>)| {
        Arc::new(ResourceVersion {
            version: Cow::Owned(version.name.clone()),
            format: ObjectFormat::Custom(custom.clone()),
            columns: table_columns(version).into(),
            verbs: if is_terminating { TERMINATING_VERBS.to_vec() } else { CUSTOM_VERBS.to_vec() },
            storage_version_hash: storage_version_hash(&spec.group, storage.as_deref(), &names.kind).into(),
            subresources: subresources(version, &names.kind),
        })
    };
    Resource {
        group: Cow::Owned(spec.group.clone()),
        plural: Cow::Owned(names.plural.clone()),
        singular: Cow::Owned(names.singular.clone()),
        kind: Cow::Owned(names.kind.clone()),
        list_kind: Some(Cow::Owned(names.list_kind.clone())),
        short_names: names.short_names.iter().flatten().cloned().map(Cow::Owned).collect(),
        categories: names.categories.iter().flatten().cloned().map(Cow::Owned).collect(),
        is_namespaced: spec.scope == "Namespaced",
        storage: storage.clone().map(|version| (Cow::Owned(spec.group.clone()), Cow::Owned(version))),
        storage_path: Cow::Owned(format!("{}/{}", spec.group, names.plural)),
        versions: served.into_iter().map(resource_version).collect(),
        custom: Some(CustomResource {
            crd_name: crd.metadata.name.clone(),
            uid: crd.metadata.uid.clone(),
            generation: crd.metadata.generation,
            is_terminating,
            conversion: webhook_conversion(spec),
            versions,
        }),
    }
}

/// The conversion of a CRD with the strategy `Webhook`.
fn webhook_conversion(spec: &CrdSpec) -> Option<WebhookConversion> {
    let conversion = spec.conversion.as_ref().filter(|conversion| conversion.strategy == "Webhook")?;
    let (client_config, review_versions) = match &conversion.webhook {
        Some(webhook) => (webhook.client_config.clone(), webhook.conversion_review_versions.clone()),
        None => (None, Vec::new()),
    };
    Some(WebhookConversion { client_config: Arc::new(client_config.unwrap_or_default()), review_versions })
}

/// Kubernetes' order of versions: the first is preferred (`CompareKubeAwareVersionStrings` in
/// `k8s.io/apimachinery/pkg/version`).
fn by_priority(a: &str, b: &str) -> Ordering {
    compare_kube_aware(b, a)
}

/// `storageVersionHash` of discovery (`discovery.StorageVersionHash` in `k8s.io/apiserver`).
fn storage_version_hash(group: &str, version: Option<&str>, kind: &str) -> String {
    let Some(version) = version else { return String::new() };
    let hash = digest::digest(&digest::SHA256, format!("{group}/{version}/{kind}").as_bytes());
    STANDARD.encode(&hash.as_ref()[..8])
}

fn subresources(version: &CrdVersion, kind: &str) -> Vec<ServedSubresource> {
    let Some(subresources) = &version.subresources else { return Vec::new() };
    let scale = subresources.scale.as_ref().map(|_| ServedSubresource {
        name: "scale",
        group: "autoscaling".into(),
        version: "v1".into(),
        kind: "Scale".into(),
        message: None,
        verbs: SUBRESOURCE_VERBS.to_vec(),
    });
    let status = subresources.status.as_ref().map(|_| ServedSubresource {
        name: "status",
        group: "".into(),
        version: "".into(),
        kind: Cow::Owned(kind.to_owned()),
        message: None,
        verbs: SUBRESOURCE_VERBS.to_vec(),
    });
    scale.into_iter().chain(status).collect()
}
