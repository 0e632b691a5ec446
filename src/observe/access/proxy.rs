//! Access log of the local proxy: one record per request, written with the response headers.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use http::{Method, Uri};

use super::Settings;
use super::line::AccessLogLine;
use super::writer::{AccessLog, LineSink};

/// Access log of one thread of the local proxy.
pub struct ProxyAccessLog {
    sink: LineSink,
    settings: Settings,
}

/// One request and its response.
pub struct ProxyRecord<'r> {
    /// Address of the client; `None` for a Unix socket.
    pub client: Option<IpAddr>,
    /// HTTP method.
    pub method: &'r Method,
    /// Path and query as the client sent them.
    pub uri: &'r Uri,
    /// Status code of the response.
    pub status: u16,
    /// Why the proxy itself refused or failed; empty for a response of the API server.
    pub cause: &'r str,
    /// Time until the response headers.
    pub duration: Duration,
}

impl ProxyAccessLog {
    /// Creates the access log of one thread.
    pub fn new(log: &AccessLog, settings: Settings) -> ProxyAccessLog {
        ProxyAccessLog { sink: log.sink(), settings }
    }

    /// Writes the record if the mode requires it. A failure is a refusal of the proxy, or a status of 500 and above.
    pub fn record(&self, record: &ProxyRecord<'_>) {
        if !self.settings.mode.should_write(!record.cause.is_empty() || record.status >= 500) {
            return;
        }
        let began = SystemTime::now().checked_sub(record.duration).unwrap_or(SystemTime::UNIX_EPOCH);
        self.sink.write(|out| {
            let mut line = AccessLogLine::begin(out, self.settings.form, began);
            if let Some(client) = record.client {
                line.word("client", &client.to_canonical().to_string());
            }
            line.text("method", record.method.as_str().as_bytes(), 32);
            line.path("path", record.uri.path(), record.uri.query(), 1024);
            line.number("status", u64::from(record.status));
            line.micros("headers_us", record.duration);
            if !record.cause.is_empty() {
                line.text("cause", record.cause.as_bytes(), 1024);
            }
            line.finish();
        });
    }
}
