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
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let Ok(port) = port.parse::<u16>() else {
        return Err(format!("dial {protocol}: address {address}: invalid port"));
    };
    let host = host.parse().map_or_else(|_| Host::Name(host.to_owned()), Host::Ip);
    let destination = Destination { host, port };
    if allow.is_empty() || allow.iter().any(|pattern| pattern.matches(&destination)) {
        return Ok(destination);
    }
    Err(format!("dial {protocol} {address}: not among --allow-destinations of the {side}"))
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
}
