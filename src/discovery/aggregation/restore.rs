//! The cached form of an APIService's discovery content: the discovery document of its backend, which is parsed and
//! validated as such when restored.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::super::claim::{ApiServiceClaim, ServedBy};
use super::super::merge::{MergedGroup, MergedVersion};
use super::super::parse::{self, GroupVersionListing};
use super::super::snapshot::aggregated;
use super::DiscoveryContent;

/// Documents of the two root paths of a delegate.
#[derive(Serialize, Deserialize)]
struct DelegateRoots {
    api: Box<RawValue>,
    apis: Box<RawValue>,
}

impl DiscoveryContent {
    /// Serializes the content for the cache; `None` if there is nothing to cache.
    pub(super) fn to_cache(&self, of: &ApiServiceClaim) -> Option<Vec<u8>> {
        if of.served_by == ServedBy::DelegateItself {
            let root = |path: &str| {
                let offered = self.delegate_versions.get(path)?;
                let groups: Vec<MergedGroup> = offered.iter().map(group).collect();
                let document = document(&groups);
                to_raw_value(&serde_json::from_slice::<&RawValue>(&document).ok()?).ok()
            };
            return serde_json::to_vec(&DelegateRoots { api: root("/api")?, apis: root("/apis")? }).ok();
        }
        let resources = self.resources.clone();
        let all =
            GroupVersionListing { group: of.group.clone(), version: of.version.clone(), resources, current: true };
        Some(document(&[group(&all)]))
    }

    /// Parses the cached content of `of`. It is not current: this process has not fetched it. `None` if it is invalid.
    pub(super) fn from_cache(cached: &[u8], of: &ApiServiceClaim) -> Option<DiscoveryContent> {
        if of.served_by == ServedBy::DelegateItself {
            let roots: DelegateRoots = serde_json::from_slice(cached).ok()?;
            let offers = |root: &RawValue| parse::all_listings(root.get().as_bytes()).ok().map(Arc::new);
            let offered = [("/api", offers(&roots.api)?), ("/apis", offers(&roots.apis)?)].into();
            return Some(DiscoveryContent {
                delegate_versions: offered,
                is_cached: true,
                ..DiscoveryContent::default()
            });
        }
        let listed = parse::aggregated(cached, std::slice::from_ref(of)).ok()?.remove(&of.name)?;
        Some(DiscoveryContent { resources: Arc::new(listed.resources), is_cached: true, ..DiscoveryContent::default() })
    }
}

fn group(offered: &GroupVersionListing) -> MergedGroup {
    let GroupVersionListing { group, version, resources, current } = offered.clone();
    MergedGroup { name: group, versions: vec![MergedVersion { version, resources, current }] }
}

fn document(groups: &[MergedGroup]) -> Vec<u8> {
    aggregated(groups, "apidiscovery.k8s.io/v2").json.to_vec()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn known(by: ServedBy) -> ApiServiceClaim {
        ApiServiceClaim {
            name: "v1.g".into(),
            group: "g".into(),
            version: "v1".into(),
            group_priority_minimum: 1,
            version_priority: 1,
            service_key: "b".into(),
            backend: "b".into(),
            served_by: by,
        }
    }

    fn fetched() -> DiscoveryContent {
        let resources = Arc::new(vec![serde_json::from_str(r#"{"resource":"things","verbs":["get"]}"#).unwrap()]);
        let offered = |group: &str, current| GroupVersionListing {
            group: group.into(),
            version: "v1".into(),
            resources: resources.clone(),
            current,
        };
        let offered = BTreeMap::from([
            ("/api", Arc::new(vec![offered("", true)])),
            ("/apis", Arc::new(vec![offered("apps", true), offered("lost", false)])),
        ]);
        DiscoveryContent {
            resources: resources.clone(),
            delegate_versions: offered,
            was_fetched: true,
            was_polled: true,
            ..DiscoveryContent::default()
        }
    }

    #[test]
    fn discovery_cache_restored_content_is_not_current() {
        for by in [ServedBy::Backend, ServedBy::DelegateItself] {
            let kept = fetched().to_cache(&known(by)).unwrap();
            let back = DiscoveryContent::from_cache(&kept, &known(by)).unwrap();
            assert!(!back.is_current() && !back.was_polled);
            match by {
                ServedBy::Backend => assert_eq!(back.resources, fetched().resources),
                _ => assert_eq!(back.delegate_versions, fetched().delegate_versions),
            }
        }
        let half = DiscoveryContent {
            delegate_versions: BTreeMap::from([("/api", Arc::default())]),
            ..DiscoveryContent::default()
        };
        assert_eq!(half.to_cache(&known(ServedBy::DelegateItself)), None);
    }

    #[test]
    fn discovery_cache_invalid_content_ignored() {
        let evil = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[
            {"metadata":{"name":"g"},"versions":[{"version":"v1","resources":[{"resource":"a\u001b[2J"}]}]}]}"#;
        let other = String::from_utf8(fetched().to_cache(&known(ServedBy::Backend)).unwrap())
            .unwrap()
            .replace("\"g\"", "\"h\"");
        for kept in ["", "{}", "[]", evil, &other] {
            assert!(DiscoveryContent::from_cache(kept.as_bytes(), &known(ServedBy::Backend)).is_none(), "{kept}");
            assert!(
                DiscoveryContent::from_cache(kept.as_bytes(), &known(ServedBy::DelegateItself)).is_none(),
                "{kept}"
            );
        }
    }
}
