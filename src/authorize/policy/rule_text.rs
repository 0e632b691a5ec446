//! Rules in the words of Kubernetes' errors (`pkg/registry/rbac/validation/policy_compact.go`, `CompactString` in
//! `pkg/apis/rbac/v1/evaluation_helpers.go`).

use std::collections::{BTreeMap, BTreeSet};

use kubeapi::GoQuoted;

use super::coverage::{PartTarget, RulePart};

/// Maximum size of a text in a line, and of all lines.
const MAX_WORD_BYTES: usize = 256;
const MAX_TEXT_BYTES: usize = 64 << 10;

/// Parts of rules, sorted, one a line; those that differ in their verbs together. Long texts are cut.
pub fn describe_parts(parts: &[RulePart<'_>]) -> String {
    let mut verbs: BTreeMap<PartTarget<'_>, Vec<&str>> = BTreeMap::new();
    for part in parts {
        verbs.entry(part.target).or_default().push(part.verb);
    }
    let mut lines = BTreeSet::new();
    for (target, verbs) in verbs {
        match target {
            PartTarget::Resource { group, resource, name } => {
                let name = name.map(|name| format!(", ResourceNames:{}", format_go_list(&[name]))).unwrap_or_default();
                let (group, resource) = (format_go_list(&[group]), format_go_list(&[resource]));
                let verbs = format_go_list(&verbs);
                lines.insert(format!("{{APIGroups:{group}, Resources:{resource}{name}, Verbs:{verbs}}}"));
            }
            PartTarget::Path(path) => {
                let path = format_go_list(&[path]);
                let line = |verb| format!("{{NonResourceURLs:{path}, Verbs:{}}}", format_go_list(&[verb]));
                lines.extend(verbs.into_iter().map(line));
            }
        }
    }
    let text = lines.into_iter().collect::<Vec<_>>().join("\n");
    cut(&text, MAX_TEXT_BYTES).into_owned()
}

/// Texts as Go writes a list of them with `%q`. Long ones are cut.
pub fn format_go_list<T: AsRef<str>>(texts: &[T]) -> String {
    let quoted = texts.iter().map(|text| GoQuoted(&cut(text.as_ref(), MAX_WORD_BYTES)).to_string());
    format!("[{}]", quoted.collect::<Vec<_>>().join(" "))
}

fn cut(text: &str, max_bytes: usize) -> std::borrow::Cow<'_, str> {
    if text.len() <= max_bytes {
        return text.into();
    }
    format!("{}…", &text[..text.floor_char_boundary(max_bytes)]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_written_as_upstream_writes_them() {
        let pods = |verb, name| RulePart { verb, target: PartTarget::Resource { group: "", resource: "pods", name } };
        let path = |verb| RulePart { verb, target: PartTarget::Path("/a") };
        let text =
            describe_parts(&[pods("list", None), path("post"), pods("get", None), pods("get", Some("x")), path("get")]);
        let expected = "{APIGroups:[\"\"], Resources:[\"pods\"], ResourceNames:[\"x\"], Verbs:[\"get\"]}\n\
                        {APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\" \"get\"]}\n\
                        {NonResourceURLs:[\"/a\"], Verbs:[\"get\"]}\n\
                        {NonResourceURLs:[\"/a\"], Verbs:[\"post\"]}";
        assert_eq!(text, expected);
    }

    #[test]
    fn text_of_long_verbs_is_bounded() {
        let verb = "v".repeat(1 << 20);
        let part = RulePart { verb: &verb, target: PartTarget::Path("/a") };
        assert!(describe_parts(&[part]).len() < 1_000);
        let names: Vec<String> = (0..1_000).map(|number| format!("{number}{}", "é".repeat(200))).collect();
        let parts: Vec<RulePart<'_>> = names
            .iter()
            .map(|name| RulePart {
                verb: "get",
                target: PartTarget::Resource { group: "", resource: "pods", name: Some(name) },
            })
            .collect();
        assert!(describe_parts(&parts).len() <= MAX_TEXT_BYTES + "…".len());
    }
}
