//! The cached form of an APIService's discovery content: the discovery document of its backend, which is parsed and
//! validated as such when restored.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::super::documents::aggregated;
use super::super::known::{By, Known};
use super::super::merge::{Group, Version};
use super::super::parse::{self, Offered};
use super::Content;

/// Documents of the two root paths of a delegate.
#[derive(Serialize, Deserialize)]
struct Roots {
    api: Box<RawValue>,
    apis: Box<RawValue>,
}

impl Content {
    /// Serializes the content for the cache; `None` if there is nothing to cache.
    pub(super) fn to_keep(&self, of: &Known) -> Option<Vec<u8>> {
        if of.by == By::Itself {
            let root = |path: &str| {
                let offered = self.offered.get(path)?;
                let groups: Vec<Group> = offered.iter().map(group).collect();
                let document = document(&groups);
                to_raw_value(&serde_json::from_slice::<&RawValue>(&document).ok()?).ok()
            };
            return serde_json::to_vec(&Roots { api: root("/api")?, apis: root("/apis")? }).ok();
        }
        let resources = self.resources.clone();
        let all = Offered { group: of.group.clone(), version: of.version.clone(), resources, current: true };
        Some(document(&[group(&all)]))
    }

    /// Parses the cached content of `of`. It is not current: this process has not fetched it. `None` if it is invalid.
    pub(super) fn from_kept(kept: &[u8], of: &Known) -> Option<Content> {
        if of.by == By::Itself {
            let roots: Roots = serde_json::from_slice(kept).ok()?;
            let offers = |root: &RawValue| parse::whole(root.get().as_bytes()).ok().map(Arc::new);
            let offered = [("/api", offers(&roots.api)?), ("/apis", offers(&roots.apis)?)].into();
            return Some(Content { offered, kept: true, ..Content::default() });
        }
        let listed = parse::aggregated(kept, std::slice::from_ref(of)).ok()?.remove(&of.name)?;
        Some(Content { resources: Arc::new(listed.resources), kept: true, ..Content::default() })
    }
}

fn group(offered: &Offered) -> Group {
    let Offered { group, version, resources, current } = offered.clone();
    Group { name: group, versions: vec![Version { version, resources, current }] }
}

fn document(groups: &[Group]) -> Vec<u8> {
    aggregated(groups, "apidiscovery.k8s.io/v2").json.to_vec()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn known(by: By) -> Known {
        Known {
            name: "v1.g".into(),
            group: "g".into(),
            version: "v1".into(),
            group_priority_minimum: 1,
            version_priority: 1,
            service_key: "b".into(),
            backend: "b".into(),
            by,
        }
    }

    fn heard() -> Content {
        let resources = Arc::new(vec![serde_json::from_str(r#"{"resource":"things","verbs":["get"]}"#).unwrap()]);
        let offered = |group: &str, current| Offered {
            group: group.into(),
            version: "v1".into(),
            resources: resources.clone(),
            current,
        };
        let offered = BTreeMap::from([
            ("/api", Arc::new(vec![offered("", true)])),
            ("/apis", Arc::new(vec![offered("apps", true), offered("lost", false)])),
        ]);
        Content { resources: resources.clone(), offered, heard: true, asked: true, ..Content::default() }
    }

    #[test]
    fn what_was_heard_comes_back_but_is_not_current() {
        for by in [By::Backend, By::Itself] {
            let kept = heard().to_keep(&known(by)).unwrap();
            let back = Content::from_kept(&kept, &known(by)).unwrap();
            assert!(!back.is_current() && !back.asked);
            match by {
                By::Backend => assert_eq!(back.resources, heard().resources),
                _ => assert_eq!(back.offered, heard().offered),
            }
        }
        let half = Content { offered: BTreeMap::from([("/api", Arc::default())]), ..Content::default() };
        assert_eq!(half.to_keep(&known(By::Itself)), None);
    }

    #[test]
    fn what_a_backend_may_not_say_is_not_believed_of_a_file() {
        let evil = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[
            {"metadata":{"name":"g"},"versions":[{"version":"v1","resources":[{"resource":"a\u001b[2J"}]}]}]}"#;
        let other = String::from_utf8(heard().to_keep(&known(By::Backend)).unwrap()).unwrap().replace("\"g\"", "\"h\"");
        for kept in ["", "{}", "[]", evil, &other] {
            assert!(Content::from_kept(kept.as_bytes(), &known(By::Backend)).is_none(), "{kept}");
            assert!(Content::from_kept(kept.as_bytes(), &known(By::Itself)).is_none(), "{kept}");
        }
    }
}
