//! The types of `apidiscovery.k8s.io/v2`, in Kubernetes' field order. `v2beta1` differs only in its name.

use std::marker::PhantomData;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// One resource of a group and version (`APIResourceDiscovery`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryResource {
    /// Plural name.
    pub resource: String,
    /// Kind of the response. All fields are empty when the server does not say: clients require its presence.
    #[serde(default, deserialize_with = "or_default")]
    pub response_kind: ResourceKind,
    /// Whether the resource is namespaced.
    #[serde(default)]
    pub scope: Scope,
    /// Singular name, or empty.
    #[serde(default)]
    pub singular_resource: String,
    /// Supported verbs.
    #[serde(default, deserialize_with = "capped::<_, _, 64>")]
    pub verbs: Vec<String>,
    /// Short names.
    #[serde(default, deserialize_with = "capped::<_, _, 64>", skip_serializing_if = "Vec::is_empty")]
    pub short_names: Vec<String>,
    /// Categories, for example `all`.
    #[serde(default, deserialize_with = "capped::<_, _, 64>", skip_serializing_if = "Vec::is_empty")]
    pub categories: Vec<String>,
    /// Subresources.
    #[serde(default, deserialize_with = "capped::<_, _, 10000>", skip_serializing_if = "Vec::is_empty")]
    pub subresources: Vec<Subresource>,
}

/// One subresource (`APISubresourceDiscovery`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Subresource {
    /// Name, without that of the resource.
    pub subresource: String,
    /// Kind of the response.
    #[serde(default, deserialize_with = "or_default")]
    pub response_kind: ResourceKind,
    /// Accepted kinds, where they differ.
    #[serde(default, deserialize_with = "capped::<_, _, 64>", skip_serializing_if = "Vec::is_empty")]
    pub accepted_types: Vec<ResourceKind>,
    /// Supported verbs.
    #[serde(default, deserialize_with = "capped::<_, _, 64>")]
    pub verbs: Vec<String>,
}

/// A `metav1.GroupVersionKind`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceKind {
    /// Group; empty for the core group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
}

/// Whether a resource is namespaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Scope {
    /// Names are unique in the cluster.
    #[default]
    Cluster,
    /// Names are unique in a namespace.
    Namespaced,
}

/// A list of at most `MOST` entries; `null`, which Go writes for an empty one, is empty.
///
/// The bound is checked while reading: a body of 4 MiB made of `{},{},…` must not become a gigabyte.
pub(super) fn capped<'de, D, T, const MOST: usize>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Capped<T, const MOST: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Capped<T, MOST> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "a list of at most {MOST} entries")
        }

        fn visit_unit<E>(self) -> Result<Vec<T>, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut entries = Vec::new();
            while let Some(entry) = list.next_element()? {
                if entries.len() == MOST {
                    return Err(serde::de::Error::custom(format_args!("a list has more than {MOST} entries")));
                }
                entries.push(entry);
            }
            Ok(entries)
        }
    }

    from.deserialize_any(Capped::<T, MOST>(PhantomData))
}

/// A value, or its default where the field is `null`.
pub(super) fn or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}
