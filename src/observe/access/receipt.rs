//! Counts and captures a request body while it is forwarded.

use std::cell::{Cell, RefCell};

use crate::observe::audit::{Copy, Passed};

/// Counts a request body while it is forwarded, and captures it for the audit if required.
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

    /// Records forwarded data; returns the total number of bytes.
    pub fn passes(&self, data: &[u8]) -> u64 {
        if let Some(Ok(copy)) = &mut *self.copy.borrow_mut() {
            copy.more(data);
        }
        self.bytes.set(self.bytes.get() + data.len() as u64);
        self.bytes.get()
    }

    /// The client aborted the body, or sent an invalid one.
    pub fn breaks(&self) {
        self.broken.set(true);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Sets the total number of bytes of a tunnel; they are not captured.
    pub fn carried(&self, bytes: u64) {
        self.bytes.set(bytes);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Takes the captured body; `None` if there is none.
    pub(super) fn take(&self) -> Option<Passed> {
        let copy = self.copy.take()?;
        copy.map_or_else(Some, Copy::end)
    }
}
