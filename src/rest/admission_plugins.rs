//! Names of the admission plugins of a kube-apiserver (`pkg/kubeapiserver/options/plugins.go`).

use std::collections::BTreeSet;

/// An admission plugin that acts here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum AdmissionPlugin {
    CertificateApproval,
    CertificateSigning,
    CertificateSubjectRestriction,
    DefaultIngressClass,
    DefaultStorageClass,
    DefaultTolerationSeconds,
    NamespaceLifecycle,
    PersistentVolumeClaimResize,
    Priority,
    RuntimeClass,
    ServiceAccount,
    StorageObjectInUseProtection,
    TaintNodesByCondition,
}

/// All plugins of a kube-apiserver, and those that act here.
const PLUGINS: [(&str, Option<AdmissionPlugin>); 41] = [
    ("AlwaysAdmit", None),
    ("AlwaysDeny", None),
    ("AlwaysPullImages", None),
    ("CertificateApproval", Some(AdmissionPlugin::CertificateApproval)),
    ("CertificateSigning", Some(AdmissionPlugin::CertificateSigning)),
    ("CertificateSubjectRestriction", Some(AdmissionPlugin::CertificateSubjectRestriction)),
    ("ClusterTrustBundleAttest", None),
    ("DefaultIngressClass", Some(AdmissionPlugin::DefaultIngressClass)),
    ("DefaultStorageClass", Some(AdmissionPlugin::DefaultStorageClass)),
    ("DefaultTolerationSeconds", Some(AdmissionPlugin::DefaultTolerationSeconds)),
    ("DenyServiceExternalIPs", None),
    ("EventRateLimit", None),
    ("ExtendedResourceToleration", None),
    ("ImagePolicyWebhook", None),
    ("JobValidation", None),
    ("LimitPodHardAntiAffinityTopology", None),
    ("LimitRanger", None),
    ("MutatingAdmissionPolicy", None),
    ("MutatingAdmissionWebhook", None),
    ("NamespaceAutoProvision", None),
    ("NamespaceExists", None),
    ("NamespaceLifecycle", Some(AdmissionPlugin::NamespaceLifecycle)),
    ("NodeDeclaredFeatureValidator", None),
    ("NodeRestriction", None),
    ("OwnerReferencesPermissionEnforcement", None),
    ("PersistentVolumeClaimResize", Some(AdmissionPlugin::PersistentVolumeClaimResize)),
    ("PodGroupProtection", None),
    ("PodGroupWorkloadExists", None),
    ("PodNodeSelector", None),
    ("PodResizeValidator", None),
    ("PodSecurity", None),
    ("PodTolerationRestriction", None),
    ("PodTopologyLabels", None),
    ("Priority", Some(AdmissionPlugin::Priority)),
    ("ResourceQuota", None),
    ("RuntimeClass", Some(AdmissionPlugin::RuntimeClass)),
    ("ServiceAccount", Some(AdmissionPlugin::ServiceAccount)),
    ("StorageObjectInUseProtection", Some(AdmissionPlugin::StorageObjectInUseProtection)),
    ("TaintNodesByCondition", Some(AdmissionPlugin::TaintNodesByCondition)),
    ("ValidatingAdmissionPolicy", None),
    ("ValidatingAdmissionWebhook", None),
];

/// The plugins that are turned off (`--disable-admission-plugins`).
#[derive(Clone, Debug, Default)]
pub struct DisabledPlugins(BTreeSet<AdmissionPlugin>);

impl DisabledPlugins {
    /// Reads the names of plugins. Those that do not act here are accepted.
    ///
    /// # Errors
    /// A name of no plugin.
    pub fn parse(names: &[String]) -> Result<DisabledPlugins, String> {
        let find = |name: &String| {
            let found = PLUGINS.iter().find(|(known, _)| known == name);
            found.map(|(_, plugin)| *plugin).ok_or_else(|| format!("admission-control plugin {name:?} is unknown"))
        };
        let plugins: Result<Vec<_>, String> = names.iter().map(find).collect();
        Ok(DisabledPlugins(plugins?.into_iter().flatten().collect()))
    }

    /// Whether a plugin is turned off.
    pub(super) fn contains(&self, plugin: AdmissionPlugin) -> bool {
        self.0.contains(&plugin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_are_turned_off_by_name() {
        let parse = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            DisabledPlugins::parse(&names).map(|disabled| disabled.0.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(parse(&["PodSecurity", "Priority"]), Ok(vec![AdmissionPlugin::Priority]));
        assert_eq!(parse(&["priority"]), Err("admission-control plugin \"priority\" is unknown".to_owned()));
    }
}
