//! Strict percent-encoding: a malformed escape is an error.

use std::borrow::Cow;

/// Set of bytes that need no encoding. A table, for one load per byte of each request.
pub(super) type ByteSet = [bool; 256];

/// ASCII letters, digits and `others`.
pub(super) const fn alphanumeric_and(others: &[u8]) -> ByteSet {
    let mut set = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        set[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut n = 0;
    while n < others.len() {
        set[others[n] as usize] = true;
        n += 1;
    }
    set
}

/// Decodes `%XX`. `None` for a malformed escape; `Err` with the decoded bytes if they are not UTF-8.
pub(super) fn decode(text: &str) -> Option<Result<Cow<'_, str>, Vec<u8>>> {
    if !text.contains('%') {
        return Some(Ok(Cow::Borrowed(text)));
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = hex_digit(bytes.next()?)?;
            let low = hex_digit(bytes.next()?)?;
            decoded.push(high << 4 | low);
        } else {
            decoded.push(byte);
        }
    }
    Some(String::from_utf8(decoded).map(Cow::Owned).map_err(std::string::FromUtf8Error::into_bytes))
}

/// Whether every `%` is followed by two hexadecimal digits.
pub(super) fn is_well_formed(text: &str) -> bool {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%'
            && !(bytes.next().is_some_and(|b| b.is_ascii_hexdigit())
                && bytes.next().is_some_and(|b| b.is_ascii_hexdigit()))
        {
            return false;
        }
    }
    true
}

/// Appends `text` with every byte that is not in `keep` as `%XX`. Existing escapes stay if `keep` has `%`.
pub(super) fn encode_into(out: &mut String, text: &str, keep: &ByteSet) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.bytes() {
        if keep[usize::from(byte)] {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
}

fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}
