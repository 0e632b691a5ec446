//! Buffers that connections have only while something is in them.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, ReadBuf};

/// Size of a buffer: it holds what one write takes, encrypted.
const BUFFER_BYTES: usize = 76 << 10;
/// Up to this size, unread bytes are moved to memory of their own size, and the buffer is returned.
const MAX_SHRUNK_BYTES: usize = 4 << 10;
/// Spare buffers kept per thread.
const MAX_SPARE_BUFFERS: usize = 4;

thread_local! {
    /// Spare buffers. A connection owns a buffer only while something is in it.
    static SPARE_BUFFERS: RefCell<Vec<Box<[u8]>>> = const { RefCell::new(Vec::new()) };
}

/// A buffer without memory while it is empty.
#[derive(Default)]
pub(crate) struct StreamBuffer {
    bytes: Box<[u8]>,
    from: usize,
    to: usize,
}

impl Drop for StreamBuffer {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes.len() == BUFFER_BYTES {
            // While a thread ends, its spare buffers are gone.
            let _ = SPARE_BUFFERS.try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < MAX_SPARE_BUFFERS {
                    spare.push(bytes);
                }
            });
        }
    }
}

impl StreamBuffer {
    /// Size of a spare buffer.
    #[cfg(test)]
    pub(crate) const BYTES: usize = BUFFER_BYTES;

    /// `bytes`, in memory of their size.
    pub(crate) fn exact(bytes: &[u8]) -> StreamBuffer {
        StreamBuffer { bytes: bytes.into(), from: 0, to: bytes.len() }
    }

    /// What is in it.
    pub(crate) fn unread(&self) -> &[u8] {
        &self.bytes[self.from..self.to]
    }

    /// As [`StreamBuffer::unread`].
    pub(crate) fn unread_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.from..self.to]
    }

    /// Lengths of the spare buffers of this thread: all are equal.
    #[cfg(test)]
    pub(crate) fn spare_lengths() -> Vec<usize> {
        SPARE_BUFFERS.with_borrow(|spare| spare.iter().map(|bytes| bytes.len()).collect())
    }

    /// Its memory in bytes.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Removes the first `count` bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        self.from += count;
        if self.from == self.to {
            self.clear();
        }
    }

    /// Moves as much as fits to `out`.
    pub(crate) fn read_into(&mut self, out: &mut ReadBuf<'_>) {
        let length = out.remaining().min(self.to - self.from);
        out.put_slice(&self.unread()[..length]);
        self.consume(length);
    }

    /// Removes everything.
    pub(crate) fn clear(&mut self) {
        *self = StreamBuffer::default();
    }

    /// Makes space for at least `min_space` more bytes.
    fn reserve(&mut self, min_space: usize) {
        let length = self.to - self.from;
        if self.bytes.len() < BUFFER_BYTES.max(length + min_space) {
            let spare = if length + min_space <= BUFFER_BYTES { SPARE_BUFFERS.with_borrow_mut(Vec::pop) } else { None };
            let mut bytes = spare.unwrap_or_else(|| vec![0; BUFFER_BYTES.max(length + min_space)].into_boxed_slice());
            bytes[..length].copy_from_slice(self.unread());
            *self = StreamBuffer { bytes, from: 0, to: length };
        } else if self.bytes.len() - self.to < min_space {
            self.bytes.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, length);
        }
    }

    /// Appends what `write` writes into the space that it is given: its length, or how much space it needs.
    /// The first space has at least `min_space` bytes.
    pub(crate) fn append_with(&mut self, min_space: usize, mut write: impl FnMut(&mut [u8]) -> Result<usize, usize>) {
        let mut space_needed = min_space;
        loop {
            self.reserve(space_needed);
            match write(&mut self.bytes[self.to..]) {
                Ok(written) => break self.to += written,
                Err(required) => space_needed = required.max(space_needed + 1),
            }
        }
        if self.from == self.to {
            self.clear();
        }
    }

    /// Appends `data`.
    pub(crate) fn append(&mut self, data: &[u8]) {
        self.append_with(data.len(), |space| {
            space[..data.len()].copy_from_slice(data);
            Ok(data.len())
        });
    }

    /// Reads from `stream`. Returns the number of bytes, 0 at its end.
    ///
    /// While the stream has nothing, this holds no more memory than what is in it.
    ///
    /// # Errors
    /// Of the stream; or the buffer is full, as the peer sends a message that is longer than any may be.
    pub(crate) fn poll_fill<S: AsyncRead + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.to - self.from >= BUFFER_BYTES {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "message buffer full")));
        }
        self.reserve(BUFFER_BYTES.saturating_sub(self.to - self.from));
        let mut space = ReadBuf::new(&mut self.bytes[self.to..]);
        let polled = Pin::new(stream).poll_read(cx, &mut space);
        let read = space.filled().len();
        self.to += read;
        if read == 0 {
            self.shrink();
        }
        polled.map_ok(|()| read)
    }

    /// Returns the buffer if little is in it, which may wait for long.
    pub(crate) fn shrink_if_small(&mut self) {
        if self.to - self.from <= MAX_SHRUNK_BYTES && self.bytes.len() > MAX_SHRUNK_BYTES {
            self.shrink();
        }
    }

    fn shrink(&mut self) {
        if self.bytes.len() > self.to - self.from {
            *self = StreamBuffer::exact(self.unread());
        }
    }
}
