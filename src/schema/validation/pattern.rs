//! Regular expressions with Go's syntax (RE2, `regexp/syntax`), translated for the `regex` crate.

use std::iter::Peekable;
use std::str::Chars;
use std::sync::{Arc, OnceLock};

use regex::{Regex, RegexBuilder};

/// Maximum size of a compiled expression in bytes.
const MAX_COMPILED_BYTES: usize = 1 << 20;

/// A regular expression of a schema, compiled on first use.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: Arc<str>,
    compiled: Arc<OnceLock<Option<Regex>>>,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.text == other.text
    }
}

impl Pattern {
    /// An expression as it stands in a schema.
    pub fn new(text: &str) -> Pattern {
        Pattern { text: text.into(), compiled: Arc::default() }
    }

    /// The expression.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the expression can be compiled.
    pub fn is_valid(&self) -> bool {
        self.regex().is_some()
    }

    /// Whether some part of `text` matches. Nothing matches an expression that cannot be compiled.
    pub fn matches(&self, text: &str) -> bool {
        self.regex().is_some_and(|regex| regex.is_match(text))
    }

    fn regex(&self) -> Option<&Regex> {
        let compile = || {
            let translated = translate(&self.text);
            RegexBuilder::new(&translated)
                .size_limit(MAX_COMPILED_BYTES)
                .dfa_size_limit(MAX_COMPILED_BYTES)
                .build()
                .ok()
        };
        self.compiled.get_or_init(compile).as_ref()
    }
}

/// Writes an expression in the syntax of the `regex` crate: Perl's classes and word boundaries are of ASCII in Go, and
/// some characters are literal there that are operators here.
fn translate(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text.chars().peekable();
    let mut in_class = false;
    while let Some(next) = rest.next() {
        match next {
            '\\' => translate_escape(&mut rest, in_class, &mut out),
            '[' if !in_class => {
                in_class = true;
                out.push('[');
                if rest.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                // A bracket at the beginning is literal.
                if rest.next_if_eq(&']').is_some() {
                    out.push_str("\\]");
                }
            }
            '[' if rest.peek() == Some(&':') => {
                out.push('[');
                for inner in rest.by_ref() {
                    out.push(inner);
                    if inner == ']' {
                        break;
                    }
                }
            }
            '[' | '&' | '~' if in_class => {
                out.push('\\');
                out.push(next);
            }
            ']' if in_class => {
                in_class = false;
                out.push(']');
            }
            '{' if !in_class && !begins_repetition(rest.clone()) => out.push_str("\\{"),
            other => out.push(other),
        }
    }
    out
}

fn translate_escape(rest: &mut Peekable<Chars<'_>>, in_class: bool, out: &mut String) {
    let Some(escaped) = rest.next() else {
        out.push('\\');
        return;
    };
    let text = match (escaped, in_class) {
        ('d', false) => "[0-9]",
        ('D', _) => "[^0-9]",
        ('w', false) => "[0-9A-Za-z_]",
        ('W', _) => "[^0-9A-Za-z_]",
        ('s', false) => "[\\t\\n\\x0C\\r ]",
        ('S', _) => "[^\\t\\n\\x0C\\r ]",
        ('d', true) => "0-9",
        ('w', true) => "0-9A-Za-z_",
        ('s', true) => "\\t\\n\\x0C\\r ",
        ('b', false) => "(?-u:\\b)",
        ('B', false) => "(?-u:\\B)",
        ('Q', false) => {
            let mut quoted = String::new();
            while let Some(next) = rest.next() {
                if next == '\\' && rest.next_if_eq(&'E').is_some() {
                    break;
                }
                quoted.push(next);
            }
            out.push_str(&regex::escape(&quoted));
            return;
        }
        ('p' | 'P' | 'x', _) => {
            out.push('\\');
            out.push(escaped);
            // A name or a number in braces.
            if rest.next_if_eq(&'{').is_some() {
                out.push('{');
                for inner in rest.by_ref() {
                    out.push(inner);
                    if inner == '}' {
                        break;
                    }
                }
            }
            return;
        }
        (other, _) => {
            out.push('\\');
            out.push(other);
            return;
        }
    };
    out.push_str(text);
}

/// Whether what follows a brace makes it a repetition: `3}`, `3,}` or `3,5}`. Otherwise it is literal.
fn begins_repetition(rest: Peekable<Chars<'_>>) -> bool {
    let inner: String = rest.take_while(|next| *next != '}').take(12).collect();
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match inner.split_once(',') {
        Some((least, "")) => is_number(least),
        Some((least, most)) => is_number(least) && is_number(most),
        None => is_number(&inner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_has_the_meaning_of_go() {
        for (pattern, text, matches) in [
            (r"^\d+$", "12", true),
            (r"^\d+$", "١٢", false),
            (r"^[\w.-]+$", "a.b-c_9", true),
            (r"^[\w.-]+$", "ä", false),
            (r"\bfoo\b", "a foo b", true),
            (r"^a{,2}$", "a{,2}", true),
            (r"^{x}$", "{x}", true),
            (r"^a{2,3}$", "aaa", true),
            (r"^[[&~]+$", "[&~", true),
            (r"^[]a]+$", "]a", true),
            (r"^[[:alpha:]]+$", "ab", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"^[^\s]+$", "a b", false),
            (r"(?i)^ABC$", "abc", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches(text), matches, "{pattern} {text}");
        }
        assert!(!Pattern::new("a(").is_valid() && !Pattern::new(r"(?=a)").is_valid());
        assert!(!Pattern::new("((a{1000}){1000}){1000}").is_valid());
    }
}
