//! Decoder of HPACK header blocks (RFC 7541).
//!
//! It decodes every header block of a client before h2 does, so it has tables where simpler decoders search.

use std::collections::VecDeque;

use super::decoded::{DecodedHeader, DecodedHeaders, HeaderText};
use super::huffman;

/// Maximum size of the dynamic table: what a client may use that was told of no other one (RFC 9113, 6.5.2).
pub(super) const MAX_TABLE_BYTES: usize = 4096;

/// The state of a client's header compression.
#[derive(Debug)]
pub(super) struct HpackDecoder {
    /// The newest first.
    table: VecDeque<DecodedHeader>,
    table_bytes: usize,
    max_table_bytes: usize,
}

impl HpackDecoder {
    pub(super) fn new() -> HpackDecoder {
        HpackDecoder { table: VecDeque::new(), table_bytes: 0, max_table_bytes: MAX_TABLE_BYTES }
    }

    /// Decodes a whole block into `out`; false if it is invalid.
    pub(super) fn decode(&mut self, mut block: &[u8], out: &mut DecodedHeaders) -> bool {
        while !block.is_empty() {
            if self.decode_field(&mut block, out).is_none() {
                return false;
            }
        }
        true
    }

    fn decode_field(&mut self, block: &mut &[u8], out: &mut DecodedHeaders) -> Option<()> {
        let first = *block.first()?;
        if first & 0x80 != 0 {
            out.push(self.entry(integer(block, 7)?)?);
            return Some(());
        }
        if first & 0xe0 == 0x20 {
            let size = integer(block, 5)?;
            self.max_table_bytes = Some(size).filter(|size| *size <= MAX_TABLE_BYTES)?;
            self.evict(0);
            return Some(());
        }
        let is_indexed = first & 0x40 != 0;
        let name = match integer(block, if is_indexed { 6 } else { 4 })? {
            0 => HeaderText::new(text(block)?),
            index => self.entry(index)?.name,
        };
        let header = DecodedHeader { name, value: HeaderText::new(text(block)?) };
        if is_indexed {
            let size = header.size();
            self.evict(size);
            // One that is larger than the table empties it (RFC 7541, 4.4).
            if size <= self.max_table_bytes {
                self.table_bytes += size;
                self.table.push_front(header.clone());
            }
        }
        out.push(header);
        Some(())
    }

    fn entry(&self, index: usize) -> Option<DecodedHeader> {
        let index = index.checked_sub(1)?;
        if let Some((name, value)) = STATIC_TABLE.get(index) {
            return Some(DecodedHeader { name: HeaderText::Static(name), value: HeaderText::Static(value) });
        }
        self.table.get(index - STATIC_TABLE.len()).cloned()
    }

    /// Removes the oldest entries until `more` bytes have room.
    fn evict(&mut self, more: usize) {
        while self.table_bytes + more > self.max_table_bytes
            && let Some(header) = self.table.pop_back()
        {
            self.table_bytes -= header.size();
        }
    }
}

/// An integer with a prefix of `prefix` bits (RFC 7541, 5.1).
fn integer(block: &mut &[u8], prefix: u32) -> Option<usize> {
    let (first, mut rest) = block.split_first()?;
    let max = (1_usize << prefix) - 1;
    let mut value = usize::from(*first) & max;
    if value == max {
        let mut shift = 0;
        loop {
            let (byte, after) = rest.split_first()?;
            rest = after;
            // Larger ones are of no use: a block is shorter.
            if shift > 21 {
                return None;
            }
            value += usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *block = rest;
    Some(value)
}

/// A string literal (RFC 7541, 5.2).
fn text(block: &mut &[u8]) -> Option<Vec<u8>> {
    let is_huffman = *block.first()? & 0x80 != 0;
    let length = integer(block, 7)?;
    let (coded, rest) = block.split_at_checked(length)?;
    *block = rest;
    if is_huffman {
        let mut decoded = Vec::new();
        return huffman::decode(coded, &mut decoded).then_some(decoded);
    }
    Some(coded.to_vec())
}

/// RFC 7541, appendix A.
pub(super) const STATIC_TABLE: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(decoder: &mut HpackDecoder, block: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut headers = DecodedHeaders::with_max_size(1 << 20);
        let valid = decoder.decode(block, &mut headers);
        valid.then(|| headers.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect())
    }

    /// Pieces of header blocks, as a client may string them together.
    const BLOCK_PARTS: &[&[u8]] = &[
        b"\x82",
        b"\x83\x86\x44\x01/",
        b"\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff",
        b"\x58\x86\xa8\xeb\x10\x64\x9c\xbf",
        b"\x40\x01a\x03bcd",
        b"\x00\x01a\x01b",
        b"\x10\x01a\x00",
        b"\xbe",
        b"\xbf\xc0",
        b"\x7e\x01x",
        b"\x3f\xe1\x1f",
        b"\x3f\x21",
        b"\x20",
        b"\x80",
        b"\xff\xff\xff\xff\xff\xff",
        b"\x41\x83\xff\xff\xff",
    ];

    #[test]
    fn hpack_decoder_agrees_with_the_reference() {
        bolero::check!().with_iterations(3000).with_max_len(24).for_each(|bytes: &[u8]| {
            let mut decoder = HpackDecoder::new();
            let mut reference = loona_hpack::Decoder::new();
            reference.set_max_allowed_table_size(MAX_TABLE_BYTES);
            for parts in bytes.chunks(4) {
                let block: Vec<u8> = parts
                    .iter()
                    .flat_map(|part| BLOCK_PARTS[usize::from(*part) % BLOCK_PARTS.len()])
                    .copied()
                    .collect();
                let expected = reference.decode(&block).ok();
                let found = decoded(&mut decoder, &block);
                if expected.is_none() {
                    // The state after an error is of no use. Size updates amid a block are an error for the reference alone.
                    return;
                }
                assert_eq!(found, expected, "{block:x?}");
            }
        });
    }

    #[test]
    fn hpack_decoder_evicts_the_oldest_headers() {
        let mut decoder = HpackDecoder::new();
        for number in 0..200_u8 {
            let block = [b"\x40\x02a".as_slice(), &[number], b"\x01b"].concat();
            decoded(&mut decoder, &block).unwrap();
        }
        assert_eq!((decoder.table.len(), decoder.table_bytes), (4096 / 35, 4096 / 35 * 35));
        assert_eq!(decoded(&mut decoder, b"\xbe").unwrap()[0].0, [b'a', 199]);
        let large = [b"\x40\x01a\x7f\xe1\x1f".as_slice(), &[b'x'; 4192]].concat();
        decoded(&mut decoder, &large).unwrap();
        assert_eq!((decoder.table.len(), decoder.table_bytes), (0, 0));
    }

    #[test]
    fn hpack_decoder_keeps_no_more_than_the_limit() {
        let mut decoder = HpackDecoder::new();
        let large = [b"\x40\x01a\x7f\xe1\x0f".as_slice(), &[b'x'; 2144]].concat();
        decoded(&mut decoder, &large).unwrap();
        let mut headers = DecodedHeaders::with_max_size(10_000);
        assert!(decoder.decode(&[0xbe; 1000], &mut headers));
        assert_eq!((headers.len(), headers.size(), headers.is_too_large()), (4, 1000 * (2145 + 32), true));
    }
}
