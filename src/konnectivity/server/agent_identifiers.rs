//! Identifiers of an agent (`--agent-identifiers`): the destinations that it serves.

use std::net::IpAddr;

use ipnet::IpNet;
use percent_encoding::percent_decode_str;

/// The destinations that an agent announces, in the form of URL query parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentIdentifiers {
    /// Values of `ipv4` and `ipv6`, in canonical form.
    pub addresses: Vec<IpAddr>,
    /// Values of `host`, in lower case; also addresses that do not parse.
    pub hosts: Vec<String>,
    /// Values of `cidr`.
    pub networks: Vec<IpNet>,
    /// The first value of `default-route`.
    pub is_default_route: bool,
}

/// Why identifiers cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidIdentifiers {
    /// An invalid percent escape.
    Escape(String),
    /// An unknown key, with its name.
    Key(String),
    /// A value of `cidr` that is no network.
    Network(String),
}

impl std::fmt::Display for InvalidIdentifiers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            // As Go's url.ParseQuery.
            InvalidIdentifiers::Escape(text) => {
                write!(f, "fail to parse url encoded string: invalid URL escape \"{text}\"")
            }
            InvalidIdentifiers::Key(name) => write!(f, "unknown address type: {name}"),
            InvalidIdentifiers::Network(value) => {
                write!(f, "cidr={value} is no network; use one such as 10.0.0.0/8 or fd00::/8")
            }
        }
    }
}

impl AgentIdentifiers {
    /// Parses identifiers, and fails for unknown keys, as the agent of the reference does, and for invalid networks.
    ///
    /// # Errors
    /// An invalid escape, an unknown key or an invalid network.
    pub fn parse_strictly(text: &str) -> Result<AgentIdentifiers, InvalidIdentifiers> {
        match AgentIdentifiers::parse(text)? {
            (_, Some(ignored)) => Err(ignored),
            (identifiers, None) => Ok(identifiers),
        }
    }

    /// Parses identifiers. Unknown keys are ignored, as the server of the reference does, and invalid networks; also returns
    /// the first that is ignored.
    ///
    /// # Errors
    /// An invalid escape.
    pub fn parse(text: &str) -> Result<(AgentIdentifiers, Option<InvalidIdentifiers>), InvalidIdentifiers> {
        let (mut identifiers, mut default_route, mut ignored) = (AgentIdentifiers::default(), None, None);
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (key, value) = (unescape(key)?, unescape(value)?);
            match key.as_str() {
                "ipv4" | "ipv6" | "host" => match value.parse::<IpAddr>() {
                    Ok(address) => identifiers.addresses.push(address.to_canonical()),
                    Err(_) => identifiers.hosts.push(value.to_ascii_lowercase()),
                },
                "cidr" => match value.parse::<IpNet>() {
                    Ok(network) => identifiers.networks.push(network.trunc()),
                    Err(_) => {
                        ignored.get_or_insert(InvalidIdentifiers::Network(value));
                    }
                },
                "default-route" => {
                    default_route.get_or_insert(matches!(value.as_str(), "1" | "t" | "T" | "true" | "TRUE" | "True"));
                }
                _ => {
                    ignored.get_or_insert(InvalidIdentifiers::Key(key));
                }
            }
        }
        identifiers.is_default_route = default_route.unwrap_or(false);
        Ok((identifiers, ignored))
    }

    /// Whether the agent announces exactly this destination.
    pub(super) fn has_host(&self, host: &str) -> bool {
        match host.parse::<IpAddr>() {
            Ok(address) => self.addresses.contains(&address.to_canonical()),
            Err(_) => self.hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(host)),
        }
    }

    /// Prefix length of the narrowest announced network with this address.
    pub(super) fn network_prefix(&self, host: &str) -> Option<u8> {
        let address = host.parse::<IpAddr>().ok()?.to_canonical();
        self.networks.iter().filter(|network| network.contains(&address)).map(IpNet::prefix_len).max()
    }
}

fn unescape(text: &str) -> Result<String, InvalidIdentifiers> {
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        let digits = rest.as_bytes().get(at + 1..at + 3);
        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            let shown: String = rest[at..].chars().take(3).collect();
            return Err(InvalidIdentifiers::Escape(shown));
        }
        rest = &rest[at + 3..];
    }
    let text = text.replace('+', " ");
    Ok(percent_decode_str(&text).decode_utf8_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_identifiers_parse_like_go_query() {
        let text = "host=Node-1&ipv4=10.0.0.1&ipv6=2001:DB8::1&ipv6=2001%3Adb8%3A0%3A%3A2&cidr=10.1.2.3/8&default-route=true&default-route=false";
        let identifiers = AgentIdentifiers::parse(text).unwrap().0;
        assert!(identifiers.is_default_route);
        for host in ["node-1", "NODE-1", "10.0.0.1", "2001:db8:0::1", "2001:db8::2", "::ffff:10.0.0.1"] {
            assert!(identifiers.has_host(host), "{host}");
        }
        assert!(!identifiers.has_host("10.0.0.2") && !identifiers.has_host("node"));
        assert_eq!(identifiers.network_prefix("10.200.0.1"), Some(8));
        assert_eq!(identifiers.network_prefix("11.0.0.1"), None);
        assert_eq!(identifiers.network_prefix("node-1"), None);
    }

    #[test]
    fn agent_identifiers_errors_of_the_reference() {
        let error = AgentIdentifiers::parse("ipv4=%zz").unwrap_err();
        assert_eq!(error.to_string(), "fail to parse url encoded string: invalid URL escape \"%zz\"");
        assert_eq!(AgentIdentifiers::parse("ipv5=1&host=a").unwrap().0.hosts, ["a"]);
        let error = AgentIdentifiers::parse_strictly("ipv5=1").unwrap_err();
        assert_eq!(error.to_string(), "unknown address type: ipv5");
        assert_eq!(AgentIdentifiers::parse("cidr=10.0.0.0&host=a").unwrap().0.hosts, ["a"]);
        for network in ["10.0.0.0", "10.0.0.0/33", "fd00::/129"] {
            let error = AgentIdentifiers::parse_strictly(&format!("cidr={network}")).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("cidr={network} is no network; use one such as 10.0.0.0/8 or fd00::/8")
            );
        }
    }
}
