//! The part of the protobuf wire format that packets need: integers, bytes and nested messages.

/// Value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireValue<'b> {
    /// An integer.
    Number(u64),
    /// A string, bytes or message.
    Bytes(&'b [u8]),
    /// A number of four or eight bytes, which no packet has.
    Other,
}

/// Reads the fields of a message, in order; none for bytes that are no message, which ends it. Groups, which proto3 does
/// not have, are an error.
pub(crate) fn read_fields(message: &[u8]) -> impl Iterator<Item = Option<(u64, WireValue<'_>)>> {
    let mut rest = message;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let field = read_field(&mut rest);
        if field.is_none() {
            rest = &[];
        }
        Some(field)
    })
}

fn read_field<'b>(rest: &mut &'b [u8]) -> Option<(u64, WireValue<'b>)> {
    let tag = read_varint(rest)?;
    let field = tag >> 3;
    if field == 0 || field >= 1 << 29 {
        return None;
    }
    let value = match tag & 7 {
        0 => WireValue::Number(read_varint(rest)?),
        1 => rest.split_off(..8).map(|_| WireValue::Other)?,
        2 => {
            let length = usize::try_from(read_varint(rest)?).ok()?;
            WireValue::Bytes(rest.split_off(..length)?)
        }
        5 => rest.split_off(..4).map(|_| WireValue::Other)?,
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

/// Writes a string field.
pub(crate) fn write_text(out: &mut Vec<u8>, field: u8, value: &str) {
    write_bytes(out, field, value.as_bytes());
}

/// Writes a field of bytes, or of an encoded message.
pub(crate) fn write_bytes(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    write_length(out, field, bytes.len());
    out.extend_from_slice(bytes);
}

/// Writes what precedes the `length` bytes of a field.
pub(crate) fn write_length(out: &mut Vec<u8>, field: u8, length: usize) {
    write_varint(out, u64::from(field) << 3 | 2);
    write_varint(out, length as u64);
}

/// Writes an integer field.
pub(crate) fn write_number(out: &mut Vec<u8>, field: u8, value: u64) {
    write_varint(out, u64::from(field) << 3);
    write_varint(out, value);
}

fn write_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Number of bytes of an integer.
pub(crate) fn varint_length(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_integers_round_trip() {
        for value in [0, 1, 127, 128, 300, 1 << 35, (1 << 63) - 1, 1 << 63, u64::MAX] {
            let mut out = Vec::new();
            write_varint(&mut out, value);
            assert_eq!(out.len(), varint_length(value));
            assert_eq!(read_varint(&mut &out[..]), Some(value));
        }
    }

    #[test]
    fn wire_fields_round_trip_and_malformed_ones_are_refused() {
        let mut out = Vec::new();
        write_number(&mut out, 1, 300);
        write_text(&mut out, 2, "two");
        let read: Option<Vec<_>> = read_fields(&out).collect();
        assert_eq!(read.unwrap(), [(1, WireValue::Number(300)), (2, WireValue::Bytes(b"two"))]);
        for cut in (1..out.len()).filter(|cut| *cut != 3) {
            assert_eq!(read_fields(&out[..cut]).last(), Some(None), "cut at {cut}");
        }
        for wrong in [&b"\x00\x00"[..], b"\x0b", b"\x0c", b"\x0f\x00", &[0xff; 11], b"\x0a\xff\xff\xff\xff\x0f"] {
            assert_eq!(read_fields(wrong).last(), Some(None), "{wrong:?}");
        }
        let fixed = [&b"\x09"[..], &[0; 8], b"\x0d", &[0; 4]].concat();
        assert_eq!(read_fields(&fixed).collect::<Vec<_>>(), [Some((1, WireValue::Other)); 2]);
    }
}
