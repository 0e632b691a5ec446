//! Values as the command line writes them, the same as Go's flag packages read them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// Splits a comma list; a part in double quotes may hold commas, and `""` inside it is one quote, as
/// in CSV. An empty text is an empty list.
pub(super) fn list(text: &str) -> Vec<String> {
    if text.is_empty() {
        return Vec::new();
    }
    let mut parts = vec![String::new()];
    let mut letters = text.chars().peekable();
    let mut quoted = false;
    while let Some(letter) = letters.next() {
        let at_start = parts.last().is_some_and(String::is_empty);
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                push(&mut parts, '"');
            }
            '"' if quoted => quoted = false,
            '"' if at_start => quoted = true,
            ',' if !quoted => parts.push(String::new()),
            letter => push(&mut parts, letter),
        }
    }
    parts
}

fn push(parts: &mut [String], letter: char) {
    if let Some(last) = parts.last_mut() {
        last.push(letter);
    }
}

/// `true` or `false` in every spelling that Go's strconv.ParseBool takes.
pub(super) fn switch(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("use true or false"),
    }
}

/// `IP:PORT`, `[IP]:PORT` or `localhost:PORT`.
pub(super) fn address(text: &str) -> Result<SocketAddr, &'static str> {
    if let Some(port) = text.strip_prefix("localhost:") {
        let port = port.parse().map_err(|_| "use a port from 0 to 65535")?;
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port));
    }
    text.parse().map_err(|_| "use an address and a port, such as 127.0.0.1:6480 or [::1]:6480")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comma_lists() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            ("a", &["a"]),
            ("a,b", &["a", "b"]),
            ("a,,b,", &["a", "", "b", ""]),
            ("\"Acme, Inc\",b", &["Acme, Inc", "b"]),
            ("\"a \"\"b\"\"\"", &["a \"b\""]),
            ("a\"b", &["a\"b"]),
            ("\"open, never closed", &["open, never closed"]),
        ];
        for (text, expected) in cases {
            assert_eq!(list(text), *expected, "{text}");
        }
    }

    #[test]
    fn switches() {
        for text in ["true", "True", "1", "t"] {
            assert_eq!(switch(text), Ok(true));
        }
        for text in ["false", "FALSE", "0", "f"] {
            assert_eq!(switch(text), Ok(false));
        }
        for text in ["", "yes", "on", "2"] {
            assert!(switch(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses() {
        assert_eq!(address("localhost:0").unwrap().to_string(), "127.0.0.1:0");
        assert_eq!(address("[::1]:6480").unwrap().to_string(), "[::1]:6480");
        for text in ["", "6480", ":6480", "example.com:1", "127.0.0.1", "localhost:70000"] {
            assert!(address(text).is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_holds_no_quote_is_split_at_commas(text in "[^\"]+") {
            proptest::prop_assert_eq!(list(&text), text.split(',').collect::<Vec<_>>());
        }
    }
}
