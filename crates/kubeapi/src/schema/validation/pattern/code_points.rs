//! Sets of code points, as character classes have them.

use std::fmt::Write;

/// The highest code point.
pub(super) const MAX_CODE_POINT: u32 = 0x0010_FFFF;
/// Code points that no text has: halves of UTF-16 characters.
const FIRST_SURROGATE: u32 = 0xD800;
const LAST_SURROGATE: u32 = 0xDFFF;
/// Weight of a set of nearly all code points.
pub(super) const ANY_CHARACTER_WEIGHT: usize = 16;
/// Least number of ranges that are sorted while a set is built.
const LEAST_SORTED: usize = 1024;

/// A set of code points. Surrogates can be members, although no text has them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct CodePoints {
    /// First and last of each range; sorted, neither overlapping nor adjacent.
    ranges: Vec<(u32, u32)>,
}

impl CodePoints {
    /// The set of all code points.
    pub(super) fn all() -> CodePoints {
        CodePoints { ranges: vec![(0, MAX_CODE_POINT)] }
    }

    /// The ranges, in order.
    pub(super) fn ranges(&self) -> &[(u32, u32)] {
        &self.ranges
    }

    /// The only member.
    pub(super) fn single(&self) -> Option<u32> {
        match self.ranges[..] {
            [(first, last)] if first == last => Some(first),
            _ => None,
        }
    }

    /// How large the set is when it is compiled: a range of ASCII is 1, others are sequences of several bytes.
    pub(super) fn weight(&self) -> usize {
        let of_range = |(first, last): &(u32, u32)| match (*first, *last) {
            (_, ..0x80) => 1,
            (..0x800, 0x1_0000..) => ANY_CHARACTER_WEIGHT,
            _ => 4,
        };
        self.ranges.iter().map(of_range).sum::<usize>().max(1)
    }

    /// All code points that are not in the set.
    pub(super) fn complement(&self) -> CodePoints {
        let mut next = 0;
        let mut ranges = Vec::with_capacity(self.ranges.len() + 1);
        for (first, last) in &self.ranges {
            if next < *first {
                ranges.push((next, first - 1));
            }
            next = last + 1;
        }
        if next <= MAX_CODE_POINT {
            ranges.push((next, MAX_CODE_POINT));
        }
        CodePoints { ranges }
    }

    /// Appends the set as a character or a class of the `regex` crate.
    pub(super) fn write(&self, out: &mut String) {
        match self.single().and_then(char::from_u32) {
            Some(character) if character.is_ascii_alphanumeric() => out.push(character),
            Some(character) => write_code_point(character.into(), out),
            None => self.write_class(out),
        }
    }

    fn write_class(&self, out: &mut String) {
        let begin = out.len();
        out.push('[');
        for (first, last) in &self.ranges {
            let first = if (FIRST_SURROGATE..=LAST_SURROGATE).contains(first) { LAST_SURROGATE + 1 } else { *first };
            let last = if (FIRST_SURROGATE..=LAST_SURROGATE).contains(last) { FIRST_SURROGATE - 1 } else { *last };
            if first <= last {
                write_code_point(first, out);
            }
            if first < last {
                out.push('-');
                write_code_point(last, out);
            }
        }
        if out.len() == begin + 1 {
            // No character is in this class.
            out.push_str("^\\x{0}-\\x{10FFFF}");
        }
        out.push(']');
    }
}

fn write_code_point(code_point: u32, out: &mut String) {
    // Writing to a String cannot fail.
    let _ = write!(out, "\\x{{{code_point:X}}}");
}

impl FromIterator<(u32, u32)> for CodePoints {
    fn from_iter<I: IntoIterator<Item = (u32, u32)>>(ranges: I) -> CodePoints {
        let mut builder = CodePointsBuilder::default();
        ranges.into_iter().for_each(|(first, last)| builder.add(first, last));
        builder.build()
    }
}

/// Collects ranges of a set in any order. Memory is proportional to the set, not to the number of ranges that were added.
#[derive(Debug, Default)]
pub(super) struct CodePointsBuilder {
    ranges: Vec<(u32, u32)>,
    /// Number of ranges at which they are sorted and merged.
    full: usize,
}

impl CodePointsBuilder {
    /// Adds the code points from `first` to `last`.
    pub(super) fn add(&mut self, first: u32, last: u32) {
        if self.ranges.len() >= self.full.max(LEAST_SORTED) {
            self.sort();
            self.full = self.ranges.len() * 2;
        }
        self.ranges.push((first, last));
    }

    /// Adds all members of another set.
    pub(super) fn add_set(&mut self, set: &CodePoints) {
        set.ranges.iter().for_each(|(first, last)| self.add(*first, *last));
    }

    /// The set.
    pub(super) fn build(mut self) -> CodePoints {
        self.sort();
        CodePoints { ranges: self.ranges }
    }

    fn sort(&mut self) {
        self.ranges.sort_unstable();
        self.ranges.dedup_by(|next, kept| {
            let merges = next.0 <= kept.1.saturating_add(1);
            if merges {
                kept.1 = kept.1.max(next.1);
            }
            merges
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(ranges: &[(u32, u32)]) -> String {
        let mut out = String::new();
        ranges.iter().copied().collect::<CodePoints>().write(&mut out);
        out
    }

    #[test]
    fn code_points_merge_and_complement() {
        let set: CodePoints = [(0x63, 0x64), (0x61, 0x61), (0x62, 0x63), (0x70, 0x70)].into_iter().collect();
        assert_eq!(set.ranges(), [(0x61, 0x64), (0x70, 0x70)]);
        assert_eq!(set.complement().ranges(), [(0, 0x60), (0x65, 0x6F), (0x71, MAX_CODE_POINT)]);
        assert_eq!(set.complement().complement(), set);
        assert_eq!(CodePoints::all().complement(), CodePoints::default());
    }

    #[test]
    fn code_points_are_written_without_surrogates() {
        assert_eq!(written(&[(0x61, 0x63), (0x70, 0x70)]), r"[\x{61}-\x{63}\x{70}]");
        assert_eq!(written(&[(0xD000, 0xD900)]), r"[\x{D000}-\x{D7FF}]");
        assert_eq!(written(&[(0xDFFF, 0xE000)]), r"[\x{E000}]");
        assert_eq!(written(&[(0x61, 0x61)]), "a");
        assert_eq!(written(&[(0x2A, 0x2A)]), r"\x{2A}");
        assert_eq!(written(&[(0xD800, 0xD800)]), r"[^\x{0}-\x{10FFFF}]");
        assert_eq!(written(&[(0xD800, 0xDFFF)]), r"[^\x{0}-\x{10FFFF}]");
    }
}
