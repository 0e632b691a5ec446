//! IP addresses and CIDR ranges in fields of objects, with Kubernetes' sentences
//! (`apimachinery/pkg/util/validation/ip.go`, with the feature `StrictIPCIDRValidation` of 1.36).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::GoQuoted;
use super::field_error::{FieldError, FieldPath};

/// Errors of an address that may have more than one form, such as `FE80:0::1` (`IsValidIPForLegacyField`).
pub fn check_ip(path: &FieldPath<'_>, text: &str) -> Vec<FieldError> {
    let invalid = |why: &str| vec![FieldError::invalid(path, text, why)];
    match (parse_ip_sloppy(text), text.parse::<IpAddr>()) {
        (None, _) => invalid("must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"),
        (Some(_), Err(_)) => invalid("must not have leading 0s"),
        (Some(_), Ok(IpAddr::V6(address))) if address.to_ipv4_mapped().is_some() => {
            invalid("must not be an IPv4-mapped IPv6 address")
        }
        _ => Vec::new(),
    }
}

/// Errors of an address that must have its canonical form, such as `fe80::1` (`IsValidIP`).
pub fn check_canonical_ip(path: &FieldPath<'_>, text: &str) -> Vec<FieldError> {
    let errors = check_ip(path, text);
    match parse_ip_sloppy(text).map(|address| address.to_string()) {
        Some(canonical) if errors.is_empty() && canonical != text => {
            let why = format!("must be in canonical form ({})", GoQuoted(&canonical));
            vec![FieldError::invalid(path, text, why)]
        }
        _ => errors,
    }
}

/// Errors of an address that is that of no endpoint: unspecified, loopback, link-local (`ValidateEndpointIP` in
/// `pkg/apis/core/validation/validation.go`).
pub fn check_endpoint_ip(path: &FieldPath<'_>, text: &str) -> Vec<FieldError> {
    let Some(address) = parse_ip_sloppy(text) else {
        return vec![FieldError::invalid(path, text, "must be a valid IP address")];
    };
    let (is_link_local, is_link_local_multicast) = match address {
        IpAddr::V4(address) => (address.is_link_local(), address.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(address) => (address.is_unicast_link_local(), address.segments()[0] & 0xff0f == 0xff02),
    };
    let rules = [
        (address.is_unspecified(), format!("may not be unspecified ({text})")),
        (address.is_loopback(), "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned()),
        (is_link_local, "may not be in the link-local range (169.254.0.0/16, fe80::/10)".to_owned()),
        (is_link_local_multicast, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)".to_owned()),
    ];
    let broken = rules.into_iter().filter(|(is_broken, _)| *is_broken);
    broken.map(|(_, why)| FieldError::invalid(path, text, why)).collect()
}

/// Warnings about an address that is valid and not canonical (`GetWarningsForIP`).
pub fn ip_warning(path: &FieldPath<'_>, text: &str) -> Option<String> {
    let address = parse_ip_sloppy(text)?;
    let (quoted, canonical) = (GoQuoted(text), address.to_string());
    match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => None,
        Ok(IpAddr::V6(exact)) if exact.to_ipv4_mapped().is_none() => (canonical != text).then(|| {
            let canonical = GoQuoted(&canonical);
            format!("{path}: IPv6 address {quoted} should be in RFC 5952 canonical format ({canonical})")
        }),
        _ => Some(format!("{path}: non-standard IP address {quoted} is invalid: use {}", GoQuoted(&canonical))),
    }
}

/// Errors of a range, such as `10.0.0.0/8` (`IsValidCIDRForLegacyField`).
pub fn check_cidr(path: &FieldPath<'_>, text: &str) -> Vec<FieldError> {
    let invalid = |why: &str| vec![FieldError::invalid(path, text, why)];
    let Some((address, bits)) = parse_cidr_sloppy(text) else {
        return invalid("must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)");
    };
    match address {
        _ if has_leading_zeros(text) => invalid("must not have leading 0s in IP or prefix length"),
        IpAddr::V6(address) if address.to_ipv4_mapped().is_some() => {
            invalid("must not have an IPv4-mapped IPv6 address")
        }
        address if masked(address, bits) != address => invalid("must not have bits set beyond the prefix length"),
        _ => Vec::new(),
    }
}

/// Errors of a range that must have its canonical form (`IsValidCIDR`).
pub fn check_canonical_cidr(path: &FieldPath<'_>, text: &str) -> Vec<FieldError> {
    let errors = check_cidr(path, text);
    match parse_cidr_sloppy(text).map(|(address, bits)| format!("{address}/{bits}")) {
        Some(canonical) if errors.is_empty() && canonical != text => {
            let why = format!("must be in canonical form ({})", GoQuoted(&canonical));
            vec![FieldError::invalid(path, text, why)]
        }
        _ => errors,
    }
}

/// Errors of the address of a network interface with its prefix, such as `10.1.2.3/24` (`IsValidInterfaceAddress`).
pub fn check_interface_address(path: &FieldPath<'_>, text: &str) -> Vec<FieldError> {
    let Some((address, bits)) = parse_cidr_sloppy(text) else {
        let why = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)";
        return vec![FieldError::invalid(path, text, why)];
    };
    let canonical = match address {
        IpAddr::V6(long) => match long.to_ipv4_mapped() {
            Some(short) => format!("{short}/{}", if bits > 32 { bits.saturating_sub(96) } else { bits }),
            None => format!("{long}/{bits}"),
        },
        IpAddr::V4(address) => format!("{address}/{bits}"),
    };
    let why = format!("must be in canonical form ({})", GoQuoted(&canonical));
    (canonical != text).then(|| FieldError::invalid(path, text, why)).into_iter().collect()
}

/// Warnings about a range that is valid and not canonical (`GetWarningsForCIDR`).
pub fn cidr_warnings(path: &FieldPath<'_>, text: &str) -> Vec<String> {
    let Some((address, bits)) = parse_cidr_sloppy(text) else { return Vec::new() };
    let quoted = GoQuoted(text);
    // Go shows an IPv4 address that is mapped into IPv6 as IPv4.
    let shown = |address: IpAddr| match address {
        IpAddr::V6(address) => address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4),
        address => address,
    };
    let network = format!("{}/{bits}", shown(masked(address, bits)));
    let network = GoQuoted(&network);
    let mut warnings = Vec::new();
    if masked(address, bits) != address {
        let single = format!("{}/{}", shown(address), if address.is_ipv4() { 32 } else { 128 });
        let single = GoQuoted(&single);
        warnings.push(format!(
            "{path}: CIDR value {quoted} is ambiguous in this context (should be {network} or {single}?)"
        ));
    }
    let is_mapped = matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some());
    if has_leading_zeros(text) || is_mapped {
        warnings.push(format!("{path}: non-standard CIDR value {quoted} is invalid: use {network}"));
    }
    let canonical = format!("{address}/{bits}");
    if warnings.is_empty() && address.is_ipv6() && canonical != text {
        let canonical = GoQuoted(&canonical);
        warnings.push(format!("{path}: IPv6 CIDR value {quoted} should be in RFC 5952 canonical format ({canonical})"));
    }
    warnings
}

/// Whether a text is an address, in whatever form.
pub fn is_ip(text: &str) -> bool {
    parse_ip_sloppy(text).is_some()
}

/// Whether a text is a range, in whatever form.
pub fn is_cidr(text: &str) -> bool {
    parse_cidr_sloppy(text).is_some()
}

/// Whether a range is one of IPv6 addresses; none for what is no range (`netutils.IPFamilyOfCIDRString`).
pub fn is_ipv6_cidr(text: &str) -> Option<bool> {
    parse_cidr_sloppy(text).map(|(address, _)| address.is_ipv6())
}

/// Whether a range is a part of another one, and smaller.
pub fn is_strict_subset(inner: &str, outer: &str) -> bool {
    let (Some((inner, inner_bits)), Some((outer, outer_bits))) = (parse_cidr_sloppy(inner), parse_cidr_sloppy(outer))
    else {
        return false;
    };
    inner.is_ipv4() == outer.is_ipv4()
        && outer_bits < inner_bits
        && masked(masked(inner, inner_bits), outer_bits) == masked(outer, outer_bits)
}

/// Whether a text is an IPv6 address and not an IPv4 one in another form (`netutils.IsIPv6String`).
pub fn is_ipv6(text: &str) -> bool {
    matches!(parse_ip_sloppy(text), Some(IpAddr::V6(_)))
}

/// Parses an address as Go did before it refused leading zeros (`netutils.ParseIPSloppy`). One that is IPv4 mapped into
/// IPv6 is IPv4.
fn parse_ip_sloppy(text: &str) -> Option<IpAddr> {
    if !text.contains(':') {
        return parse_ipv4_sloppy(text).map(IpAddr::V4);
    }
    let parsed = text.parse::<Ipv6Addr>().ok().or_else(|| {
        let (start, last) = text.rsplit_once(':')?;
        format!("{start}:{}", parse_ipv4_sloppy(last)?).parse().ok()
    })?;
    Some(parsed.to_ipv4_mapped().map_or(IpAddr::V6(parsed), IpAddr::V4))
}

fn parse_ipv4_sloppy(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = parts.next().and_then(parse_digits).and_then(|number| u8::try_from(number).ok())?;
    }
    parts.next().is_none().then(|| octets.into())
}

/// A number of at most three digits after any leading zeros.
fn parse_digits(text: &str) -> Option<u16> {
    let digits = text.trim_start_matches('0');
    let is_number = !text.is_empty() && digits.len() <= 3 && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(0))
}

/// The address of a range in the family in which it is written, and the length of the prefix.
fn parse_cidr_sloppy(text: &str) -> Option<(IpAddr, u16)> {
    let (address, length) = text.split_once('/')?;
    let (parsed, length) = (parse_ip_sloppy(address)?, parse_digits(length)?);
    let (canonical_length, max_length) = match parsed {
        IpAddr::V4(mapped) if address.contains(':') => (IpAddr::V6(mapped.to_ipv6_mapped()), 128),
        IpAddr::V4(_) => (parsed, 32),
        IpAddr::V6(_) => (parsed, 128),
    };
    (length <= max_length).then_some((canonical_length, length))
}

/// Whether a range has zeros before its numbers, which Go's `netip` refuses.
fn has_leading_zeros(cidr: &str) -> bool {
    cidr.split_once('/').is_none_or(|(address, length)| {
        address.parse::<IpAddr>().is_err() || (length.starts_with('0') && length != "0")
    })
}

/// The address without the bits after the prefix.
fn masked(address: IpAddr, bits: u16) -> IpAddr {
    let bits = u32::from(bits);
    match address {
        IpAddr::V4(address) => IpAddr::V4((u32::from(address) & u32::MAX.checked_shl(32 - bits).unwrap_or(0)).into()),
        IpAddr::V6(address) => {
            IpAddr::V6((u128::from(address) & u128::MAX.checked_shl(128 - bits).unwrap_or(0)).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: FieldPath<'static> = FieldPath::root("ip");

    fn details(errors: Vec<FieldError>) -> String {
        errors.into_iter().map(|error| error.detail).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn ip_address_sentences_match_upstream() {
        let malformed = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
        for (text, expected) in [
            ("10.1.2.3", ""),
            ("FE80:0::0abc", ""),
            ("010.002.003.004", "must not have leading 0s"),
            ("::ffff:010.2.3.4", "must not have leading 0s"),
            ("::ffff:1.2.3.4", "must not be an IPv4-mapped IPv6 address"),
            ("10.1.2", malformed),
            ("10.1.2.3.4", malformed),
            ("10.1.2.256", malformed),
            ("10.1.2.+3", malformed),
            ("fe80::1%eth0", malformed),
            ("", malformed),
            ("None", malformed),
        ] {
            assert_eq!(details(check_ip(&PATH, text)), expected, "{text}");
        }
        assert_eq!(details(check_canonical_ip(&PATH, "FE80:0::1")), "must be in canonical form (\"fe80::1\")");
        assert_eq!(details(check_canonical_ip(&PATH, "fe80::1")), "");
    }

    #[test]
    fn ip_address_of_endpoint_is_not_special() {
        for (text, expected) in [
            ("10.1.2.3", ""),
            ("0.0.0.0", "may not be unspecified (0.0.0.0)"),
            ("127.1.2.3", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
            ("::1", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
            ("169.254.1.1", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
            ("224.0.0.9", "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
            ("ff12::1", "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
            ("x", "must be a valid IP address"),
        ] {
            assert_eq!(details(check_endpoint_ip(&PATH, text)), expected, "{text}");
        }
    }

    #[test]
    fn ip_address_warnings_name_the_canonical_form() {
        assert_eq!(ip_warning(&PATH, "10.1.2.3"), None);
        assert_eq!(ip_warning(&PATH, "fe80::1"), None);
        assert_eq!(ip_warning(&PATH, "x"), None);
        let canonical = "ip: IPv6 address \"FE80::1\" should be in RFC 5952 canonical format (\"fe80::1\")";
        assert_eq!(ip_warning(&PATH, "FE80::1").unwrap(), canonical);
        let standard = "ip: non-standard IP address \"010.1.2.3\" is invalid: use \"10.1.2.3\"";
        assert_eq!(ip_warning(&PATH, "010.1.2.3").unwrap(), standard);
    }

    #[test]
    fn cidr_warnings_and_canonical_form_match_upstream() {
        assert_eq!(details(check_canonical_cidr(&PATH, "FE80::/64")), "must be in canonical form (\"fe80::/64\")");
        assert_eq!(details(check_canonical_cidr(&PATH, "10.0.0.0/8")), "");
        assert_eq!(cidr_warnings(&PATH, "10.0.0.0/8"), [""; 0]);
        assert_eq!(
            cidr_warnings(&PATH, "10.1.0.0/8"),
            [
                "ip: CIDR value \"10.1.0.0/8\" is ambiguous in this context (should be \"10.0.0.0/8\" or \"10.1.0.0/32\"?)"
            ]
        );
        assert_eq!(
            cidr_warnings(&PATH, "010.0.0.0/8"),
            ["ip: non-standard CIDR value \"010.0.0.0/8\" is invalid: use \"10.0.0.0/8\""]
        );
        assert_eq!(
            cidr_warnings(&PATH, "FE80::/64"),
            ["ip: IPv6 CIDR value \"FE80::/64\" should be in RFC 5952 canonical format (\"fe80::/64\")"]
        );
        assert!(is_strict_subset("10.1.0.0/16", "10.0.0.0/8") && !is_strict_subset("10.0.0.0/8", "10.0.0.0/8"));
        assert!(!is_strict_subset("11.0.0.0/16", "10.0.0.0/8") && !is_strict_subset("fe80::/64", "10.0.0.0/8"));
    }

    #[test]
    fn cidr_sentences_match_upstream() {
        let malformed = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
        for (text, expected) in [
            ("10.0.0.0/8", ""),
            ("0.0.0.0/0", ""),
            ("::/0", ""),
            ("2001:db8::/64", ""),
            ("10.1.0.0/8", "must not have bits set beyond the prefix length"),
            ("2001:db8::1/64", "must not have bits set beyond the prefix length"),
            ("10.0.0.0/08", "must not have leading 0s in IP or prefix length"),
            ("010.0.0.0/8", "must not have leading 0s in IP or prefix length"),
            ("::ffff:1.2.3.4/128", "must not have an IPv4-mapped IPv6 address"),
            ("10.0.0.0/33", malformed),
            ("10.0.0.0", malformed),
            ("", malformed),
        ] {
            assert_eq!(details(check_cidr(&PATH, text)), expected, "{text}");
        }
    }

    #[test]
    fn interface_address_is_canonical_with_its_prefix() {
        for (text, expected) in [
            ("10.1.2.3/24", ""),
            ("2001:db8::1/64", ""),
            ("10.1.2.3/08", "must be in canonical form (\"10.1.2.3/8\")"),
            ("::ffff:10.1.2.3/120", "must be in canonical form (\"10.1.2.3/24\")"),
            ("10.1.2.3", "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"),
        ] {
            assert_eq!(details(check_interface_address(&PATH, text)), expected, "{text}");
        }
    }
}
