//! Whether a body that ended is all of it.

use std::cell::Cell;

use http_body::Body as _;
use hyper::body::Incoming;

/// Tells the end of a body from a stream that was merely reset.
///
/// hyper ends an HTTP/2 body cleanly when its stream is reset with NO_ERROR, which a server may do once its
/// answer is complete (RFC 9113, section 8.1) and which anyone else may do at any time. A watch, or half an
/// object on its way to be stored, must not pass for whole because of it.
pub(super) struct Whole {
    http2: bool,
    length: Option<u64>,
    passed: Cell<u64>,
}

impl Whole {
    /// Before anything of `body` was read.
    pub(super) fn of(body: &Incoming, http2: bool) -> Whole {
        Whole { http2, length: body.size_hint().exact(), passed: Cell::new(0) }
    }

    /// So many bytes went by.
    pub(super) fn passed(&self, bytes: usize) {
        self.passed.set(self.passed.get() + bytes as u64);
    }

    /// Now that `body` says it has ended: whether it came to its end.
    pub(super) fn is_reached(&self, body: &Incoming) -> bool {
        // HTTP/1.1 says itself when a body falls short. An HTTP/2 stream that was reset does not remember
        // whether it had ended before; the length may know.
        !self.http2 || body.is_end_stream() || self.length == Some(self.passed.get())
    }
}
