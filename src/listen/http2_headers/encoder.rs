//! Encoder of the HPACK header blocks that h2 gets in place of a client's (RFC 7541).
//!
//! It indexes what the client's table has, so that a block takes about as many bytes as the client's.

use std::collections::VecDeque;

use bytes::{BufMut as _, BytesMut};

use super::decoded::{DecodedHeader, HeaderText};
use super::hpack::{MAX_TABLE_BYTES, STATIC_TABLE};

/// Headers that are encoded.
#[derive(Debug, Default)]
pub(crate) struct HeaderList(Vec<ListedHeader>);

#[derive(Debug)]
enum ListedHeader {
    /// As the client sent it.
    Received(DecodedHeader),
    /// Encoded in full.
    Written { name: Vec<u8>, value: Vec<u8> },
}

impl HeaderList {
    /// Adds a header.
    pub(crate) fn push(&mut self, name: &[u8], value: &[u8]) {
        self.0.push(ListedHeader::Written { name: name.to_vec(), value: value.to_vec() });
    }

    /// Adds a header of the client's block.
    pub(crate) fn push_received(&mut self, header: &DecodedHeader) {
        self.0.push(ListedHeader::Received(header.clone()));
    }
}

/// The state of the compression towards h2, which starts with the first block that is encoded.
#[derive(Debug, Default)]
pub(super) struct HpackEncoder {
    /// The newest first.
    table: VecDeque<DecodedHeader>,
    table_bytes: usize,
    has_begun: bool,
}

impl HpackEncoder {
    /// Encodes a whole block.
    pub(super) fn encode(&mut self, list: &HeaderList) -> BytesMut {
        let mut out = BytesMut::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            // h2's table follows the client's so far: it is emptied.
            write_integer(&mut out, 0x20, 5, 0);
            write_integer(&mut out, 0x20, 5, MAX_TABLE_BYTES);
        }
        for header in &list.0 {
            match header {
                ListedHeader::Received(header) => self.write_received(&mut out, header),
                ListedHeader::Written { name, value } => {
                    write_integer(&mut out, 0, 4, 0);
                    write_text(&mut out, name);
                    write_text(&mut out, value);
                }
            }
        }
        out
    }

    fn write_received(&mut self, out: &mut BytesMut, header: &DecodedHeader) {
        let (mut name_index, mut index) = (0, 0);
        for (number, entry) in self.table.iter().enumerate() {
            if entry.name.is_same(&header.name) {
                name_index = STATIC_TABLE.len() + number + 1;
                if entry.value.is_same(&header.value) {
                    index = name_index;
                    break;
                }
            }
        }
        if index > 0 {
            return write_integer(out, 0x80, 7, index);
        }
        if let HeaderText::Static(name) = header.name {
            name_index =
                STATIC_TABLE.iter().position(|(static_name, _)| *static_name == name).map_or(name_index, |at| at + 1);
        }
        let is_indexed = header.size() <= MAX_TABLE_BYTES;
        let (pattern, prefix) = if is_indexed { (0x40, 6) } else { (0, 4) };
        write_integer(out, pattern, prefix, name_index);
        if name_index == 0 {
            write_text(out, header.name.as_bytes());
        }
        write_text(out, header.value.as_bytes());
        if is_indexed {
            self.insert(header);
        }
    }

    fn insert(&mut self, header: &DecodedHeader) {
        self.table_bytes += header.size();
        self.table.push_front(header.clone());
        while self.table_bytes > MAX_TABLE_BYTES
            && let Some(oldest) = self.table.pop_back()
        {
            self.table_bytes -= oldest.size();
        }
    }
}

/// An integer with a prefix of `prefix` bits after a bit pattern (RFC 7541, 5.1).
fn write_integer(out: &mut BytesMut, pattern: u8, prefix: u32, mut value: usize) {
    let max = (1_usize << prefix) - 1;
    if value < max {
        return out.put_u8(pattern | value as u8);
    }
    out.put_u8(pattern | max as u8);
    value -= max;
    while value >= 128 {
        out.put_u8((value % 128) as u8 | 128);
        value /= 128;
    }
    out.put_u8(value as u8);
}

/// A string literal without Huffman coding (RFC 7541, 5.2).
fn write_text(out: &mut BytesMut, text: &[u8]) {
    write_integer(out, 0, 7, text.len());
    out.put_slice(text);
}

#[cfg(test)]
mod tests {
    use super::super::decoded::DecodedHeaders;
    use super::super::hpack::HpackDecoder;
    use super::*;

    /// What a client sends decodes to the same headers after it was encoded again, and takes about as many bytes.
    #[test]
    fn hpack_encoder_follows_the_table_of_the_client() {
        let large = [b"\x40\x01a\x7f\xb1\x1e".as_slice(), &[b'x'; 4016]].concat();
        let parts: [&[u8]; 7] =
            [b"\x82\x87", &large, b"\xbe", b"\x0f\x2f\x01b", b"\x40\x01b\x01c", b"\xbf\xbe", b"\x44\x04/bad"];
        bolero::check!().with_iterations(2000).with_max_len(40).for_each(|bytes: &[u8]| {
            let (mut client, mut server) = (HpackDecoder::new(), HpackDecoder::new());
            let (mut encoder, mut sent, mut received) = (HpackEncoder::default(), 0, 0);
            for numbers in bytes.chunks(3) {
                let block: Vec<u8> =
                    numbers.iter().flat_map(|number| parts[usize::from(*number) % parts.len()]).copied().collect();
                let mut headers = DecodedHeaders::with_max_size(1 << 20);
                if !client.decode(&block, &mut headers) {
                    return;
                }
                let mut list = HeaderList::default();
                headers.as_slice().iter().for_each(|header| list.push_received(header));
                let encoded = encoder.encode(&list);
                let mut again = DecodedHeaders::with_max_size(1 << 20);
                assert!(server.decode(&encoded, &mut again), "{block:x?}");
                assert!(headers.iter().eq(again.iter()), "{block:x?}");
                (sent, received) = (sent + block.len(), received + encoded.len());
            }
            // Static headers and Huffman codes are longer here, and each large header is written once more than sent.
            assert!(received <= 8 * sent + 8192, "{received} bytes for {sent}");
        });
    }

    #[test]
    fn hpack_encoder_writes_a_large_header_once() {
        let mut client = HpackDecoder::new();
        let large = [b"\x40\x01a\x7f\xb1\x1e".as_slice(), &[b'x'; 4016]].concat();
        assert!(client.decode(&large, &mut DecodedHeaders::with_max_size(1 << 20)));
        let mut encoder = HpackEncoder::default();
        let mut length = 0;
        for _ in 0..100 {
            let mut headers = DecodedHeaders::with_max_size(1 << 20);
            assert!(client.decode(&[0xbe; 200], &mut headers));
            let mut list = HeaderList::default();
            headers.as_slice().iter().for_each(|header| list.push_received(header));
            length += encoder.encode(&list).len();
        }
        assert!(length < 4016 + 100 * 200 + 20, "{length}");
    }
}
