//! Parser of Go's syntax (`regexp/syntax`, flags as `regexp.Compile` sets them).
//!
//! It writes an expression for the `regex` crate that matches the same texts. Only whether something matches is
//! needed. So groups have no names, and it does not matter which match is preferred.
//!
//! The parser has a stack of its own. As in Go, nesting of operators is limited: Go counts it after it has factored out
//! common beginnings of alternatives, which is not done here. So an expression with alternatives that nests about 1000
//! operators can be refused by only one of both.

use super::class::{before, parse_class, parse_escape, parse_set_escape, split_first};
use super::code_points::{ANY_CHARACTER_WEIGHT, CodePoints};
use super::flags::{Flags, GroupStart};
use super::piece::{Alternatives, MAX_COPIES, Piece, PieceKind, Repetition};
use super::syntax_error::{ElementLimit, PatternError, SyntaxErrorCode};
use super::unicode::fold_case;

/// Maximum height of the tree of operators.
const MAX_HEIGHT: usize = 1000;
/// Characters that begin an operator for the piece before it.
const REPETITION_OPERATORS: [char; 4] = ['*', '+', '?', '{'];

/// An expression for the `regex` crate.
#[derive(Debug)]
pub(super) struct Translation {
    /// The expression.
    pub(super) text: String,
    /// Height of its tree of operators.
    pub(super) height: usize,
    /// How large it is when it is compiled; see `Piece`.
    pub(super) weight: usize,
}

/// Translates an expression.
///
/// # Errors
/// Those of Go, and one for an expression that is too large.
pub(super) fn translate(expression: &str) -> Result<Translation, PatternError> {
    Parser::new(expression).parse()
}

/// A group that is not closed yet, or the whole expression.
#[derive(Debug, Default)]
struct Group {
    /// Flags that hold after it.
    flags: Flags,
    captures: bool,
    /// Where its text begins.
    start: usize,
    /// Pieces of the alternative that is being read.
    pieces: Vec<Piece>,
    /// What was read before it.
    alternatives: Option<Alternatives>,
}

struct Parser<'a> {
    expression: &'a str,
    flags: Flags,
    /// Groups around `current`.
    outer: Vec<Group>,
    current: Group,
    text: String,
    limit: ElementLimit,
}

impl<'a> Parser<'a> {
    fn new(expression: &'a str) -> Parser<'a> {
        Parser {
            expression,
            flags: Flags::default(),
            outer: Vec::new(),
            current: Group::default(),
            text: String::new(),
            limit: ElementLimit::default(),
        }
    }

    fn parse(mut self) -> Result<Translation, PatternError> {
        let mut rest = self.expression;
        // Where the operator begins that ends before `rest`.
        let mut last_repetition = None;
        while let Some((next, after)) = split_first(rest) {
            let mut repetition = None;
            self.limit.count(1)?;
            rest = match next {
                '(' if after.starts_with('?') => self.parse_group_start(rest)?,
                '(' => {
                    self.open_group(true);
                    after
                }
                '|' => {
                    self.end_alternative()?;
                    self.text.push('|');
                    after
                }
                ')' => {
                    self.close_group()?;
                    after
                }
                '^' => self.push_text(if self.flags.is_multi_line { "(?m:^)" } else { r"\A" }).map(|()| after)?,
                '$' => self.push_text(if self.flags.is_multi_line { "(?m:$)" } else { r"\z" }).map(|()| after)?,
                '.' => {
                    let text = if self.flags.dot_matches_newline { "(?s:.)" } else { "." };
                    self.push(PieceKind::Class, ANY_CHARACTER_WEIGHT, |out| out.push_str(text))?;
                    after
                }
                '[' => {
                    let (class, after) = parse_class(rest, self.flags.folds_case, &mut self.limit)?;
                    self.push_class(&class)?;
                    after
                }
                next if REPETITION_OPERATORS.contains(&next) => match Repetition::parse(rest)? {
                    Some((operator, after)) => {
                        repetition = Some(rest);
                        self.repeat(&operator, rest, after, last_repetition)?
                    }
                    None => self.push_literal(next.into()).map(|()| after)?,
                },
                '\\' => self.parse_backslash(rest)?,
                other => self.push_literal(other.into()).map(|()| after)?,
            };
            last_repetition = repetition;
        }
        let whole = self.end_group()?;
        if !self.outer.is_empty() {
            return Err(SyntaxErrorCode::MissingParenthesis.at(self.expression));
        }
        Ok(Translation { text: self.text, height: whole.height, weight: whole.weight })
    }

    /// Parses what begins with a backslash outside of a class.
    fn parse_backslash(&mut self, text: &'a str) -> Result<&'a str, PatternError> {
        let after = text.get(2..).unwrap_or_default();
        match text.as_bytes().get(1) {
            Some(b'A') => return self.push_text(r"\A").map(|()| after),
            Some(b'z') => return self.push_text(r"\z").map(|()| after),
            // Word characters are those of ASCII.
            Some(b'b') => return self.push_text(r"(?-u:\b)").map(|()| after),
            Some(b'B') => return self.push_text(r"(?-u:\B)").map(|()| after),
            Some(b'Q') => {
                let (literal, rest) = after.split_once(r"\E").unwrap_or((after, ""));
                for next in literal.chars() {
                    self.limit.count(1)?;
                    self.push_literal(next.into())?;
                }
                return Ok(rest);
            }
            _ => {}
        }
        if let Some((set, rest)) = parse_set_escape(text, self.flags.folds_case)? {
            self.limit.count(set.ranges().len())?;
            self.push_class(&set)?;
            return Ok(rest);
        }
        let (code_point, rest) = parse_escape(text)?;
        self.push_literal(code_point).map(|()| rest)
    }

    /// Parses the beginning of a group that begins with `(?`, or flags in parentheses.
    fn parse_group_start(&mut self, text: &'a str) -> Result<&'a str, PatternError> {
        let (start, rest) = GroupStart::parse(text, self.flags)?;
        match start {
            GroupStart::Named => self.open_group(true),
            GroupStart::Unnamed(flags) => {
                self.open_group(false);
                self.flags = flags;
            }
            GroupStart::NoGroup(flags) => self.flags = flags,
        }
        Ok(rest)
    }

    fn push_literal(&mut self, code_point: u32) -> Result<(), PatternError> {
        let folds_case = self.flags.folds_case;
        let set: CodePoints = [(code_point, code_point)].into_iter().collect();
        let set = if folds_case { fold_case(&set) } else { set };
        self.push(PieceKind::Literal { folds_case, is_single: true }, set.weight(), |out| set.write(out))
    }

    fn push_class(&mut self, set: &CodePoints) -> Result<(), PatternError> {
        let ranges = set.ranges();
        let first = ranges.first().map(|(first, _)| *first);
        // Two code points at most can be the forms of one letter that Go sees as a literal.
        let is_letter = |first| ranges.len() <= 2 && fold_case(&[(first, first)].into_iter().collect()) == *set;
        let kind = match first {
            Some(_) if set.single().is_some() => PieceKind::Literal { folds_case: false, is_single: true },
            Some(first) if is_letter(first) => PieceKind::Literal { folds_case: true, is_single: true },
            _ => PieceKind::Class,
        };
        self.push(kind, set.weight(), |out| set.write(out))
    }

    fn push_text(&mut self, text: &str) -> Result<(), PatternError> {
        self.push(PieceKind::Other, 1, |out| out.push_str(text))
    }

    fn push(&mut self, kind: PieceKind, weight: usize, write: impl FnOnce(&mut String)) -> Result<(), PatternError> {
        let start = self.text.len();
        write(&mut self.text);
        self.push_piece(Piece { weight, ..Piece::new(kind, start) })
    }

    fn push_piece(&mut self, piece: Piece) -> Result<(), PatternError> {
        self.check_height(&piece)?;
        Piece::join_literals(&mut self.current.pieces);
        self.current.pieces.push(piece);
        Ok(())
    }

    fn check_height(&self, piece: &Piece) -> Result<(), PatternError> {
        if piece.height > MAX_HEIGHT {
            return Err(SyntaxErrorCode::NestingDepth.at(self.expression));
        }
        Ok(())
    }

    fn open_group(&mut self, captures: bool) {
        Piece::join_literals(&mut self.current.pieces);
        let group = Group { flags: self.flags, captures, start: self.text.len(), ..Group::default() };
        self.outer.push(std::mem::replace(&mut self.current, group));
        self.text.push_str("(?:");
    }

    fn close_group(&mut self) -> Result<(), PatternError> {
        let mut piece = self.end_group()?;
        let Some(outer) = self.outer.pop() else {
            return Err(SyntaxErrorCode::UnexpectedParenthesis.at(self.expression));
        };
        let group = std::mem::replace(&mut self.current, outer);
        self.flags = group.flags;
        self.text.push(')');
        piece.is_repetition = false;
        piece.start = group.start;
        self.push_piece(if group.captures { piece.captured() } else { piece })
    }

    /// Makes one piece of those of the last alternative and adds it to the other alternatives.
    fn end_alternative(&mut self) -> Result<(), PatternError> {
        let piece = Piece::concatenate(std::mem::take(&mut self.current.pieces), self.text.len());
        self.check_height(&piece)?;
        self.current.alternatives = Some(Alternatives::add(self.current.alternatives.take(), piece));
        Ok(())
    }

    /// Makes one piece of the current group.
    fn end_group(&mut self) -> Result<Piece, PatternError> {
        self.end_alternative()?;
        let alternatives = self.current.alternatives.take();
        let piece = alternatives.map_or(Piece::new(PieceKind::Empty, 0), |alternatives| alternatives.piece());
        self.check_height(&piece)?;
        Ok(piece)
    }

    /// Applies an operator to the last piece. The operator is at the beginning of `text`, and `last` is where the
    /// operator begins that stands immediately before it.
    fn repeat(
        &mut self,
        operator: &Repetition<'_>,
        text: &'a str,
        after: &'a str,
        last: Option<&'a str>,
    ) -> Result<&'a str, PatternError> {
        let after = after.strip_prefix('?').unwrap_or(after);
        if let Some(last) = last {
            return Err(SyntaxErrorCode::InvalidNestedRepetition.at(before(last, after)));
        }
        let Some(piece) = self.current.pieces.pop() else {
            return Err(SyntaxErrorCode::MissingRepeatArgument.at(before(text, after)));
        };
        if piece.is_repetition {
            // Flags stand between both operators.
            self.text.insert_str(piece.start, "(?:");
            self.text.push(')');
        }
        self.text.push_str(operator.text);
        let piece = piece.repeated(operator);
        self.check_height(&piece)?;
        if operator.copies() > 1 && piece.copies > MAX_COPIES {
            return Err(SyntaxErrorCode::InvalidRepeatCount.at(before(text, after)));
        }
        self.current.pieces.push(piece);
        Ok(after)
    }
}
