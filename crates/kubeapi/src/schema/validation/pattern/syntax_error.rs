//! Why an expression is refused, with Go's texts.

use std::fmt::{self, Display, Formatter};

/// Maximum number of characters, ranges and operators of an expression. It bounds the memory that is used before the
/// size of the compiled expression is known.
const MAX_ELEMENTS: usize = 1 << 18;

/// What is wrong with an expression (`ErrorCode` of `regexp/syntax`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum SyntaxErrorCode {
    InvalidCharacterRange,
    InvalidEscape,
    InvalidGroupName,
    InvalidGroup,
    InvalidNestedRepetition,
    InvalidRepeatCount,
    MissingBracket,
    MissingParenthesis,
    MissingRepeatArgument,
    TrailingBackslash,
    UnexpectedParenthesis,
    NestingDepth,
}

impl SyntaxErrorCode {
    fn text(self) -> &'static str {
        match self {
            SyntaxErrorCode::InvalidCharacterRange => "invalid character class range",
            SyntaxErrorCode::InvalidEscape => "invalid escape sequence",
            SyntaxErrorCode::InvalidGroupName => "invalid named capture",
            SyntaxErrorCode::InvalidGroup => "invalid or unsupported Perl syntax",
            SyntaxErrorCode::InvalidNestedRepetition => "invalid nested repetition operator",
            SyntaxErrorCode::InvalidRepeatCount => "invalid repeat count",
            SyntaxErrorCode::MissingBracket => "missing closing ]",
            SyntaxErrorCode::MissingParenthesis => "missing closing )",
            SyntaxErrorCode::MissingRepeatArgument => "missing argument to repetition operator",
            SyntaxErrorCode::TrailingBackslash => "trailing backslash at end of expression",
            SyntaxErrorCode::UnexpectedParenthesis => "unexpected )",
            SyntaxErrorCode::NestingDepth => "expression nests too deeply",
        }
    }

    /// The error about a part of the expression.
    pub(super) fn at(self, part: &str) -> PatternError {
        PatternError::Syntax(self, part.to_owned())
    }
}

/// Why an expression cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PatternError {
    /// Go refuses it as well. With the part that is wrong.
    Syntax(SyntaxErrorCode, String),
    /// Go accepts it, but it exceeds a limit of memory here.
    TooLarge,
    /// It could not be compiled for another reason.
    Internal(&'static str),
}

impl Display for PatternError {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            PatternError::Syntax(code, part) => write!(formatter, "error parsing regexp: {}: `{part}`", code.text()),
            PatternError::TooLarge => formatter.write_str("error compiling regexp: expression needs too much memory"),
            PatternError::Internal(why) => write!(formatter, "error compiling regexp: {why}"),
        }
    }
}

/// How many more elements an expression may have.
#[derive(Debug)]
pub(super) struct ElementLimit(usize);

impl Default for ElementLimit {
    fn default() -> ElementLimit {
        ElementLimit(MAX_ELEMENTS)
    }
}

impl ElementLimit {
    /// Counts elements.
    pub(super) fn count(&mut self, elements: usize) -> Result<(), PatternError> {
        self.0 = self.0.checked_sub(elements).ok_or(PatternError::TooLarge)?;
        Ok(())
    }
}
