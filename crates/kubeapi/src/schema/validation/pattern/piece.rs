//! Pieces of an expression that an operator can apply to.

use super::syntax_error::{PatternError, SyntaxErrorCode};

/// Maximum count of a repetition, and of the copies that nested ones make.
pub(super) const MAX_COPIES: i32 = 1000;
/// From this number on, digits are not read.
const LARGE_COUNT: i32 = 100_000_000;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum PieceKind {
    /// Characters, in succession.
    Literal {
        /// Whether upper and lower case are the same.
        folds_case: bool,
        /// Whether it is one character.
        is_single: bool,
    },
    /// One of several characters.
    Class,
    Concatenation,
    Alternation,
    Empty,
    Other,
}

/// A part of the text of the translated expression, with what Go's limits apply to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) kind: PieceKind,
    /// Where its text begins.
    pub(super) start: usize,
    /// Height of its tree of operators.
    pub(super) height: usize,
    /// How many copies nested repetitions make of something.
    pub(super) copies: i32,
    /// Whether its text ends with a repetition.
    pub(super) is_repetition: bool,
    /// How large it is when it is compiled, with all copies that repetitions make: characters, and ranges of characters.
    pub(super) weight: usize,
}

impl Piece {
    /// A piece without inner pieces.
    pub(super) fn new(kind: PieceKind, start: usize) -> Piece {
        Piece { kind, start, height: 1, copies: 1, is_repetition: false, weight: 1 }
    }

    /// The piece in a group that captures.
    pub(super) fn captured(self) -> Piece {
        Piece { kind: PieceKind::Other, height: self.height + 1, ..self }
    }

    /// The piece with an operator that repeats it.
    pub(super) fn repeated(self, repetition: &Repetition<'_>) -> Piece {
        let copies = if repetition.max == Some(0) { 1 } else { self.copies * repetition.copies().max(1) };
        let times = usize::try_from(repetition.copies()).unwrap_or(1).max(1);
        let weight = self.weight.saturating_mul(times).saturating_add(1);
        Piece { kind: PieceKind::Other, height: self.height + 1, copies, is_repetition: true, weight, ..self }
    }

    /// Joins the last two pieces to one if they are literals.
    pub(super) fn join_literals(pieces: &mut Vec<Piece>) {
        if let [.., first, last] = &mut pieces[..]
            && let PieceKind::Literal { folds_case, is_single } = &mut first.kind
            && matches!(last.kind, PieceKind::Literal { folds_case: other, .. } if other == *folds_case)
        {
            *is_single = false;
            first.weight = first.weight.saturating_add(last.weight);
            pieces.pop();
        }
    }

    /// Makes one piece of pieces in succession.
    pub(super) fn concatenate(mut pieces: Vec<Piece>, start: usize) -> Piece {
        Piece::join_literals(&mut pieces);
        match pieces[..] {
            [] => Piece::new(PieceKind::Empty, start),
            [only] => only,
            _ => Piece {
                height: 1 + pieces.iter().map(|piece| piece.height_within(PieceKind::Concatenation)).max().unwrap_or(0),
                copies: pieces.iter().map(|piece| piece.copies).max().unwrap_or(1),
                weight: pieces.iter().fold(1, |sum, piece| piece.weight.saturating_add(sum)),
                ..Piece::new(PieceKind::Concatenation, start)
            },
        }
    }

    /// The height in an outer piece, which takes the inner pieces of one of its own kind.
    fn height_within(&self, outer: PieceKind) -> usize {
        self.height - usize::from(self.kind == outer)
    }

    fn is_class(&self) -> bool {
        matches!(self.kind, PieceKind::Class | PieceKind::Literal { is_single: true, .. })
    }
}

/// Alternatives of a group. Classes in succession are one class.
#[derive(Debug)]
pub(super) struct Alternatives {
    /// The last one.
    last: Piece,
    count: usize,
    /// Height of the highest one.
    height: usize,
    copies: i32,
    weight: usize,
}

impl Alternatives {
    /// Adds an alternative.
    pub(super) fn add(alternatives: Option<Alternatives>, piece: Piece) -> Alternatives {
        let height = piece.height_within(PieceKind::Alternation);
        let Some(others) = alternatives else {
            return Alternatives { last: piece, count: 1, height, copies: piece.copies, weight: piece.weight };
        };
        let joins_class = others.last.is_class() && piece.is_class();
        let joins = joins_class || others.last.kind == PieceKind::Empty && piece.kind == PieceKind::Empty;
        Alternatives {
            last: if joins_class { Piece { kind: PieceKind::Class, ..piece } } else { piece },
            count: others.count + usize::from(!joins),
            height: others.height.max(height),
            copies: others.copies.max(piece.copies),
            weight: others.weight.saturating_add(piece.weight),
        }
    }

    /// Makes one piece of them.
    pub(super) fn piece(&self) -> Piece {
        if self.count == 1 {
            return self.last;
        }
        let (height, copies, weight) = (1 + self.height, self.copies, self.weight);
        Piece { height, copies, weight, ..Piece::new(PieceKind::Alternation, self.last.start) }
    }
}

/// An operator that repeats the piece before it.
#[derive(Debug)]
pub(super) struct Repetition<'a> {
    /// Its text, without a mark that fewer repetitions are preferred.
    pub(super) text: &'a str,
    least: i32,
    max: Option<i32>,
}

impl<'a> Repetition<'a> {
    /// Parses `*`, `+`, `?`, `{2}`, `{2,}` or `{2,3}`. Other text in braces is literal.
    pub(super) fn parse(text: &'a str) -> Result<Option<(Repetition<'a>, &'a str)>, PatternError> {
        let (least, max) = match text.as_bytes().first() {
            Some(b'*') => (0, None),
            Some(b'+') => (1, None),
            Some(b'?') => (0, Some(1)),
            _ => {
                let Some((least, max, rest)) = parse_counts(text) else { return Ok(None) };
                let operator = &text[..text.len() - rest.len()];
                if least > MAX_COPIES || max.is_some_and(|max| max > MAX_COPIES || max < least) {
                    return Err(SyntaxErrorCode::InvalidRepeatCount.at(operator));
                }
                return Ok(Some((Repetition { text: operator, least, max }, rest)));
            }
        };
        let (operator, rest) = text.split_at(1);
        Ok(Some((Repetition { text: operator, least, max }, rest)))
    }

    /// How many copies it makes.
    pub(super) fn copies(&self) -> i32 {
        self.max.unwrap_or(self.least)
    }
}

/// Parses numbers in braces: the least, the most, and what follows.
fn parse_counts(text: &str) -> Option<(i32, Option<i32>, &str)> {
    let (least, rest) = parse_count(text.strip_prefix('{')?)?;
    if let Some(rest) = rest.strip_prefix('}') {
        return Some((least, Some(least), rest));
    }
    let rest = rest.strip_prefix(',')?;
    if let Some(rest) = rest.strip_prefix('}') {
        return Some((least, None, rest));
    }
    let (max, rest) = parse_count(rest)?;
    Some((least, Some(max), rest.strip_prefix('}')?))
}

/// Parses a number without leading zeros.
fn parse_count(text: &str) -> Option<(i32, &str)> {
    let length = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = text.split_at(length);
    if digits.is_empty() || digits.len() > 1 && digits.starts_with('0') {
        return None;
    }
    let count = digits.bytes().fold(0, |count, digit| match count {
        LARGE_COUNT.. => LARGE_COUNT,
        count => count * 10 + i32::from(digit - b'0'),
    });
    Some((count, rest))
}
