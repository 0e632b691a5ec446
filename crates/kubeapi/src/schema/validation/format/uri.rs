//! URIs of requests (`ParseRequestURI` in Go's `net/url`).

use std::net::Ipv6Addr;

/// An absolute URI, or an absolute path. A fragment is part of the path.
pub(super) fn is_request_uri(text: &str) -> bool {
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) || text.is_empty() {
        return false;
    }
    if text == "*" {
        return true;
    }
    let Some((scheme, rest)) = split_scheme(text) else { return false };
    let rest = rest.split_once('?').map_or(rest, |(path, _)| path);
    if !rest.starts_with('/') {
        return !scheme.is_empty();
    }
    let path = match rest.strip_prefix("//") {
        Some(authority) if !scheme.is_empty() => {
            let (authority, path) = authority.find('/').map_or((authority, ""), |at| authority.split_at(at));
            if !is_authority(authority) {
                return false;
            }
            path
        }
        _ => rest,
    };
    has_valid_escapes(path)
}

/// The scheme, empty if there is none, and the rest; none if the scheme is missing before a colon.
fn split_scheme(text: &str) -> Option<(&str, &str)> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at == 0 => return None,
            b':' => return Some((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Some(("", text))
}

fn is_authority(text: &str) -> bool {
    let (user, host) = text.rsplit_once('@').map_or((None, text), |(user, host)| (Some(user), host));
    let is_user_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
    user.is_none_or(|user| user.bytes().all(is_user_byte) && has_valid_escapes(user)) && is_host(host)
}

fn is_host(text: &str) -> bool {
    if let Some(inner) = text.strip_prefix('[') {
        let Some((address, port)) = inner.rsplit_once(']') else { return false };
        let (address, zone) =
            address.split_once("%25").map_or((address, None), |(address, zone)| (address, Some(zone)));
        return is_port(port)
            && address.parse::<Ipv6Addr>().is_ok()
            && zone.is_none_or(|zone| !zone.is_empty() && has_valid_escapes(zone));
    }
    let (name, port) = text.rfind(':').map_or((text, ""), |at| text.split_at(at));
    is_port(port) && !name.contains(['[', ']', ':']) && is_host_name(name)
}

/// Nothing, or a colon and digits.
fn is_port(text: &str) -> bool {
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Only characters beyond ASCII may be escaped.
fn is_host_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let is_valid = match byte {
            b'%' => matches!((bytes.next(), bytes.next()), (Some(high), Some(low))
                if low.is_ascii_hexdigit() && matches!(high, b'8' | b'9' | b'a'..=b'f' | b'A'..=b'F')),
            byte => !byte.is_ascii() || byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=<>\"".contains(&byte),
        };
        if !is_valid {
            return false;
        }
    }
    true
}

fn has_valid_escapes(text: &str) -> bool {
    let is_escape = |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    text.split('%').skip(1).all(is_escape)
}
