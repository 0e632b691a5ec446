//! Which controllers run (`--controllers` of kube-controller-manager,
//! `k8s.io/controller-manager/app/helper.go`).

use std::collections::BTreeSet;

/// A controller of kube-controller-manager that this server can run. Those of kube-apiserver always do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ManagedController {
    /// Aggregated ClusterRoles get their rules.
    ClusterRoleAggregation,
    /// Objects whose owners are gone are deleted.
    GarbageCollector,
    /// What is in a deleted namespace is deleted.
    Namespace,
    /// Namespaces get the ConfigMap `kube-root-ca.crt`.
    RootCaPublisher,
    /// Namespaces get the ServiceAccount `default`.
    ServiceAccount,
    /// Secrets of ServiceAccounts get tokens.
    ServiceAccountToken,
}

impl ManagedController {
    /// All, with their canonical names and their former names (`cmd/kube-controller-manager/names/controller_names.go`).
    const NAMES: [(ManagedController, [&str; 2]); 6] = [
        (ManagedController::ClusterRoleAggregation, ["clusterrole-aggregation-controller", "clusterrole-aggregation"]),
        (ManagedController::GarbageCollector, ["garbage-collector-controller", "garbage-collector"]),
        (ManagedController::Namespace, ["namespace-controller", "namespace"]),
        (ManagedController::RootCaPublisher, ["root-ca-certificate-publisher-controller", "root-ca-cert-publisher"]),
        (ManagedController::ServiceAccount, ["serviceaccount-controller", "serviceaccount"]),
        (ManagedController::ServiceAccountToken, ["serviceaccount-token-controller", "serviceaccount-token"]),
    ];
}

/// The controllers of kube-controller-manager that run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnabledControllers(BTreeSet<ManagedController>);

impl Default for EnabledControllers {
    fn default() -> EnabledControllers {
        EnabledControllers(ManagedController::NAMES.iter().map(|(controller, _)| *controller).collect())
    }
}

impl EnabledControllers {
    /// Whether a controller runs.
    pub fn runs(&self, controller: ManagedController) -> bool {
        self.0.contains(&controller)
    }

    /// Reads the values of the flag: a name enables, `-` before it disables, `*` stands for all others.
    ///
    /// # Errors
    /// A name of no controller.
    pub fn parse(words: &[String]) -> Result<EnabledControllers, String> {
        let all_names = || ManagedController::NAMES.iter().flat_map(|(_, names)| names).copied();
        let unknown = |word: &&String| {
            let name = word.strip_prefix('-').unwrap_or(word);
            name != "*" && !all_names().any(|known| known == name)
        };
        if let Some(word) = words.iter().find(unknown) {
            let known: Vec<&str> = all_names().collect();
            return Err(format!("{word:?} is not in the list of controllers: *, {}", known.join(", ")));
        }
        let is_enabled = |names: &[&str]| {
            let named = words.iter().find_map(|word| match word.strip_prefix('-') {
                Some(name) => names.contains(&name).then_some(false),
                None => names.contains(&word.as_str()).then_some(true),
            });
            named.unwrap_or_else(|| words.iter().any(|word| word == "*"))
        };
        let enabled = ManagedController::NAMES.iter().filter(|(_, names)| is_enabled(names));
        Ok(EnabledControllers(enabled.map(|(controller, _)| *controller).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_enabled_as_by_kube_controller_manager() {
        let parse = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            EnabledControllers::parse(&words).map(|enabled| enabled.runs(ManagedController::Namespace))
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
                        clusterrole-aggregation, garbage-collector-controller, garbage-collector, \
                        namespace-controller, namespace, root-ca-certificate-publisher-controller, \
                        root-ca-cert-publisher, serviceaccount-controller, serviceaccount, \
                        serviceaccount-token-controller, serviceaccount-token";
        assert_eq!(error, expected);
    }
}
