//! Kinds of `admissionregistration.k8s.io`: webhook configurations, policies and bindings
//! (`pkg/registry/admissionregistration`, `pkg/apis/admissionregistration/validation`). CEL expressions are not compiled.

mod match_rules;
mod policy;
mod policy_binding;
mod webhook_configuration;

use kubeapi::GoQuoted;
use kubeapi::object_meta::ObjectMetaView;

use super::{GenerationRule, KindRules, WrittenObject};

/// Their rules.
pub(super) static RULES: [&KindRules; 6] = [
    &policy::MUTATING_RULES,
    &policy::VALIDATING_RULES,
    &policy_binding::MUTATING_RULES,
    &policy_binding::VALIDATING_RULES,
    &webhook_configuration::MUTATING_RULES,
    &webhook_configuration::VALIDATING_RULES,
];

/// What they have in common.
const fn registration_rules(plural: &'static str, counted: &'static [&'static str]) -> KindRules {
    KindRules {
        generation: GenerationRule::of(counted),
        allows_unconditional_update: false,
        warnings: static_name_warnings,
        ..KindRules::of("admissionregistration.k8s.io", plural)
    }
}

/// The warning about a name that is reserved for configuration in files.
fn static_name_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    const SUFFIX: &str = ".static.k8s.io";
    let is_reserved = ObjectMetaView::of_map(written.object).name().ends_with(SUFFIX);
    let quoted = GoQuoted(SUFFIX);
    let why = "are reserved for static manifest-based configurations and cannot be managed via the API";
    let is_warned = is_reserved && written.subresource.is_empty();
    is_warned.then(|| format!("metadata.name: names ending with {quoted} {why}")).into_iter().collect()
}
