//! Fields of a written access record and their order.

use std::time::{Duration, SystemTime};

use http::Version;
use kubeapi::CREDENTIAL_ID;

use super::line::AccessLogLine;
use super::record::OpenRecord;

impl OpenRecord {
    /// Appends the record as one line. `body` is the duration of the response body.
    pub(super) fn write_line(&self, out: &mut Vec<u8>, duration: Duration, body: Option<Duration>) {
        let began = SystemTime::now().checked_sub(duration).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut line = AccessLogLine::begin(out, self.worker.settings.form, began);
        if let Some(id) = &self.audit_id {
            line.text("audit", id.as_bytes(), 64);
        }
        if let Some(trace) = &self.trace {
            line.word("trace", &trace.trace_id());
        }
        if let Some(name) = self.worker.control_plane() {
            line.text("control_plane", name.as_bytes(), 64);
        }
        let mut client = [0; 64];
        line.word("client", format_short(&mut client, format_args!("{}", self.client)));
        if let Some(user) = &self.user {
            line.text("user", user.name.as_bytes(), 256);
            line.number("groups", user.groups.len() as u64);
            let credential = user.extra.get(CREDENTIAL_ID).and_then(|ids| ids.first());
            if let Some(token) = credential.and_then(|id| id.strip_prefix("JTI=")) {
                line.text("jti", token.as_bytes(), 128);
            }
        }
        if let Some(user) = &self.impersonated {
            line.text("as", user.name.as_bytes(), 256);
            line.number("as_groups", user.groups.len() as u64);
        }
        if let Some(counted) = self.counted {
            line.word("verb", counted.verb.as_str());
        }
        line.text("method", self.method.as_str().as_bytes(), 32);
        line.path("path", self.uri.path(), self.uri.query(), 1024);
        line.word(
            "protocol",
            match self.version {
                Version::HTTP_2 => "h2",
                Version::HTTP_11 => "http/1.1",
                _ => "http/1.0",
            },
        );
        line.number("status", u64::from(self.status));
        if let Some(service) = &self.service {
            line.text("apiservice", service.name().as_bytes(), 256);
        }
        if let Some(endpoint) = &self.endpoint {
            line.text("endpoint", endpoint.address().as_bytes(), 256);
        }
        if let Some(admitted) = self.admit_duration {
            line.micros("admit_us", admitted);
        }
        if let Some(opening) = self.connect_timings {
            line.micros("dial_us", opening.dial);
            if !opening.proxy.is_zero() {
                line.micros("proxy_us", opening.proxy);
            }
            line.micros("tls_us", opening.tls);
        }
        if let Some(answered) = self.headers_duration {
            line.micros("headers_us", answered);
        }
        if let Some(body) = body {
            line.micros("body_us", body);
        }
        line.micros("total_us", duration);
        line.number("in", self.request_body.as_ref().map_or(0, |receipt| receipt.bytes()));
        line.number("out", self.sent);
        if self.retries > 0 {
            line.number("retries", u64::from(self.retries));
        }
        line.word("end", self.end.as_str());
        if let Some(refused) = &self.refusal {
            line.text("refused", refused.reason.as_bytes(), 64);
            line.word("blame", refused.blame.as_str());
            line.text("cause", refused.cause.as_bytes(), 1024);
        }
        if let Some(agent) = &self.agent {
            line.text("agent", agent.as_bytes(), 256);
        }
        line.finish();
    }
}

/// Formats a short text without an allocation; longer text is truncated.
fn format_short<'b>(buffer: &'b mut [u8; 64], arguments: std::fmt::Arguments<'_>) -> &'b str {
    use std::io::Write;
    let mut left = &mut buffer[..];
    let _ = left.write_fmt(arguments);
    let unused = left.len();
    std::str::from_utf8(&buffer[..64 - unused]).unwrap_or("")
}
