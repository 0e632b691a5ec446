//! IP networks in CIDR notation.

use std::net::IpAddr;

/// An IP network: an address and a prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    bits: u8,
}

impl Cidr {
    /// Reads `10.0.0.0/8`, `fd00::/8`, or one address.
    pub fn parse(text: &str) -> Result<Cidr, &'static str> {
        const FORM: &str = "use a network such as 10.0.0.0/8 or fd00::/8";
        let (address, bits) = match text.split_once('/') {
            None => (text, None),
            Some((address, bits)) => (address, Some(bits)),
        };
        let address: IpAddr = address.parse().map_err(|_| FORM)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| FORM))?;
        if bits <= most { Ok(Cidr { address, bits }) } else { Err(FORM) }
    }

    /// Whether this network contains `address`. An IPv4-mapped IPv6 address counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                same_bits(ours.to_bits().into(), theirs.to_bits().into(), self.bits, 32)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => same_bits(ours.to_bits(), theirs.to_bits(), self.bits, 128),
            _ => false,
        }
    }
}

impl From<IpAddr> for Cidr {
    /// The network of this single address. An IPv4-mapped IPv6 address counts as IPv4.
    fn from(address: IpAddr) -> Cidr {
        let address = address.to_canonical();
        Cidr { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }
}

fn same_bits(a: u128, b: u128, bits: u8, width: u8) -> bool {
    // A shift by the whole width would overflow; with a prefix length of 0 everything matches.
    bits == 0 || (a ^ b) >> (width - bits) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cidr_contains_addresses() {
        let cases = [
            ("10.0.0.0/8", "10.255.1.2", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("10.0.0.0/8", "fd00::1", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("fd00::/8", "fdff::1", true),
            ("::1/128", "::1", true),
            ("::/0", "2001:db8::1", true),
        ];
        for (network, address, expected) in cases {
            let cidr = Cidr::parse(network).unwrap();
            assert_eq!(cidr.contains(address.parse().unwrap()), expected, "{network} {address}");
        }
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/", "10.0.0.0/-1", "example.com"] {
            assert!(Cidr::parse(text).is_err(), "{text}");
        }
    }
}
