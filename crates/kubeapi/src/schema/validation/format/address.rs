//! Addresses (`net`, and `k8s.io/utils/net` for those that may have leading zeros), and names of hosts.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::LazyLock;

use crate::schema::validation::Pattern;

/// Letters, digits and symbols of all scripts, and letters alone.
static HOST_CHARACTERS: LazyLock<Pattern> = LazyLock::new(|| Pattern::new(r"^[a-zA-Z0-9\p{S}\p{L}-]+$"));
static LETTERS: LazyLock<Pattern> = LazyLock::new(|| Pattern::new(r"^[a-zA-Z\p{L}]+$"));

/// A name without dots, with a dash after its first character at most, or labels with a top-level domain of letters
/// (`HostnamePattern` in `strfmt`).
pub(super) fn is_host_name(text: &str) -> bool {
    let labels: Vec<&str> = text.split('.').collect();
    if text.len() > 255 || !labels.iter().all(|label| label.len() <= 63 && HOST_CHARACTERS.matches(label)) {
        return false;
    }
    match labels.as_slice() {
        [only] => {
            let rest = only.trim_start_matches(|next| next != '-');
            let has_one_dash = || only.chars().nth(1) == Some('-') && !rest[1..].contains('-');
            !only.starts_with('-') && (rest.is_empty() || has_one_dash())
        }
        [labels @ .., last] => {
            labels.iter().all(|label| !label.starts_with('-') && !label.ends_with('-'))
                && last.chars().count() >= 2
                && LETTERS.matches(last)
        }
        [] => false,
    }
}

/// An IPv4 address, as an IPv6 address too; parts may have leading zeros.
pub(super) fn is_ipv4(text: &str) -> bool {
    text.contains('.') && is_address(text)
}

/// An IPv6 address without a zone.
pub(super) fn is_ipv6(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok()
}

fn is_address(text: &str) -> bool {
    address_bits(text).is_some()
}

/// The number of bits of an address.
fn address_bits(text: &str) -> Option<u32> {
    if !text.contains(':') {
        return without_leading_zeros(text)?.parse::<Ipv4Addr>().ok().map(|_| 32);
    }
    let (head, tail) = text.rsplit_once(':')?;
    let tail = if tail.contains('.') { without_leading_zeros(tail)? } else { tail.to_owned() };
    format!("{head}:{tail}").parse::<Ipv6Addr>().ok().map(|_| 128)
}

/// The parts of an IPv4 address without leading zeros.
fn without_leading_zeros(text: &str) -> Option<String> {
    let part = |part: &str| -> Option<String> {
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let digits = part.trim_start_matches('0');
        is_number.then(|| if digits.is_empty() { "0".to_owned() } else { digits.to_owned() })
    };
    Some(text.split('.').map(part).collect::<Option<Vec<_>>>()?.join("."))
}

/// An address and the length of a prefix.
pub(super) fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let Some(bits) = address_bits(address) else { return false };
    !length.is_empty()
        && length.bytes().all(|byte| byte.is_ascii_digit())
        && length.parse::<u32>().is_ok_and(|length| length <= bits)
}

/// A hardware address of 6, 8 or 20 bytes: pairs of digits, or with dots groups of four (`net.ParseMAC`).
pub(super) fn is_mac(text: &str) -> bool {
    if text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return matches!(text.len(), 12 | 16 | 40);
    }
    let separator = if text.contains('.') {
        '.'
    } else if text.contains(':') {
        ':'
    } else {
        '-'
    };
    let digits = if separator == '.' { 4 } else { 2 };
    let groups: Vec<&str> = text.split(separator).collect();
    let is_group = |group: &&str| group.len() == digits && group.bytes().all(|byte| byte.is_ascii_hexdigit());
    groups.iter().all(is_group) && matches!(groups.len() * digits / 2, 6 | 8 | 20)
}
