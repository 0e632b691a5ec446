//! A range of cluster IPs: which addresses it has, and the order in which free ones are looked for
//! (`pkg/registry/core/service/ipallocator/ipallocator.go`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Addresses of a network that Services can have: neither that of the network nor, of IPv4, the broadcast address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressRange {
    net: IpNet,
    first: u128,
    /// Less than `first` if there are none.
    last: u128,
    /// Number of addresses at the beginning that are for clients who choose theirs (KEP-3070).
    static_addresses: u128,
}

impl AddressRange {
    pub(super) fn new(net: IpNet) -> AddressRange {
        let net = net.trunc();
        let (network, host_bits) = (to_number(net.network()), u32::from(net.max_prefix_len() - net.prefix_len()));
        let size = 1_u128.checked_shl(host_bits).unwrap_or(u128::MAX);
        let unused_at_end = if net.network().is_ipv4() { 2 } else { 1 };
        let last = (network + size.saturating_sub(1)).saturating_sub(unused_at_end - 1);
        AddressRange { net, first: network.saturating_add(1), last, static_addresses: static_addresses(size) }
    }

    pub(super) fn net(&self) -> IpNet {
        self.net
    }

    /// The first address.
    pub(super) fn first(&self) -> IpAddr {
        self.address(self.first)
    }

    /// Number of addresses of the network.
    pub(super) fn addresses(&self) -> u128 {
        1_u128.checked_shl(u32::from(self.net.max_prefix_len() - self.net.prefix_len())).unwrap_or(u128::MAX)
    }

    pub(super) fn is_ipv6(&self) -> bool {
        self.net.network().is_ipv6()
    }

    pub(super) fn contains(&self, address: IpAddr) -> bool {
        let number = to_number(address);
        address.is_ipv6() == self.is_ipv6() && self.first <= number && number <= self.last
    }

    /// All addresses: those above the static ones from a random one on, then the static ones from a random one on.
    pub(super) fn candidates(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let range = *self;
        let dynamic = range.first.saturating_add(range.static_addresses);
        let upper = (dynamic, range.last.max(dynamic.saturating_sub(1)));
        let lower = (range.first, (dynamic - 1).min(range.last));
        from_random(upper)
            .chain(from_random(lower))
            .filter(move |number| *number <= range.last)
            .map(move |number| range.address(number))
    }

    fn address(&self, number: u128) -> IpAddr {
        match self.is_ipv6() {
            true => IpAddr::V6(Ipv6Addr::from_bits(number)),
            false => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(number).unwrap_or(u32::MAX))),
        }
    }
}

/// The numbers of a range, both ends included, from a random one on.
fn from_random((first, last): (u128, u128)) -> impl Iterator<Item = u128> {
    // Empty ranges end one before they begin.
    let start = if first <= last { fastrand::u128(first..=last) } else { first };
    (start..=last).chain(first..start)
}

fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Of a network of `size` addresses (`calculateRangeOffset`).
fn static_addresses(size: u128) -> u128 {
    if size <= 16 { 0 } else { (size / 16).clamp(16, 256) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn range(text: &str) -> AddressRange {
        AddressRange::new(text.parse().unwrap())
    }

    #[test]
    fn address_range_leaves_out_network_and_broadcast() {
        for (net, first, last, count) in [
            ("10.0.0.0/29", "10.0.0.1", "10.0.0.6", 6),
            ("10.0.0.0/24", "10.0.0.1", "10.0.0.254", 254),
            ("fd00::/120", "fd00::1", "fd00::ff", 255),
            ("255.255.255.0/24", "255.255.255.1", "255.255.255.254", 254),
            (
                "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff8/125",
                "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fff9",
                "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
                7,
            ),
        ] {
            let all: BTreeSet<IpAddr> = range(net).candidates().collect();
            assert_eq!(all.len(), count, "{net}");
            assert_eq!(range(net).candidates().count(), count, "{net}");
            assert_eq!(
                (all.first(), all.last()),
                (Some(&first.parse().unwrap()), Some(&last.parse().unwrap())),
                "{net}"
            );
            assert!(all.iter().all(|address| range(net).contains(*address)), "{net}");
        }
        for net in ["10.0.0.0/31", "10.0.0.0/32", "fd00::/128", "0.0.0.0/32", "255.255.255.255/32"] {
            assert_eq!(range(net).candidates().count(), 0, "{net}");
        }
        assert!(!range("10.0.0.0/24").contains("10.0.0.0".parse().unwrap()));
        assert!(!range("10.0.0.0/24").contains("10.0.0.255".parse().unwrap()));
        assert!(!range("10.0.0.0/24").contains("fd00::1".parse().unwrap()));
        assert!(range("fd00::/64").candidates().next().is_some() && range("::/0").candidates().next().is_some());
    }

    #[test]
    fn dynamic_addresses_come_before_static_ones() {
        let all: Vec<IpAddr> = range("10.0.0.0/24").candidates().collect();
        let boundary: IpAddr = "10.0.0.17".parse().unwrap();
        assert!(all[..238].iter().all(|address| *address >= boundary));
        assert!(all[238..].iter().all(|address| *address < boundary));
    }
}
