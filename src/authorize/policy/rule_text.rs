//! Rules in the words of Kubernetes' errors (`pkg/registry/rbac/validation/policy_compact.go`, `CompactString` in
//! `pkg/apis/rbac/v1/evaluation_helpers.go`).

use std::collections::{BTreeSet, HashMap};

use kubeapi::GoQuoted;

use super::PolicyRule;

/// Maximum number of lines.
const MAX_LINES: usize = 1_000;

/// Rules of [`uncovered_rules`](super::uncovered_rules), sorted, one a line; those that differ in their verbs together.
pub fn describe_rules(rules: &[PolicyRule]) -> String {
    let mut verbs: HashMap<(&[String], &[String], &[String], &[String]), Vec<String>> = HashMap::new();
    for rule in rules {
        let lists = (&*rule.api_groups, &*rule.resources, &*rule.non_resource_urls, &*rule.resource_names);
        let entry = verbs.entry(lists).or_default();
        entry.extend(rule.verbs.iter().cloned());
    }
    let mut lines = BTreeSet::new();
    for ((groups, resources, urls, names), verbs) in verbs {
        let line = |verbs: &[String]| {
            let parts = [
                ("APIGroups", groups),
                ("Resources", resources),
                ("NonResourceURLs", urls),
                ("ResourceNames", names),
                ("Verbs", verbs),
            ];
            let given = parts.into_iter().filter(|(_, list)| !list.is_empty());
            let texts: Vec<String> = given.map(|(name, list)| format!("{name}:{}", go_list(list))).collect();
            format!("{{{}}}", texts.join(", "))
        };
        match urls.is_empty() {
            true => drop(lines.insert(line(&verbs))),
            false => lines.extend(verbs.chunks(1).map(line)),
        }
    }
    let more = lines.len().saturating_sub(MAX_LINES);
    let mut text = lines.into_iter().take(MAX_LINES).collect::<Vec<_>>().join("\n");
    if more > 0 {
        text += &format!("\n… and {more} more");
    }
    text
}

/// Texts as Go writes a list of them with `%q`.
pub fn go_list<T: AsRef<str>>(texts: &[T]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| GoQuoted(text.as_ref()).to_string()).collect();
    format!("[{}]", quoted.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_written_as_upstream_writes_them() {
        let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let pods = |verb| PolicyRule {
            verbs: list(&[verb]),
            api_groups: list(&[""]),
            resources: list(&["pods"]),
            ..PolicyRule::default()
        };
        let path =
            |verb| PolicyRule { verbs: list(&[verb]), non_resource_urls: list(&["/a"]), ..PolicyRule::default() };
        let named = PolicyRule { resource_names: list(&["x"]), ..pods("get") };
        let text = describe_rules(&[pods("list"), path("post"), pods("get"), named, path("get")]);
        let expected = "{APIGroups:[\"\"], Resources:[\"pods\"], ResourceNames:[\"x\"], Verbs:[\"get\"]}\n\
                        {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\" \"get\"]}\n\
                        {NonResourceURLs:[\"/a\"], Verbs:[\"get\"]}\n\
                        {NonResourceURLs:[\"/a\"], Verbs:[\"post\"]}";
        assert_eq!(text, expected);
    }
}
