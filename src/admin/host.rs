//! Validation of the `Host` header: protection against DNS rebinding.

use std::net::{IpAddr, SocketAddr};

use http::header::HOST;
use http::{HeaderMap, Request};

use crate::message::split_authority;

/// Host part of the configured admin address.
pub struct ServedHost(String);

/// Whether a peer is on the same machine or in the same pod: a connection to an address of the same host has that address
/// as its source, too.
pub fn is_same_host(local: SocketAddr, peer: SocketAddr) -> bool {
    let peer = peer.ip().to_canonical();
    peer.is_loopback() || peer == local.ip().to_canonical()
}

/// Whether a browser sends the request for a web page of another origin, by `Sec-Fetch-Site` (Fetch Metadata). The `Host`
/// header does not show that: through a forwarded port it is a loopback name. Other clients do not send the header.
pub(super) fn is_cross_origin(headers: &HeaderMap) -> bool {
    headers.get_all("sec-fetch-site").iter().any(|site| site != "same-origin" && site != "none")
}

impl ServedHost {
    /// Parses `host:port` as configured.
    pub fn new(address: &str) -> ServedHost {
        ServedHost(split_authority(address).map_or(address, |(host, _)| host).to_ascii_lowercase())
    }

    /// Whether `request` names a loopback name or address, the configured host, or the local address `local` of its
    /// connection. An attacker can point a DNS name at this address, but cannot make a request name the address itself.
    pub fn matches_request<B>(&self, request: &Request<B>, local: SocketAddr) -> bool {
        let mut hosts = request.headers().get_all(HOST).iter();
        let (Some(header), None) = (hosts.next(), hosts.next()) else { return false };
        header.to_str().is_ok_and(|host| self.matches_authority(host, local))
            && request.uri().authority().is_none_or(|target| self.matches_authority(target.as_str(), local))
    }

    fn matches_authority(&self, authority: &str, local: SocketAddr) -> bool {
        let Some((host, _)) = split_authority(authority) else { return false };
        let host = host.to_ascii_lowercase();
        match host.parse::<IpAddr>() {
            Ok(ip) => {
                let ip = ip.to_canonical();
                ip.is_loopback() || ip == local.ip().to_canonical() || host == self.0
            }
            Err(_) => host == "localhost" || host == self.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_meant(told: &str, local: &str, hosts: &[&str]) -> bool {
        let mut request = Request::get("/");
        for host in hosts {
            request = request.header(HOST, *host);
        }
        ServedHost::new(told).matches_request(&request.body(()).unwrap(), local.parse().unwrap())
    }

    #[test]
    fn admin_host_loopback_is_accepted() {
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:6480", "127.8.0.1", "[::1]:6480", "[::ffff:127.0.0.1]"] {
            assert!(is_meant("127.0.0.1:6480", "127.0.0.1:6480", &[host]), "{host}");
        }
    }

    #[test]
    fn admin_cross_origin_requests_are_recognized() {
        let is_cross_origin = |sites: &[&'static str]| {
            let site = |site: &&'static str| ("sec-fetch-site".parse().unwrap(), site.parse().unwrap());
            is_cross_origin(&sites.iter().map(site).collect::<HeaderMap>())
        };
        for sites in [&[][..], &["same-origin"], &["none"]] {
            assert!(!is_cross_origin(sites), "{sites:?}");
        }
        for sites in [&["cross-site"][..], &["same-site"], &["same-origin", "cross-site"], &[""]] {
            assert!(is_cross_origin(sites), "{sites:?}");
        }
    }

    #[test]
    fn admin_host_foreign_names_are_refused() {
        for host in [
            "evil.example",
            "evil.example:6480",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost@evil.example",
            "evil.example@localhost",
            "[::1].evil.example",
            "[::1]evil.example:6480",
            "[::1]:6480.evil.example",
            "127.0.0.1:99999",
            "localhost:6480:6480",
            "10.0.0.1",
            "0.0.0.0",
            "",
        ] {
            assert!(!is_meant("127.0.0.1:6480", "127.0.0.1:6480", &[host]), "{host}");
        }
        assert!(!is_meant("127.0.0.1:6480", "127.0.0.1:6480", &[]));
        assert!(!is_meant("127.0.0.1:6480", "127.0.0.1:6480", &["localhost", "localhost"]));
    }

    #[test]
    fn admin_host_configured_address_is_accepted() {
        assert!(is_meant("gateway.internal:6480", "10.0.0.5:6480", &["Gateway.Internal:6480"]));
        assert!(is_meant("0.0.0.0:6480", "10.0.0.5:6480", &["10.0.0.5:6480"]));
        assert!(!is_meant("0.0.0.0:6480", "10.0.0.5:6480", &["10.0.0.6:6480"]));
        assert!(is_meant("[fd00::5]:6480", "[fd00::5]:6480", &["[fd00::5]:6480"]));
    }

    #[test]
    fn admin_host_of_absolute_request_target_is_checked() {
        let request = Request::get("http://evil.example/").header(HOST, "localhost").body(()).unwrap();
        assert!(!ServedHost::new("127.0.0.1:6480").matches_request(&request, "127.0.0.1:6480".parse().unwrap()));
    }
}
