//! HTTP/1.1 responses parsed from raw bytes.

/// An HTTP/1.1 response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawResponse {
    pub(crate) status: u16,
    /// Selected headers, sorted.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl RawResponse {
    /// Parses all bytes of a connection; keeps headers for which `wanted` is true.
    pub(crate) fn read(all: &[u8], wanted: impl Fn(&str) -> bool) -> RawResponse {
        let all = String::from_utf8_lossy(all).into_owned();
        // Skips the interim response `100 Continue`.
        let all =
            all.split_once("\r\n\r\n").filter(|_| all.starts_with("HTTP/1.1 100 ")).map_or(&*all, |(_, rest)| rest);
        let (head, body) = all.split_once("\r\n\r\n").unwrap_or((all, ""));
        let mut lines = head.lines();
        // The reason phrase is ignored.
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or_default();
        let mut headers: Vec<_> = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        headers.retain(|(name, _)| wanted(name));
        headers.sort();
        RawResponse { status, headers, body: if chunked { unchunked(body) } else { body.to_owned() } }
    }

    /// Rewrites the 307 of Go 1.26 and newer for cleaned paths to the 301 of older Go versions and narthex.
    pub(crate) fn with_redirect_before_go_1_26(mut self) -> RawResponse {
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
