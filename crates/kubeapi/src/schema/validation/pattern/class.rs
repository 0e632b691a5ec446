//! Character classes and escape sequences of Go's syntax.
//!
//! Functions read from the beginning of a text and return what follows.

use super::code_points::{CodePoints, CodePointsBuilder, MAX_CODE_POINT};
use super::syntax_error::{ElementLimit, PatternError, SyntaxErrorCode};
use super::unicode::{fold_case, named_set};

/// Names of POSIX and what they stand for.
const POSIX_CLASSES: [(&str, &[(char, char)]); 14] = [
    ("alnum", &[('0', '9'), ('A', 'Z'), ('a', 'z')]),
    ("alpha", &[('A', 'Z'), ('a', 'z')]),
    ("ascii", &[('\0', '\x7F')]),
    ("blank", &[('\t', '\t'), (' ', ' ')]),
    ("cntrl", &[('\0', '\x1F'), ('\x7F', '\x7F')]),
    ("digit", DIGITS),
    ("graph", &[('!', '~')]),
    ("lower", &[('a', 'z')]),
    ("print", &[(' ', '~')]),
    ("punct", &[('!', '/'), (':', '@'), ('[', '`'), ('{', '~')]),
    ("space", &[('\t', '\r'), (' ', ' ')]),
    ("upper", &[('A', 'Z')]),
    ("word", WORD_CHARACTERS),
    ("xdigit", &[('0', '9'), ('A', 'F'), ('a', 'f')]),
];
const DIGITS: &[(char, char)] = &[('0', '9')];
const WORD_CHARACTERS: &[(char, char)] = &[('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')];
/// Without the vertical tab, unlike `[[:space:]]`.
const PERL_SPACES: &[(char, char)] = &[('\t', '\n'), ('\x0C', '\r'), (' ', ' ')];

/// A value and the text that follows it.
type Parsed<'a, T> = Result<(T, &'a str), PatternError>;

/// The part of `text` before `rest`, which is its end.
pub(super) fn before<'a>(text: &'a str, rest: &str) -> &'a str {
    &text[..text.len() - rest.len()]
}

/// Takes the first character off.
pub(super) fn split_first(text: &str) -> Option<(char, &str)> {
    let mut rest = text.chars();
    Some((rest.next()?, rest.as_str()))
}

/// Parses a class in brackets, with the bracket that begins it.
pub(super) fn parse_class<'a>(text: &'a str, folds_case: bool, limit: &mut ElementLimit) -> Parsed<'a, CodePoints> {
    let mut members = CodePointsBuilder::default();
    let mut rest = text.get(1..).unwrap_or_default();
    let is_negated = rest.starts_with('^');
    rest = rest.strip_prefix('^').unwrap_or(rest);
    let mut is_first = true;
    // A bracket at the beginning is a member.
    while is_first || !rest.starts_with(']') {
        is_first = false;
        let (set, after) = match parse_set(rest, folds_case)? {
            Some(parsed) => parsed,
            None => parse_range(rest, text, folds_case)?,
        };
        limit.count(set.ranges().len())?;
        members.add_set(&set);
        rest = after;
    }
    let members = members.build();
    Ok((if is_negated { members.complement() } else { members }, &rest[1..]))
}

/// Parses a character or a range in a class.
fn parse_range<'a>(text: &'a str, class: &str, folds_case: bool) -> Parsed<'a, CodePoints> {
    let (first, mut rest) = parse_member(text, class)?;
    let mut last = first;
    // A hyphen before the final bracket is a member.
    if let Some(end) = rest.strip_prefix('-').filter(|end| !end.is_empty() && !end.starts_with(']')) {
        (last, rest) = parse_member(end, class)?;
        if last < first {
            return Err(SyntaxErrorCode::InvalidCharacterRange.at(before(text, rest)));
        }
    }
    Ok((folded([(first, last)].into_iter().collect(), folds_case), rest))
}

fn parse_member<'a>(text: &'a str, class: &str) -> Parsed<'a, u32> {
    match split_first(text) {
        None => Err(SyntaxErrorCode::MissingBracket.at(class)),
        Some(('\\', _)) => parse_escape(text),
        Some((member, rest)) => Ok((member.into(), rest)),
    }
}

/// Parses a named set of a class: `[:alpha:]`, `\p{Greek}`, `\d`.
fn parse_set(text: &str, folds_case: bool) -> Result<Option<(CodePoints, &str)>, PatternError> {
    if let Some(end) = text.strip_prefix("[:").and_then(|inner| inner.find(":]")) {
        let (name, rest) = text.split_at(end + "[::]".len());
        let word = &name[2..name.len() - 2];
        let class_name = word.strip_prefix('^').unwrap_or(word);
        let Some((_, ranges)) = POSIX_CLASSES.iter().find(|(class, _)| *class == class_name) else {
            return Err(SyntaxErrorCode::InvalidCharacterRange.at(name));
        };
        return Ok(Some((set_of(ranges, class_name.len() < word.len(), folds_case), rest)));
    }
    parse_set_escape(text, folds_case)
}

/// Parses an escape sequence that stands for several code points: `\d`, `\pL`, `\P{Greek}`.
pub(super) fn parse_set_escape(text: &str, folds_case: bool) -> Result<Option<(CodePoints, &str)>, PatternError> {
    let Some((letter, rest)) = text.strip_prefix('\\').and_then(split_first) else { return Ok(None) };
    let ranges = match letter.to_ascii_lowercase() {
        'd' => DIGITS,
        's' => PERL_SPACES,
        'w' => WORD_CHARACTERS,
        'p' => return parse_unicode_set(text, folds_case).map(Some),
        _ => return Ok(None),
    };
    Ok(Some((set_of(ranges, letter.is_ascii_uppercase(), folds_case), rest)))
}

/// Parses `\pL`, `\p{Greek}`, `\p{^Greek}`, and the same with `\P`.
fn parse_unicode_set(text: &str, folds_case: bool) -> Parsed<'_, CodePoints> {
    let inner = &text[2..];
    let end = if inner.starts_with('{') {
        inner.find('}').map(|end| end + 1)
    } else {
        Some(inner.chars().next().map_or(0, char::len_utf8))
    };
    let Some(end) = end else { return Err(SyntaxErrorCode::InvalidCharacterRange.at(text)) };
    let (name, rest) = inner.split_at(end);
    let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
    let property = name.strip_prefix('^').unwrap_or(name);
    let is_negated = text.starts_with("\\P") != (property.len() < name.len());
    let set = named_set(property, folds_case);
    let set = set.ok_or_else(|| SyntaxErrorCode::InvalidCharacterRange.at(before(text, rest)))?;
    Ok((if is_negated { set.complement() } else { set }, rest))
}

fn set_of(ranges: &[(char, char)], is_negated: bool, folds_case: bool) -> CodePoints {
    let set = ranges.iter().map(|(first, last)| (u32::from(*first), u32::from(*last))).collect();
    let set = folded(set, folds_case);
    if is_negated { set.complement() } else { set }
}

fn folded(set: CodePoints, folds_case: bool) -> CodePoints {
    if folds_case { fold_case(&set) } else { set }
}

/// Parses an escape sequence that stands for one code point.
pub(super) fn parse_escape(text: &str) -> Parsed<'_, u32> {
    let Some((escaped, rest)) = text.strip_prefix('\\').and_then(split_first) else {
        return Err(SyntaxErrorCode::TrailingBackslash.at(""));
    };
    let code_point = match escaped {
        // One digit other than 0 would be a reference to a group.
        '0'..='7' if escaped == '0' || rest.starts_with(|next| matches!(next, '0'..='7')) => {
            let digits = rest.bytes().take(2).take_while(|digit| matches!(digit, b'0'..=b'7')).count();
            let (digits, rest) = rest.split_at(digits);
            let first = u32::from(escaped) - u32::from('0');
            let value = digits.bytes().fold(first, |value, digit| value * 8 + u32::from(digit - b'0'));
            return Ok((value, rest));
        }
        'x' => return parse_hexadecimal(text, rest),
        'a' => 0x07,
        'f' => 0x0C,
        'n' => 0x0A,
        'r' => 0x0D,
        't' => 0x09,
        'v' => 0x0B,
        other if other.is_ascii() && !other.is_ascii_alphanumeric() => other.into(),
        _ => return Err(SyntaxErrorCode::InvalidEscape.at(before(text, rest))),
    };
    Ok((code_point, rest))
}

/// Parses `\x41` or `\x{1F600}`. Its digits are `digits`.
fn parse_hexadecimal<'a>(text: &'a str, digits: &'a str) -> Parsed<'a, u32> {
    let invalid = |rest: &str| SyntaxErrorCode::InvalidEscape.at(before(text, rest));
    let mut rest = digits;
    let mut next = || {
        let (digit, after) = split_first(rest)?;
        rest = after;
        Some((digit, after))
    };
    let Some((first, after_first)) = next() else { return Err(invalid(digits)) };
    if first != '{' {
        let Some((second, after)) = next() else { return Err(invalid(after_first)) };
        let value = first.to_digit(16).zip(second.to_digit(16)).map(|(high, low)| high * 16 + low);
        return value.map(|value| (value, after)).ok_or_else(|| invalid(after));
    }
    let (mut value, mut has_digits) = (0, false);
    while let Some((digit, after)) = next() {
        match digit.to_digit(16) {
            None if digit == '}' && has_digits => return Ok((value, after)),
            None => return Err(invalid(after)),
            Some(digit) => value = value * 16 + digit,
        }
        if value > MAX_CODE_POINT {
            return Err(invalid(after));
        }
        has_digits = true;
    }
    Err(invalid(""))
}
