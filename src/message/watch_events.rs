//! Boundaries of watch events.

/// The events in a part of a watch that begins and ends between events: lines of JSON, or with protobuf each after its
/// length in four bytes, big-endian.
pub fn split_watch_events(mut events: &[u8], is_protobuf: bool) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let end = if is_protobuf {
            events.first_chunk().map(|length| (u32::from_be_bytes(*length) as usize).saturating_add(4))
        } else {
            events.iter().position(|byte| *byte == b'\n').map(|newline| newline + 1)
        };
        let (event, rest) = events.split_at(end.unwrap_or(usize::MAX).min(events.len()));
        events = rest;
        (!event.is_empty()).then_some(event)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_events_split_at_lines_and_protobuf_lengths() {
        let split = |events: &'static [u8], is_protobuf| split_watch_events(events, is_protobuf).collect::<Vec<_>>();
        assert_eq!(split(b"{}\n{\"a\":1}\n", false), [&b"{}\n"[..], b"{\"a\":1}\n"]);
        assert_eq!(split(b"\0\0\0\x03a\nc\0\0\0\x01\n", true), [&b"\0\0\0\x03a\nc"[..], b"\0\0\0\x01\n"]);
        // Incomplete events, which no server here sends, are one.
        assert_eq!(split(b"{}", false), [b"{}"]);
        assert_eq!(split(b"\xff\xff\xff\xffab", true), [b"\xff\xff\xff\xffab"]);
        assert_eq!(split(b"\0\0", true), [b"\0\0"]);
        assert!(split(b"", true).is_empty() && split(b"", false).is_empty());
    }
}
