//! Counts and captures a request body while it is forwarded.

use std::cell::{Cell, RefCell};

use crate::observe::audit::{BodyCapture, CapturedBody};

/// Counts a request body while it is forwarded, and captures it for the audit if required.
#[derive(Default)]
pub struct BodyCounter {
    bytes: Cell<u64>,
    broken: Cell<bool>,
    capture: RefCell<Option<Result<BodyCapture, CapturedBody>>>,
}

impl BodyCounter {
    pub(super) fn with_capture(copy: Option<Result<BodyCapture, CapturedBody>>) -> BodyCounter {
        BodyCounter { capture: RefCell::new(copy), ..BodyCounter::default() }
    }

    /// Records forwarded data; returns the total number of bytes.
    pub fn record(&self, data: &[u8]) -> u64 {
        if let Some(Ok(copy)) = &mut *self.capture.borrow_mut() {
            copy.append(data);
        }
        self.bytes.set(self.bytes.get() + data.len() as u64);
        self.bytes.get()
    }

    /// The client aborted the body, or sent an invalid one.
    pub fn mark_broken(&self) {
        self.broken.set(true);
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Sets the total number of bytes of a tunnel; they are not captured.
    pub fn set_bytes(&self, bytes: u64) {
        self.bytes.set(bytes);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Takes the captured body; `None` if there is none.
    pub(super) fn take_captured(&self) -> Option<CapturedBody> {
        let copy = self.capture.take()?;
        copy.map_or_else(Some, BodyCapture::finish)
    }
}
