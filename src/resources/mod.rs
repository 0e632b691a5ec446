//! Resources of the embedded API server: names, versions, message types, columns.

/// Resources that Kubernetes itself has.
pub mod builtin;
/// Which of them the embedded API server serves and stores.
pub mod catalog;
/// Tables: columns and cells.
pub mod columns;
/// `--runtime-config`: which optional resources are stored.
pub mod runtime_config;

use crate::kubeapi::protobuf::table::MessageId;

/// A resource: what clients call it, and which versions of it are served and stored.
#[derive(Debug)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Name in paths, such as `configmaps`.
    pub plural: &'static str,
    /// Singular name, such as `configmap`; may be empty.
    pub singular: &'static str,
    /// Kind of an object.
    pub kind: &'static str,
    /// Kind of a list; none for resources that are not listed.
    pub list_kind: Option<&'static str>,
    /// Short names, such as `cm`.
    pub short_names: Vec<&'static str>,
    /// Categories, such as `all`.
    pub categories: Vec<&'static str>,
    /// Whether objects are in namespaces.
    pub is_namespaced: bool,
    /// Group and version in which a kube-apiserver stores objects; none for resources that are not stored.
    pub storage: Option<(&'static str, &'static str)>,
    /// Path of the keys in etcd below the prefix, such as `services/specs`; empty for resources that are not stored.
    pub storage_path: &'static str,
    /// Served versions, the preferred one first.
    pub versions: Vec<ResourceVersion>,
    /// Columns of a Table.
    pub columns: Vec<ResourceColumn>,
}

/// A served version of a [`Resource`].
#[derive(Debug)]
pub struct ResourceVersion {
    /// Name of the version, such as `v1`.
    pub version: &'static str,
    /// Message type of an object.
    pub message: MessageId,
    /// Message type of a list; none for resources that are not listed.
    pub list_message: Option<MessageId>,
    /// Verbs of discovery.
    pub verbs: Vec<&'static str>,
    /// `storageVersionHash` of discovery; empty for resources that are not stored.
    pub storage_version_hash: &'static str,
    /// Subresources, ordered by name.
    pub subresources: Vec<ServedSubresource>,
}

/// A subresource of a [`ResourceVersion`].
#[derive(Debug)]
pub struct ServedSubresource {
    /// Name of the subresource, such as `status`.
    pub name: &'static str,
    /// Group of the subresource's kind; empty for the group of the resource.
    pub group: &'static str,
    /// Version of the subresource's kind; empty for the version of the resource.
    pub version: &'static str,
    /// Kind of the subresource's body.
    pub kind: &'static str,
    /// Message type of the subresource's body.
    pub message: MessageId,
    /// Verbs of discovery.
    pub verbs: Vec<&'static str>,
}

/// A column of a Table (`metav1.TableColumnDefinition`).
#[derive(Clone, Debug)]
pub struct ResourceColumn {
    /// Heading of the column.
    pub name: &'static str,
    /// Type, such as `string`.
    pub column_type: &'static str,
    /// Format, such as `name`; may be empty.
    pub format: &'static str,
    /// Description of the column.
    pub description: String,
    /// Above 0, kubectl prints the column only with `-o wide`.
    pub priority: i32,
}

impl Resource {
    /// Finds a served version by its name.
    pub fn version(&self, name: &str) -> Option<&ResourceVersion> {
        self.versions.iter().find(|served| served.version == name)
    }
}

impl ResourceVersion {
    /// Finds a subresource by its name.
    pub fn subresource(&self, name: &str) -> Option<&ServedSubresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }
}
