//! Which names a CRD gets: those that no other CRD of its group has
//! (`pkg/controller/status/naming_controller.go` of apiextensions-apiserver).

use std::collections::{BTreeMap, BTreeSet};

use super::conditions::{condition, set_condition};
use crate::resources::custom::{Crd, CrdNames};

/// Message of a CRD that is not established because its webhook cannot be trusted.
const INVALID_CA_BUNDLE: &str = "The conversion webhook CABundle is invalid";

/// Names that are taken in a group, each with the CRDs that have it.
#[derive(Default)]
pub(super) struct TakenNames {
    resources: BTreeMap<String, BTreeSet<String>>,
    kinds: BTreeMap<String, BTreeSet<String>>,
}

impl TakenNames {
    /// The accepted names of CRDs.
    pub(super) fn of<'d>(crds: impl IntoIterator<Item = &'d Crd>) -> TakenNames {
        let mut taken = TakenNames::default();
        crds.into_iter().for_each(|crd| taken.insert(crd));
        taken
    }

    /// Replaces the names of a CRD.
    pub(super) fn replace(&mut self, before: &Crd, now: &Crd) {
        let owner = &before.metadata.name;
        for (names, used) in [(resource_names(before), &mut self.resources), (kind_names(before), &mut self.kinds)] {
            for name in names {
                if let Some(owners) = used.get_mut(name) {
                    owners.remove(owner);
                }
            }
        }
        self.insert(now);
    }

    fn insert(&mut self, crd: &Crd) {
        let owner = &crd.metadata.name;
        for (names, used) in [(resource_names(crd), &mut self.resources), (kind_names(crd), &mut self.kinds)] {
            for name in names {
                used.entry(name.to_owned()).or_default().insert(owner.clone());
            }
        }
    }
}

fn resource_names(crd: &Crd) -> Vec<&str> {
    let names = &crd.status.accepted_names;
    let short = names.short_names.iter().flatten().map(String::as_str);
    [&*names.plural, &*names.singular].into_iter().chain(short).filter(|name| !name.is_empty()).collect()
}

fn kind_names(crd: &Crd) -> Vec<&str> {
    let names = &crd.status.accepted_names;
    [&*names.kind, &*names.list_kind].into_iter().filter(|name| !name.is_empty()).collect()
}

/// Whether a CRD other than `own` has a name.
fn is_taken(names: &BTreeMap<String, BTreeSet<String>>, name: &str, own: &str) -> bool {
    names.get(name).is_some_and(|owners| owners.iter().any(|owner| owner != own))
}

/// Gives a CRD the names that are free, and says in its conditions which are not. `taken` has the names of the
/// CRDs of its group. A name that it has stays its own.
pub(super) fn accept_names(crd: &mut Crd, taken: &TakenNames) {
    let own = crd.metadata.name.clone();
    let wanted = crd.spec.names.clone();
    let mut accepted = crd.status.accepted_names.clone();
    let mut conflicts: Vec<(&str, String)> = Vec::new();
    let mut take = |reason, wanted: &str, accepted: &mut String, taken: &BTreeMap<String, BTreeSet<String>>| {
        if wanted == accepted || !is_taken(taken, wanted, &own) {
            wanted.clone_into(accepted);
        } else {
            conflicts.push((reason, in_use(wanted)));
        }
    };
    let CrdNames { plural, singular, kind, list_kind, .. } = &mut accepted;
    take("PluralConflict", &wanted.plural, plural, &taken.resources);
    take("SingularConflict", &wanted.singular, singular, &taken.resources);
    take("KindConflict", &wanted.kind, kind, &taken.kinds);
    take("ListKindConflict", &wanted.list_kind, list_kind, &taken.kinds);
    let own_short_names: BTreeSet<&String> = accepted.short_names.iter().flatten().collect();
    let used: Vec<String> = wanted
        .short_names
        .iter()
        .flatten()
        .filter(|name| !own_short_names.contains(name))
        .filter(|name| is_taken(&taken.resources, name, &own))
        .map(|name| in_use(name))
        .collect();
    match used.as_slice() {
        [] => accepted.short_names.clone_from(&wanted.short_names),
        [one] => conflicts.push(("ShortNamesConflict", one.clone())),
        all => conflicts.push(("ShortNamesConflict", format!("[{}]", all.join(", ")))),
    }
    accepted.categories.clone_from(&wanted.categories);
    crd.status.accepted_names = accepted;
    // The last of upstream's checks has the last word.
    let order = ["PluralConflict", "SingularConflict", "ShortNamesConflict", "KindConflict", "ListKindConflict"];
    conflicts.sort_by_key(|(reason, _)| order.iter().position(|one| one == reason));
    let is_established = crd.has_condition("Established");
    match conflicts.pop() {
        Some((reason, message)) => {
            set_condition(crd, condition("NamesAccepted", false, reason, message));
            if !is_established {
                let unaccepted = condition("Established", false, "NotAccepted", "not all names are accepted");
                set_condition(crd, unaccepted);
            }
        }
        None => {
            set_condition(crd, condition("NamesAccepted", true, "NoConflicts", "no conflicts found"));
            if !is_established {
                let established = match crd.has_valid_ca_bundle() {
                    true => {
                        condition("Established", true, "InitialNamesAccepted", "the initial names have been accepted")
                    }
                    false => condition("Established", false, "InvalidCABundle", INVALID_CA_BUNDLE),
                };
                set_condition(crd, established);
            }
        }
    }
}

fn in_use(name: &str) -> String {
    format!("{name:?} is already in use")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn crd(plural: &str, kind: &str, short: &[&str]) -> Crd {
        serde_json::from_value(json!({"metadata": {"name": format!("{plural}.g")}, "spec": {"group": "g", "names": {
            "plural": plural, "singular": kind.to_lowercase(), "kind": kind, "listKind": format!("{kind}List"), "shortNames": short,
        }}}))
        .unwrap()
    }

    fn state(crd: &Crd, condition: &str) -> (String, String) {
        let condition = crd.condition(condition).unwrap();
        (condition.reason.clone(), condition.message.clone())
    }

    #[test]
    fn crd_gets_free_names_and_is_established() {
        let mut first = crd("foos", "Foo", &["f"]);
        accept_names(&mut first, &TakenNames::default());
        assert_eq!(first.status.accepted_names, first.spec.names);
        assert_eq!(state(&first, "Established").0, "InitialNamesAccepted");
        let times: Vec<_> = first.status.conditions.clone().unwrap();
        accept_names(&mut first, &TakenNames::default());
        assert_eq!(first.status.conditions.unwrap(), times);
    }

    #[test]
    fn crd_with_invalid_ca_bundle_is_not_established() {
        let mut first = crd("foos", "Foo", &[]);
        let conversion = |bundle: &str| {
            let conversion = json!({"strategy": "Webhook", "webhook": {
                "clientConfig": {"url": "https://a", "caBundle": bundle}, "conversionReviewVersions": ["v1"]}});
            serde_json::from_value(conversion).unwrap()
        };
        for bundle in ["?", "IA==", "eA=="] {
            first.spec.conversion = Some(conversion(bundle));
            accept_names(&mut first, &TakenNames::default());
            assert_eq!(state(&first, "Established"), ("InvalidCABundle".into(), INVALID_CA_BUNDLE.into()), "{bundle}");
        }
        first.spec.conversion = Some(conversion(""));
        accept_names(&mut first, &TakenNames::default());
        assert!(first.has_condition("Established"));
        // Once established, it stays so.
        first.spec.conversion = Some(conversion("?"));
        accept_names(&mut first, &TakenNames::default());
        assert!(first.has_condition("Established"));
    }

    #[test]
    fn crd_with_taken_names_keeps_those_it_has() {
        let mut first = crd("foos", "Foo", &["f"]);
        accept_names(&mut first, &TakenNames::default());
        let mut second = crd("bars", "Foo", &["f"]);
        accept_names(&mut second, &TakenNames::of([&first]));
        assert_eq!(
            state(&second, "NamesAccepted"),
            ("ListKindConflict".into(), r#""FooList" is already in use"#.into())
        );
        assert_eq!(state(&second, "Established").0, "NotAccepted");
        assert_eq!((&*second.status.accepted_names.plural, &*second.status.accepted_names.kind), ("bars", ""));
        assert!(second.status.accepted_names.short_names.is_none());
        // An established one stays so.
        let mut third = crd("quxes", "Qux", &[]);
        accept_names(&mut third, &TakenNames::of([&first]));
        third.spec.names.short_names = Some(vec!["f".to_owned()]);
        accept_names(&mut third, &TakenNames::of([&first]));
        assert_eq!(state(&third, "NamesAccepted").0, "ShortNamesConflict");
        assert!(third.has_condition("Established"));
    }
}
