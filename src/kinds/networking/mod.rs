//! Kinds of `networking.k8s.io` (`pkg/registry/networking`, `pkg/apis/networking/validation/validation.go`).

mod address_range;
mod ingress;
mod ingress_class;
mod network_policy;

use super::KindRules;

/// Their rules.
pub(super) static RULES: [&KindRules; 5] = [
    &address_range::IP_ADDRESS_RULES,
    &address_range::SERVICE_CIDR_RULES,
    &ingress::RULES,
    &ingress_class::RULES,
    &network_policy::RULES,
];
