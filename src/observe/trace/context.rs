//! W3C Trace Context: the headers `traceparent` and `tracestate`.

use http::{HeaderName, HeaderValue};

/// The header with the trace and the parent span.
pub(super) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// The header with data of tracing systems.
pub(super) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Length of a `traceparent` of version 00.
const LENGTH: usize = 55;
/// The flag of a sampled trace.
const SAMPLED: u8 = 1;

/// A span as other processes refer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// Trace ID; not zero.
    pub trace_id: u128,
    /// Span ID; not zero.
    pub span_id: u64,
    /// Whether the trace is recorded.
    pub sampled: bool,
}

impl SpanContext {
    /// Parses a `traceparent`. Later versions may be longer; their further fields are ignored.
    pub fn parse(value: &[u8]) -> Option<SpanContext> {
        let (head, rest) = value.split_at_checked(LENGTH)?;
        if [2, 35, 52].iter().any(|at| head[*at] != b'-') {
            return None;
        }
        let version = hex(&head[..2])?;
        if version == 0xff || version == 0 && !rest.is_empty() || !rest.is_empty() && rest[0] != b'-' {
            return None;
        }
        let (trace_id, span_id) = (hex(&head[3..35])?, hex(&head[36..52])? as u64);
        let sampled = hex(&head[53..])? as u8 & SAMPLED != 0;
        (trace_id != 0 && span_id != 0).then_some(SpanContext { trace_id, span_id, sampled })
    }

    /// The `traceparent` of requests that this span causes.
    pub fn to_header(self) -> HeaderValue {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&mut text[3..35], self.trace_id);
        write_hex(&mut text[36..52], self.span_id.into());
        text[54] += u8::from(self.sampled);
        // Hex digits are a valid value: the fallback only avoids a panic path.
        let mut value = HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static(""));
        // No secret, but unique: marked sensitive, it does not fill the HPACK table.
        value.set_sensitive(true);
        value
    }

    /// The trace ID, as it is shown.
    pub(in crate::observe) fn trace_id_text(&self) -> String {
        format!("{:032x}", self.trace_id)
    }
}

/// The number that `digits`, lower-case hex digits, write.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

fn write_hex(digits: &mut [u8], mut number: u128) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn traceparent_round_trips() {
        let context = SpanContext::parse(VALID.as_bytes()).unwrap();
        assert_eq!(context.trace_id_text(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!((context.span_id, context.sampled), (0xb7ad_6b71_6920_3331, true));
        assert_eq!(context.to_header(), VALID);
        let unsampled = SpanContext { sampled: false, ..context };
        assert_eq!(SpanContext::parse(unsampled.to_header().as_bytes()), Some(unsampled));
    }

    #[test]
    fn traceparent_of_other_versions_and_flags() {
        for (value, sampled) in [
            (VALID.replacen("00", "01", 1), true),
            (VALID.replacen("00", "fe", 1) + "-more", true),
            (VALID[..53].to_owned() + "03", true),
            (VALID[..53].to_owned() + "02", false),
        ] {
            assert_eq!(SpanContext::parse(value.as_bytes()).unwrap().sampled, sampled, "{value}");
        }
    }

    #[test]
    fn traceparent_invalid_is_rejected() {
        for value in [
            String::new(),
            VALID[..54].to_owned(),
            VALID.to_owned() + "-more",
            VALID.to_owned() + "0",
            VALID.replacen("00", "01", 1) + "0",
            VALID.replacen("00", "ff", 1),
            VALID.to_uppercase(),
            VALID.replace('-', "_"),
            VALID.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            VALID.replace("b7ad6b7169203331", &"0".repeat(16)),
            VALID.replace("b7ad", "b7g0"),
        ] {
            assert_eq!(SpanContext::parse(value.as_bytes()), None, "{value}");
        }
    }

    #[test]
    fn traceparent_parse_never_panics() {
        bolero::check!().with_type::<Vec<u8>>().with_iterations(5000).for_each(|bytes| {
            if let Some(context) = SpanContext::parse(bytes) {
                assert_eq!(SpanContext::parse(context.to_header().as_bytes()), Some(context));
            }
        });
    }
}
