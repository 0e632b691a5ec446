//! The requested host, validated before anything else in a request is read.

use http::header::HOST;
use http::{HeaderValue, Method, Request, Version};

use kubeapi::Status;

/// Header lines of one request, far beyond any user's groups. hyper limits HTTP/1.1 itself; the header map holds 24,576
/// names and panics when one more is added.
const MAX_HEADER_LINES: usize = 4096;

/// The requested host; none over HTTP/1.0, or if the request names none.
///
/// The host of the request target wins, as RFC 9112 says for `GET https://host/…`. Over HTTP/2 a `Host` beside
/// `:authority` must be equal.
///
/// # Errors
/// 400 for a missing, repeated or malformed host and for a malformed target. 405 for `CONNECT` and `TRACE`. 431 for too
/// many header lines.
pub(super) fn requested_host<B>(request: &Request<B>) -> Result<Option<&str>, Status> {
    let headers = request.headers();
    if headers.len() > MAX_HEADER_LINES {
        return Err(Status::request_header_fields_too_large(format!(
            "a request has at most {MAX_HEADER_LINES} header lines"
        )));
    }
    // CONNECT would open a tunnel to any host; TRACE echoes credentials.
    if matches!(*request.method(), Method::CONNECT | Method::TRACE) {
        return Err(Status::method_not_allowed("the server does not allow this method on the requested resource"));
    }
    let target = request.uri();
    let authority = target.authority().map(http::uri::Authority::as_str);
    if authority.is_some() && target.scheme().is_none() {
        return Err(Status::bad_request("the request target is neither a path nor a URL"));
    }
    let mut lines = headers.get_all(HOST).iter();
    let line = lines.next();
    if lines.next().is_some() {
        return Err(Status::bad_request("the request has more than one Host"));
    }
    let line = match line.map(HeaderValue::to_str) {
        Some(Err(_)) => return Err(malformed()),
        Some(Ok(line)) => Some(line),
        None => None,
    };
    let host = match (authority, line) {
        (Some(authority), Some(line))
            if request.version() == Version::HTTP_2 && !authority.eq_ignore_ascii_case(line) =>
        {
            return Err(Status::bad_request("the request names one host in :authority and another in Host"));
        }
        (None, None) if request.version() == Version::HTTP_11 => {
            return Err(Status::bad_request("the request has no Host"));
        }
        (authority, line) => authority.or(line),
    };
    Ok(host.filter(|host| !host.is_empty()))
}

/// Validates `host`; called once per new host of a connection.
pub(super) fn validate_host(host: &str) -> Result<(), Status> {
    let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!$%&'()*+-.:;=[]_~".contains(&byte);
    if host.bytes().all(is_host_byte) { Ok(()) } else { Err(malformed()) }
}

fn malformed() -> Status {
    Status::bad_request("the request names a host that cannot be one")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_host(method: &str, target: &str, version: Version, hosts: &[&str]) -> Result<Option<String>, u16> {
        let mut request = Request::builder().method(method).uri(target).version(version);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let request = request.body(()).unwrap();
        let host = requested_host(&request).map_err(|status| status.code)?;
        host.map(|host| validate_host(host).map(|()| host.to_owned())).transpose().map_err(|status| status.code)
    }

    #[test]
    fn host_header_single_or_absent() {
        let (old, one, two) = (Version::HTTP_10, Version::HTTP_11, Version::HTTP_2);
        let a = || Ok(Some("a".to_owned()));
        for (target, version, hosts, expected) in [
            ("/x", one, &["a"][..], a()),
            ("/x", one, &["a:6443"], Ok(Some("a:6443".to_owned()))),
            ("/x", one, &["[::1]:6443"], Ok(Some("[::1]:6443".to_owned()))),
            ("/x", one, &[""], Ok(None)),
            ("/x", one, &[], Err(400)),
            ("/x", old, &[], Ok(None)),
            ("/x", one, &["a", "a"], Err(400)),
            ("/x", one, &["b@a"], Err(400)),
            ("/x", one, &["a/b"], Err(400)),
            ("/x", one, &["a, b"], Err(400)),
            ("https://a/x", one, &["b"], a()),
            ("https://a/x", two, &[], a()),
            ("https://a/x", two, &["A"], a()),
            ("https://a/x", two, &["b"], Err(400)),
            ("/x", two, &["a"], a()),
            ("a", one, &["a"], Err(400)),
        ] {
            assert_eq!(parse_host("GET", target, version, hosts), expected, "{target} {version:?} {hosts:?}");
        }
        assert_eq!(parse_host("CONNECT", "a:443", one, &["a"]), Err(405));
        assert_eq!(parse_host("TRACE", "/x", one, &["a"]), Err(405));
    }
}
