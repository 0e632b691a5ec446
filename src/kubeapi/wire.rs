//! The wire format of protobuf, as far as we write it: lengths, numbers, and what is inside what.

/// A field of text.
pub(crate) fn text(out: &mut Vec<u8>, field: u8, value: &str) {
    nested(out, field, value.as_bytes());
}

/// A field of bytes, or a message that is written already.
pub(crate) fn nested(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    tag(out, field, 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A whole number, or a flag as 0 or 1.
pub(crate) fn number(out: &mut Vec<u8>, field: u8, value: u64) {
    tag(out, field, 0);
    varint(out, value);
}

/// A number with a fraction.
pub(crate) fn double(out: &mut Vec<u8>, field: u8, value: f64) {
    tag(out, field, 1);
    out.extend_from_slice(&value.to_le_bytes());
}

/// What begins every object of Kubernetes.
const MAGIC: &[u8; 4] = b"k8s\0";

/// A message as Kubernetes sends it: inside a `runtime.Unknown` that says its type.
pub(crate) fn enveloped(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let mut type_meta = Vec::new();
    text(&mut type_meta, 1, api_version);
    text(&mut type_meta, 2, kind);

    let mut out = Vec::with_capacity(message.len() + 64);
    out.extend_from_slice(MAGIC);
    nested(&mut out, 1, &type_meta);
    nested(&mut out, 2, message);
    text(&mut out, 3, "");
    text(&mut out, 4, "");
    out
}

fn tag(out: &mut Vec<u8>, field: u8, wire_type: u8) {
    varint(out, u64::from(field) << 3 | u64::from(wire_type));
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
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
    fn long_lengths_and_high_fields_take_more_bytes() {
        let mut out = Vec::new();
        varint(&mut out, 300);
        varint(&mut out, u64::MAX);
        assert_eq!(out, [0xac, 0x02, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
        out.clear();
        text(&mut out, 1, "v");
        number(&mut out, 31, 1);
        double(&mut out, 16, 1.0);
        assert_eq!(out, [0x0a, 1, b'v', 0xf8, 1, 1, 0x81, 1, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
    }
}
