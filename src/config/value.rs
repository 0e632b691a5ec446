//! Values of flags, and their parsers, compatible with Go's flag packages.

use crate::process::csv::parse_quoted_field;

/// The values of one flag; a list may have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FlagValue {
    pub(super) values: Vec<String>,
    pub(super) source: ValueSource,
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ValueSource {
    CommandLine,
    Environment,
    /// The file with its line, and the field in it.
    File {
        location: String,
        field: String,
    },
}

/// Splits a comma list. A part in double quotes may hold commas, and `""` inside it is one quote, as
/// in CSV. An empty text is an empty list.
pub(super) fn parse_list(text: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut rest = (!text.is_empty()).then_some(text);
    while let Some(part) = rest {
        let (mut field, after) = match part.strip_prefix('"') {
            None => (String::new(), part),
            // Without a closing quote, the field has all of the text.
            Some(quoted) => parse_quoted_field(quoted).unwrap_or_else(|_| (quoted.replace("\"\"", "\""), "")),
        };
        let (unquoted, next) = after.split_once(',').map_or((after, None), |(unquoted, next)| (unquoted, Some(next)));
        field.push_str(unquoted);
        parts.push(field);
        rest = next;
    }
    parts
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
