//! Whether rules cover others (`k8s.io/component-helpers/auth/rbac/validation/policy_comparator.go`).

use super::PolicyRule;

/// Maximum number of comparisons for one question.
const MAX_STEPS: usize = 20_000_000;

/// The comparison takes too many steps.
#[derive(Debug, PartialEq, Eq)]
pub struct TooManyRules;

/// The parts of `wanted` that no rule of `owned` covers, each with one verb, and one path or one group, resource and name.
///
/// # Errors
/// The comparison takes too many steps.
pub fn uncovered_rules<'r>(
    owned: impl Iterator<Item = &'r PolicyRule> + Clone,
    wanted: &[PolicyRule],
) -> Result<Vec<PolicyRule>, TooManyRules> {
    let mut steps = 0_usize;
    let mut uncovered = Vec::new();
    for rule in wanted {
        // As a whole, it takes fewer steps than its parts.
        if owned.clone().any(|owner| owner.covers(rule)) {
            continue;
        }
        for part in parts(rule) {
            let mut is_covered = false;
            for owner in owned.clone() {
                steps += owner.size();
                is_covered = owner.covers(&part);
                if is_covered {
                    break;
                }
            }
            steps += 1;
            if steps > MAX_STEPS {
                return Err(TooManyRules);
            }
            if !is_covered {
                uncovered.push(part);
            }
        }
    }
    Ok(uncovered)
}

/// The rule as several, each with one verb, and one path or one group, resource and name (`BreakdownRule`).
fn parts(rule: &PolicyRule) -> impl Iterator<Item = PolicyRule> {
    let one = |text: &String| vec![text.clone()];
    let names: Vec<Vec<String>> = match &*rule.resource_names {
        [] => vec![Vec::new()],
        names => names.iter().map(one).collect(),
    };
    let resources = rule.api_groups.iter().flat_map(move |group| {
        let names = names.clone();
        rule.resources.iter().flat_map(move |resource| {
            let names = names.clone();
            rule.verbs.iter().flat_map(move |verb| {
                let names = names.clone();
                names.into_iter().map(move |resource_names| PolicyRule {
                    verbs: one(verb),
                    api_groups: one(group),
                    resources: one(resource),
                    resource_names,
                    non_resource_urls: Vec::new(),
                })
            })
        })
    });
    let paths = rule.non_resource_urls.iter().flat_map(move |path| {
        let part = move |verb| PolicyRule { verbs: one(verb), non_resource_urls: one(path), ..PolicyRule::default() };
        rule.verbs.iter().map(part)
    });
    resources.chain(paths)
}

impl PolicyRule {
    /// Number of texts.
    pub fn size(&self) -> usize {
        let lists = [&self.verbs, &self.api_groups, &self.resources, &self.resource_names, &self.non_resource_urls];
        lists.into_iter().map(Vec::len).sum()
    }

    /// Whether the rule alone allows all that another one allows (`ruleCovers`).
    fn covers(&self, other: &PolicyRule) -> bool {
        has_all(&self.verbs, &other.verbs, |verb| self.verbs.contains(verb))
            && has_all(&self.api_groups, &other.api_groups, |group| self.api_groups.contains(group))
            && has_all(&self.resources, &other.resources, |resource| {
                self.resources.contains(resource)
                    || resource
                        .split_once('/')
                        .is_some_and(|(_, sub)| self.resources.iter().any(|own| own.strip_prefix("*/") == Some(sub)))
            })
            && other
                .non_resource_urls
                .iter()
                .all(|path| self.non_resource_urls.iter().any(|own| covers_path(own, path)))
            && (self.resource_names.is_empty()
                || !other.resource_names.is_empty()
                    && other.resource_names.iter().all(|name| self.resource_names.contains(name)))
    }
}

/// Whether a list has all of another one, or `*`.
fn has_all(own: &[String], other: &[String], has: impl Fn(&String) -> bool) -> bool {
    own.iter().any(|one| one == "*") || other.iter().all(has)
}

fn covers_path(own: &str, path: &str) -> bool {
    own == path || own.ends_with('*') && path.starts_with(own.trim_end_matches('*'))
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn uncovered(owned: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
        uncovered_rules(owned.iter(), wanted).unwrap()
    }

    /// The cases of upstream's `policy_comparator_test.go`, in other words.
    #[test]
    fn rules_cover_others_together() {
        let pods = rule(&["get", "list"], &[""], &["pods"], &[]);
        assert_eq!(uncovered(&[pods.clone()], &[pods.clone()]), []);
        assert_eq!(uncovered(&[rule(&["*"], &["*"], &["*"], &[])], &[pods.clone()]), []);
        let get = rule(&["get"], &[""], &["pods"], &[]);
        let list = rule(&["list"], &[""], &["pods"], &[]);
        assert_eq!(uncovered(&[get.clone(), list.clone()], &[pods.clone()]), []);
        assert_eq!(uncovered(&[get.clone()], &[pods.clone()]), [list]);
        // A star is covered by a star alone.
        let any_verb = rule(&["*"], &[""], &["pods"], &[]);
        assert_eq!(uncovered(&[pods.clone()], &[any_verb.clone()]), [any_verb]);
        // A name is covered by all names, not the other way round.
        let named = rule(&["get"], &[""], &["pods"], &["a", "b"]);
        assert_eq!(uncovered(&[get.clone()], &[named.clone()]), []);
        assert_eq!(uncovered(&[named.clone()], &[get.clone()]), [get]);
        assert_eq!(uncovered(&[rule(&["get"], &[""], &["pods"], &["a"])], &[named]).len(), 1);
        // Subresources.
        let scale = rule(&["get"], &["apps"], &["deployments/scale"], &[]);
        assert_eq!(uncovered(&[rule(&["get"], &["apps"], &["*/scale"], &[])], &[scale.clone()]), []);
        assert_eq!(uncovered(&[rule(&["get"], &["apps"], &["deployments"], &[])], &[scale.clone()]), [scale]);
        // Paths.
        assert_eq!(uncovered(&[paths(&["get"], &["/api/*"])], &[paths(&["get"], &["/api/v1", "/api/*"])]), []);
        let other = paths(&["get"], &["/apis"]);
        assert_eq!(uncovered(&[paths(&["get"], &["/api/*"])], &[other.clone()]), [other]);
        assert_eq!(uncovered(&[paths(&["get"], &["*"])], &[paths(&["get"], &["/x"])]), []);
    }

    #[test]
    fn question_of_too_many_steps_is_refused() {
        let many: Vec<String> = (0..3_000).map(|number| number.to_string()).collect();
        let wanted = PolicyRule { verbs: many.clone(), resources: many.clone(), ..rule(&[], &[""], &[], &[]) };
        let owned = rule(&["get"], &[""], &["pods"], &[]);
        assert_eq!(uncovered_rules([owned].iter(), &[wanted]), Err(TooManyRules));
    }
}
