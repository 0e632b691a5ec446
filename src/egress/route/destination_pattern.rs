//! Patterns of destinations, matched without DNS: a name never matches an address.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::egress::route::proxy_url::parse_host_port;
use crate::egress::{Destination, Host};

/// Pattern of a host and an optional port: `*`, an address, a network, a name, or all subdomains of a name
/// (`.example.com` and `*.example.com`); each may end in `:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationPattern {
    hosts: HostPattern,
    /// `None` matches all ports.
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HostPattern {
    All,
    Network(IpNet),
    /// Lower case, without leading and trailing dots.
    Names {
        name: String,
        itself: bool,
        below: bool,
    },
}

/// What a name without a leading star or dot matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BareName {
    /// It matches that name only.
    Exact,
    /// It matches that name and its subdomains, as in `NO_PROXY`.
    WithSubdomains,
}

impl DestinationPattern {
    /// Parses one pattern.
    ///
    /// # Errors
    /// Says what is wrong with the text.
    pub fn parse(text: &str, bare: BareName) -> Result<DestinationPattern, &'static str> {
        // A network first: the colons of an IPv6 network do not precede a port.
        if let Ok(network) = parse_cidr(text) {
            return Ok(DestinationPattern { hosts: HostPattern::Network(network), port: None });
        }
        // An empty variable in a template would permit all ports. NO_PROXY has such entries, though.
        if bare == BareName::Exact && text.ends_with(':') {
            return Err("a port is missing after the colon");
        }
        if let Some((address, bits)) = text.split_once('/') {
            return network_and_port(address, bits);
        }
        if let Some(port) = text.strip_prefix('*').filter(|rest| rest.is_empty() || rest.starts_with(':')) {
            // A host in place of the star, so that the port is parsed as everywhere.
            let (_, port) = parse_host_port(&format!("all{port}"))?;
            return Ok(DestinationPattern { hosts: HostPattern::All, port });
        }
        let rest = text.strip_prefix("*.").or_else(|| text.strip_prefix('.'));
        let (host, port) = parse_host_port(rest.unwrap_or(text))?;
        let hosts = match host {
            Host::Ip(_) if rest.is_some() => return Err("an address has no subdomains"),
            Host::Ip(address) => HostPattern::Network(address.to_canonical().into()),
            Host::Name(name) => HostPattern::Names {
                name: name.trim_end_matches('.').to_owned(),
                itself: rest.is_none(),
                below: rest.is_some() || bare == BareName::WithSubdomains,
            },
        };
        Ok(DestinationPattern { hosts, port })
    }

    /// Whether the pattern matches `destination`.
    pub fn matches(&self, destination: &Destination) -> bool {
        if self.port.is_some_and(|port| port != destination.port) {
            return false;
        }
        match (&self.hosts, &destination.host) {
            (HostPattern::All, _) => true,
            (HostPattern::Network(network), Host::Ip(address)) => network.contains(&address.to_canonical()),
            (HostPattern::Names { name, itself, below }, Host::Name(host)) => {
                let host = host.strip_suffix('.').unwrap_or(host).as_bytes();
                match host.len().checked_sub(name.len()).map(|at| host.split_at(at)) {
                    Some((before, end)) if end.eq_ignore_ascii_case(name.as_bytes()) => match before {
                        [] => *itself,
                        [.., b'.'] => *below,
                        _ => false,
                    },
                    _ => false,
                }
            }
            _ => false,
        }
    }
}

/// Parses `10.0.0.0/8`, `fd00::/8`, or one address. The address is parsed by the standard library: ipnet accepts
/// leading zeros.
///
/// # Errors
/// The text is neither.
pub fn parse_cidr(text: &str) -> Result<IpNet, &'static str> {
    let network = match text.split_once('/') {
        None => text.parse().ok().map(|address: IpAddr| address.into()),
        Some((address, bits)) => {
            address.parse().ok().zip(bits.parse().ok()).and_then(|(address, bits)| IpNet::new(address, bits).ok())
        }
    };
    network.ok_or("use a network such as 10.0.0.0/8 or fd00::/8")
}

/// `10.0.0.0/8:443` or `[fd00::/8]:443`.
fn network_and_port(address: &str, rest: &str) -> Result<DestinationPattern, &'static str> {
    const FORM: &str = "use a network such as 10.0.0.0/8 or [fd00::/8], optionally followed by a port";
    let (address, bits, port) = match address.strip_prefix('[') {
        Some(address) => {
            let (bits, port) = rest.split_once(']').ok_or(FORM)?;
            (address, bits, port)
        }
        None => {
            let (bits, port) = rest.find(':').map_or((rest, ""), |at| rest.split_at(at));
            (address, bits, port)
        }
    };
    let network = parse_cidr(&format!("{address}/{bits}")).map_err(|_| FORM)?;
    if !(port.is_empty() || port.starts_with(':')) {
        return Err(FORM);
    }
    let (_, port) = parse_host_port(&format!("network{port}"))?;
    Ok(DestinationPattern { hosts: HostPattern::Network(network), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn destination(text: &str) -> Destination {
        let (host, port) = parse_host_port(text).unwrap();
        Destination { host, port: port.unwrap_or(443) }
    }

    fn matches(pattern: &str, bare: BareName, wanted: &str) -> bool {
        DestinationPattern::parse(pattern, bare).unwrap().matches(&destination(wanted))
    }

    #[test]
    fn destination_pattern_matches_addresses_networks_names_and_ports() {
        use BareName::{Exact, WithSubdomains};
        for (pattern, bare, wanted, expected) in [
            ("*", Exact, "anything.example", true),
            ("*", Exact, "[::1]:80", true),
            ("*:443", Exact, "10.0.0.1:443", true),
            ("*:443", Exact, "10.0.0.1:80", false),
            ("10.0.0.1", Exact, "10.0.0.1:9", true),
            ("10.0.0.1", Exact, "[::ffff:10.0.0.1]:9", true),
            ("10.0.0.1:80", Exact, "10.0.0.1:81", false),
            ("::1", Exact, "[::1]:80", true),
            ("[::1]", Exact, "[::1]:80", true),
            ("[::1]:80", Exact, "[::1]:80", true),
            ("[::1]:80", Exact, "[::1]:81", false),
            ("10.0.0.0/8", Exact, "10.9.9.9", true),
            ("10.0.0.0/8", Exact, "11.0.0.0", false),
            ("10.0.0.0/8", Exact, "ten.example", false),
            ("10.0.0.0/8:443", Exact, "10.1.1.1:443", true),
            ("10.0.0.0/8:443", Exact, "10.1.1.1:80", false),
            ("fd00::/8", Exact, "[fd12::1]:1", true),
            ("[fd00::/8]:1", Exact, "[fd12::1]:1", true),
            ("[fd00::/8]:2", Exact, "[fd12::1]:1", false),
            ("[fd00::/8]", Exact, "[fd12::1]:1", true),
            ("Example.com", Exact, "example.COM", true),
            ("example.com", Exact, "a.example.com", false),
            ("example.com", WithSubdomains, "a.b.example.com", true),
            ("example.com", WithSubdomains, "example.com", true),
            ("example.com", WithSubdomains, "badexample.com", false),
            ("example.com", WithSubdomains, "com", false),
            ("example.com.", WithSubdomains, "a.example.com", true),
            ("example.com", WithSubdomains, "a.example.com.", true),
            (".example.com", WithSubdomains, "example.com", false),
            (".example.com", WithSubdomains, "a.example.com", true),
            ("*.example.com:8080", Exact, "a.example.com:8080", true),
            ("*.example.com:8080", Exact, "a.example.com:80", false),
            (".svc", WithSubdomains, "api.wardle.svc", true),
            ("1.2.3.example", Exact, "1.2.3.example", true),
        ] {
            assert_eq!(matches(pattern, bare, wanted), expected, "{pattern} {bare:?} {wanted}");
        }
    }

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
            let pattern = DestinationPattern::parse(network, BareName::Exact).unwrap();
            let destination = Destination { host: Host::Ip(address.parse().unwrap()), port: 443 };
            assert_eq!(pattern.matches(&destination), expected, "{network} {address}");
        }
        for text in ["", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/", "10.0.0.0/-1", "010.0.0.0/8", "example.com"]
        {
            assert!(parse_cidr(text).is_err(), "{text}");
        }
    }

    #[test]
    fn destination_pattern_rejects_invalid_text() {
        for text in [
            "",
            ".",
            "*.",
            "**",
            "*x",
            "a*b",
            "a b",
            "a..b",
            "a:x",
            "a:0",
            "*:x",
            "*:70000",
            ":80",
            "*.10.0.0.1",
            "10.0.0.0/33",
            "10.0.0/8",
            "10.0.0.0/8:x",
            "[fd00::/8",
            "[fd00::/8]x",
            "fe80::1%eth0",
            "a/b",
            "ü.example",
        ] {
            assert!(DestinationPattern::parse(text, BareName::WithSubdomains).is_err(), "{text}");
        }
        for text in ["10.0.0.1:", "[::1]:", "10.0.0.0/8:", "[fd00::/8]:", "*:", "a:"] {
            let error = DestinationPattern::parse(text, BareName::Exact).unwrap_err();
            assert_eq!(error, "a port is missing after the colon", "{text}");
        }
        assert!(DestinationPattern::parse("fd00::", BareName::Exact).is_ok());
    }

    #[test]
    fn destination_pattern_parse_never_panics() {
        bolero::check!().with_type::<(String, String)>().with_iterations(2000).for_each(|(pattern, name)| {
            if let Ok(pattern) = DestinationPattern::parse(pattern, BareName::WithSubdomains) {
                pattern.matches(&Destination { host: Host::Name(name.clone()), port: 1 });
            }
        });
    }
}
