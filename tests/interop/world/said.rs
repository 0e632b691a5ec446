//! What a server said, byte for byte where it matters.

/// An answer over HTTP/1.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) status: u16,
    /// Those that were wanted, sorted.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Said {
    /// Reads all that came on a connection; of the headers only those that are `wanted`.
    pub(crate) fn read(all: &[u8], wanted: impl Fn(&str) -> bool) -> Said {
        let all = String::from_utf8_lossy(all).into_owned();
        // Go on with the body: that is no answer yet.
        let all =
            all.split_once("\r\n\r\n").filter(|_| all.starts_with("HTTP/1.1 100 ")).map_or(&*all, |(_, rest)| rest);
        let (head, body) = all.split_once("\r\n\r\n").unwrap_or((all, ""));
        let mut lines = head.lines();
        // Not the words behind it, which nobody may look at.
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or_default();
        let mut headers: Vec<_> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        headers.retain(|(name, _)| wanted(name));
        headers.sort();
        Said { status, headers, body: if chunked { unchunked(body) } else { body.to_owned() } }
    }

    /// Since Go 1.26 paths are cleaned by a 307 where it was a 301, as programs of before answer, and ours.
    pub(crate) fn into_words_before_go_1_26(mut self) -> Said {
        if self.status == 307 {
            self.status = 301;
            self.body = self.body.replace("Temporary Redirect", "Moved Permanently");
        }
        self
    }
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let Some(length) = usize::from_str_radix(length, 16).ok().filter(|length| *length > 0) else { break };
        whole.push_str(rest.get(..length).unwrap_or(rest));
        body = rest.get(length + 2..).unwrap_or_default();
    }
    whole
}
