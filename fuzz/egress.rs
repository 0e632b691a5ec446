//! What the far ends of tunnels say.

use bytes::Bytes;
use narthex::egress::konnectivity::{Frames, Packet};

use crate::on_bytes;

/// Messages and pieces of messages, as a server may string them together.
const PIECES: &[&[u8]] = &[
    b"\x00\x00\x00\x00",
    b"\x00\x00\x40\x00\x01",
    b"\x01",
    b"\x02",
    b"\x05",
    b"\x0a",
    b"\x08\x01",
    b"\x08\x04",
    b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x12\x04\x0a\x02tc",
    b"\x1a\x05\x0a\x01x\x18\x2a",
    b"\x22\x06\x08\x05\x1a\x02hi",
    b"\x22\x02\x1a\x7f",
    b"\x22\x80",
    b"\x42\x00",
    b"\x1b\x1c",
    b"\x0d\x00\x00\x00\x00",
    b"\x00\x00\x00\x00\x0a\x08\x04\x22\x06\x08\x05\x1a\x02hi",
    b"\x00\x00\x00\x00\x09\x08\x01\x1a\x05\x0a\x01\xff\x18\x2a",
    b"\xff",
];

#[test]
fn konnectivity_packets() {
    on_bytes(|bytes| {
        let stream: Vec<u8> = bytes.iter().flat_map(|at| PIECES[usize::from(*at) % PIECES.len()]).copied().collect();
        let read = |size: usize| {
            let (mut frames, mut packets) = (Frames::default(), Vec::new());
            for piece in stream.chunks(size) {
                let mut piece = Bytes::copy_from_slice(piece);
                loop {
                    match frames.read(&mut piece) {
                        Ok(Some(read)) => packets.push(read.packet),
                        Ok(None) => break,
                        Err(nonsense) => return (packets, Some(nonsense)),
                    }
                }
                assert!(piece.is_empty());
            }
            (packets, None)
        };
        let whole = read(stream.len().max(1));
        assert_eq!(whole, read(1), "however it is cut");
        for packet in whole.0 {
            let message = packet.frame().slice(5..);
            assert_eq!(Packet::decode(&message), Ok(packet));
        }
    });
}
