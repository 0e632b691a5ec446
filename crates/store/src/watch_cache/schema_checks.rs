//! Versions of a custom resource by which the bytes of an object were checked.

use std::sync::atomic::{AtomicU64, Ordering};

/// Whether the schemas of the last versions that were asked for leave an object as it is stored. Versions have numbers
/// above 0 that are never used again; those of one definition follow each other, so that two of them have a place each.
#[derive(Debug, Default)]
pub struct SchemaChecks([AtomicU64; 2]);

impl SchemaChecks {
    /// Whether the object can be sent as it is stored in the version; none if that is not known.
    pub fn result(&self, version: u64) -> Option<bool> {
        let found = self.slot(version).load(Ordering::Relaxed);
        (found >> 1 == version).then_some(found & 1 == 1)
    }

    /// Records whether the object can be sent as it is stored in the version.
    pub fn record(&self, version: u64, is_unchanged: bool) {
        self.slot(version).store(version << 1 | u64::from(is_unchanged), Ordering::Relaxed);
    }

    fn slot(&self, version: u64) -> &AtomicU64 {
        let [even, odd] = &self.0;
        if version.is_multiple_of(2) { even } else { odd }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_checks_keep_the_last_versions() {
        let checks = SchemaChecks::default();
        assert_eq!((checks.result(1), checks.result(2)), (None, None));
        checks.record(1, true);
        checks.record(2, false);
        assert_eq!((checks.result(1), checks.result(2), checks.result(3)), (Some(true), Some(false), None));
        checks.record(3, true);
        assert_eq!((checks.result(1), checks.result(2), checks.result(3)), (None, Some(false), Some(true)));
    }
}
