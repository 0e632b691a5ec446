//! Keys as kube-apiserver writes them to etcd: `/registry/configmaps/default/a`.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// Built-in resources whose keys are not named after the plural
/// (`pkg/kubeapiserver/default_storage_factory_builder.go`, `SpecialDefaultResourcePrefixes`).
const SPECIAL_PREFIXES: [(&str, &str, &str); 6] = [
    ("", "replicationcontrollers", "controllers"),
    ("", "endpoints", "services/endpoints"),
    ("", "nodes", "minions"),
    ("", "services", "services/specs"),
    ("extensions", "ingresses", "ingress"),
    ("networking.k8s.io", "ingresses", "ingress"),
];

/// Groups compiled into a kube-apiserver whose keys have the group all the same: their servers are aggregated ones
/// with a storage factory of their own.
const GROUPS_IN_KEYS: [&str; 2] = ["apiextensions.k8s.io", "apiregistration.k8s.io"];

/// Key of one object: begins with `/`, has at least two segments, none of them empty, `.` or `..`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// Prefix of the keys of one resource or namespace; begins and ends with `/`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(Arc<str>);

/// A text that is not a key or part of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError(String);

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for KeyError {}

impl Key {
    /// Parses a whole key.
    ///
    /// # Errors
    /// The text is not a key.
    pub fn parse(text: &str) -> Result<Key, KeyError> {
        let Some(rest) = text.strip_prefix('/') else {
            return Err(KeyError(format!("key {text:?} must begin with '/'")));
        };
        if !rest.contains('/') {
            return Err(KeyError(format!("key {text:?} must have at least two segments")));
        }
        rest.split('/').try_for_each(check_segment)?;
        Ok(Key(text.into()))
    }

    /// The whole key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Name of the resource, for people: `configmaps`, `widgets.example.com`. The root has one segment.
    pub fn resource(&self) -> String {
        let mut rest = self.0.split('/').skip(2);
        let (first, second) = (rest.next().unwrap_or_default(), rest.next().unwrap_or_default());
        let special = SPECIAL_PREFIXES.iter().find(|(group, _, name)| {
            !group.contains("k8s.io") && (*name == first || name.split_once('/') == Some((first, second)))
        });
        match special {
            Some((_, plural, _)) => (*plural).to_owned(),
            None if first.contains('.') => format!("{second}.{first}"),
            None => first.to_owned(),
        }
    }

    /// A text that compares like a key: the lower bound of a range.
    pub(super) fn lower_bound(text: &str) -> Key {
        Key(text.into())
    }

    /// Namespace and name of an object below `prefix`; the namespace is empty when one segment is left.
    pub fn split_below(&self, prefix: &Prefix) -> Option<(&str, &str)> {
        let rest = self.0.strip_prefix(prefix.as_str())?;
        Some(rest.split_once('/').unwrap_or(("", rest)))
    }
}

impl Prefix {
    /// Prefix of a built-in resource below the root (`/registry`, `--etcd-prefix`): the plural without its group, save
    /// where Kubernetes has another name.
    ///
    /// # Errors
    /// Root, group or plural cannot be part of a key.
    pub fn of_builtin(root: &str, group: &str, plural: &str) -> Result<Prefix, KeyError> {
        if GROUPS_IN_KEYS.contains(&group) {
            return Prefix::of_custom(root, group, plural);
        }
        let special = SPECIAL_PREFIXES.iter().find(|special| (special.0, special.1) == (group, plural));
        Prefix::below(root, special.map_or(plural, |special| special.2))
    }

    /// Prefix of a custom resource: group and plural.
    ///
    /// # Errors
    /// Root, group or plural cannot be part of a key.
    pub fn of_custom(root: &str, group: &str, plural: &str) -> Result<Prefix, KeyError> {
        Prefix::below(root, &format!("{group}/{plural}"))
    }

    fn below(root: &str, path: &str) -> Result<Prefix, KeyError> {
        let root = root.trim_matches('/');
        root.split('/').chain(path.split('/')).try_for_each(check_segment)?;
        Ok(Prefix(format!("/{root}/{path}/").into()))
    }

    /// Parses a whole prefix.
    ///
    /// # Errors
    /// The text does not begin and end with `/`, or has a wrong segment.
    pub fn parse(text: &str) -> Result<Prefix, KeyError> {
        let inner = text.strip_prefix('/').and_then(|rest| rest.strip_suffix('/'));
        let inner = inner.ok_or_else(|| KeyError(format!("prefix {text:?} must begin and end with '/'")))?;
        inner.split('/').try_for_each(check_segment)?;
        Ok(Prefix(text.into()))
    }

    /// Prefix of the objects of one namespace.
    ///
    /// # Errors
    /// The namespace cannot be part of a key.
    pub fn namespace(&self, namespace: &str) -> Result<Prefix, KeyError> {
        check_segment(namespace)?;
        Ok(Prefix(format!("{}{namespace}/", self.0).into()))
    }

    /// Key of an object; the namespace is empty for a cluster-scoped one.
    ///
    /// # Errors
    /// Namespace or name cannot be part of a key.
    pub fn key(&self, namespace: &str, name: &str) -> Result<Key, KeyError> {
        check_segment(name)?;
        if namespace.is_empty() {
            return Ok(Key(format!("{}{name}", self.0).into()));
        }
        check_segment(namespace)?;
        Ok(Key(format!("{}{namespace}/{name}", self.0).into()))
    }

    /// The whole prefix.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a key lies below the prefix.
    pub fn contains(&self, key: &Key) -> bool {
        key.0.starts_with(&*self.0)
    }

    /// First text after all keys of the prefix: `/` is followed by `0` in ASCII.
    pub fn end(&self) -> String {
        format!("{}0", &self.0[..self.0.len() - 1])
    }
}

/// Checks a segment by Kubernetes' `IsValidPathSegmentName`; refuses also NUL, which ends a continue token's start.
fn check_segment(segment: &str) -> Result<(), KeyError> {
    if segment.is_empty() || segment == "." || segment == ".." || segment.contains(['/', '%', '\0']) {
        return Err(KeyError(format!("{segment:?} cannot be a segment of a key")));
    }
    Ok(())
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_names_its_resource() {
        for (key, resource) in [
            ("/registry/configmaps/ns/a", "configmaps"),
            ("/registry/services/specs/ns/a", "services"),
            ("/registry/services/endpoints/ns/a", "endpoints"),
            ("/registry/minions/a", "nodes"),
            ("/registry/ex.io/vees/ns/a", "vees.ex.io"),
            ("/registry/apiregistration.k8s.io/apiservices/v1.a", "apiservices.apiregistration.k8s.io"),
        ] {
            assert_eq!(Key::parse(key).unwrap().resource(), resource);
        }
    }

    #[test]
    fn key_layout_is_kube_apiservers() {
        let key = |prefix: Result<Prefix, KeyError>| prefix.unwrap().key("ns", "a").unwrap().to_string();
        assert_eq!(key(Prefix::of_builtin("/registry", "", "configmaps")), "/registry/configmaps/ns/a");
        assert_eq!(key(Prefix::of_builtin("registry/", "", "services")), "/registry/services/specs/ns/a");
        assert_eq!(key(Prefix::of_builtin("/r", "coordination.k8s.io", "leases")), "/r/leases/ns/a");
        assert_eq!(key(Prefix::of_custom("/registry", "ex.io", "vees")), "/registry/ex.io/vees/ns/a");
        let services = Prefix::of_builtin("/registry", "apiregistration.k8s.io", "apiservices").unwrap();
        assert_eq!(services.key("", "v1.a").unwrap().as_str(), "/registry/apiregistration.k8s.io/apiservices/v1.a");
    }

    #[test]
    fn key_segments_are_checked() {
        let prefix = Prefix::of_builtin("/registry", "", "configmaps").unwrap();
        for name in ["", ".", "..", "a/b", "a%b", "a\0"] {
            assert!(prefix.key("ns", name).is_err() && prefix.key("", name).is_err(), "{name:?}");
            assert!(prefix.namespace(name).is_err(), "{name:?}");
        }
        for text in ["", "/", "/a", "a/b", "//a", "/a//b", "/a/b/"] {
            assert!(Key::parse(text).is_err(), "{text:?}");
        }
        assert!(Prefix::parse("/registry").is_err() && Prefix::parse("registry/").is_err());
    }

    #[test]
    fn prefix_range_holds_its_keys_only() {
        let prefix = Prefix::parse("/r/foo/").unwrap();
        let end = prefix.end();
        for (key, inside) in
            [("/r/foo/a", true), ("/r/foo/\u{10ffff}", true), ("/r/foobar/a", false), ("/r/fon/a", false)]
        {
            let key = Key::parse(key).unwrap();
            assert_eq!(prefix.contains(&key), inside);
            assert_eq!(prefix.as_str() < key.as_str() && *key.as_str() < *end, inside, "{key}");
        }
        assert_eq!(Key::parse("/r/foo/ns/a").unwrap().split_below(&prefix), Some(("ns", "a")));
        assert_eq!(Key::parse("/r/foo/a").unwrap().split_below(&prefix), Some(("", "a")));
    }
}
