//! Which destinations an agent or a server permits (`--allow-destinations`).

use super::MAX_ADDRESS_BYTES;
use crate::egress::{Destination, DestinationPattern, Host};

/// The destination of a dial, if the `side` (agent or server) permits it; an empty `allow` permits all. Errors have the texts
/// of Go's net package, by which clients and the server tell them apart.
pub(super) fn check_destination(
    protocol: &str,
    address: &str,
    allow: &[DestinationPattern],
    side: &str,
) -> Result<Destination, String> {
    let length = protocol.len() + address.len();
    if length > MAX_ADDRESS_BYTES {
        return Err(format!("dial: an address of {length} bytes is too long"));
    }
    if !matches!(protocol, "tcp" | "tcp4" | "tcp6") {
        return Err(format!("dial {protocol} {address}: the {side} supports tcp only"));
    }
    let Some((host, port)) = address.rsplit_once(':') else {
        return Err(format!("dial {protocol}: address {address}: missing port in address"));
    };
    let Ok(port) = port.parse::<u16>() else {
        return Err(format!("dial {protocol}: address {address}: invalid port"));
    };
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let name = bracketed.unwrap_or(host);
    let host = name.parse().map_or_else(|_| Host::Name(name.to_owned()), Host::Ip);
    let is_plain = match &host {
        Host::Ip(_) => true,
        Host::Name(name) => bracketed.is_none() && name.bytes().all(is_name_byte),
    };
    let destination = Destination { host, port };
    // The agent gets the address as it is written. A name must not be an address for it: with a zone, as in
    // `[::1%x.a.example]`, it would be one for Go.
    if allow.is_empty() || is_plain && allow.iter().any(|pattern| pattern.matches(&destination)) {
        return Ok(destination);
    }
    Err(format!("dial {protocol} {address}: not among --allow-destinations of the {side}"))
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::BareName;

    #[test]
    fn destinations_of_other_protocols_and_networks_are_refused() {
        let allow = [DestinationPattern::parse("10.0.0.0/8", BareName::Exact).unwrap()];
        assert!(check_destination("udp", "10.0.0.1:53", &[], "agent").is_err());
        assert!(check_destination("unix", "/run/docker.sock", &[], "agent").is_err());
        assert!(check_destination("tcp", "192.168.0.1:443", &[], "agent").is_ok());
        assert!(check_destination("tcp", "10.0.0.1:443", &allow, "agent").is_ok());
        assert!(check_destination("tcp", "192.168.0.1:443", &allow, "agent").is_err());
    }

    #[test]
    fn destinations_with_a_zone_are_no_names() {
        let allow = [DestinationPattern::parse("*.a.example", BareName::Exact).unwrap()];
        let check = |address: &str| check_destination("tcp", address, &allow, "server");
        assert!(check("x.a.example:443").is_ok());
        for address in [
            "[2001:db8::1%x.a.example]:443",
            "2001:db8::1%x.a.example:443",
            "[::ffff:192.0.2.1%x.a.example]:443",
            "[x.a.example]:443",
            "192.0.2.1%x.a.example:443",
            "192.0.2.1/x.a.example:443",
            "x y.a.example:443",
        ] {
            assert!(check(address).is_err(), "{address}");
        }
    }
}
