//! What the patterns of one definition may take together.

use std::collections::HashSet;
use std::sync::Arc;

use super::Pattern;

/// Maximum weight of all patterns of a definition: from 64 to 256 MB when all are compiled. The largest one that is
/// accepted, such as `\pL{300}`, has a fifth of it.
const MAX_DEFINITION_WEIGHT: usize = 1 << 22;
/// Up to this weight the compiled pattern is within the limit of a single one for certain.
const CERTAINLY_SMALL: usize = 100_000;

/// Examines the patterns of one definition. Most are not compiled for that, but when they are first used.
#[derive(Debug)]
pub struct PatternBudget {
    left: usize,
    /// Those that were counted: the same pattern is compiled once.
    counted: HashSet<Arc<str>>,
}

impl Default for PatternBudget {
    fn default() -> PatternBudget {
        PatternBudget { left: MAX_DEFINITION_WEIGHT, counted: HashSet::new() }
    }
}

impl PatternBudget {
    /// Why the pattern cannot be used, with the text of Go's `regexp.Compile` where Go refuses it, too.
    pub fn error(&mut self, text: &str) -> Option<String> {
        let pattern = Pattern::new(text);
        let weight = match pattern.shared.weight() {
            Ok(weight) => weight,
            Err(error) => return Some(error.to_string()),
        };
        if !self.counted.contains(text) {
            let Some(left) = self.left.checked_sub(weight) else {
                let why = "error compiling regexp: the patterns of the definition need too much memory together";
                return Some(why.to_owned());
            };
            self.left = left;
            self.counted.insert(pattern.shared.text.clone());
        }
        if weight <= CERTAINLY_SMALL { None } else { pattern.error() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_a_definition_are_bounded_together_and_compiled_when_used() {
        let mut budget = PatternBudget::default();
        let first = Pattern::new(r"^a0\pL{30}$");
        let refused: Vec<usize> =
            (0..1000).filter(|at| budget.error(&format!(r"^a{at}\pL{{30}}$")).is_some()).collect();
        assert!((30..80).contains(&refused[0]) && refused.len() == 1000 - refused[0], "{refused:?}");
        assert!(!first.shared.is_compiled());
        let why = budget.error(r"^b\pL{30}$").unwrap();
        assert_eq!(why, "error compiling regexp: the patterns of the definition need too much memory together");
        // One that was counted, and one that is small.
        assert_eq!(budget.error(r"^a0\pL{30}$"), None);
        assert_eq!(
            budget.error("a**"),
            Some("error parsing regexp: invalid nested repetition operator: `**`".to_owned())
        );
    }

    #[test]
    fn patterns_that_go_accepts_many_of_are_accepted() {
        let mut budget = PatternBudget::default();
        for at in 0..1000 {
            let text = format!("^{at}[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?){{0,60}}$");
            assert_eq!(budget.error(&text), None);
        }
        let mut budget = PatternBudget::default();
        for text in [r"^.{0,1000}$", r"\pL{300}", r"[^/]{1000}", "^(a{1000}|b{1000})$"] {
            assert_eq!(budget.error(text), None, "{text}");
        }
    }
}
