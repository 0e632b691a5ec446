//! Compiled patterns, shared by all schemas with the same text. A definition is read several times on its way to its first
//! object, and the same pattern often stands in many places.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock};

use parking_lot::Mutex;
use regex::Regex;

use super::compile;
use super::parser::translate;
use super::syntax_error::PatternError;

/// Weight of the patterns that are kept in each half of the cache; see [`SharedPattern::weight`].
const MAX_CACHED_WEIGHT: usize = 1 << 20;
/// Weight of a text of this many bytes while its pattern is not compiled.
const BYTES_PER_WEIGHT: usize = 16;

/// A pattern and what is known of it.
#[derive(Debug)]
pub(super) struct SharedPattern {
    pub(super) text: Arc<str>,
    weight: OnceLock<Result<usize, PatternError>>,
    compiled: OnceLock<Result<Regex, PatternError>>,
}

impl SharedPattern {
    /// How large the compiled expression is: characters, and ranges of characters above ASCII several times; from 16 to 64
    /// bytes each. The expression is not compiled for that.
    ///
    /// # Errors
    /// Go refuses the expression, or it is too large to be read.
    pub(super) fn weight(&self) -> Result<usize, PatternError> {
        self.weight.get_or_init(|| translate(&self.text).map(|translation| translation.weight)).clone()
    }

    pub(super) fn compiled(&self) -> &Result<Regex, PatternError> {
        self.compiled.get_or_init(|| compile(&self.text))
    }

    /// Whether the expression was compiled.
    pub(super) fn is_compiled(&self) -> bool {
        self.compiled.get().is_some()
    }
}

/// Patterns that were used lately. When one half is full it becomes the other, which is forgotten.
#[derive(Default)]
struct PatternCache {
    recent: HashMap<Arc<str>, Arc<SharedPattern>>,
    older: HashMap<Arc<str>, Arc<SharedPattern>>,
    /// Of the recent ones.
    weight: usize,
}

static CACHE: LazyLock<Mutex<PatternCache>> = LazyLock::new(Mutex::default);

/// The pattern with a text.
pub(super) fn shared_pattern(text: &str) -> Arc<SharedPattern> {
    CACHE.lock().find(text)
}

impl PatternCache {
    fn find(&mut self, text: &str) -> Arc<SharedPattern> {
        if let Some(pattern) = self.recent.get(text) {
            return pattern.clone();
        }
        let pattern = self.older.remove(text).unwrap_or_else(|| {
            let text: Arc<str> = text.into();
            Arc::new(SharedPattern { text, weight: OnceLock::new(), compiled: OnceLock::new() })
        });
        // Syntax errors have no weight, and take memory for their text only.
        let compiled = pattern.weight().unwrap_or_default();
        let weight = (1 + text.len() / BYTES_PER_WEIGHT).max(compiled);
        if self.weight + weight > MAX_CACHED_WEIGHT {
            self.older = std::mem::take(&mut self.recent);
            self.weight = 0;
        }
        self.weight += weight;
        self.recent.insert(pattern.text.clone(), pattern.clone());
        pattern
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_cache_shares_by_text_and_forgets_by_weight() {
        let mut cache = PatternCache::default();
        let first = cache.find("^a$");
        assert!(Arc::ptr_eq(&first, &cache.find("^a$")));
        // Each takes more than a quarter of a half.
        for letter in "abcd".chars() {
            cache.find(&format!(r"{letter}\pL{{120}}"));
        }
        assert!(Arc::ptr_eq(&first, &cache.find("^a$")), "one half was forgotten");
        for letter in "efghijklmn".chars() {
            cache.find(&format!(r"{letter}\pL{{120}}"));
        }
        assert!(!Arc::ptr_eq(&first, &cache.find("^a$")));
        let kept = cache.recent.len() + cache.older.len();
        assert!(kept <= 8, "{kept}");
        assert!(cache.recent.values().all(|pattern| !pattern.is_compiled()));
    }
}
