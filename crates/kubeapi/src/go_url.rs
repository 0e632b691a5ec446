//! URLs as Go's `net/url` parses them, with its errors.

use super::GoQuoted;

/// A URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GoUrl {
    /// Scheme in lower case, or empty.
    pub scheme: String,
    /// User and password, as they are written.
    pub user: Option<String>,
    /// Host and port, or empty.
    pub host: String,
    /// Path; what follows the scheme if that is no path.
    pub path: String,
    /// Query without the question mark, or empty.
    pub raw_query: String,
    /// Fragment, or empty.
    pub fragment: String,
}

impl GoUrl {
    /// Parses a URL that may be relative (`url.Parse`).
    ///
    /// # Errors
    /// Go's text.
    pub fn parse(text: &str) -> Result<GoUrl, String> {
        let (without_fragment, fragment) = text.split_once('#').unwrap_or((text, ""));
        let failed = |part: &str, why: String| format!("parse {}: {why}", GoQuoted(part));
        let mut url = parse(without_fragment, false).map_err(|why| failed(without_fragment, why))?;
        url.fragment = unescape(fragment).map_err(|why| failed(text, why))?;
        Ok(url)
    }

    /// Parses a URI of a request, which is absolute (`url.ParseRequestURI`).
    ///
    /// # Errors
    /// Go's text.
    pub fn parse_request_uri(text: &str) -> Result<GoUrl, String> {
        parse(text, true).map_err(|why| format!("parse {}: {why}", GoQuoted(text)))
    }
}

fn parse(text: &str, is_request: bool) -> Result<GoUrl, String> {
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err("net/url: invalid control character in URL".to_owned());
    }
    if text.is_empty() && is_request {
        return Err("empty url".to_owned());
    }
    let mut url = GoUrl::default();
    if text == "*" {
        url.path = text.to_owned();
        return Ok(url);
    }
    let (scheme, rest) = split_scheme(text)?;
    url.scheme = scheme.to_ascii_lowercase();
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    url.raw_query = query.to_owned();
    if !rest.starts_with('/') {
        if !scheme.is_empty() {
            url.path = rest.to_owned();
            return Ok(url);
        }
        if is_request {
            return Err("invalid URI for request".to_owned());
        }
        if rest.split('/').next().is_some_and(|segment| segment.contains(':')) {
            return Err("first path segment in URL cannot contain colon".to_owned());
        }
    }
    let has_authority = !scheme.is_empty() || !is_request && !rest.starts_with("///");
    let rest = match rest.strip_prefix("//").filter(|_| has_authority) {
        Some(authority) => {
            let (authority, rest) = authority.find('/').map_or((authority, ""), |at| authority.split_at(at));
            (url.user, url.host) = parse_authority(authority)?;
            rest
        }
        None => rest,
    };
    url.path = unescape(rest)?;
    Ok(url)
}

/// The scheme, empty if there is none, and the rest.
fn split_scheme(text: &str) -> Result<(&str, &str), String> {
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if at > 0 => {}
            b':' if at == 0 => return Err("missing protocol scheme".to_owned()),
            b':' => return Ok((&text[..at], &text[at + 1..])),
            _ => break,
        }
    }
    Ok(("", text))
}

fn parse_authority(text: &str) -> Result<(Option<String>, String), String> {
    let (user, host) = text.rsplit_once('@').map_or((None, text), |(user, host)| (Some(user), host));
    let host = parse_host(host)?;
    let is_user_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(&byte);
    if user.is_some_and(|user| !user.bytes().all(is_user_byte)) {
        return Err("net/url: invalid userinfo".to_owned());
    }
    user.map(unescape).transpose()?;
    Ok((user.map(str::to_owned), host))
}

fn parse_host(text: &str) -> Result<String, String> {
    let port = match text.starts_with('[') {
        true => &text[text.rfind(']').ok_or("missing ']' in host")? + 1..],
        false => text.rfind(':').map_or("", |at| &text[at..]),
    };
    let is_port = port.is_empty()
        || port.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    if !is_port {
        return Err(format!("invalid port {} after host", GoQuoted(port)));
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"%".contains(&byte);
    if let Some(wrong) = text.bytes().find(|byte| byte.is_ascii() && !is_allowed(*byte)) {
        return Err(format!("invalid character {} in host name", GoQuoted(&char::from(wrong).to_string())));
    }
    // In hosts only characters beyond ASCII may be escaped.
    let is_ascii_escape = |rest: &&str| matches!(rest.as_bytes().first(), Some(b'0'..=b'7')) && !rest.starts_with("25");
    if let Some(rest) = text.split('%').skip(1).find(is_ascii_escape) {
        return Err(escape_error(rest));
    }
    unescape(text)
}

fn escape_error(rest: &str) -> String {
    let end = rest.char_indices().nth(2).map_or(rest.len(), |(at, _)| at);
    format!("invalid URL escape {}", GoQuoted(&format!("%{}", &rest[..end])))
}

fn unescape(text: &str) -> Result<String, String> {
    let is_escape = |rest: &&str| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    match text.split('%').skip(1).find(|rest| !is_escape(rest)) {
        Some(rest) => Err(escape_error(rest)),
        None => Ok(percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::GoUrl;

    #[test]
    fn go_url_parsed_with_errors_of_go() {
        let url = GoUrl::parse("HTTPS://user:pw@a.io:8443/x%20y?q=1#f").unwrap();
        assert_eq!((&*url.scheme, url.user.as_deref(), &*url.host), ("https", Some("user:pw"), "a.io:8443"));
        assert_eq!((&*url.path, &*url.raw_query, &*url.fragment), ("/x y", "q=1", "f"));
        assert_eq!(GoUrl::parse("a.io/x").unwrap().path, "a.io/x");
        for (text, expected) in [
            ("https://a b.io/", r#"parse "https://a b.io/": invalid character " " in host name"#),
            ("https://a.io/%zz", r#"parse "https://a.io/%zz": invalid URL escape "%zz""#),
            ("https://a.io:x/", r#"parse "https://a.io:x/": invalid port ":x" after host"#),
            ("https://[::1/", r#"parse "https://[::1/": missing ']' in host"#),
            (":a", r#"parse ":a": missing protocol scheme"#),
            ("a:b/\n", r#"parse "a:b/\n": net/url: invalid control character in URL"#),
            ("https://a%20b/", r#"parse "https://a%20b/": invalid URL escape "%20""#),
        ] {
            assert_eq!(GoUrl::parse(text), Err(expected.to_owned()));
        }
        assert_eq!(GoUrl::parse_request_uri("a").unwrap_err(), r#"parse "a": invalid URI for request"#);
    }
}
