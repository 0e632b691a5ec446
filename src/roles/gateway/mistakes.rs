//! Mistakes in files that changed, for the status page: while there is one, what the file said before is in use.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::process::OnFailure;

/// What is wrong now, by what the file is for. All clones are one.
#[derive(Clone, Default)]
pub(in crate::roles) struct Mistakes(Arc<Mutex<BTreeMap<&'static str, Vec<String>>>>);

impl Mistakes {
    /// To be told of a file's mistakes, and that there are none any more.
    pub(in crate::roles) fn of(&self, what: &'static str) -> OnFailure {
        let all = self.0.clone();
        Box::new(move |problems| {
            let problems = problems.0.iter().map(ToString::to_string).collect();
            all.lock().insert(what, problems);
        })
    }

    /// All there are.
    pub(in crate::roles) fn now(&self) -> Vec<String> {
        self.0.lock().values().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Problem, Problems};

    #[test]
    fn what_was_mended_is_gone() {
        let mistakes = Mistakes::default();
        let (one, other) = (mistakes.of("one"), mistakes.of("other"));
        one(&Problem::new("a", "b").into());
        other(&Problem::new("c", "d").into());
        assert_eq!(mistakes.now(), ["a: b", "c: d"]);
        one(&Problems::default());
        assert_eq!(mistakes.now(), ["c: d"]);
    }
}
