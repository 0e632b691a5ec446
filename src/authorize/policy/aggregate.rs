//! Aggregated ClusterRoles: their rules are those of other ClusterRoles, picked by label.

use std::collections::BTreeSet;

use super::read::ClusterRole;
use super::rule::Rule;

/// Gives every aggregated role its rules.
///
/// What upstream's controller (`pkg/controller/clusterroleaggregation`) arrives at step by step, found at once: the
/// rules of all roles that the selectors reach, through aggregated roles too. The rules such a role was written
/// with do not count, as there they are overwritten; so a circle of aggregated roles grants nothing by itself.
pub(super) fn aggregate(roles: &mut [ClusterRole]) {
    let gathered: Vec<Option<Vec<Rule>>> =
        (0..roles.len()).map(|number| roles[number].aggregated.is_some().then(|| gather(roles, number))).collect();
    for (role, rules) in roles.iter_mut().zip(gathered) {
        if let Some(rules) = rules {
            role.rules = rules;
        }
    }
}

fn gather(roles: &[ClusterRole], start: usize) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
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
