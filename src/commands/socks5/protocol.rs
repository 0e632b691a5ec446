//! SOCKS version 5, server side (RFC 1928, RFC 1929). No I/O.
//!
//! Each parser gets the bytes received so far. It returns the message and its length, `None` if more bytes are needed,
//! or an error as early as possible. It ignores bytes after the message.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::egress::{Destination, Host};
use crate::observe::metrics::REPLY_LABELS;

/// The longest message: a user and a password of 255 bytes each.
pub const MAX_MESSAGE_BYTES: usize = 3 + 255 + 255;

const VERSION: u8 = 5;
const LOGIN_VERSION: u8 = 1;
const CONNECT: u8 = 1;

/// Authentication methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AuthMethod {
    /// No authentication.
    None = 0x00,
    /// User and password.
    Password = 0x02,
    /// None of the offered methods is acceptable.
    Unacceptable = 0xff,
}

/// The supported methods among those a client offers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfferedMethods {
    /// [`AuthMethod::None`] is offered.
    pub none: bool,
    /// [`AuthMethod::Password`] is offered.
    pub password: bool,
}

/// A user and a password as received; no `Debug`, on purpose.
pub struct UserPassword<'b> {
    /// The user name; may be empty.
    pub user: &'b [u8],
    /// The password; may be empty.
    pub password: &'b [u8],
}

/// The reply code: the second byte of the reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReplyCode {
    /// Connected.
    Succeeded,
    /// Any other failure.
    GeneralFailure,
    /// The destination is not allowed.
    NotAllowed,
    /// The network is unreachable.
    NetworkUnreachable,
    /// The host is unknown or does not answer.
    HostUnreachable,
    /// The connection was refused.
    ConnectionRefused,
    /// The time to live expired.
    TtlExpired,
    /// The command is not CONNECT.
    CommandNotSupported,
    /// The address is neither IPv4 nor IPv6 nor a name.
    AddressTypeNotSupported,
}

/// Why received bytes are not a supported SOCKS5 message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The first byte is not 5. No reply is possible.
    Version(u8),
    /// The version of the user and password message (RFC 1929) is not 1.
    LoginVersion(u8),
    /// The request is refused with this reply code and reason.
    Request(ReplyCode, &'static str),
}

type ParseResult<T> = Result<Option<(T, usize)>, ProtocolError>;

/// Parses the first message of a client.
pub fn parse_greeting(bytes: &[u8]) -> ParseResult<OfferedMethods> {
    let Some((version, rest)) = bytes.split_first() else { return Ok(None) };
    if *version != VERSION {
        return Err(ProtocolError::Version(*version));
    }
    let Some((count, rest)) = rest.split_first() else { return Ok(None) };
    let Some(methods) = rest.get(..usize::from(*count)) else { return Ok(None) };
    let offers = |method: AuthMethod| methods.contains(&(method as u8));
    let offered = OfferedMethods { none: offers(AuthMethod::None), password: offers(AuthMethod::Password) };
    Ok(Some((offered, 2 + methods.len())))
}

/// Encodes the reply to [`parse_greeting`].
pub fn method_reply(method: AuthMethod) -> [u8; 2] {
    [VERSION, method as u8]
}

/// Parses user and password.
pub fn parse_login(bytes: &[u8]) -> ParseResult<UserPassword<'_>> {
    let Some((version, rest)) = bytes.split_first() else { return Ok(None) };
    if *version != LOGIN_VERSION {
        return Err(ProtocolError::LoginVersion(*version));
    }
    let Some((user, rest)) = length_prefixed(rest) else { return Ok(None) };
    let Some((password, _)) = length_prefixed(rest) else { return Ok(None) };
    Ok(Some((UserPassword { user, password }, 3 + user.len() + password.len())))
}

/// Encodes the reply to [`parse_login`].
pub fn login_reply(welcome: bool) -> [u8; 2] {
    [LOGIN_VERSION, u8::from(!welcome)]
}

/// Parses the destination that the client requests.
pub fn parse_request(bytes: &[u8]) -> ParseResult<Destination> {
    let Some((version, rest)) = bytes.split_first() else { return Ok(None) };
    if *version != VERSION {
        return Err(ProtocolError::Version(*version));
    }
    let [command, reserved, kind, rest @ ..] = rest else { return Ok(None) };
    let host: Result<Host, &'static str>;
    let length;
    match kind {
        1 => {
            let Some(address) = rest.first_chunk::<4>() else { return Ok(None) };
            host = Ok(Host::Ip(IpAddr::V4(Ipv4Addr::from(*address))));
            length = address.len();
        }
        3 => {
            let Some((name, _)) = length_prefixed(rest) else { return Ok(None) };
            host = parse_host(name);
            length = 1 + name.len();
        }
        4 => {
            let Some(address) = rest.first_chunk::<16>() else { return Ok(None) };
            host = Ok(Host::Ip(IpAddr::V6(Ipv6Addr::from(*address))));
            length = address.len();
        }
        // The length of an unknown address type is unknown, too.
        _ => {
            return Err(ProtocolError::Request(ReplyCode::AddressTypeNotSupported, "neither IPv4 nor IPv6 nor a name"));
        }
    }
    let Some(port) = rest.get(length..).and_then(<[u8]>::first_chunk::<2>) else { return Ok(None) };
    if *command != CONNECT {
        return Err(ProtocolError::Request(ReplyCode::CommandNotSupported, "another command than CONNECT"));
    }
    if *reserved != 0 {
        return Err(ProtocolError::Request(ReplyCode::GeneralFailure, "the reserved byte is not 0"));
    }
    let host = host.map_err(|why| ProtocolError::Request(ReplyCode::GeneralFailure, why))?;
    Ok(Some((Destination { host, port: u16::from_be_bytes(*port) }, 4 + length + 2)))
}

/// Encodes the reply to [`parse_request`]. The bound address is not revealed; behind another proxy it is unknown
/// anyway.
pub fn connect_reply(reply: ReplyCode) -> [u8; 10] {
    [VERSION, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0]
}

/// Splits off a length-prefixed field: one length byte and that many bytes.
fn length_prefixed(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*count))
}

/// Parses a host name. A name that spells an IP address becomes that address, so that address rules cannot be bypassed.
fn parse_host(name: &[u8]) -> Result<Host, &'static str> {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(byte);
    let Some(text) = std::str::from_utf8(name).ok().filter(|_| !name.is_empty() && name.iter().all(fits)) else {
        return Err("malformed host name");
    };
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    match bare.parse() {
        Ok(address) => Ok(Host::Ip(address)),
        Err(_) if text.contains([':', '[', ']']) => Err("malformed host name"),
        // Other spellings that a resolver takes for an IPv4 address (127.1, 0x7f.0.0.1) end in a number; no host name
        // does (RFC 3696, section 2).
        Err(_) if ends_in_number(text) => Err("malformed host name"),
        Err(_) => Ok(Host::Name(text.to_ascii_lowercase())),
    }
}

fn ends_in_number(name: &str) -> bool {
    let last = name.strip_suffix('.').unwrap_or(name).rsplit('.').next().unwrap_or_default();
    let digits = last.strip_prefix("0x").or_else(|| last.strip_prefix("0X"));
    match digits {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => last.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

impl ReplyCode {
    /// All reply codes in numerical order.
    pub const ALL: [ReplyCode; 9] = [
        ReplyCode::Succeeded,
        ReplyCode::GeneralFailure,
        ReplyCode::NotAllowed,
        ReplyCode::NetworkUnreachable,
        ReplyCode::HostUnreachable,
        ReplyCode::ConnectionRefused,
        ReplyCode::TtlExpired,
        ReplyCode::CommandNotSupported,
        ReplyCode::AddressTypeNotSupported,
    ];

    /// The name in records and metrics.
    pub fn as_str(self) -> &'static str {
        REPLY_LABELS[self as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed_request(bytes: &[u8]) -> Result<Option<(String, usize)>, ProtocolError> {
        parse_request(bytes).map(|read| read.map(|(destination, used)| (destination.to_string(), used)))
    }

    /// Asserts that a message is incomplete before its last byte, and that following bytes are not consumed.
    fn needs_every_byte<T>(bytes: &[u8], read: impl Fn(&[u8]) -> ParseResult<T>) {
        for end in 0..bytes.len() {
            assert!(matches!(read(&bytes[..end]), Ok(None)), "{end} of {bytes:02x?}");
        }
        let mut more = bytes.to_vec();
        more.push(0xaa);
        assert_eq!(read(&more).ok().flatten().map(|(_, used)| used), Some(bytes.len()), "{bytes:02x?}");
    }

    #[test]
    fn parse_greeting_offered_methods() {
        let offered =
            |bytes: &[u8]| parse_greeting(bytes).map(|read| read.map(|(offered, _)| (offered.none, offered.password)));
        assert_eq!(offered(&[5, 1, 0]), Ok(Some((true, false))));
        assert_eq!(offered(&[5, 2, 0, 2]), Ok(Some((true, true))));
        assert_eq!(offered(&[5, 3, 1, 0x80, 2]), Ok(Some((false, true))));
        assert_eq!(offered(&[5, 0]), Ok(Some((false, false))));
        // Detected at the first byte: SOCKS4, HTTP, TLS.
        for first in [4, b'G', 0x16, 0] {
            assert_eq!(offered(&[first]), Err(ProtocolError::Version(first)));
        }
        needs_every_byte(&[5, 2, 0, 2], parse_greeting);
        needs_every_byte(&[5, 0], parse_greeting);
        assert_eq!(method_reply(AuthMethod::Password), [5, 2]);
        assert_eq!(method_reply(AuthMethod::Unacceptable), [5, 0xff]);
    }

    #[test]
    fn parse_login_user_and_password() {
        let read = |bytes: &[u8]| {
            parse_login(bytes)
                .map(|read| read.map(|(login, used)| (login.user.to_vec(), login.password.to_vec(), used)))
        };
        assert_eq!(read(b"\x01\x02me\x03p\0w"), Ok(Some((b"me".to_vec(), b"p\0w".to_vec(), 8))));
        assert_eq!(read(&[1, 0, 0]), Ok(Some((vec![], vec![], 3))));
        assert_eq!(read(&[5]), Err(ProtocolError::LoginVersion(5)));
        let longest = [&[1, 255][..], &[b'u'; 255], &[255], &[b'p'; 255]].concat();
        assert_eq!(longest.len(), MAX_MESSAGE_BYTES);
        needs_every_byte(&longest, |bytes| parse_login(bytes).map(|read| read.map(|(_, used)| ((), used))));
        assert_eq!((login_reply(true), login_reply(false)), ([1, 0], [1, 1]));
    }

    #[test]
    fn parse_request_addresses_and_names() {
        for (bytes, expected) in [
            (&b"\x05\x01\0\x01\x0a\0\0\x01\x01\xbb"[..], "10.0.0.1:443"),
            (b"\x05\x01\0\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\0\x50", "[2001:db8::1]:80"),
            (b"\x05\x01\0\x03\x0bExample.com\x19\x2b", "example.com:6443"),
            (b"\x05\x01\0\x03\x0cexample.com.\0\x01", "example.com.:1"),
            (b"\x05\x01\0\x03\x0810.0.0.1\x01\xbb", "10.0.0.1:443"),
            (b"\x05\x01\0\x03\x03::1\0\x01", "[::1]:1"),
            (b"\x05\x01\0\x03\x05[::1]\0\x01", "[::1]:1"),
            (b"\x05\x01\0\x03\x061.exam\0\0", "1.exam:0"),
            (b"\x05\x01\0\x03\x05a_b-c\0\x01", "a_b-c:1"),
        ] {
            assert_eq!(parsed_request(bytes), Ok(Some((expected.to_owned(), bytes.len()))));
            needs_every_byte(bytes, parse_request);
        }
        let longest = [&[5, 1, 0, 3, 255][..], &[b'a'; 255], &[0, 1]].concat();
        needs_every_byte(&longest, parse_request);
    }

    #[test]
    fn parse_request_rejects_unsupported_with_reply_code() {
        let of = |bytes: &[u8]| match parse_request(bytes) {
            Err(ProtocolError::Request(reply, _)) => Some(reply),
            _ => None,
        };
        assert_eq!(of(b"\x05\x02\0\x01\0\0\0\0\0\0"), Some(ReplyCode::CommandNotSupported));
        assert_eq!(of(b"\x05\x03\0\x03\x01a\0\0"), Some(ReplyCode::CommandNotSupported));
        assert_eq!(of(b"\x05\x01\0\x02"), Some(ReplyCode::AddressTypeNotSupported));
        assert_eq!(of(b"\x05\x01\x01\x01\0\0\0\0\0\0"), Some(ReplyCode::GeneralFailure));
        for name in [&b""[..], b"a\0b", b"a b", b"\xff", b"a:b", b"[a]", b"fe80::1%eth0", b"a/b", b"a\nb"] {
            let bytes = [&[5, 1, 0, 3, name.len() as u8][..], name, &[0, 1]].concat();
            assert_eq!(of(&bytes), Some(ReplyCode::GeneralFailure), "{name:?}");
        }
        // Spellings of addresses that resolvers understand and rules do not.
        for name in
            ["127.1", "2130706433", "0x7f.0.0.1", "0x7f000001", "127.0.0.01", "1.2.3.4.", "10.0.0.0x1", "a..", "."]
        {
            let bytes = [&[5, 1, 0, 3, name.len() as u8][..], name.as_bytes(), &[0, 1]].concat();
            assert_eq!(of(&bytes), Some(ReplyCode::GeneralFailure), "{name:?}");
        }
        assert_eq!(parse_request(&[4, 1]), Err(ProtocolError::Version(4)));
    }

    #[test]
    fn reply_codes_match_rfc_1928() {
        for (number, of) in ReplyCode::ALL.into_iter().enumerate() {
            assert_eq!(connect_reply(of), [5, number as u8, 0, 1, 0, 0, 0, 0, 0, 0]);
            // The name without underscores is the variant's name.
            assert_eq!(of.as_str().replace('_', ""), format!("{of:?}").to_lowercase());
        }
    }
}
