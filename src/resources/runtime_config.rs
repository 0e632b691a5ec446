//! `--runtime-config`, in the syntax of kube-apiserver (`k8s.io/apiserver/pkg/server/resourceconfig`): turns
//! resources off.

use super::catalog::{CatalogEntry, ResourceCatalog};

/// What `--runtime-config` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    rules: Vec<(String, bool)>,
}

impl RuntimeConfig {
    /// Parses entries `KEY=true|false`; without a value, `true`. A key is `api/all`, `api/ga`, a version or a resource.
    ///
    /// # Errors
    /// A value that is no boolean, and a key that names nothing, or what cannot be turned off.
    pub fn parse(entries: &[String]) -> Result<RuntimeConfig, String> {
        let mut rules = Vec::new();
        let catalog = ResourceCatalog::default();
        for entry in entries {
            let (key, value) = entry.split_once('=').unwrap_or((entry, "true"));
            let is_enabled = match value {
                "" | "1" | "t" | "T" | "true" | "TRUE" | "True" => true,
                "0" | "f" | "F" | "false" | "FALSE" | "False" => false,
                value => return Err(format!("invalid value of {key}: {value}; give true or false")),
            };
            let key = key.trim();
            // The core group is `v1` or, for old scripts, `api/v1`.
            let key = key.strip_prefix("api/").filter(|rest| rest.starts_with('v')).unwrap_or(key);
            check_key(&catalog, key, is_enabled)?;
            rules.retain(|(before, _)| before != key);
            rules.push((key.to_owned(), is_enabled));
        }
        Ok(RuntimeConfig { rules })
    }

    /// The catalog without the resources that are turned off.
    pub fn catalog(&self) -> ResourceCatalog {
        ResourceCatalog::new(|entry| self.enables(entry))
    }

    /// Whether a resource is enabled: the rule of the resource counts before that of its version, and that before the
    /// rule of all.
    fn enables(&self, entry: &CatalogEntry) -> bool {
        let rule = |key: &str| self.rules.iter().find(|(of, _)| of == key).map(|(_, is_enabled)| *is_enabled);
        let version = entry.group_version();
        rule(&format!("{version}/{}", entry.kind.resource.plural))
            .or_else(|| rule(&version))
            // All served versions are generally available.
            .or_else(|| rule("api/ga"))
            .or_else(|| rule("api/all"))
            .unwrap_or(true)
    }
}

fn check_key(catalog: &ResourceCatalog, key: &str, is_enabled: bool) -> Result<(), String> {
    if matches!(key, "api/all" | "api/ga" | "api/beta" | "api/alpha") {
        return Ok(());
    }
    let named = |entry: &&CatalogEntry| {
        let version = entry.group_version();
        key == version
            || key.strip_prefix(&version).and_then(|rest| rest.strip_prefix('/')) == Some(&*entry.kind.resource.plural)
    };
    let mut entries = catalog.entries().iter().filter(named).peekable();
    if entries.peek().is_none() {
        return Err(format!(
            "{key} names no version or resource of this server; write GROUP/VERSION or GROUP/VERSION/RESOURCE, v1 for \
             the core group"
        ));
    }
    if is_enabled || entries.any(|entry| entry.is_optional()) {
        return Ok(());
    }
    Err(format!("{key} cannot be turned off: this server needs it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RuntimeConfig, String> {
        RuntimeConfig::parse(&text.split(',').map(str::to_owned).collect::<Vec<_>>())
    }

    fn turned_off(text: &str) -> Vec<String> {
        let (catalog, all) = (parse(text).unwrap().catalog(), ResourceCatalog::default());
        let name = |entry: &CatalogEntry| (entry.group_version(), entry.kind.resource.plural.to_string());
        let served: Vec<_> = catalog.entries().iter().map(name).collect();
        all.entries().iter().map(name).filter(|one| !served.contains(one)).map(|(_, plural)| plural).collect()
    }

    #[test]
    fn runtime_config_turns_versions_and_resources_off() {
        assert_eq!(turned_off("v1/pods=false"), ["pods"]);
        assert_eq!(turned_off("api/v1/nodes=false,v1/pods="), ["nodes"]);
        assert_eq!(
            turned_off("apps/v1=false,apps/v1/deployments"),
            ["controllerrevisions", "daemonsets", "replicasets", "statefulsets"]
        );
        assert_eq!(turned_off("batch/v1=true,batch/v1=false,policy/v1=true"), ["cronjobs", "jobs"]);
        let most = turned_off("api/all=false,v1=true");
        assert!(most.len() > 20 && !most.contains(&"pods".to_owned()), "{most:?}");
        assert_eq!(turned_off("api/beta=false,api/all=true"), [""; 0]);
        let required = parse("api/all=false").unwrap().catalog();
        assert!(required.find("", "v1", "secrets").is_some() && required.find("", "v1", "pods").is_none());
    }

    #[test]
    fn runtime_config_refuses_what_it_cannot_do() {
        for (text, why) in [
            ("v1/pods=maybe", "give true or false"),
            ("apps/v1beta1=true", "names no version or resource"),
            ("v1/pod=true", "names no version or resource"),
            ("apps=true", "names no version or resource"),
            ("v1/secrets=false", "cannot be turned off"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
