//! What of a request's body has passed.

use std::cell::{Cell, RefCell};

use crate::observe::audit::{Copy, Passed};

/// Counts a request's body as it passes, and copies it where the audit wants that.
#[derive(Default)]
pub struct Receipt {
    bytes: Cell<u64>,
    broken: Cell<bool>,
    copy: RefCell<Option<Result<Copy, Passed>>>,
}

impl Receipt {
    pub(super) fn copied(copy: Option<Result<Copy, Passed>>) -> Receipt {
        Receipt { copy: RefCell::new(copy), ..Receipt::default() }
    }

    /// Some more of it passes; how much that is in all.
    pub fn passes(&self, data: &[u8]) -> u64 {
        if let Some(Ok(copy)) = &mut *self.copy.borrow_mut() {
            copy.more(data);
        }
        self.bytes.set(self.bytes.get() + data.len() as u64);
        self.bytes.get()
    }

    /// The client breaks it off, or sends what is not passed on.
    pub fn breaks(&self) {
        self.broken.set(true);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// So much has passed in all, of which nothing is copied: what a tunnel carries is no body.
    pub fn carried(&self, bytes: u64) {
        self.bytes.set(bytes);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// What was copied; nothing when nothing came.
    pub(super) fn take(&self) -> Option<Passed> {
        let copy = self.copy.take()?;
        copy.map_or_else(Some, Copy::end)
    }
}
