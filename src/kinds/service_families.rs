//! The address families that Services can have (`--service-cluster-ip-range`).

pub(super) const IPV4: &str = "IPv4";
pub(super) const IPV6: &str = "IPv6";

/// The address families that cluster IPs can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceFamilies {
    /// Whether the default family is IPv6.
    pub is_ipv6_first: bool,
    /// Whether there are addresses of the other family, too.
    pub has_both: bool,
}

impl ServiceFamilies {
    /// The default family.
    pub(super) fn first(self) -> &'static str {
        if self.is_ipv6_first { IPV6 } else { IPV4 }
    }

    /// Whether cluster IPs can have a family.
    pub(super) fn has(self, family: &str) -> bool {
        family == self.first() || self.has_both && matches!(family, IPV4 | IPV6)
    }
}
