//! Name resolution by the system's resolver or by hickory.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use hickory_resolver::TokioResolver;

use crate::egress::{Destination, Host};
use crate::process::Problem;

/// Resolver of host names (`--resolver`).
#[derive(Clone)]
pub enum Resolver {
    /// `getaddrinfo`, which honors `/etc/nsswitch.conf`; runs on a blocking thread.
    System,
    /// hickory, which reads `/etc/resolv.conf` and `/etc/hosts`; honors TTLs.
    Hickory(Arc<TokioResolver>),
}

impl Resolver {
    /// hickory with this machine's configuration. Create one per runtime.
    ///
    /// # Errors
    /// `/etc/resolv.conf` cannot be read.
    pub fn hickory() -> Result<Resolver, Problem> {
        TokioResolver::builder_tokio()
            .and_then(|builder| builder.build())
            .map(|resolver| Resolver::Hickory(Arc::new(resolver)))
            .map_err(|error| Problem::new("/etc/resolv.conf", format!("{error}; or use --resolver=system")))
    }

    /// The addresses of `destination`, both families, in the order to try them; never empty.
    pub(in crate::egress) async fn addresses(&self, destination: &Destination) -> io::Result<Vec<IpAddr>> {
        let name = match &destination.host {
            Host::Ip(ip) => return Ok(vec![*ip]),
            Host::Name(name) => name,
        };
        let found: Vec<IpAddr> = match self {
            Resolver::System => {
                tokio::net::lookup_host((name.as_str(), destination.port)).await?.map(|address| address.ip()).collect()
            }
            Resolver::Hickory(resolver) => {
                let found = resolver.lookup_ip(name.as_str()).await.map_err(io::Error::other)?;
                found.iter().collect()
            }
        };
        if found.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        }
        Ok(interleave(found))
    }
}

/// Alternates IPv6 and IPv4, beginning with the family of the first address (RFC 8305, section 4).
fn interleave(addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    let six_first = addresses.first().is_some_and(IpAddr::is_ipv6);
    let (mut first, mut second): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|ip| ip.is_ipv6() == six_first);
    first.dedup();
    second.dedup();
    let mut ordered = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter(), second.into_iter());
    loop {
        match (first.next(), second.next()) {
            (None, None) => return ordered,
            (a, b) => ordered.extend(a.into_iter().chain(b)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolver_interleaves_address_families() {
        let ips = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        assert_eq!(interleave(ips(&["::1", "::2", "10.0.0.1"])), ips(&["::1", "10.0.0.1", "::2"]));
        assert_eq!(interleave(ips(&["10.0.0.1", "10.0.0.1", "::1"])), ips(&["10.0.0.1", "::1"]));
    }
}
