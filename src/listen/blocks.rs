//! Tracks incomplete frames and header blocks of an HTTP/2 client.
//!
//! h2 waits without a timeout for the rest of a preface, a frame or a header block, and does not report it. So the
//! frames are tracked here by their nine-byte headers; payloads are skipped.

/// Tracks the frames of one client.
#[derive(Debug)]
pub(super) struct Blocks {
    /// Missing bytes of the connection preface.
    preface: u8,
    /// The header of the current frame, of which `filled` bytes have arrived.
    head: [u8; HEAD],
    filled: u8,
    /// Missing payload bytes of the current frame, once its header is complete.
    left: u32,
    /// Whether a header block continues in a later frame.
    open: bool,
}

/// Whether the client has to complete a frame or header block, after some bytes have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owed {
    /// Nothing is incomplete. Bodies have timeouts of their own.
    Nothing,
    /// Something that began with these bytes is incomplete.
    Since,
    /// Something that began earlier is still incomplete.
    Still,
}

const PREFACE: u8 = 24;
const HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

impl Blocks {
    pub(super) fn new() -> Blocks {
        Blocks { preface: PREFACE, head: [0; HEAD], filled: 0, left: 0, open: false }
    }

    /// Processes received bytes.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) -> Owed {
        let mut began = false;
        while !bytes.is_empty() {
            if self.preface > 0 {
                began = self.preface == PREFACE;
                let taken = bytes.len().min(usize::from(self.preface));
                self.preface -= taken as u8;
                bytes = &bytes[taken..];
                continue;
            }
            let filled = usize::from(self.filled);
            if filled < HEAD {
                began |= filled == 0 && !self.open;
                let taken = bytes.len().min(HEAD - filled);
                self.head[filled..filled + taken].copy_from_slice(&bytes[..taken]);
                self.filled += taken as u8;
                bytes = &bytes[taken..];
                if filled + taken < HEAD {
                    break;
                }
                self.left = u32::from_be_bytes([0, self.head[0], self.head[1], self.head[2]]);
            }
            let taken = bytes.len().min(self.left as usize);
            self.left -= taken as u32;
            bytes = &bytes[taken..];
            if self.left > 0 {
                break;
            }
            self.filled = 0;
            self.open = match self.head[3] {
                HEADERS | CONTINUATION => self.head[4] & END_HEADERS == 0,
                _ => self.open,
            };
            began &= self.open;
        }
        let in_body = usize::from(self.filled) == HEAD && self.head[3] == DATA;
        // Between the preface and the first frame, and between any two frames, nothing is incomplete.
        let begun = (1..PREFACE).contains(&self.preface) || self.open || self.filled > 0 && !in_body;
        match (begun, began) {
            (false, _) => Owed::Nothing,
            (true, true) => Owed::Since,
            (true, false) => Owed::Still,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let mut bytes = (length as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend(vec![0; length]);
        bytes
    }

    fn opened() -> Blocks {
        let mut blocks = Blocks::new();
        assert_eq!(blocks.follow(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), Owed::Nothing);
        blocks
    }

    #[test]
    fn a_preface_is_owed_from_its_first_byte() {
        let mut blocks = Blocks::new();
        assert_eq!(blocks.follow(b""), Owed::Nothing);
        assert_eq!(blocks.follow(b"PRI * "), Owed::Since);
        assert_eq!(blocks.follow(b"HTTP/2.0\r\n"), Owed::Still);
        assert_eq!(blocks.follow(b"\r\nSM\r\n\r\n"), Owed::Nothing);
        assert_eq!(blocks.follow(&frame(4, 0, 6)), Owed::Nothing);
    }

    #[test]
    fn a_block_is_owed_until_it_ends() {
        let mut blocks = opened();
        assert_eq!(blocks.follow(&frame(HEADERS, END_HEADERS, 40)), Owed::Nothing);
        assert_eq!(blocks.follow(&frame(HEADERS, 0, 40)), Owed::Since);
        for _ in 0..3 {
            assert_eq!(blocks.follow(&frame(CONTINUATION, 0, 0)), Owed::Still);
        }
        assert_eq!(blocks.follow(&frame(CONTINUATION, END_HEADERS, 3)), Owed::Nothing);
        // The next header block is a new one.
        let both = [frame(HEADERS, 0, 1), frame(CONTINUATION, END_HEADERS, 1), frame(HEADERS, 0, 1)].concat();
        assert_eq!(blocks.follow(&both), Owed::Since);
    }

    #[test]
    fn a_frame_is_owed_until_it_ends_but_a_body_is_not() {
        let mut blocks = opened();
        assert_eq!(blocks.follow(&frame(6, 0, 8)[..3]), Owed::Since);
        assert_eq!(blocks.follow(&frame(6, 0, 8)[3..12]), Owed::Still);
        assert_eq!(blocks.follow(&frame(6, 0, 8)[12..]), Owed::Nothing);
        assert_eq!(blocks.follow(&frame(DATA, 0, 100)[..5]), Owed::Since);
        assert_eq!(blocks.follow(&frame(DATA, 0, 100)[5..50]), Owed::Nothing);
        let next = [&frame(DATA, 0, 100)[50..], &frame(HEADERS, END_HEADERS, 9)[..10]].concat();
        assert_eq!(blocks.follow(&next), Owed::Since);
    }

    proptest::proptest! {
        /// The result does not depend on how the bytes are split.
        #[test]
        fn cuts_do_not_matter(
            frames in proptest::collection::vec((0..12u8, 0..8u8, 0..50usize), 0..20),
            end in 0..600usize,
            cuts in proptest::collection::vec(1..30usize, 1..40),
        ) {
            let bytes: Vec<u8> = frames.iter().flat_map(|(kind, flags, length)| frame(*kind, *flags, *length)).collect();
            let bytes = &bytes[..end.min(bytes.len())];
            let whole = opened().follow(bytes) != Owed::Nothing;
            let mut blocks = opened();
            let (mut rest, mut last) = (bytes, Owed::Nothing);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                last = blocks.follow(now);
                rest = later;
            }
            proptest::prop_assert_eq!(last != Owed::Nothing, whole);
        }
    }
}
