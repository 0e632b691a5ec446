//! Resources of the embedded API server: names, versions, message types, columns.

/// Resources that Kubernetes itself has.
pub mod builtin;
/// Which of them the embedded API server serves and stores.
pub mod catalog;
/// CustomResourceDefinitions that are stored as v1beta1.
pub mod crd_upgrade;
/// Resources of CustomResourceDefinitions.
pub mod custom;
/// Bound of the text in a row of a Table.
pub mod row_budget;
/// `--runtime-config`: which resources are turned off.
pub mod runtime_config;
/// How webhooks are reached.
pub mod webhook_config;

use std::borrow::Cow;
use std::sync::Arc;

use kubeapi::protobuf::table::MessageId;

use self::custom::{CustomResource, CustomVersion};

/// Largest request body in bytes, kube-apiserver's `MaxRequestBodyBytes`.
pub const MAX_BODY_BYTES: usize = 3 << 20;

/// A resource: what clients call it, and which versions of it are served and stored.
#[derive(Debug)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: Cow<'static, str>,
    /// Name in paths, such as `configmaps`.
    pub plural: Cow<'static, str>,
    /// Singular name, such as `configmap`; may be empty.
    pub singular: Cow<'static, str>,
    /// Kind of an object.
    pub kind: Cow<'static, str>,
    /// Kind of a list; none for resources that are not listed.
    pub list_kind: Option<Cow<'static, str>>,
    /// Short names, such as `cm`.
    pub short_names: Vec<Cow<'static, str>>,
    /// Categories, such as `all`.
    pub categories: Vec<Cow<'static, str>>,
    /// Whether objects are in namespaces.
    pub is_namespaced: bool,
    /// Group and version in which a kube-apiserver stores objects; none for resources that are not stored.
    pub storage: Option<(Cow<'static, str>, Cow<'static, str>)>,
    /// Path of the keys in etcd below the prefix, such as `services/specs`; empty for resources that are not stored.
    pub storage_path: Cow<'static, str>,
    /// Served versions, the preferred one first.
    pub versions: Vec<Arc<ResourceVersion>>,
    /// Present if the resource is of a CustomResourceDefinition.
    pub custom: Option<CustomResource>,
}

/// A served version of a [`Resource`].
#[derive(Debug)]
pub struct ResourceVersion {
    /// Name of the version, such as `v1`.
    pub version: Cow<'static, str>,
    /// What an object of the version consists of.
    pub format: ObjectFormat,
    /// Columns of a Table.
    pub columns: Arc<[ResourceColumn]>,
    /// Verbs of discovery.
    pub verbs: Vec<&'static str>,
    /// `storageVersionHash` of discovery; empty for resources that are not stored.
    pub storage_version_hash: Cow<'static, str>,
    /// Subresources, ordered by name.
    pub subresources: Vec<ServedSubresource>,
}

/// A subresource of a [`ResourceVersion`].
#[derive(Debug)]
pub struct ServedSubresource {
    /// Name of the subresource, such as `status`.
    pub name: &'static str,
    /// Group of the subresource's kind; empty for the group of the resource.
    pub group: Cow<'static, str>,
    /// Version of the subresource's kind; empty for the version of the resource.
    pub version: Cow<'static, str>,
    /// Kind of the subresource's body.
    pub kind: Cow<'static, str>,
    /// Message type of the subresource's body; none for a custom resource's.
    pub message: Option<MessageId>,
    /// Verbs of discovery.
    pub verbs: Vec<&'static str>,
}

/// What an object of a version consists of.
#[derive(Debug)]
pub enum ObjectFormat {
    /// A built-in kind: message types of an object and of a list; none for resources that are not listed.
    Builtin(MessageId, Option<MessageId>),
    /// A version of a CustomResourceDefinition.
    Custom(Arc<CustomVersion>),
}

/// A resource in one of its versions. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ServedKind {
    /// The resource.
    pub resource: Arc<Resource>,
    /// The version.
    pub version: Arc<ResourceVersion>,
}

/// A column of a Table (`metav1.TableColumnDefinition`).
#[derive(Clone, Debug)]
pub struct ResourceColumn {
    /// Heading of the column.
    pub name: Cow<'static, str>,
    /// Type, such as `string`.
    pub column_type: Cow<'static, str>,
    /// Format, such as `name`; may be empty.
    pub format: Cow<'static, str>,
    /// Description of the column.
    pub description: String,
    /// Above 0, kubectl prints the column only with `-o wide`.
    pub priority: i32,
}

impl Resource {
    /// Group and plural name.
    pub fn group_resource(&self) -> (&str, &str) {
        (&self.group, &self.plural)
    }

    /// Finds a served version by its name.
    pub fn version(&self, name: &str) -> Option<&Arc<ResourceVersion>> {
        self.versions.iter().find(|served| served.version == name)
    }
}

impl ServedKind {
    /// Group and version: `v1` or `group/version`.
    pub fn api_version(&self) -> String {
        match &*self.resource.group {
            "" => self.version.version.clone().into_owned(),
            group => format!("{group}/{}", self.version.version),
        }
    }
}

impl ResourceVersion {
    /// Message type of an object of a built-in kind.
    pub fn message(&self) -> Option<MessageId> {
        match self.format {
            ObjectFormat::Builtin(message, _) => Some(message),
            ObjectFormat::Custom(_) => None,
        }
    }

    /// The version of a CustomResourceDefinition, if it is one.
    pub fn custom(&self) -> Option<&Arc<CustomVersion>> {
        match &self.format {
            ObjectFormat::Builtin(..) => None,
            ObjectFormat::Custom(version) => Some(version),
        }
    }

    /// Message type of a list of a built-in kind.
    pub fn list_message(&self) -> Option<MessageId> {
        match self.format {
            ObjectFormat::Builtin(_, list) => list,
            ObjectFormat::Custom(_) => None,
        }
    }

    /// Finds a subresource by its name.
    pub fn subresource(&self, name: &str) -> Option<&ServedSubresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }
}
