//! Tracks incomplete frames and header blocks of an HTTP/2 client.
//!
//! h2 waits without a timeout for the rest of a preface, a frame or a header block, and does not report it. So the
//! frames are tracked here by their nine-byte headers; payloads are skipped.

/// Tracks the frames of one client.
#[derive(Debug)]
pub(super) struct FrameTracker {
    /// Missing bytes of the connection preface.
    preface: u8,
    /// The header of the current frame, of which `filled` bytes have arrived.
    header: [u8; FRAME_HEADER_LEN],
    filled: u8,
    /// Missing payload bytes of the current frame, once its header is complete.
    payload_left: u32,
    /// Whether a header block continues in a later frame.
    header_block_open: bool,
}

/// Whether the client has to complete a frame or header block, after some bytes have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameProgress {
    /// No frame is incomplete. Bodies have timeouts of their own.
    Complete,
    /// A frame or header block that began with these bytes is incomplete.
    Started,
    /// A frame or header block that began before these bytes is still incomplete.
    Unfinished,
}

const PREFACE_LEN: u8 = 24;
const FRAME_HEADER_LEN: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

impl FrameTracker {
    pub(super) fn new() -> FrameTracker {
        FrameTracker {
            preface: PREFACE_LEN,
            header: [0; FRAME_HEADER_LEN],
            filled: 0,
            payload_left: 0,
            header_block_open: false,
        }
    }

    /// Processes received bytes.
    pub(super) fn observe(&mut self, mut bytes: &[u8]) -> FrameProgress {
        let mut began = false;
        while !bytes.is_empty() {
            if self.preface > 0 {
                began = self.preface == PREFACE_LEN;
                let taken = bytes.len().min(usize::from(self.preface));
                self.preface -= taken as u8;
                bytes = &bytes[taken..];
                continue;
            }
            let filled = usize::from(self.filled);
            if filled < FRAME_HEADER_LEN {
                began |= filled == 0 && !self.header_block_open;
                let taken = bytes.len().min(FRAME_HEADER_LEN - filled);
                self.header[filled..filled + taken].copy_from_slice(&bytes[..taken]);
                self.filled += taken as u8;
                bytes = &bytes[taken..];
                if filled + taken < FRAME_HEADER_LEN {
                    break;
                }
                self.payload_left = u32::from_be_bytes([0, self.header[0], self.header[1], self.header[2]]);
            }
            let taken = bytes.len().min(self.payload_left as usize);
            self.payload_left -= taken as u32;
            bytes = &bytes[taken..];
            if self.payload_left > 0 {
                break;
            }
            self.filled = 0;
            self.header_block_open = match self.header[3] {
                HEADERS | CONTINUATION => self.header[4] & END_HEADERS == 0,
                _ => self.header_block_open,
            };
            began &= self.header_block_open;
        }
        let in_body = usize::from(self.filled) == FRAME_HEADER_LEN && self.header[3] == DATA;
        // Between the preface and the first frame, and between any two frames, nothing is incomplete.
        let begun = (1..PREFACE_LEN).contains(&self.preface) || self.header_block_open || self.filled > 0 && !in_body;
        match (begun, began) {
            (false, _) => FrameProgress::Complete,
            (true, true) => FrameProgress::Started,
            (true, false) => FrameProgress::Unfinished,
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

    fn opened() -> FrameTracker {
        let mut blocks = FrameTracker::new();
        assert_eq!(blocks.observe(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), FrameProgress::Complete);
        blocks
    }

    #[test]
    fn frame_tracker_incomplete_preface() {
        let mut blocks = FrameTracker::new();
        assert_eq!(blocks.observe(b""), FrameProgress::Complete);
        assert_eq!(blocks.observe(b"PRI * "), FrameProgress::Started);
        assert_eq!(blocks.observe(b"HTTP/2.0\r\n"), FrameProgress::Unfinished);
        assert_eq!(blocks.observe(b"\r\nSM\r\n\r\n"), FrameProgress::Complete);
        assert_eq!(blocks.observe(&frame(4, 0, 6)), FrameProgress::Complete);
    }

    #[test]
    fn frame_tracker_incomplete_header_block() {
        let mut blocks = opened();
        assert_eq!(blocks.observe(&frame(HEADERS, END_HEADERS, 40)), FrameProgress::Complete);
        assert_eq!(blocks.observe(&frame(HEADERS, 0, 40)), FrameProgress::Started);
        for _ in 0..3 {
            assert_eq!(blocks.observe(&frame(CONTINUATION, 0, 0)), FrameProgress::Unfinished);
        }
        assert_eq!(blocks.observe(&frame(CONTINUATION, END_HEADERS, 3)), FrameProgress::Complete);
        // The next header block is a new one.
        let both = [frame(HEADERS, 0, 1), frame(CONTINUATION, END_HEADERS, 1), frame(HEADERS, 0, 1)].concat();
        assert_eq!(blocks.observe(&both), FrameProgress::Started);
    }

    #[test]
    fn frame_tracker_incomplete_frame_except_data() {
        let mut blocks = opened();
        assert_eq!(blocks.observe(&frame(6, 0, 8)[..3]), FrameProgress::Started);
        assert_eq!(blocks.observe(&frame(6, 0, 8)[3..12]), FrameProgress::Unfinished);
        assert_eq!(blocks.observe(&frame(6, 0, 8)[12..]), FrameProgress::Complete);
        assert_eq!(blocks.observe(&frame(DATA, 0, 100)[..5]), FrameProgress::Started);
        assert_eq!(blocks.observe(&frame(DATA, 0, 100)[5..50]), FrameProgress::Complete);
        let next = [&frame(DATA, 0, 100)[50..], &frame(HEADERS, END_HEADERS, 9)[..10]].concat();
        assert_eq!(blocks.observe(&next), FrameProgress::Started);
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
            let whole = opened().observe(bytes) != FrameProgress::Complete;
            let mut blocks = opened();
            let (mut rest, mut last) = (bytes, FrameProgress::Complete);
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (now, later) = rest.split_at((*cut).min(rest.len()));
                last = blocks.observe(now);
                rest = later;
            }
            proptest::prop_assert_eq!(last != FrameProgress::Complete, whole);
        }
    }
}
