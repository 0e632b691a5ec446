//! Aggregated ClusterRoles: their rules are those of other ClusterRoles, selected by label.

use std::collections::BTreeSet;

use super::manifests::ClusterRole;
use super::rule::PolicyRule;

/// Sets the rules of every aggregated role.
///
/// Computes the fixed point of Kubernetes' controller (`pkg/controller/clusterroleaggregation`): the rules of all roles
/// that the selectors reach, also through aggregated roles. The own rules of an aggregated role are ignored, as they
/// are overwritten in Kubernetes; so a cycle of aggregated roles grants nothing by itself.
pub(super) fn aggregate(roles: &mut [ClusterRole]) {
    let gathered: Vec<Option<Vec<PolicyRule>>> =
        (0..roles.len()).map(|number| roles[number].aggregated.is_some().then(|| gather(roles, number))).collect();
    for (role, rules) in roles.iter_mut().zip(gathered) {
        if let Some(rules) = rules {
            role.rules = rules;
        }
    }
}

fn gather(roles: &[ClusterRole], start: usize) -> Vec<PolicyRule> {
    let mut rules: Vec<PolicyRule> = Vec::new();
    let mut reached = BTreeSet::from([start]);
    let mut next = vec![start];
    while let Some(at) = next.pop() {
        let Some(selectors) = roles.get(at).and_then(|role| role.aggregated.as_ref()) else { continue };
        for (number, role) in roles.iter().enumerate() {
            let picked =
                selectors.iter().any(|selector| selector.matches(|key| role.labels.get(key).map(String::as_str)));
            if !picked || !reached.insert(number) {
                continue;
            }
            if role.aggregated.is_some() {
                next.push(number);
                continue;
            }
            for rule in &role.rules {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
    }
    rules
}
