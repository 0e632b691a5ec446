//! Which controllers run (`--controllers` of kube-controller-manager,
//! `k8s.io/controller-manager/app/helper.go`).

/// Canonical names of the controllers, and their former names.
const CLUSTER_ROLE_AGGREGATION: [&str; 2] = ["clusterrole-aggregation-controller", "clusterrole-aggregation"];
const NAMESPACE: [&str; 2] = ["namespace-controller", "namespace"];

/// The controllers of kube-controller-manager that run. Those of kube-apiserver always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnabledControllers {
    /// Aggregated ClusterRoles get their rules.
    pub cluster_role_aggregation: bool,
    /// What is in a deleted namespace is deleted.
    pub namespace: bool,
}

impl Default for EnabledControllers {
    fn default() -> EnabledControllers {
        EnabledControllers { cluster_role_aggregation: true, namespace: true }
    }
}

impl EnabledControllers {
    /// Reads the values of the flag: a name enables, `-` before it disables, `*` stands for all others.
    ///
    /// # Errors
    /// A name of no controller.
    pub fn parse(words: &[String]) -> Result<EnabledControllers, String> {
        let unknown = |word: &&String| {
            let name = word.strip_prefix('-').unwrap_or(word);
            name != "*" && ![CLUSTER_ROLE_AGGREGATION, NAMESPACE].concat().contains(&name)
        };
        if let Some(word) = words.iter().find(unknown) {
            return Err(format!(
                "{word:?} is not in the list of controllers: *, {}",
                [CLUSTER_ROLE_AGGREGATION, NAMESPACE].concat().join(", ")
            ));
        }
        let is_enabled = |names: &[&str]| {
            let named = words.iter().find_map(|word| match word.strip_prefix('-') {
                Some(name) => names.contains(&name).then_some(false),
                None => names.contains(&word.as_str()).then_some(true),
            });
            named.unwrap_or_else(|| words.iter().any(|word| word == "*"))
        };
        Ok(EnabledControllers {
            cluster_role_aggregation: is_enabled(&CLUSTER_ROLE_AGGREGATION),
            namespace: is_enabled(&NAMESPACE),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_enabled_as_by_kube_controller_manager() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            EnabledControllers::parse(&words).map(|enabled| enabled.namespace)
        };
        for (words, expected) in [
            (&["*"][..], true),
            (&[], false),
            (&["*", "-namespace"], false),
            (&["-namespace-controller", "*"], false),
            (&["namespace"], true),
            (&["namespace", "-namespace"], true),
        ] {
            assert_eq!(parse(words), Ok(expected), "{words:?}");
        }
        let error = parse(&["*", "-job"]).unwrap_err();
        let expected = "\"-job\" is not in the list of controllers: *, clusterrole-aggregation-controller, \
                        clusterrole-aggregation, namespace-controller, namespace";
        assert_eq!(error, expected);
    }
}
