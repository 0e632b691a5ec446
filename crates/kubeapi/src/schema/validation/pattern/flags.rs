//! Flags of an expression, and what begins with `(?`.

use super::class::{before, split_first};
use super::syntax_error::{PatternError, SyntaxErrorCode};

/// Flags that change what matches. `U` changes only which match is preferred.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    /// `i`
    pub(super) folds_case: bool,
    /// `m`
    pub(super) is_multi_line: bool,
    /// `s`
    pub(super) dot_matches_newline: bool,
}

/// The beginning of a group, or flags alone.
#[derive(Debug)]
pub(super) enum GroupStart {
    /// `(?P<name>` or `(?<name>`
    Named,
    /// `(?i:`
    Unnamed(Flags),
    /// `(?i)`
    NoGroup(Flags),
}

impl GroupStart {
    /// Parses text that begins with `(?`. Without other flags, those of `flags` hold.
    pub(super) fn parse(text: &str, flags: Flags) -> Result<(GroupStart, &str), PatternError> {
        let named = text.strip_prefix("(?P<").or_else(|| text.strip_prefix("(?<"));
        match named.filter(|rest| !rest.is_empty()) {
            Some(rest) => parse_name(text, rest),
            None => parse_flags(text, flags),
        }
    }
}

/// Parses the name of a group, which begins with `name`.
fn parse_name<'a>(text: &'a str, name: &'a str) -> Result<(GroupStart, &'a str), PatternError> {
    let Some((name, rest)) = name.split_once('>') else {
        return Err(SyntaxErrorCode::InvalidGroupName.at(text));
    };
    if name.is_empty() || !name.bytes().all(|next| next == b'_' || next.is_ascii_alphanumeric()) {
        return Err(SyntaxErrorCode::InvalidGroupName.at(before(text, rest)));
    }
    Ok((GroupStart::Named, rest))
}

fn parse_flags(text: &str, mut flags: Flags) -> Result<(GroupStart, &str), PatternError> {
    let (mut is_set, mut has_flag) = (true, false);
    let mut rest = text.get(2..).unwrap_or_default();
    while let Some((next, after)) = split_first(rest) {
        rest = after;
        has_flag = match next {
            '-' if is_set => {
                is_set = false;
                false
            }
            ':' if is_set || has_flag => return Ok((GroupStart::Unnamed(flags), rest)),
            ')' if is_set || has_flag => return Ok((GroupStart::NoGroup(flags), rest)),
            'i' | 'm' | 's' | 'U' => {
                match next {
                    'i' => flags.folds_case = is_set,
                    'm' => flags.is_multi_line = is_set,
                    's' => flags.dot_matches_newline = is_set,
                    _ => {}
                }
                true
            }
            _ => break,
        };
    }
    Err(SyntaxErrorCode::InvalidGroup.at(before(text, rest)))
}
