//! Request queries: the same parameters for authorization and forwarding.
//!
//! Go drops pairs such as `a=1;b=2` and `a=%zz`, while other servers parse them. A pair that Go drops is therefore not
//! forwarded.

use std::borrow::Cow;

use super::percent;

/// Bytes that are forwarded unchanged. Others (a raw space, quotes, control bytes, bytes above ASCII) are
/// percent-encoded. A pair with `;` is dropped.
const PLAIN: percent::ByteSet = percent::alphanumeric_and(b"-._~!$&'()*+,=:@/?%[]|");

/// A request's query, without the question mark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query<'q> {
    raw: &'q str,
    wire: Cow<'q, str>,
}

impl<'q> Query<'q> {
    /// Parses a query; empty if there is none. Copies nothing unless a pair is changed or dropped.
    pub fn parse(raw: &'q str) -> Query<'q> {
        let wire = if raw.bytes().all(|byte| PLAIN[usize::from(byte)]) && percent::is_well_formed(raw) {
            Cow::Borrowed(raw)
        } else {
            let mut wire = String::with_capacity(raw.len());
            for pair in raw.split('&').filter(|pair| is_kept_by_go(pair)) {
                if !wire.is_empty() {
                    wire.push('&');
                }
                percent::encode_into(&mut wire, pair, &PLAIN);
            }
            Cow::Owned(wire)
        };
        Query { raw, wire }
    }

    /// The query as the client sent it.
    pub fn raw(&self) -> &'q str {
        self.raw
    }

    /// The query to forward, without the pairs that Go drops.
    pub fn wire(&self) -> &str {
        &self.wire
    }

    /// The query to forward if only the first value of each of `keys` was authorized: without their further values,
    /// which other servers may use instead. Copies nothing unless one of `keys` is repeated.
    pub fn wire_first_values(&self, keys: &[&str]) -> Cow<'_, str> {
        if keys.is_empty() {
            return Cow::Borrowed(&self.wire);
        }
        debug_assert!(keys.len() <= 32, "a bit for each");
        let firsts = || {
            let mut found_keys = 0u32;
            self.wire.split('&').filter(move |pair| {
                let key = decode(pair.split_once('=').map_or(*pair, |(key, _)| key));
                let Some(bit) = keys.iter().position(|one| *one == key).map(|at| 1 << at) else { return true };
                let is_first = found_keys & bit == 0;
                found_keys |= bit;
                is_first
            })
        };
        if firsts().count() == self.wire.split('&').count() {
            return Cow::Borrowed(&self.wire);
        }
        Cow::Owned(firsts().collect::<Vec<_>>().join("&"))
    }

    /// The first value of `key`, decoded. Invalid UTF-8 is replaced. A key without `=` has the empty value.
    pub fn get(&self, key: &str) -> Option<Cow<'_, str>> {
        self.pairs().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// All pairs, decoded, in order.
    pub fn pairs(&self) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
        self.wire.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        })
    }
}

/// Whether Go's `url.ParseQuery` keeps this pair.
fn is_kept_by_go(pair: &str) -> bool {
    !pair.is_empty() && !pair.contains(';') && percent::is_well_formed(pair)
}

fn decode(text: &str) -> Cow<'_, str> {
    let spaced = if text.contains('+') { Cow::Owned(text.replace('+', " ")) } else { Cow::Borrowed(text) };
    match spaced {
        Cow::Borrowed(text) => decoded_or_raw(percent::decode(text), text),
        Cow::Owned(text) => Cow::Owned(decoded_or_raw(percent::decode(&text), &text).into_owned()),
    }
}

fn decoded_or_raw<'t>(decoded: Option<Result<Cow<'t, str>, Vec<u8>>>, text: &'t str) -> Cow<'t, str> {
    match decoded {
        Some(Ok(decoded)) => decoded,
        Some(Err(bytes)) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn query_ordinary_not_copied() {
        for raw in ["", "limit=500", "watch=true&resourceVersion=12", "fieldSelector=metadata.name%3Dx", "a=b&a=c&&d"] {
            let query = Query::parse(raw);
            assert!(matches!(query.wire, Cow::Borrowed(wire) if wire == raw), "{raw}");
        }
    }

    #[test]
    fn query_get_returns_first_value_decoded() {
        let query = Query::parse("a=1&b=x%20y+z&a=2&c&%64=4&=5");
        assert_eq!(query.get("a").as_deref(), Some("1"));
        assert_eq!(query.get("b").as_deref(), Some("x y z"));
        assert_eq!(query.get("c").as_deref(), Some(""));
        assert_eq!(query.get("d").as_deref(), Some("4"));
        assert_eq!(query.get("").as_deref(), Some("5"));
        assert_eq!(query.get("e"), None);
    }

    /// Pitfall 21: a backend must not see parameters that the authorizer did not.
    #[test]
    fn query_semicolons_and_malformed_escapes_dropped() {
        for (raw, wire) in [
            ("watch=true;limit=1", ""),
            ("a=1;watch=true&b=2", "b=2"),
            ("a=%zz&b=2", "b=2"),
            ("a=%2&b=2", "b=2"),
            ("%=1&b=2", "b=2"),
            ("b=2&;", "b=2"),
            ("b=\"2\"&c=<>", "b=%222%22&c=%3C%3E"),
            ("b=é", "b=%C3%A9"),
            ("b=a#c", "b=a%23c"),
        ] {
            let query = Query::parse(raw);
            assert_eq!(query.wire(), wire, "{raw}");
            assert_eq!(query.raw(), raw);
            assert_eq!(query.get("watch"), None);
        }
    }

    #[test]
    fn query_further_values_of_authorized_keys_dropped() {
        for (raw, wire) in [
            ("a=1&a=2&b=3", "a=1&b=3"),
            ("b=1&%61=2&a=3&&b=4&c=5&c=6", "b=1&%61=2&&c=5&c=6"),
            ("a&a=1", "a"),
            ("a+=1&a=2&a=3", "a+=1&a=2"),
        ] {
            assert_eq!(Query::parse(raw).wire_first_values(&["a", "b"]), wire, "{raw}");
            assert!(matches!(Query::parse(raw).wire_first_values(&[]), Cow::Borrowed(all) if all == raw));
        }
        let once = Query::parse("a=1&b=2&c=3&c=4");
        assert!(matches!(once.wire_first_values(&["a", "b"]), Cow::Borrowed("a=1&b=2&c=3&c=4")));
    }

    proptest! {
        #[test]
        fn reading_what_is_forwarded_gives_what_was_judged(raw in "[a-z=&;%+0-9é \"]{0,40}") {
            let query = Query::parse(&raw);
            let again = Query::parse(query.wire());
            prop_assert_eq!(again.wire(), query.wire());
            prop_assert_eq!(again.pairs().collect::<Vec<_>>(), query.pairs().collect::<Vec<_>>());
            prop_assert!(!query.wire().contains(';'));
            prop_assert!(query.wire().is_ascii());
        }
    }
}
