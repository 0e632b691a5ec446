//! Quotes strings as Go's `%q`, which Kubernetes' messages use.

use std::fmt::{self, Write};

/// Displays a string in double quotes, escaped as by Go's `strconv.Quote`.
pub struct GoQuoted<'a>(pub &'a str);

impl fmt::Display for GoQuoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\x07' => f.write_str("\\a")?,
                '\x08' => f.write_str("\\b")?,
                '\x0c' => f.write_str("\\f")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                '\x0b' => f.write_str("\\v")?,
                ' '..='~' => f.write_char(c)?,
                '\0'..='\x1f' | '\x7f' => write!(f, "\\x{:02x}", u32::from(c))?,
                _ if is_print(c) => f.write_char(c)?,
                _ if u32::from(c) < 0x1_0000 => write!(f, "\\u{:04x}", u32::from(c))?,
                _ => write!(f, "\\U{:08x}", u32::from(c))?,
            }
        }
        f.write_char('"')
    }
}

/// Whether Go's `unicode.IsPrint` holds, by Rust's Unicode tables: letters, marks, numbers, punctuation and symbols.
/// `escape_debug` uses those tables, but escapes a combining mark at the start, hence the letter before it.
pub fn is_print(c: char) -> bool {
    if c == ' ' {
        return true;
    }
    let pair = ['a', c];
    let text: String = pair.iter().collect();
    text.escape_debug().nth(1) == Some(c)
}

#[cfg(test)]
mod tests {
    use super::GoQuoted;

    #[test]
    fn go_quote_matches_strconv() {
        for (text, expected) in [
            ("jane", r#""jane""#),
            (r#"a"b\c"#, r#""a\"b\\c""#),
            ("\x07\x08\x0c\n\r\t\x0b", r#""\a\b\f\n\r\t\v""#),
            ("\0\x1f\x7f", r#""\x00\x1f\x7f""#),
            ("é日\u{1f600}", "\"é日\u{1f600}\""),
            ("e\u{301}", "\"e\u{301}\""),
            ("\u{85}\u{200b}\u{2028}", r#""\u0085\u200b\u2028""#),
            ("\u{e0001}", r#""\U000e0001""#),
        ] {
            assert_eq!(GoQuoted(text).to_string(), expected);
        }
    }
}
