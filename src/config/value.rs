//! Parsers of flag values, compatible with Go's flag packages.

/// Splits a comma list. A part in double quotes may hold commas, and `""` inside it is one quote, as
/// in CSV. An empty text is an empty list.
pub(super) fn parse_list(text: &str) -> Vec<String> {
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

/// Parses a boolean in every spelling of Go's strconv.ParseBool.
pub(super) fn parse_bool(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("use true or false"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_list_of_commas_and_quotes() {
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
            assert_eq!(parse_list(text), *expected, "{text}");
        }
    }

    #[test]
    fn parse_bool_as_go() {
        for text in ["true", "True", "1", "t"] {
            assert_eq!(parse_bool(text), Ok(true));
        }
        for text in ["false", "FALSE", "0", "f"] {
            assert_eq!(parse_bool(text), Ok(false));
        }
        for text in ["", "yes", "on", "2"] {
            assert!(parse_bool(text).is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_holds_no_quote_is_split_at_commas(text in "[^\"]+") {
            proptest::prop_assert_eq!(parse_list(&text), text.split(',').collect::<Vec<_>>());
        }
    }
}
