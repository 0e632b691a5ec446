//! Whether rules cover others (`k8s.io/component-helpers/auth/rbac/validation/policy_comparator.go`).

use std::collections::HashSet;

use kubeapi::schema::StepBudget;

use super::PolicyRule;

/// Maximum number of uncovered parts that are collected.
const MAX_PARTS: usize = 1_000;

/// What no step is left for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManySteps;

/// A part of a rule: one verb on one path, or on one resource of a group and, at most, one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RulePart<'r> {
    pub(super) verb: &'r str,
    pub(super) target: PartTarget<'r>,
}

/// What a part of a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PartTarget<'r> {
    Resource { group: &'r str, resource: &'r str, name: Option<&'r str> },
    Path(&'r str),
}

/// The parts of `requested` that no rule of `owned` covers. Not more than a thousand are collected.
///
/// # Errors
/// The budget does not suffice.
pub fn uncovered_parts<'r>(
    owned: impl Iterator<Item = &'r PolicyRule>,
    requested: &'r [PolicyRule],
    budget: &dyn StepBudget,
) -> Result<Vec<RulePart<'r>>, TooManySteps> {
    let mut owners = Vec::new();
    for rule in owned {
        spend(budget, rule.size())?;
        owners.push(RuleIndex::new(rule));
    }
    let mut uncovered = Vec::new();
    for rule in requested {
        spend(budget, 1)?;
        for part in parts(rule) {
            spend(budget, 1)?;
            let mut is_covered = false;
            for owner in &owners {
                spend(budget, 1 + owner.path_count(&part))?;
                is_covered = owner.covers(&part);
                if is_covered {
                    break;
                }
            }
            if !is_covered {
                uncovered.push(part);
            }
            if uncovered.len() == MAX_PARTS {
                return Ok(uncovered);
            }
        }
    }
    Ok(uncovered)
}

fn spend(budget: &dyn StepBudget, steps: usize) -> Result<(), TooManySteps> {
    if budget.spend(steps) { Ok(()) } else { Err(TooManySteps) }
}

/// The rule as parts (`BreakdownRule`).
fn parts(rule: &PolicyRule) -> impl Iterator<Item = RulePart<'_>> {
    let resources = rule.api_groups.iter().flat_map(move |group| {
        rule.resources.iter().flat_map(move |resource| {
            rule.verbs.iter().flat_map(move |verb| {
                // Without names, one part for all.
                let all = rule.resource_names.is_empty().then_some(None);
                let names = all.into_iter().chain(rule.resource_names.iter().map(|name| Some(name.as_str())));
                names.map(move |name| RulePart { verb, target: PartTarget::Resource { group, resource, name } })
            })
        })
    });
    let paths = rule
        .non_resource_urls
        .iter()
        .flat_map(move |path| rule.verbs.iter().map(move |verb| RulePart { verb, target: PartTarget::Path(path) }));
    resources.chain(paths)
}

impl PolicyRule {
    /// Number of texts.
    fn size(&self) -> usize {
        let lists = [&self.verbs, &self.api_groups, &self.resources, &self.resource_names, &self.non_resource_urls];
        lists.into_iter().map(Vec::len).sum()
    }
}

impl RulePart<'_> {
    /// The part as a rule.
    pub fn to_rule(self) -> PolicyRule {
        let one = |text: &str| vec![text.to_owned()];
        let rule = PolicyRule { verbs: one(self.verb), ..PolicyRule::default() };
        match self.target {
            PartTarget::Path(path) => PolicyRule { non_resource_urls: one(path), ..rule },
            PartTarget::Resource { group, resource, name } => PolicyRule {
                api_groups: one(group),
                resources: one(resource),
                resource_names: name.map(one).unwrap_or_default(),
                ..rule
            },
        }
    }
}

/// The texts of a rule as sets.
struct RuleIndex<'r> {
    verbs: HashSet<&'r str>,
    groups: HashSet<&'r str>,
    resources: HashSet<&'r str>,
    /// Subresources of all resources.
    subresources: HashSet<&'r str>,
    names: HashSet<&'r str>,
    paths: &'r [String],
}

impl<'r> RuleIndex<'r> {
    fn new(rule: &'r PolicyRule) -> RuleIndex<'r> {
        fn set(texts: &[String]) -> HashSet<&str> {
            texts.iter().map(String::as_str).collect()
        }
        RuleIndex {
            verbs: set(&rule.verbs),
            groups: set(&rule.api_groups),
            resources: set(&rule.resources),
            subresources: rule.resources.iter().filter_map(|resource| resource.strip_prefix("*/")).collect(),
            names: set(&rule.resource_names),
            paths: &rule.non_resource_urls,
        }
    }

    /// Number of paths that a part is compared with.
    fn path_count(&self, part: &RulePart<'_>) -> usize {
        if matches!(part.target, PartTarget::Path(_)) { self.paths.len() } else { 0 }
    }

    /// Whether the rule allows all that a part allows (`ruleCovers`).
    fn covers(&self, part: &RulePart<'_>) -> bool {
        let has = |set: &HashSet<&str>, text: &str| set.contains("*") || set.contains(text);
        has(&self.verbs, part.verb)
            && match part.target {
                PartTarget::Path(path) => self
                    .paths
                    .iter()
                    .any(|own| own == path || own.ends_with('*') && path.starts_with(own.trim_end_matches('*'))),
                PartTarget::Resource { group, resource, name } => {
                    let is_of_all = || {
                        resource.split_once('/').is_some_and(|(_, subresource)| self.subresources.contains(subresource))
                    };
                    has(&self.groups, group)
                        && (has(&self.resources, resource) || is_of_all())
                        && (self.names.is_empty() || name.is_some_and(|name| self.names.contains(name)))
                }
            }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Steps that are left.
    struct Budget(Cell<usize>);

    impl StepBudget for Budget {
        fn spend(&self, steps: usize) -> bool {
            let left = self.0.get().checked_sub(steps);
            self.0.set(left.unwrap_or_default());
            left.is_some()
        }
    }

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str], names: &[&str]) -> PolicyRule {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        PolicyRule {
            verbs: list(verbs),
            api_groups: list(groups),
            resources: list(resources),
            resource_names: list(names),
            non_resource_urls: Vec::new(),
        }
    }

    fn paths(verbs: &[&str], urls: &[&str]) -> PolicyRule {
        PolicyRule { non_resource_urls: rule(&[], &[], urls, &[]).resources, ..rule(verbs, &[], &[], &[]) }
    }

    fn uncovered(owned: &[&PolicyRule], requested: &PolicyRule) -> Vec<PolicyRule> {
        let requested = std::slice::from_ref(requested);
        let parts = uncovered_parts(owned.iter().copied(), requested, &Budget(Cell::new(1_000_000))).unwrap();
        parts.into_iter().map(RulePart::to_rule).collect()
    }

    /// The cases of upstream's `policy_comparator_test.go`, in other words.
    #[test]
    fn rules_cover_others_together() {
        let pods = rule(&["get", "list"], &[""], &["pods"], &[]);
        assert_eq!(uncovered(&[&pods], &pods), []);
        assert_eq!(uncovered(&[&rule(&["*"], &["*"], &["*"], &[])], &pods), []);
        let get = rule(&["get"], &[""], &["pods"], &[]);
        let list = rule(&["list"], &[""], &["pods"], &[]);
        assert_eq!(uncovered(&[&get, &list], &pods), []);
        assert_eq!(uncovered(&[&get], &pods), [list]);
        // A star is covered by a star alone.
        let any_verb = rule(&["*"], &[""], &["pods"], &[]);
        assert_eq!(uncovered(&[&pods], &any_verb), [any_verb]);
        // A name is covered by all names, not the other way round.
        let named = rule(&["get"], &[""], &["pods"], &["a", "b"]);
        assert_eq!(uncovered(&[&get], &named), []);
        assert_eq!(uncovered(&[&rule(&["get"], &[""], &["pods"], &["a"])], &named).len(), 1);
        assert_eq!(uncovered(&[&named], &get), [get]);
        // Subresources.
        let scale = rule(&["get"], &["apps"], &["deployments/scale"], &[]);
        assert_eq!(uncovered(&[&rule(&["get"], &["apps"], &["*/scale"], &[])], &scale), []);
        assert_eq!(uncovered(&[&rule(&["get"], &["apps"], &["deployments"], &[])], &scale), [scale]);
        // Paths.
        assert_eq!(uncovered(&[&paths(&["get"], &["/api/*"])], &paths(&["get"], &["/api/v1", "/api/*"])), []);
        let other = paths(&["get"], &["/apis"]);
        assert_eq!(uncovered(&[&paths(&["get"], &["/api/*"])], &other), [other]);
        assert_eq!(uncovered(&[&paths(&["get"], &["*"])], &paths(&["get"], &["/x"])), []);
    }

    #[test]
    fn steps_and_uncovered_parts_are_bounded() {
        let many: Vec<String> = (0..3_000).map(|number| number.to_string()).collect();
        let requested = [PolicyRule { verbs: many.clone(), resources: many, ..rule(&[], &[""], &[], &[]) }];
        let count = |owned: &[PolicyRule]| {
            uncovered_parts(owned.iter(), &requested, &Budget(Cell::new(1_000_000))).map(|parts| parts.len())
        };
        assert_eq!(count(&[rule(&["get"], &[""], &["pods"], &[])]), Ok(MAX_PARTS));
        // All are covered, by the last of the rules.
        let mut owned = vec![rule(&["get"], &[""], &["pods"], &[]); 100];
        owned.push(rule(&["*"], &[""], &["*"], &[]));
        assert_eq!(count(&owned), Err(TooManySteps));
    }
}
