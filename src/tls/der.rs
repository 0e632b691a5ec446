//! DER: elements of a certificate, and distinguished names with several attributes of one type.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::SigningKey;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const BIT_STRING: u8 = 0x03;

/// Encodes a distinguished name of (object identifier's content, text), one attribute per set.
pub(super) fn distinguished_name(parts: &[(&[u8], &str)]) -> Vec<u8> {
    let mut sets = Vec::new();
    for (kind, text) in parts {
        let pair = [encode_element(OBJECT_IDENTIFIER, kind), encode_element(UTF8_STRING, text.as_bytes())].concat();
        sets.extend(encode_element(SET, &encode_element(SEQUENCE, &pair)));
    }
    encode_element(SEQUENCE, &sets)
}

/// Replaces issuer and subject of the certificate `draft` and signs it again. `None` if `draft` is not a
/// version 3 certificate or the key cannot sign.
pub(super) fn replace_names(draft: &[u8], issuer: &[u8], subject: &[u8], key: &impl SigningKey) -> Option<Vec<u8>> {
    let (_, whole, []) = split_element(draft)? else { return None };
    let (_, mut tbs, rest) = split_element(whole)?;
    let (algorithm, _, _) = split_element(rest)?;
    let mut fields = Vec::new();
    while !tbs.is_empty() {
        let (field, _, after) = split_element(tbs)?;
        fields.push(field);
        tbs = after;
    }
    // RFC 5280, 4.1: version, serial number, signature, issuer, validity, subject, ...
    *fields.get_mut(3)? = issuer;
    *fields.get_mut(5)? = subject;
    let tbs = encode_element(SEQUENCE, &fields.concat());
    let signature = key.sign(&tbs).ok()?;
    let bits = encode_element(BIT_STRING, &[&[0], signature.as_slice()].concat());
    Some(encode_element(SEQUENCE, &[tbs.as_slice(), algorithm, &bits].concat()))
}

/// Encodes PEM with lines of 64 characters.
pub(super) fn pem(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        pem.extend(line.iter().map(|byte| char::from(*byte)));
        pem.push('\n');
    }
    pem + &format!("-----END {label}-----\n")
}

fn encode_element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut encoded = vec![tag];
    match u8::try_from(content.len()) {
        Ok(short) if short < 0x80 => encoded.push(short),
        _ => {
            let length = content.len().to_be_bytes();
            let length = &length[length.iter().position(|byte| *byte != 0).unwrap_or(length.len() - 1)..];
            // A length has at most eight bytes.
            encoded.push(0x80 | length.len() as u8);
            encoded.extend(length);
        }
    }
    encoded.extend(content);
    encoded
}

/// Splits off the first element of `bytes`: the element, its content, and the rest.
pub(super) fn split_element(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&[_, first], rest) = bytes.split_first_chunk()?;
    let (length, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
        let length =
            length.iter().try_fold(0usize, |sum, byte| sum.checked_mul(256)?.checked_add(usize::from(*byte)))?;
        (length, rest)
    };
    let (content, after) = rest.split_at_checked(length)?;
    Some((&bytes[..bytes.len() - after.len()], content, after))
}

/// Converts `draft` to version 1, without version and extensions.
#[cfg(test)]
pub(super) fn version_1(draft: &[u8], key: &impl SigningKey) -> Option<Vec<u8>> {
    let (_, whole, _) = split_element(draft)?;
    let (_, tbs, rest) = split_element(whole)?;
    let (algorithm, _, _) = split_element(rest)?;
    let (_, _, mut fields) = split_element(tbs)?;
    let mut kept = Vec::new();
    for _ in 0..6 {
        let (field, _, after) = split_element(fields)?;
        kept.extend(field);
        fields = after;
    }
    let tbs = encode_element(SEQUENCE, &kept);
    let bits = encode_element(BIT_STRING, &[&[0], key.sign(&tbs).ok()?.as_slice()].concat());
    Some(encode_element(SEQUENCE, &[tbs.as_slice(), algorithm, &bits].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn der_element_split_round_trip() {
        for length in [0, 1, 0x7f, 0x80, 0xff, 0x100, 70_000] {
            let content = vec![7; length];
            let bytes = [encode_element(SEQUENCE, &content), vec![1, 2]].concat();
            let (whole, inner, after) = split_element(&bytes).unwrap();
            assert_eq!((whole.len(), inner, after), (bytes.len() - 2, content.as_slice(), [1, 2].as_slice()));
        }
        for cut in [&[][..], &[0x30], &[0x30, 5, 1], &[0x30, 0x82, 1], &[0x30, 0xff]] {
            assert!(split_element(cut).is_none());
        }
    }
}
