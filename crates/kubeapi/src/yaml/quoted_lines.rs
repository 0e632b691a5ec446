//! Lines of quoted scalars that are not indented more than the mapping around them. Kubernetes' parser, a port of libyaml,
//! reads them; the one here, which follows YAML 1.2, does not.

use granit_parser::{ErrorKind, Parser, ScanError};

/// Bytes of text that are parsed again at most, because of lines that were indented.
const MAX_WORK: usize = 16 << 20;

/// Indents the lines that the parser refuses, scalar by scalar. White space at the beginning of such a line is not part of
/// the scalar, so that the document stays what it is.
#[derive(Default)]
pub(super) struct QuotedLineIndenter {
    work: usize,
    last_place: Option<usize>,
}

impl QuotedLineIndenter {
    /// The text to parse instead of `text`, which was refused with `error`; none if that has another cause, or there is too
    /// much to indent.
    pub(super) fn indent(&mut self, text: &str, error: &ScanError) -> Option<String> {
        let offset = error.marker().byte_offset().filter(|_| *error.kind() == ErrorKind::InvalidQuotedScalarIndent)?;
        let start = text.get(..offset)?.rfind('\n')? + 1;
        self.work = self.work.saturating_add(2 * text.len());
        if self.work > MAX_WORK || self.last_place.is_some_and(|last| start <= last) {
            return None;
        }
        self.last_place = Some(start);
        let (before, rest) = text.split_at(start);
        let (lines, after) = rest.split_at(scalar_end(rest, is_single_quoted(before)));
        let indentation = " ".repeat(deepest_indentation(before) + 1);
        let mut indented = String::with_capacity(text.len() + 4096);
        indented.push_str(before);
        for line in lines.split_inclusive('\n') {
            // A document ends even within a scalar.
            if !line.trim_ascii().is_empty() && !line.starts_with("---") && !line.starts_with("...") {
                indented.push_str(&indentation);
            }
            indented.push_str(line);
            if indented.len() > 2 * text.len() + 4096 {
                return None;
            }
        }
        indented.push_str(after);
        Some(indented)
    }
}

/// Whether the scalar that is open at the end of a text is in single quotes: one more closes it.
fn is_single_quoted(before: &str) -> bool {
    let closed = format!("{before}'");
    Parser::new_from_str(&closed).all(|event| event.is_ok())
}

/// Where the rest of a scalar ends, after its closing quote.
fn scalar_end(rest: &str, is_single: bool) -> usize {
    let bytes = rest.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' if !is_single => at += 1,
            b'"' if !is_single => return at + 1,
            b'\'' if is_single && bytes.get(at + 1) == Some(&b'\'') => at += 1,
            b'\'' if is_single => return at + 1,
            _ => {}
        }
        at += 1;
    }
    rest.len()
}

/// The largest column at which a mapping may begin.
fn deepest_indentation(text: &str) -> usize {
    let indentation = |line: &str| line.len() - line.trim_start_matches([' ', '-', '?']).len();
    text.lines().map(indentation).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::yaml::read_yaml;

    #[test]
    fn yaml_quoted_lines_without_indentation_read_as_by_kubernetes() {
        for (text, expected) in [
            ("a: \"x\ny\"\nb: 1\n", json!({"a": "x y", "b": 1})),
            ("a:\n  b: \"x\n  y\n  z\"\n  c: 'one\n\n  it''s'\n", json!({"a": {"b": "x y z", "c": "one\nit's"}})),
            ("a:\n  b: \"x\ny\\\n  z\"\n  l:\n  - \"a\n  b\"\n", json!({"a": {"b": "x yz", "l": ["a b"]}})),
            ("- - a: 'x\n\"y\" # no comment\n    '\n    b: 2\n", json!([[{"a": "x \"y\" # no comment ", "b": 2}]])),
            ("a: \"x\n\\\"y: '\n\"\nb: \"'\nz\"\n", json!({"a": "x \"y: ' ", "b": "' z"})),
        ] {
            assert_eq!(read_yaml(text).map(|document| document.value), Ok(expected), "{text}");
        }
    }

    #[test]
    fn yaml_unquoted_and_unclosed_lines_without_indentation_refused() {
        for text in ["a: x\ny\nb: 1\n", "a: \"x\ny\nb: 1\n", "a: \"x\n--- y\"\n", "a:\n  b: \"x\ny\n...\n"] {
            assert!(read_yaml(text).is_err(), "{text}");
        }
    }

    #[test]
    fn yaml_quoted_lines_are_indented_while_work_is_left() {
        let text = format!("a: \"x\n{}\"\n", "y\n".repeat(2000));
        let error = Parser::new_from_str(&text).find_map(Result::err).unwrap();
        for (work, is_indented) in [(0, true), (MAX_WORK, false)] {
            let mut indenter = QuotedLineIndenter { work, last_place: None };
            let indented = indenter.indent(&text, &error);
            assert_eq!(indented.is_some(), is_indented);
            // The same line is not indented twice.
            assert_eq!(indenter.indent(&text, &error), None);
        }
        assert!(read_yaml(&text).is_ok());
    }
}
