//! Checks of header lines that both versions of HTTP have.

use crate::message::MalformedRequest;

/// Checks the length of a header name.
pub(super) fn check_name_length(name: &[u8], limit: usize) -> Result<(), MalformedRequest> {
    if name.len() > limit {
        let (shown, length) = (shown(name), name.len());
        return Err(MalformedRequest::header_too_large(format!(
            "the header name {shown}… has {length} bytes, the most are {limit}"
        )));
    }
    Ok(())
}

/// Checks the bytes of a header value. The message does not have it: it may be a secret.
pub(super) fn check_value(name: &[u8], value: &[u8]) -> Result<(), MalformedRequest> {
    match value.iter().position(|byte| byte.is_ascii_control() && *byte != b'\t') {
        Some(position) => Err(MalformedRequest::invalid(format!(
            "invalid value of the header {}: byte {:#04x} at position {position}",
            shown(name),
            value[position]
        ))),
        None => Ok(()),
    }
}

/// Text of a client in a message, quoted and bounded.
pub(super) fn shown(text: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(&text[..text.len().min(100)]))
}
