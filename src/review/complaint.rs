//! What every request would say, said once a second.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Says when it is time to complain again.
pub struct Complaint {
    began: Instant,
    /// The second of the last complaint, counted from 1; 0 before the first.
    last: AtomicU64,
}

impl Default for Complaint {
    fn default() -> Complaint {
        Complaint { began: Instant::now(), last: AtomicU64::new(0) }
    }
}

impl Complaint {
    /// True for one caller in each second.
    pub fn is_due(&self) -> bool {
        self.is_due_in(self.began.elapsed().as_secs())
    }

    fn is_due_in(&self, second: u64) -> bool {
        self.last.swap(second + 1, Ordering::Relaxed) != second + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_a_second() {
        let complaint = Complaint::default();
        let due: Vec<bool> = [0, 0, 0, 1, 1, 7].into_iter().map(|second| complaint.is_due_in(second)).collect();
        assert_eq!(due, [true, false, false, true, false, true]);
    }
}
