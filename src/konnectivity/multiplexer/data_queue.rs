//! Data of a tunnel that waits, in one direction.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

/// Data of at least this size is not copied. It is a part of the buffer that was read, which it holds as a whole: a small
/// part would hold a multiple of its bytes.
pub(in crate::konnectivity) const MIN_SHARED_BYTES: usize = 8 << 10;
/// Size of the buffer that small pieces are copied to.
const COPY_BUFFER_BYTES: usize = 16 << 10;

/// A queue of bytes. It holds twice as many in memory at most, beside the buffers of pieces that are not copied.
#[derive(Default)]
pub(super) struct DataQueue {
    pieces: VecDeque<Bytes>,
    /// Small pieces behind `pieces`.
    copied: BytesMut,
    length: usize,
}

impl DataQueue {
    /// Number of bytes.
    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Adds data at the end. Less than [`MIN_SHARED_BYTES`] are copied behind data that waits: each piece has an entry, too.
    pub(super) fn push(&mut self, data: Bytes) {
        let is_copied = data.len() < MIN_SHARED_BYTES && !self.is_empty();
        self.length += data.len();
        if !is_copied || self.copied.len() + data.len() > COPY_BUFFER_BYTES {
            self.flush_copied();
        }
        if is_copied {
            self.copied.extend_from_slice(&data);
        } else {
            self.pieces.push_back(data);
        }
    }

    fn flush_copied(&mut self) {
        if !self.copied.is_empty() {
            self.pieces.push_back(std::mem::take(&mut self.copied).freeze());
        }
    }

    /// Takes the first piece, of at most `limit` bytes; `None` if there is none, or `limit` is 0.
    pub(super) fn pop(&mut self, limit: usize) -> Option<Bytes> {
        if limit == 0 {
            return None;
        }
        if self.pieces.is_empty() {
            self.flush_copied();
        }
        let first = self.pieces.front_mut()?;
        let data = if first.len() <= limit { self.pieces.pop_front()? } else { first.split_to(limit) };
        self.length -= data.len();
        if self.is_empty() && self.pieces.capacity() > 8 {
            // An idle tunnel holds no buffers.
            self.pieces = VecDeque::new();
        }
        Some(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the queue holds in memory, in bytes. Buffers that are copied to grow by doubling.
    fn held_bytes(queue: &DataQueue) -> usize {
        let entries = queue.pieces.capacity() * size_of::<Bytes>();
        let pieces = queue.pieces.iter().map(|piece| piece.len().next_power_of_two());
        pieces.sum::<usize>() + entries + queue.copied.capacity()
    }

    #[test]
    fn data_queue_of_small_pieces_holds_twice_their_bytes_at_most() {
        for (piece, count) in [(1, 1 << 20), (7, 100_000), (MIN_SHARED_BYTES - 1, 500), (MIN_SHARED_BYTES, 500)] {
            let mut queue = DataQueue::default();
            for _ in 0..count {
                queue.push(Bytes::from(vec![7; piece]));
            }
            assert_eq!(queue.len(), piece * count);
            let (held, limit) = (held_bytes(&queue), 2 * queue.len() + 2 * COPY_BUFFER_BYTES);
            assert!(held <= limit, "{held} bytes for {} in pieces of {piece}", queue.len());
        }
    }

    #[test]
    fn data_queue_keeps_order_and_length() {
        bolero::check!().with_iterations(500).with_max_len(64).for_each(|steps: &[u8]| {
            let (mut queue, mut pushed, mut popped) = (DataQueue::default(), Vec::new(), Vec::new());
            for step in steps {
                // Sizes on both sides of the limits.
                let size = [0, 1, 100, MIN_SHARED_BYTES - 1, MIN_SHARED_BYTES, 70 << 10][usize::from(*step % 6)];
                match step / 6 % 2 {
                    0 if size > 0 => {
                        let data: Vec<u8> = (0..size).map(|at| (pushed.len() + at) as u8).collect();
                        pushed.extend_from_slice(&data);
                        queue.push(data.into());
                    }
                    _ => {
                        if let Some(data) = queue.pop(size) {
                            assert!(data.len() <= size && !data.is_empty());
                            popped.extend_from_slice(&data);
                        }
                    }
                }
                assert_eq!(queue.len(), pushed.len() - popped.len());
            }
            while let Some(data) = queue.pop(usize::MAX) {
                popped.extend_from_slice(&data);
            }
            assert!(popped == pushed);
            assert!(queue.is_empty());
        });
    }

    #[test]
    fn data_queue_keeps_no_buffer_for_small_pieces() {
        let buffer = Bytes::from(vec![7; 64 << 10]);
        let is_shared = |piece: &Bytes| buffer.as_ptr_range().contains(&piece.as_ptr());
        let mut queue = DataQueue::default();
        for at in 0..60 {
            queue.push(buffer.slice(at * 1024..(at + 1) * 1024));
        }
        // The first alone does not wait behind another.
        assert_eq!(queue.pieces.iter().filter(|piece| is_shared(piece)).count(), 1);
        queue.push(buffer.slice(..MIN_SHARED_BYTES));
        assert!(is_shared(queue.pieces.back().unwrap()));
    }
}
