//! Client messages to `narthex socks5`.

use narthex::commands::socks5::protocol;

use crate::fuzz_bytes;

#[test]
fn socks5_messages() {
    fuzz_bytes(|bytes| {
        // A right beginning, so that more than the first byte is looked at.
        for head in [&[][..], &[5], &[1], &[5, 1, 0], &[5, 1, 0, 3], &[5, 1, 0, 4]] {
            let bytes = [head, bytes].concat();
            let used = [
                protocol::parse_greeting(&bytes).ok().flatten().map(|(_, used)| used),
                protocol::parse_login(&bytes).ok().flatten().map(|(_, used)| used),
                protocol::parse_request(&bytes).ok().flatten().map(|(_, used)| used),
            ];
            for (used, read) in used.into_iter().zip([0, 1, 2]) {
                let Some(used) = used else { continue };
                assert!(used <= bytes.len() && used <= protocol::MAX_MESSAGE_BYTES);
                // What was whole is whole without what follows, and not a byte earlier.
                let again = |end: usize| match read {
                    0 => protocol::parse_greeting(&bytes[..end]).map(|it| it.map(|(_, used)| used)),
                    1 => protocol::parse_login(&bytes[..end]).map(|it| it.map(|(_, used)| used)),
                    _ => protocol::parse_request(&bytes[..end]).map(|it| it.map(|(_, used)| used)),
                };
                assert_eq!(again(used), Ok(Some(used)));
                assert_eq!(again(used - 1), Ok(None));
            }
        }
    });
}
