//! Kinds of subresources whose body is of another kind than the object: `Scale`, `Eviction`, `Binding`, `TokenRequest`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use kubeapi::protobuf::table::MessageId;

use crate::resources::builtin::builtin_kinds;
use crate::resources::custom::cells::scale_columns;
use crate::resources::{ObjectFormat, Resource, ResourceVersion, ServedKind};

/// The subresources, with group, version, kind, message type and plural name of their kinds.
const KINDS: [(&str, &str, &str, &str, &str, &str); 4] = [
    ("scale", "autoscaling", "v1", "Scale", "io.k8s.api.autoscaling.v1.Scale", "scales"),
    ("eviction", "policy", "v1", "Eviction", "io.k8s.api.policy.v1.Eviction", "evictions"),
    (
        "token",
        "authentication.k8s.io",
        "v1",
        "TokenRequest",
        "io.k8s.api.authentication.v1.TokenRequest",
        "tokenrequests",
    ),
    ("binding", "", "v1", "Binding", "io.k8s.api.core.v1.Binding", "bindings"),
];

/// The kind of a subresource's body; none if it is that of the object.
pub(super) fn body_kind(subresource: &str) -> Option<&'static ServedKind> {
    static FOUND: LazyLock<HashMap<&str, ServedKind>> = LazyLock::new(|| {
        let found = KINDS.iter().filter_map(|(subresource, group, version, kind, message, plural)| {
            // A test excludes that the tables of built-in kinds do not have it.
            let message = builtin_kinds().messages.find(message)?;
            Some((*subresource, served_kind((*group, *version, *kind, *plural), message)))
        });
        found.collect()
    });
    FOUND.get(subresource)
}

fn served_kind(
    (group, version, kind, plural): (&'static str, &'static str, &'static str, &'static str),
    message: MessageId,
) -> ServedKind {
    let columns = if kind == "Scale" { scale_columns() } else { Vec::new() };
    let version = Arc::new(ResourceVersion {
        version: Cow::Borrowed(version),
        format: ObjectFormat::Builtin(message, None),
        columns: columns.into(),
        verbs: Vec::new(),
        storage_version_hash: Cow::Borrowed(""),
        subresources: Vec::new(),
    });
    let resource = Resource {
        group: Cow::Borrowed(group),
        plural: Cow::Borrowed(plural),
        singular: Cow::Borrowed(""),
        kind: Cow::Borrowed(kind),
        list_kind: None,
        short_names: Vec::new(),
        categories: Vec::new(),
        is_namespaced: true,
        storage: None,
        storage_path: Cow::Borrowed(""),
        versions: vec![version.clone()],
        custom: None,
    };
    ServedKind { resource: Arc::new(resource), version }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_subresources_are_in_the_tables() {
        for (subresource, group, version, kind, ..) in KINDS {
            let found = body_kind(subresource).unwrap_or_else(|| panic!("no {kind}"));
            assert_eq!((&*found.resource.group, &*found.version.version), (group, version));
        }
    }
}
