//! Differences of two texts by lines, as Go's difflib shows them, which is Python's (`github.com/pmezard/go-difflib`).

use std::cell::Cell;
use std::collections::HashMap;

/// Lines around a difference.
const CONTEXT: usize = 3;
/// Texts with more lines are not compared.
const MAX_LINES: usize = 4000;
/// Lines that a comparison looks at: the work may grow with the square of their number.
const MAX_STEPS: usize = 400_000;
/// Number of lines from which on frequent ones are not searched for.
const FREQUENT_FROM: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MatchingBlock {
    old: usize,
    new: usize,
    size: usize,
}

/// A part of the old lines, and what it became.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edit {
    is_equal: bool,
    old: (usize, usize),
    new: (usize, usize),
}

struct LineMatcher<'t> {
    old: Vec<&'t str>,
    new: Vec<&'t str>,
    /// Positions of the new lines, but for frequent ones.
    positions: HashMap<&'t str, Vec<usize>>,
    /// Lines that may still be looked at.
    steps: Cell<usize>,
}

/// The unified diff of two texts; empty if they have too many lines, or the comparison takes too many steps.
pub(super) fn unified_diff(old: &str, new: &str) -> String {
    let matcher = LineMatcher::new(old, new);
    if matcher.old.len().max(matcher.new.len()) > MAX_LINES {
        return String::new();
    }
    let mut out = String::new();
    let groups = matcher.groups();
    if matcher.steps.get() == 0 {
        return String::new();
    }
    for group in groups {
        let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
        let range = |start: usize, end: usize| match end - start {
            1 => format!("{}", start + 1),
            0 => format!("{start},0"),
            length => format!("{},{length}", start + 1),
        };
        out.push_str(&format!("@@ -{} +{} @@\n", range(first.old.0, last.old.1), range(first.new.0, last.new.1)));
        let mut add = |sign: char, lines: &[&str]| {
            for line in lines {
                out.push(sign);
                out.push_str(line);
                out.push('\n');
            }
        };
        for edit in group {
            let old = matcher.old.get(edit.old.0..edit.old.1).unwrap_or_default();
            if edit.is_equal {
                add(' ', old);
            } else {
                add('-', old);
                add('+', matcher.new.get(edit.new.0..edit.new.1).unwrap_or_default());
            }
        }
    }
    out
}

impl<'t> LineMatcher<'t> {
    fn new(old: &'t str, new: &'t str) -> LineMatcher<'t> {
        let (old, new): (Vec<&str>, Vec<&str>) = (old.split('\n').collect(), new.split('\n').collect());
        let mut positions: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, line) in new.iter().enumerate() {
            positions.entry(line).or_default().push(index);
        }
        if new.len() >= FREQUENT_FROM {
            let most = new.len() / 100 + 1;
            positions.retain(|_, found| found.len() <= most);
        }
        LineMatcher { old, new, positions, steps: Cell::new(MAX_STEPS) }
    }

    /// The longest equal part within bounds, the first of several.
    fn longest_match(
        &self,
        (old_start, old_end): (usize, usize),
        (new_start, new_end): (usize, usize),
    ) -> MatchingBlock {
        let mut best = MatchingBlock { old: old_start, new: new_start, size: 0 };
        // Lengths of the matches that end at the line before, by the position after their end.
        let mut lengths: HashMap<usize, usize> = HashMap::new();
        for (index, line) in self.old.iter().enumerate().take(old_end).skip(old_start) {
            let positions = self.positions.get(line).map_or(0, Vec::len);
            self.steps.set(self.steps.get().saturating_sub(1 + positions + line.len() / 64));
            if self.steps.get() == 0 {
                return MatchingBlock { old: old_start, new: new_start, size: 0 };
            }
            let mut next = HashMap::new();
            for &position in self.positions.get(line).into_iter().flatten() {
                if position < new_start {
                    continue;
                }
                if position >= new_end {
                    break;
                }
                let length = lengths.get(&position).copied().unwrap_or(0) + 1;
                next.insert(position + 1, length);
                if length > best.size {
                    best = MatchingBlock { old: index + 1 - length, new: position + 1 - length, size: length };
                }
            }
            lengths = next;
        }
        let is_same = |old: usize, new: usize| self.old.get(old).is_some() && self.old.get(old) == self.new.get(new);
        while best.old > old_start && best.new > new_start && is_same(best.old - 1, best.new - 1) {
            best = MatchingBlock { old: best.old - 1, new: best.new - 1, size: best.size + 1 };
        }
        while best.old + best.size < old_end
            && best.new + best.size < new_end
            && is_same(best.old + best.size, best.new + best.size)
        {
            best.size += 1;
        }
        best
    }

    /// The equal parts in order, and an empty one at the end.
    fn blocks(&self) -> Vec<MatchingBlock> {
        let mut found = Vec::new();
        let mut open = vec![((0, self.old.len()), (0, self.new.len()))];
        while let Some((old, new)) = open.pop() {
            let block = self.longest_match(old, new);
            if block.size == 0 {
                continue;
            }
            if old.0 < block.old && new.0 < block.new {
                open.push(((old.0, block.old), (new.0, block.new)));
            }
            let (old_end, new_end) = (block.old + block.size, block.new + block.size);
            if old_end < old.1 && new_end < new.1 {
                open.push(((old_end, old.1), (new_end, new.1)));
            }
            found.push(block);
        }
        found.sort_by_key(|block| block.old);
        let mut joined: Vec<MatchingBlock> = Vec::new();
        for block in found {
            match joined.last_mut() {
                Some(last) if last.old + last.size == block.old && last.new + last.size == block.new => {
                    last.size += block.size;
                }
                _ => joined.push(block),
            }
        }
        joined.push(MatchingBlock { old: self.old.len(), new: self.new.len(), size: 0 });
        joined
    }

    fn edits(&self) -> Vec<Edit> {
        let (mut old, mut new) = (0, 0);
        let mut edits = Vec::new();
        for block in self.blocks() {
            if old < block.old || new < block.new {
                edits.push(Edit { is_equal: false, old: (old, block.old), new: (new, block.new) });
            }
            (old, new) = (block.old + block.size, block.new + block.size);
            if block.size > 0 {
                edits.push(Edit { is_equal: true, old: (block.old, old), new: (block.new, new) });
            }
        }
        edits
    }

    /// The edits in groups that are far from each other, with some equal lines around.
    fn groups(&self) -> Vec<Vec<Edit>> {
        let mut edits = self.edits();
        let shorten_start = |edit: &mut Edit| {
            edit.old.0 = edit.old.0.max(edit.old.1.saturating_sub(CONTEXT));
            edit.new.0 = edit.new.0.max(edit.new.1.saturating_sub(CONTEXT));
        };
        let shorten_end = |edit: &mut Edit| {
            edit.old.1 = edit.old.1.min(edit.old.0 + CONTEXT);
            edit.new.1 = edit.new.1.min(edit.new.0 + CONTEXT);
        };
        if let Some(first) = edits.first_mut().filter(|edit| edit.is_equal) {
            shorten_start(first);
        }
        if let Some(last) = edits.last_mut().filter(|edit| edit.is_equal) {
            shorten_end(last);
        }
        let (mut groups, mut group) = (Vec::new(), Vec::new());
        for mut edit in edits {
            if edit.is_equal && edit.old.1 - edit.old.0 > 2 * CONTEXT {
                let mut end = edit;
                shorten_end(&mut end);
                group.push(end);
                groups.push(std::mem::take(&mut group));
                shorten_start(&mut edit);
            }
            group.push(edit);
        }
        if group.iter().any(|edit| !edit.is_equal) {
            groups.push(group);
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unified_diff_of_costly_texts_is_empty() {
        let lines = |step: usize| (0..2000).map(|number| format!("{}\n", number * step % 2003)).collect::<String>();
        assert_eq!(unified_diff(&lines(1), &lines(7)), "");
    }

    #[test]
    fn unified_diff_as_go_difflib() {
        let old: Vec<String> = (0..12).map(|number| number.to_string()).collect();
        let mut new = old.clone();
        new[5] = "five".to_owned();
        new.push("12".to_owned());
        assert_eq!(
            unified_diff(&old.join("\n"), &new.join("\n")),
            "@@ -3,10 +3,11 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n 9\n 10\n 11\n+12\n"
        );
        assert_eq!(unified_diff("a\nb", "a\nb"), "");
        assert_eq!(unified_diff("a", "b"), "@@ -1 +1 @@\n-a\n+b\n");
        let long = "a\n".repeat(MAX_LINES + 1);
        assert_eq!(unified_diff(&long, "a"), "");
    }
}
