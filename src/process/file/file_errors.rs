//! Errors of watched files, for the status: while a file has errors, its last good value is in use.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::watched_file::OnFailure;

/// The current errors by purpose of the file. Clones share the state.
#[derive(Clone, Default)]
pub struct FileErrors(Arc<Mutex<BTreeMap<&'static str, Vec<String>>>>);

impl FileErrors {
    /// A callback that sets the errors of the file `what`; an empty list clears them.
    pub fn reporter(&self, what: &'static str) -> OnFailure {
        let all = self.0.clone();
        Box::new(move |problems| {
            let problems = problems.0.iter().map(ToString::to_string).collect();
            all.lock().insert(what, problems);
        })
    }

    /// All current errors.
    pub fn current(&self) -> Vec<String> {
        self.0.lock().values().flatten().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Problem, Problems};

    #[test]
    fn file_errors_cleared_after_fix() {
        let errors = FileErrors::default();
        let (one, other) = (errors.reporter("one"), errors.reporter("other"));
        one(&Problem::new("a", "b").into());
        other(&Problem::new("c", "d").into());
        assert_eq!(errors.current(), ["a: b", "c: d"]);
        one(&Problems::default());
        assert_eq!(errors.current(), ["c: d"]);
    }
}
