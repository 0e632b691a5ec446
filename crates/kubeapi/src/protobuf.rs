//! Reads and writes the protobuf wire format: varints, lengths and nested messages; and objects of the API by tables of
//! their message types.

/// Protobuf to JSON values.
pub mod decode;
/// JSON values to protobuf.
pub mod encode;
/// Objects as Go's decoder leaves them: unknown fields, types, absent fields.
pub mod normalize;
/// Message types as tables.
pub mod table;
mod timestamp;

/// Writes a string field.
pub fn write_text(out: &mut Vec<u8>, field: u8, value: &str) {
    write_bytes(out, field, value.as_bytes());
}

/// Writes a field of bytes, or of an encoded message.
pub fn write_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    write_tag(out, field, 2);
    write_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Writes an integer field, or a bool as 0 or 1.
pub fn write_number(out: &mut Vec<u8>, field: u8, value: u64) {
    write_tag(out, field, 0);
    write_varint(out, value);
}

/// Writes a double field.
pub fn write_double(out: &mut Vec<u8>, field: u8, value: f64) {
    write_tag(out, field, 1);
    out.extend_from_slice(&value.to_le_bytes());
}

/// Prefix of every encoded Kubernetes object.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// Wraps a message in a `runtime.Unknown` with its type, as Kubernetes sends it.
pub fn wrap_unknown(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let UnknownFrame { head: mut out, mut tail } = UnknownFrame::new(api_version, kind, message.len());
    out.reserve_exact(message.len() + tail.len());
    out.extend_from_slice(message);
    out.append(&mut tail);
    out
}

/// What is around a message in a `runtime.Unknown`.
pub struct UnknownFrame {
    /// The bytes before the message.
    pub head: Vec<u8>,
    /// The bytes after it.
    pub tail: Vec<u8>,
}

impl UnknownFrame {
    /// The frame of a message of `length` bytes.
    pub fn new(api_version: &str, kind: &str, length: usize) -> UnknownFrame {
        let mut type_meta = Vec::new();
        write_text(&mut type_meta, 1, api_version);
        write_text(&mut type_meta, 2, kind);
        let (mut head, mut tail) = (MAGIC.to_vec(), Vec::new());
        write_bytes(&mut head, 1, &type_meta);
        write_tag(&mut head, 2, 2);
        write_varint(&mut head, length as u64);
        write_text(&mut tail, 3, "");
        write_text(&mut tail, 4, "");
        UnknownFrame { head, tail }
    }
}

/// Value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtobufValue<'b> {
    /// An integer or bool.
    Number(u64),
    /// A string, bytes or message.
    Bytes(&'b [u8]),
    /// The bits of a double.
    Fixed64(u64),
    /// A number of four bytes, which is not read.
    Other,
}

/// The bytes are not a valid protobuf message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedProtobuf;

impl std::fmt::Display for MalformedProtobuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not a valid protobuf message")
    }
}

impl std::error::Error for MalformedProtobuf {}

/// Reads the fields of a message, in order. Groups, which proto3 does not have, are an error.
pub fn read_fields(message: &[u8]) -> impl Iterator<Item = Result<(u64, ProtobufValue<'_>), MalformedProtobuf>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = read_field(&mut rest).ok_or(MalformedProtobuf);
        if field.is_err() {
            rest = &[];
        }
        Some(field)
    })
}

fn read_field<'b>(rest: &mut &'b [u8]) -> Option<(u64, ProtobufValue<'b>)> {
    let tag = read_varint(rest)?;
    let field = tag >> 3;
    if field == 0 || field >= 1 << 29 {
        return None;
    }
    let value = match tag & 7 {
        0 => ProtobufValue::Number(read_varint(rest)?),
        1 => ProtobufValue::Fixed64(u64::from_le_bytes(rest.split_off(..8)?.try_into().ok()?)),
        2 => {
            let length = usize::try_from(read_varint(rest)?).ok()?;
            ProtobufValue::Bytes(rest.split_off(..length)?)
        }
        5 => rest.split_off(..4).map(|_| ProtobufValue::Other)?,
        _ => return None,
    };
    Some((field, value))
}

fn read_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        // Only one bit of the tenth byte fits.
        if shift == 63 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Number of bytes that [`write_varint`] writes.
pub fn varint_length(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Writes the tag of a field: its number, and the wire type of its value.
pub fn write_tag(out: &mut Vec<u8>, field: u8, wire_type: u8) {
    write_varint(out, u64::from(field) << 3 | u64::from(wire_type));
}

/// Writes an integer in as many bytes as it needs, seven bits in each.
pub fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protobuf_long_lengths_and_high_fields_take_more_bytes() {
        let mut out = Vec::new();
        write_varint(&mut out, 300);
        write_varint(&mut out, u64::MAX);
        assert_eq!(out, [0xac, 0x02, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
        out.clear();
        write_text(&mut out, 1, "v");
        write_number(&mut out, 31, 1);
        write_double(&mut out, 16, 1.0);
        assert_eq!(out, [0x0a, 1, b'v', 0xf8, 1, 1, 0x81, 1, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
    }
    #[test]
    fn protobuf_round_trips_and_rejects_malformed() {
        for value in [0, 1, 127, 128, 300, 1 << 35, (1 << 63) - 1, 1 << 63, u64::MAX] {
            let mut out = Vec::new();
            write_varint(&mut out, value);
            assert_eq!(out.len(), varint_length(value));
            assert_eq!(read_varint(&mut &out[..]), Some(value));
        }
        let mut out = Vec::new();
        write_number(&mut out, 1, 300);
        write_text(&mut out, 2, "two");
        write_double(&mut out, 16, 1.0);
        let read: Result<Vec<_>, _> = read_fields(&out).collect();
        assert_eq!(
            read.unwrap(),
            [
                (1, ProtobufValue::Number(300)),
                (2, ProtobufValue::Bytes(b"two")),
                (16, ProtobufValue::Fixed64(1.0_f64.to_bits()))
            ]
        );
        let whole = [3, 8];
        for cut in (1..out.len()).filter(|cut| !whole.contains(cut)) {
            assert_eq!(read_fields(&out[..cut]).last(), Some(Err(MalformedProtobuf)), "cut at {cut}");
        }
        for wrong in [&b"\x00\x00"[..], b"\x0b", b"\x0c", b"\x0f\x00", &[0xff; 11], b"\x0a\xff\xff\xff\xff\x0f"] {
            assert_eq!(read_fields(wrong).last(), Some(Err(MalformedProtobuf)), "{wrong:?}");
        }
    }
}
