//! Certificate policies of a path (RFC 5280, 6.1, as updated by RFC 9618), without any policy that the verifier requires.
//!
//! They matter only if an authority requires an explicit policy. Policy mappings are not followed: a path that needs a
//! policy and has mappings is not valid.

use std::collections::BTreeSet;

pub(super) const ANY_POLICY: &str = "2.5.29.32.0";

/// The policy extensions of a certificate.
#[derive(Debug, Default)]
pub(super) struct CertificatePolicies {
    /// Object identifiers; empty if there are none.
    pub(super) policies: BTreeSet<String>,
    pub(super) has_mappings: bool,
    /// Whether a mapping has "any policy", which is not allowed.
    pub(super) maps_any: bool,
    /// After how many more certificates each must have a policy that is valid.
    pub(super) require_explicit: Option<u32>,
    /// After how many more certificates "any policy" does not count.
    pub(super) inhibit_any: Option<u32>,
}

/// Whether the certificates below a root, the peer's first, have the policies that the authorities among them require. The
/// second of each pair is whether the certificate is self-issued.
pub(super) fn has_required_policies(below_root: &[(&CertificatePolicies, bool)]) -> bool {
    let Some((leaf, _)) = below_root.first() else { return true };
    let beyond = u32::try_from(below_root.len()).map_or(u32::MAX, |length| length.saturating_add(1));
    let (mut explicit, mut inhibit_any) = (beyond, beyond);
    let mut valid = BTreeSet::from([ANY_POLICY]);
    let mut has_mappings = false;
    for (position, &(it, is_self_issued)) in below_root.iter().enumerate().rev() {
        let is_leaf = position == 0;
        let any_counts = it.policies.contains(ANY_POLICY) && (inhibit_any > 0 || (!is_leaf && is_self_issued));
        let is_valid = |policy: &&str| *policy != ANY_POLICY && (valid.contains(ANY_POLICY) || valid.contains(policy));
        let mut next: BTreeSet<&str> = it.policies.iter().map(String::as_str).filter(is_valid).collect();
        if any_counts {
            next.extend(&valid);
        }
        valid = next;
        if is_leaf {
            break;
        }
        if it.maps_any {
            return false;
        }
        has_mappings |= it.has_mappings;
        if !is_self_issued {
            explicit = explicit.saturating_sub(1);
            inhibit_any = inhibit_any.saturating_sub(1);
        }
        explicit = explicit.min(it.require_explicit.unwrap_or(explicit));
        inhibit_any = inhibit_any.min(it.inhibit_any.unwrap_or(inhibit_any));
    }
    let is_explicit = explicit <= 1 || leaf.require_explicit == Some(0);
    !is_explicit || !(valid.is_empty() || has_mappings)
}
