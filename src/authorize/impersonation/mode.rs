//! Impersonation modes.

use kubeapi::{User, is_dns_subdomain};

/// The extra key with the node of a service account's pod.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// An impersonation mode, in Kubernetes' order (`allImpersonationModes` in `mode.go`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImpersonationMode {
    /// A service account impersonates the node that its pod runs on.
    AssociatedNode,
    /// Impersonation of any node.
    ArbitraryNode,
    /// Impersonation of a service account.
    ServiceAccount,
    /// Impersonation of any other user.
    UserInfo,
    /// Impersonation of any user by the unconstrained verb `impersonate`.
    Legacy,
}

impl ImpersonationMode {
    pub(super) const ALL: [ImpersonationMode; 5] = [
        ImpersonationMode::AssociatedNode,
        ImpersonationMode::ArbitraryNode,
        ImpersonationMode::ServiceAccount,
        ImpersonationMode::UserInfo,
        ImpersonationMode::Legacy,
    ];

    /// The name in metrics.
    pub(super) fn name(self) -> &'static str {
        ["associated-node", "arbitrary-node", "serviceaccount", "user-info", "legacy"][self as usize]
    }

    /// The verb to authorize; audit calls it the constraint.
    pub(super) fn verb(self) -> &'static str {
        self.constraint().unwrap_or("impersonate")
    }

    /// The verb, if the mode is constrained to some requests.
    pub(super) fn constraint(self) -> Option<&'static str> {
        Some(match self {
            ImpersonationMode::AssociatedNode => "impersonate:associated-node",
            ImpersonationMode::ArbitraryNode => "impersonate:arbitrary-node",
            ImpersonationMode::ServiceAccount => "impersonate:serviceaccount",
            ImpersonationMode::UserInfo => "impersonate:user-info",
            ImpersonationMode::Legacy => return None,
        })
    }

    /// Whether the mode applies to `requester` impersonating `requested_user`.
    pub(super) fn applies(self, requester: &User, requested_user: &User) -> bool {
        let name_alone =
            || requested_user.uid.is_empty() && requested_user.groups.is_empty() && requested_user.extra.is_empty();
        match self {
            ImpersonationMode::AssociatedNode => name_alone() && is_on_node(requester, &requested_user.name),
            ImpersonationMode::ArbitraryNode => name_alone() && node_name(&requested_user.name).is_some(),
            ImpersonationMode::ServiceAccount => name_alone() && service_account(&requested_user.name).is_some(),
            ImpersonationMode::UserInfo => {
                node_name(&requested_user.name).is_none() && service_account(&requested_user.name).is_none()
            }
            ImpersonationMode::Legacy => true,
        }
    }
}

/// Returns the node of a node user.
pub(super) fn node_name(user: &str) -> Option<&str> {
    user.strip_prefix("system:node:").filter(|name| is_dns_subdomain(name))
}

/// Returns namespace and name of a service account user (`SplitUsername` in
/// `k8s.io/apiserver/pkg/authentication/serviceaccount`).
pub(super) fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let is_label = namespace.len() <= 63 && !namespace.contains('.') && is_dns_subdomain(namespace);
    (is_label && is_dns_subdomain(name)).then_some((namespace, name))
}

fn is_on_node(requester: &User, requested_name: &str) -> bool {
    let Some(requested_node) = node_name(requested_name) else { return false };
    let on = requester.extra.get(NODE_NAME).map(Vec::as_slice);
    service_account(&requester.name).is_some() && matches!(on, Some([on]) if on == requested_node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(requester: &User, wanted: &User) -> Vec<ImpersonationMode> {
        ImpersonationMode::ALL.into_iter().filter(|way| way.applies(requester, wanted)).collect()
    }

    #[test]
    fn impersonation_modes_apply_by_user_kind() {
        let named = |name: &str| User { name: name.to_owned(), ..User::default() };
        let (jane, node_a) = (named("jane"), named("system:node:a"));
        let extra = |nodes: &[&str]| [(NODE_NAME.to_owned(), nodes.iter().map(|it| (*it).to_owned()).collect())].into();
        let robot = |nodes: &[&str]| User { extra: extra(nodes), ..named("system:serviceaccount:default:robot") };
        assert_eq!(
            ways(&robot(&["a"]), &node_a),
            [ImpersonationMode::AssociatedNode, ImpersonationMode::ArbitraryNode, ImpersonationMode::Legacy]
        );
        for requester in
            [&robot(&["b"]), &robot(&["a", "a"]), &robot(&[]), &jane, &User { extra: extra(&["a"]), ..jane.clone() }]
        {
            assert_eq!(
                ways(requester, &node_a),
                [ImpersonationMode::ArbitraryNode, ImpersonationMode::Legacy],
                "{requester:?}"
            );
        }
        assert_eq!(ways(&jane, &robot(&[])), [ImpersonationMode::Legacy], "the requested user has an extra");
        let robot = named("system:serviceaccount:default:robot");
        assert_eq!(ways(&jane, &robot), [ImpersonationMode::ServiceAccount, ImpersonationMode::Legacy]);
        for more in [
            User { uid: "1".into(), ..robot.clone() },
            User { groups: vec![String::new()], ..robot },
            User { groups: vec!["a".into()], ..node_a },
        ] {
            assert_eq!(ways(&jane, &more), [ImpersonationMode::Legacy], "{more:?}");
        }
        for other in ["bob", "system:node:", "system:node:A_", "system:serviceaccount:a", "system:serviceaccount:a:b:c"]
        {
            assert_eq!(ways(&jane, &named(other)), [ImpersonationMode::UserInfo, ImpersonationMode::Legacy], "{other}");
        }
        for other in ["system:serviceaccount:a.b:c", "system:serviceaccount::c", "system:serviceaccount:a:"] {
            assert_eq!(service_account(other), None, "{other}");
        }
        assert_eq!(service_account("system:serviceaccount:a:b.c"), Some(("a", "b.c")));
    }
}
