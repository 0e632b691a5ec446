//! Parses and validates backends' discovery documents: format, size, and that they are within the backend's claims.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;

use super::claim::ApiServiceClaim;
use super::model::{DiscoveryResource, ResourceKind, Scope, Subresource, capped, or_default};
use super::polling::fetch::FetchError;

/// The resources of one group and version.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ResourceListing {
    /// Resources; each name once.
    pub(super) resources: Vec<DiscoveryResource>,
    /// Whether the backend (perhaps a gateway, too) marks them stale.
    pub(super) stale: bool,
}

/// The resources of one group and version, with its names.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GroupVersionListing {
    /// Group; empty for the core group.
    pub(super) group: String,
    /// Version.
    pub(super) version: String,
    /// Resources.
    pub(super) resources: Arc<Vec<DiscoveryResource>>,
    /// Whether the server reports them as current.
    pub(super) current: bool,
}

/// An `APIGroupDiscoveryList`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AggregatedGroupList {
    kind: String,
    api_version: String,
    #[serde(default, deserialize_with = "capped::<_, _, 10000>")]
    items: Vec<AggregatedGroup>,
}

#[derive(Deserialize)]
struct AggregatedGroup {
    #[serde(default, deserialize_with = "or_default")]
    metadata: Metadata,
    #[serde(default, deserialize_with = "capped::<_, _, 100>")]
    versions: Vec<AggregatedVersion>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
}

#[derive(Deserialize)]
struct AggregatedVersion {
    version: String,
    #[serde(default, deserialize_with = "capped::<_, _, 10000>")]
    resources: Vec<DiscoveryResource>,
    #[serde(default)]
    freshness: String,
}

fn groups(body: &[u8]) -> Result<Vec<AggregatedGroup>, FetchError> {
    let list: AggregatedGroupList = parse_json(body)?;
    if list.kind != "APIGroupDiscoveryList" || !list.api_version.starts_with("apidiscovery.k8s.io/v2") {
        return Err(FetchError::new("the answer is not an APIGroupDiscoveryList, as its content type says"));
    }
    Ok(list.items)
}

/// Parses all of an `APIGroupDiscoveryList`, that of the delegate. Invalid versions are listed without resources: one
/// bad name must not hide the rest of a cluster.
pub(super) fn all_listings(body: &[u8]) -> Result<Vec<GroupVersionListing>, FetchError> {
    let mut names = HashSet::new();
    let mut offered = Vec::new();
    for group in groups(body)? {
        let name = group.metadata.name;
        for version in group.versions {
            let named = is_word_or_empty(&name) && is_word(&version.version) && !version.version.contains('/');
            if !named || name.contains('/') || !names.insert((name.clone(), version.version.clone())) {
                continue;
            }
            let current = version.freshness != "Stale";
            let (resources, current) = validated(version.resources).map_or((Vec::new(), false), |good| (good, current));
            offered.push(GroupVersionListing {
                group: name.clone(),
                version: version.version,
                resources: Arc::new(resources),
                current,
            });
        }
    }
    Ok(offered)
}

/// Parses an `APIGroupList` or `APIVersions` (legacy): the listed groups and versions.
pub(super) fn group_versions(body: &[u8]) -> Result<Vec<(String, String)>, FetchError> {
    #[derive(Deserialize)]
    struct LegacyNames {
        #[serde(default, deserialize_with = "capped::<_, _, 100>")]
        versions: Vec<String>,
        #[serde(default, deserialize_with = "capped::<_, _, 10000>")]
        groups: Vec<LegacyGroup>,
    }
    #[derive(Deserialize)]
    struct LegacyGroup {
        name: String,
        #[serde(default, deserialize_with = "capped::<_, _, 100>")]
        versions: Vec<LegacyVersion>,
    }
    #[derive(Deserialize)]
    struct LegacyVersion {
        version: String,
    }
    let LegacyNames { versions, groups } = parse_json(body)?;
    let core = versions.into_iter().map(|version| (String::new(), version));
    let named = groups.into_iter().flat_map(|LegacyGroup { name, versions }| {
        versions.into_iter().map(move |LegacyVersion { version }| (name.clone(), version))
    });
    let plain = |word: &str| is_word_or_empty(word) && !word.contains(['/', '?', '#', '%']);
    Ok(core.chain(named).filter(|(group, version)| plain(group) && plain(version) && !version.is_empty()).collect())
}

/// Parses an `APIGroupDiscoveryList`. Returns the content of each of `claims` that is in it, by name of the APIService.
///
/// Other groups and versions are ignored: a backend may only list what it claims.
pub(super) fn aggregated(
    body: &[u8],
    claims: &[ApiServiceClaim],
) -> Result<BTreeMap<String, ResourceListing>, FetchError> {
    let mut found = BTreeMap::new();
    for group in groups(body)? {
        for version in group.versions {
            let its = |claim: &&ApiServiceClaim| claim.group == group.metadata.name && claim.version == version.version;
            let Some(claim) = claims.iter().find(its) else { continue };
            let stale = version.freshness == "Stale";
            found
                .entry(claim.name.clone())
                .or_insert(ResourceListing { resources: validated(version.resources)?, stale });
        }
    }
    Ok(found)
}

/// Parses an `APIResourceList` (legacy) for the group and version of `claim`.
///
/// Subresources, which it lists as `pods/log` beside their resource, are nested into it. Where the resource itself is
/// not listed (custom metrics: `pods/cpu_usage`) it is added with an empty kind and no verbs, as Kubernetes does.
pub(super) fn legacy(body: &[u8], claim: &ApiServiceClaim) -> Result<ResourceListing, FetchError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct LegacyResourceList {
        #[serde(default)]
        kind: String,
        group_version: String,
        #[serde(default, deserialize_with = "capped::<_, _, 20000>")]
        resources: Vec<LegacyResource>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct LegacyResource {
        name: String,
        #[serde(default)]
        singular_name: String,
        #[serde(default)]
        namespaced: bool,
        #[serde(default)]
        group: String,
        #[serde(default)]
        version: String,
        #[serde(default)]
        kind: String,
        #[serde(default, deserialize_with = "capped::<_, _, 64>")]
        verbs: Vec<String>,
        #[serde(default, deserialize_with = "capped::<_, _, 64>")]
        short_names: Vec<String>,
        #[serde(default, deserialize_with = "capped::<_, _, 64>")]
        categories: Vec<String>,
    }

    let list: LegacyResourceList = parse_json(body)?;
    if !matches!(list.kind.as_str(), "APIResourceList" | "") {
        return Err(FetchError::new("the answer is not an APIResourceList"));
    }
    if list.group_version != claim.group_version() {
        return Err(FetchError::new(format!("the response is not for {}, which was requested", claim.group_version())));
    }
    let scope = |namespaced| if namespaced { Scope::Namespaced } else { Scope::Cluster };
    let own = |given: String, fallback: &str| if given.is_empty() { fallback.to_owned() } else { given };
    let (below, above): (Vec<LegacyResource>, Vec<LegacyResource>) =
        list.resources.into_iter().partition(|entry| entry.name.contains('/'));
    let mut resources: Vec<DiscoveryResource> = above
        .into_iter()
        .map(|entry| DiscoveryResource {
            resource: entry.name,
            response_kind: ResourceKind {
                group: own(entry.group, &claim.group),
                version: own(entry.version, &claim.version),
                kind: entry.kind,
            },
            scope: scope(entry.namespaced),
            singular_resource: entry.singular_name,
            verbs: entry.verbs,
            short_names: entry.short_names,
            categories: entry.categories,
            subresources: Vec::new(),
        })
        .collect();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (index, resource) in resources.iter().enumerate() {
        places.entry(resource.resource.clone()).or_insert(index);
    }
    for entry in below {
        let Some((parent, name)) = entry.name.split_once('/') else { continue };
        let index = *places.entry(parent.to_owned()).or_insert_with(|| {
            resources.push(DiscoveryResource {
                resource: parent.to_owned(),
                response_kind: ResourceKind::default(),
                scope: scope(entry.namespaced),
                singular_resource: String::new(),
                verbs: Vec::new(),
                short_names: Vec::new(),
                categories: Vec::new(),
                subresources: Vec::new(),
            });
            resources.len() - 1
        });
        let subresource = Subresource {
            subresource: name.to_owned(),
            response_kind: ResourceKind {
                group: own(entry.group, &claim.group),
                version: own(entry.version, &claim.version),
                kind: entry.kind,
            },
            accepted_types: Vec::new(),
            verbs: entry.verbs,
        };
        if let Some(resource) = resources.get_mut(index) {
            resource.subresources.push(subresource);
        }
    }
    Ok(ResourceListing { resources: validated(resources)?, stale: false })
}

fn parse_json<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, FetchError> {
    // serde_json limits nesting to 128 levels, and skips unknown fields without recursion.
    serde_json::from_slice(body).map_err(|error| FetchError::unreadable(&error))
}

/// Removes duplicate names, and checks that all strings are printable: kubectl prints them as they are.
fn validated(mut resources: Vec<DiscoveryResource>) -> Result<Vec<DiscoveryResource>, FetchError> {
    let mut names = HashSet::new();
    resources.retain(|resource| names.insert(resource.resource.clone()));
    for resource in &mut resources {
        let mut names = HashSet::new();
        resource.subresources.retain(|below| names.insert(below.subresource.clone()));
        let named = !resource.resource.contains('/')
            && is_word(&resource.resource)
            && is_word_or_empty(&resource.singular_resource)
            && is_kind(&resource.response_kind)
            && [&resource.verbs, &resource.short_names, &resource.categories].into_iter().flatten().all(|w| is_word(w))
            && resource.subresources.iter().all(|below| {
                is_word(&below.subresource)
                    && is_kind(&below.response_kind)
                    && below.accepted_types.iter().all(is_kind)
                    && below.verbs.iter().all(|w| is_word(w))
            });
        if !named {
            return Err(FetchError::new(format!(
                "invalid name (empty, too long, or not visible ASCII) in resource {:?}",
                resource.resource.chars().take(64).collect::<String>()
            )));
        }
    }
    Ok(resources)
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && is_word_or_empty(text)
}

fn is_word_or_empty(text: &str) -> bool {
    text.len() <= 253 && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn is_kind(kind: &ResourceKind) -> bool {
    [&kind.group, &kind.version, &kind.kind].into_iter().all(|text| is_word_or_empty(text))
}

#[cfg(test)]
mod tests {
    use super::super::claim::ServedBy;
    use super::*;

    fn claim(group: &str, version: &str) -> ApiServiceClaim {
        ApiServiceClaim {
            name: format!("{version}.{group}"),
            group: group.into(),
            version: version.into(),
            group_priority_minimum: 1000,
            version_priority: 15,
            service_key: "a".into(),
            backend: "a".into(),
            served_by: ServedBy::Backend,
        }
    }

    fn list(items: &str) -> String {
        format!(
            r#"{{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{{}},"items":{items}}}"#
        )
    }

    #[test]
    fn parse_keeps_only_claimed_versions() {
        let body = list(
            r#"[{"metadata":{"name":"wardle.example.com","creationTimestamp":null},"versions":[
                {"version":"v1","freshness":"Current","resources":[{"resource":"flunders","scope":"Namespaced","verbs":["get"],
                 "subresources":[{"subresource":"status","verbs":null}],"future":[{"field":1}]}]},
                {"version":"v2","resources":[]}]},
               {"metadata":{"name":"apps"},"versions":[{"version":"v1","resources":[]}]}]"#,
        );
        let found = aggregated(body.as_bytes(), &[claim("wardle.example.com", "v1"), claim("other", "v1")]).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), ["v1.wardle.example.com"]);
        let flunders = &found["v1.wardle.example.com"].resources[0];
        assert_eq!(flunders.response_kind, ResourceKind::default(), "a missing kind is empty, not absent");
        assert_eq!((flunders.scope, flunders.subresources.len()), (Scope::Namespaced, 1));
    }

    #[test]
    fn parse_refuses_invalid_documents() {
        let claims = [claim("g", "v1")];
        let resources = |inner: &str| {
            list(&format!(r#"[{{"metadata":{{"name":"g"}},"versions":[{{"version":"v1","resources":{inner}}}]}}]"#))
        };
        let many = |entry: &str, n: usize| format!("[{}]", vec![entry; n].join(","));
        for body in [
            "<html>log in here</html>".to_owned(),
            String::new(),
            "null".into(),
            "[[".repeat(100_000),
            r#"{"kind":"Status","apiVersion":"v1","items":[]}"#.into(),
            r#"{"kind":"APIGroupDiscoveryList","apiVersion":"v1","items":[]}"#.into(),
            list("{}"),
            list(&many(r#"{"metadata":{"name":"x"},"versions":[]}"#, 10_001)),
            resources(r#"{"resource":"a"}"#),
            resources("[{}]"),
            resources(r#"[{"resource":7}]"#),
            resources(r#"[{"resource":""}]"#),
            resources(r#"[{"resource":"a\u001b[2J"}]"#),
            resources(r#"[{"resource":"a/b"}]"#),
            resources(r#"[{"resource":"a","scope":"Galaxy"}]"#),
            resources(r#"[{"resource":"a","verbs":"get"}]"#),
            resources(r#"[{"resource":"a","verbs":["get\n"]}]"#),
            resources(&format!(r#"[{{"resource":"a","verbs":{}}}]"#, many(r#""get""#, 65))),
            resources(&many(r#"{"resource":"a"}"#, 10_001)),
            resources(&format!(r#"[{{"resource":"{}"}}]"#, "a".repeat(254))),
        ] {
            let what: String = body.chars().take(120).collect();
            assert!(aggregated(body.as_bytes(), &claims).is_err(), "{what}");
        }
        let deep = format!(r#"[{{"resource":"a","unknown":{}{}}}]"#, "[".repeat(1_000_000), "]".repeat(1_000_000));
        let _ = aggregated(resources(&deep).as_bytes(), &claims);
    }

    #[test]
    fn parse_stale_and_repeated_resources() {
        let body = list(
            r#"[{"metadata":{"name":"g"},"versions":[{"version":"v1","freshness":"Stale","resources":[
                {"resource":"a","singularResource":"first"},{"resource":"a","singularResource":"second"}]}]}]"#,
        );
        let found = aggregated(body.as_bytes(), &[claim("g", "v1")]).unwrap();
        let listed = &found["v1.g"];
        assert!(listed.stale);
        assert_eq!(listed.resources.len(), 1);
        assert_eq!(listed.resources[0].singular_resource, "first");
    }

    #[test]
    fn parse_legacy_resource_list_converted() {
        let body = br#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"wardle.example.com/v1alpha1","resources":[
            {"name":"flunders/scale","singularName":"","namespaced":true,"group":"autoscaling","version":"v1","kind":"Scale","verbs":["get"]},
            {"name":"flunders","singularName":"flunder","namespaced":true,"kind":"Flunder","verbs":["create","get"],"shortNames":["fl"],"categories":["all"]},
            {"name":"pods/cpu_usage","namespaced":true,"kind":"MetricValueList","verbs":["get"]},
            {"name":"fischers","singularName":"fischer","namespaced":false,"kind":"Fischer","verbs":null}]}"#;
        let listed = legacy(body, &claim("wardle.example.com", "v1alpha1")).unwrap();
        insta::assert_json_snapshot!(listed.resources);
    }

    #[test]
    fn parse_legacy_refuses_other_group_version() {
        let claim = claim("g", "v1");
        for body in [
            r#"{"kind":"APIResourceList","groupVersion":"other/v1","resources":[]}"#,
            r#"{"kind":"Status","groupVersion":"g/v1","resources":[]}"#,
            r#"{"kind":"APIResourceList","resources":[]}"#,
            "<html>",
        ] {
            assert!(legacy(body.as_bytes(), &claim).is_err(), "{body}");
        }
        assert!(legacy(br#"{"groupVersion":"g/v1","resources":null}"#, &claim).unwrap().resources.is_empty());
    }

    #[test]
    fn parse_never_panics() {
        bolero::check!().with_iterations(20_000).for_each(|bytes: &[u8]| {
            let claims = [claim("g", "v1")];
            let _ = aggregated(bytes, &claims);
            let _ = legacy(bytes, &claims[0]);
        });
    }
}
