//! Settings of what the server makes for Services: ranges of addresses and ports, and its own address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::ops::RangeInclusive;

use ipnet::{IpNet, Ipv4Net};

use super::address_range::AddressRange;
use crate::kinds::ServiceFamilies;

/// Fewest addresses of a range (`ServiceIPRange` in `pkg/controlplane/apiserver/config.go`).
const MIN_ADDRESSES: u128 = 8;

/// An address of the documentation ranges: no packet is sent to it.
const ELSEWHERE: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// What the server makes for Services.
#[derive(Clone, Debug)]
pub struct ServiceSettings {
    /// The range of cluster IPs, of the default family (`--service-cluster-ip-range`).
    pub primary_range: IpNet,
    /// The range of the other family, if cluster IPs of both are allocated.
    pub secondary_range: Option<IpNet>,
    /// The range of node ports (`--service-node-port-range`).
    pub node_ports: RangeInclusive<u16>,
    /// The node port of the Service `kubernetes` (`--kubernetes-service-node-port`).
    pub kubernetes_node_port: Option<u16>,
    /// Address at which others reach this server (`--advertise-address`).
    pub advertise_address: Option<IpAddr>,
    /// The address that this server listens at. Without, there is no Service `kubernetes`.
    pub listener: Option<SocketAddr>,
}

/// Defaults of kube-apiserver, without a listener.
impl Default for ServiceSettings {
    fn default() -> ServiceSettings {
        ServiceSettings {
            primary_range: IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 24)),
            secondary_range: None,
            node_ports: 30_000..=32_767,
            kubernetes_node_port: None,
            advertise_address: None,
            listener: None,
        }
    }
}

impl ServiceSettings {
    /// The address families of cluster IPs.
    pub fn families(&self) -> ServiceFamilies {
        ServiceFamilies { is_ipv6_first: is_ipv6(&self.primary_range), has_both: self.secondary_range.is_some() }
    }

    /// The ranges of cluster IPs, the one of the default family first.
    pub fn cluster_ip_ranges(&self) -> impl Iterator<Item = IpNet> {
        std::iter::once(self.primary_range).chain(self.secondary_range)
    }

    /// The address of the Service `kubernetes`: the first of the range.
    pub(crate) fn kubernetes_ip(&self) -> IpAddr {
        AddressRange::new(self.primary_range).first()
    }

    /// Where others reach this server: `--advertise-address`, else the address of the listener, else that of this machine
    /// (`DefaultAdvertiseAddress` in `k8s.io/apiserver/pkg/server/options/server_run_options.go`). None without a listener.
    pub(crate) fn public_address(&self) -> Option<SocketAddr> {
        let listener = self.listener?;
        let own = listener.ip();
        let loopback = if own.is_ipv6() { IpAddr::V6(Ipv6Addr::LOCALHOST) } else { IpAddr::V4(Ipv4Addr::LOCALHOST) };
        let address = self.advertise_address.unwrap_or_else(|| match own.is_unspecified() || own.is_loopback() {
            true => machine_address(own.is_ipv6()).unwrap_or(loopback),
            false => own,
        });
        Some(SocketAddr::new(address, listener.port()))
    }
}

/// Reads `--service-cluster-ip-range`: one range, or two of different families.
///
/// # Errors
/// The texts of kube-apiserver.
pub fn parse_service_ranges(text: &str) -> Result<(IpNet, Option<IpNet>), String> {
    let texts: Vec<&str> = text.split(',').map(str::trim).collect();
    let parse = |index: usize, text: &str| {
        let range: IpNet = text.parse().map_err(|_| match index {
            0 => "--service-cluster-ip-range[0] is not a valid cidr",
            _ => "--service-cluster-ip-range[1] is not an ip net",
        })?;
        let range = range.trunc();
        if AddressRange::new(range).addresses() < MIN_ADDRESSES {
            return Err("The service cluster IP range must be at least 8 IP addresses");
        }
        // `NewIPAllocator` in `pkg/registry/core/service/ipallocator/ipallocator.go`.
        if is_ipv6(&range) && range.prefix_len() < 64 {
            return Err("shortest allowed prefix length for service CIDR is 64");
        }
        Ok(range)
    };
    match texts.as_slice() {
        [] => Err("--service-cluster-ip-range must contain at least one valid cidr".to_owned()),
        [one] => Ok((parse(0, one)?, None)),
        [one, other] => {
            let (primary, secondary) = (parse(0, one)?, parse(1, other)?);
            if is_ipv6(&primary) == is_ipv6(&secondary) {
                let why =
                    "--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family";
                return Err(why.to_owned());
            }
            Ok((primary, Some(secondary)))
        }
        _ => Err("--service-cluster-ip-range must not contain more than two entries".to_owned()),
    }
}

/// Reads a range of ports: `30000-32767`, `30000+2767`, or one port (`PortRange.Set` in
/// `apimachinery/pkg/util/net/port_range.go`).
///
/// # Errors
/// Another text, or ports that do not exist.
pub fn parse_port_range(text: &str) -> Result<RangeInclusive<u16>, &'static str> {
    let number = |text: &str| text.trim().parse::<u16>().ok();
    let range = match (text.split_once('-'), text.split_once('+')) {
        (Some((first, last)), None) => number(first).zip(number(last)),
        (None, Some((first, more))) => number(first).and_then(|first| Some((first, first.checked_add(number(more)?)?))),
        (None, None) => number(text).map(|port| (port, port)),
        _ => None,
    };
    match range {
        Some((first, last)) if first > 0 && first <= last => Ok(first..=last),
        Some((first, last)) if first > last => Err("the first port is greater than the last one"),
        _ => Err("use a range of ports such as 30000-32767"),
    }
}

fn is_ipv6(range: &IpNet) -> bool {
    matches!(range, IpNet::V6(_))
}

/// The address of this machine from which packets go to other networks; none without a route there.
fn machine_address(prefers_ipv6: bool) -> Option<IpAddr> {
    let order = if prefers_ipv6 { [1, 0] } else { [0, 1] };
    order.into_iter().find_map(|index| {
        let local = if index == 0 { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(local).ok()?;
        // Chooses the route only.
        socket.connect(ELSEWHERE.get(index)?).ok()?;
        let address = socket.local_addr().ok()?.ip();
        (!address.is_loopback() && !address.is_unspecified()).then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_cluster_ip_range_is_one_or_two_of_both_families() {
        let parse = |text: &str| {
            let (primary, secondary) = parse_service_ranges(text)?;
            Ok(format!("{primary} {}", secondary.map(|range| range.to_string()).unwrap_or_default()))
        };
        assert_eq!(parse("10.1.2.3/16"), Ok("10.1.0.0/16 ".to_owned()));
        assert_eq!(parse("fd00::/108, 10.0.0.0/29"), Ok("fd00::/108 10.0.0.0/29".to_owned()));
        for (text, why) in [
            ("", "--service-cluster-ip-range[0] is not a valid cidr"),
            ("10.0.0.0/24,x", "--service-cluster-ip-range[1] is not an ip net"),
            ("10.0.0.0/30", "The service cluster IP range must be at least 8 IP addresses"),
            ("fd00::/63", "shortest allowed prefix length for service CIDR is 64"),
            (
                "10.0.0.0/24,10.1.0.0/24",
                "--service-cluster-ip-range[0] and --service-cluster-ip-range[1] must be of different IP family",
            ),
            ("10.0.0.0/24,fd00::/64,fd01::/64", "--service-cluster-ip-range must not contain more than two entries"),
        ] {
            assert_eq!(parse(text), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn node_port_range_has_the_forms_of_kube_apiserver() {
        for text in ["30000-32767", "30000+2767", " 30000 - 32767"] {
            assert_eq!(parse_port_range(text), Ok(30_000..=32_767), "{text}");
        }
        assert_eq!(parse_port_range("80"), Ok(80..=80));
        for text in ["", "0", "2-1", "1-70000", "1-2+3", "60000+60000", "a-b"] {
            assert!(parse_port_range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn public_address_is_advertised_or_of_the_listener_or_of_the_machine() {
        let public = |advertised: Option<&str>, listener: &str| {
            let settings = ServiceSettings {
                advertise_address: advertised.map(|address| address.parse().unwrap()),
                listener: Some(listener.parse().unwrap()),
                ..ServiceSettings::default()
            };
            settings.public_address().unwrap()
        };
        assert_eq!(public(Some("192.0.2.7"), "127.0.0.1:6443").to_string(), "192.0.2.7:6443");
        assert_eq!(public(None, "192.0.2.8:443").to_string(), "192.0.2.8:443");
        let of_machine = public(None, "0.0.0.0:6443");
        assert!(of_machine.port() == 6443 && !of_machine.ip().is_unspecified(), "{of_machine}");
        assert_eq!(ServiceSettings::default().public_address(), None);
        assert_eq!(ServiceSettings::default().kubernetes_ip().to_string(), "10.0.0.1");
    }
}
