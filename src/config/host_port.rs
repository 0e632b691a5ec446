//! Parses addresses to listen on as Go's `net.Listen` does, for manifests written for kube-rbac-proxy: brackets around
//! any host, host names, and service names as ports.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};

/// Parses `HOST:DEFAULT_PORT`. An empty host is every address of both families, as `0.0.0.0` and `::` are. A name resolves to
/// its first IPv4 address, or else its first address.
///
/// # Errors
/// The reason, in Go's words where it has them.
pub(super) fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let (host, port) = split_host_port(text)?;
    let port = parse_port(port)?;
    if host.is_empty() {
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port));
    }
    let found: Vec<_> = match (host, port).to_socket_addrs() {
        Ok(found) => found.collect(),
        Err(error) => return Err(format!("no such host: {error}")),
    };
    let chosen = found.iter().find(|address| address.is_ipv4()).or(found.first());
    chosen.copied().ok_or_else(|| "no such host".to_owned())
}

/// Parses `HOST:DEFAULT_PORT`, or a host alone, which gets `port`.
///
/// # Errors
/// As [`listen_address`].
pub(super) fn host_address(text: &str, port: u16) -> Result<SocketAddr, String> {
    let host = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    match host.parse::<IpAddr>() {
        Ok(ip) => Ok(SocketAddr::new(ip, port)),
        Err(_) if !text.contains(':') => listen_address(&format!("{text}:{port}")),
        Err(_) => listen_address(text),
    }
}

/// Splits host and port as Go's `net.SplitHostPort`.
fn split_host_port(text: &str) -> Result<(&str, &str), &'static str> {
    const MISSING: &str = "missing port in address; use HOST:PORT, such as 127.0.0.1:8443 or :8443";
    let (host, port) = text.rsplit_once(':').ok_or(MISSING)?;
    let host = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(None) => return Err("missing ']' in address"),
        Some(Some((host, rest))) => match rest.strip_prefix(':') {
            Some(port) if port.contains(':') => return Err("too many colons in address"),
            Some(_) => host,
            None => return Err(MISSING),
        },
        None if host.contains(':') => return Err("too many colons in address; put an IPv6 address in brackets"),
        None => host,
    };
    if host.contains(['[', ']']) || port.contains(['[', ']']) {
        return Err("unexpected bracket in address");
    }
    Ok((host, port))
}

/// Parses a port number, or the name of a TCP service.
fn parse_port(text: &str) -> Result<u16, String> {
    match text {
        // As with Go: a free port.
        "" => Ok(0),
        text if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().map_err(|_| "use a port from 0 to 65535".to_owned())
        }
        name => service_port(name).ok_or_else(|| format!("unknown port: there is no service {name:?}")),
    }
}

/// Services known without `/etc/services`, as in Go.
const WELL_KNOWN_SERVICES: &[(&str, u16)] = &[("http", 80), ("https", 443)];

fn service_port(name: &str) -> Option<u16> {
    let listed = std::fs::read_to_string("/etc/services").unwrap_or_default();
    let well_known = WELL_KNOWN_SERVICES.iter().find(|(service, _)| service.eq_ignore_ascii_case(name));
    find_service(&listed, name).or(well_known.map(|(_, port)| *port))
}

/// Finds a TCP service in text of the form of `/etc/services`: `selection_name port/protocol aliases…`.
fn find_service(listed: &str, name: &str) -> Option<u16> {
    listed.lines().find_map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let (first, number) = (words.next()?, words.next()?);
        let port = number.strip_suffix("/tcp")?;
        let named = std::iter::once(first).chain(words).any(|word| word.eq_ignore_ascii_case(name));
        named.then(|| port.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `net.Listen("tcp", …)` accepts, and where it listens.
    #[test]
    fn listen_address_parses_as_go() {
        for (text, expected) in [
            ("127.0.0.1:8443", "127.0.0.1:8443"),
            ("[127.0.0.1]:8443", "127.0.0.1:8443"),
            ("[::1]:8443", "[::1]:8443"),
            ("[::]:0", "[::]:0"),
            (":8443", "0.0.0.0:8443"),
            ("[]:8443", "0.0.0.0:8443"),
            ("0.0.0.0:https", "0.0.0.0:443"),
            ("0.0.0.0:HTTP", "0.0.0.0:80"),
            ("localhost:1", "127.0.0.1:1"),
            ("[localhost]:1", "127.0.0.1:1"),
            ("127.0.0.1:", "127.0.0.1:0"),
        ] {
            assert_eq!(listen_address(text).map(|address| address.to_string()).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn listen_address_errors_as_go() {
        for (text, expected) in [
            ("", "missing port"),
            ("here", "missing port"),
            ("8443", "missing port"),
            ("[::1]", "missing port"),
            ("[::1]x:1", "missing port"),
            ("[::1:1", "missing ']'"),
            ("::1:8443", "too many colons"),
            ("[::1]:1:2", "too many colons"),
            ("[a]:1]", "unexpected bracket"),
            ("a]:1", "unexpected bracket"),
            ("127.0.0.1:70000", "0 to 65535"),
            ("127.0.0.1:-1", "unknown port"),
            ("127.0.0.1:nothing-like-it", "unknown port"),
            ("nowhere.invalid:1", "no such host"),
        ] {
            let error = listen_address(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn listen_address_service_names() {
        let listed = "# the list\nhttps 443/udp\nhttps 443/tcp # TLS\nldap 389/tcp\nalt 8080/tcp http-alt webcache\n";
        for (name, port) in [("https", Some(443)), ("Webcache", Some(8080)), ("alt", Some(8080)), ("TLS", None)] {
            assert_eq!(find_service(listed, name), port, "{name}");
        }
    }
}
