//! Access log of the SOCKS5 proxy: one record per connection with user, destination and how it ended.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use super::Settings;
use super::line::AccessLogLine;
use super::writer::{AccessLog, LineSink};

/// Access log of one thread of the SOCKS5 proxy.
pub struct TunnelAccessLog {
    sink: LineSink,
    settings: Settings,
}

/// One finished connection.
pub struct TunnelRecord<'r> {
    /// Address of the client.
    pub client: SocketAddr,
    /// User name, if authentication is required.
    pub user: Option<&'r str>,
    /// Requested destination; `None` if the client never sent one.
    pub destination: Option<String>,
    /// Reply, in one word.
    pub reply: &'static str,
    /// Whether the connection was refused or failed.
    pub failed: bool,
    /// Cause of a failure, for the operator; empty if there is none.
    pub cause: &'r str,
    /// Time until the destination was connected.
    pub dial: Option<Duration>,
    /// Duration of the connection.
    pub duration: Duration,
    /// Bytes from the client.
    pub received: u64,
    /// Bytes to the client.
    pub sent: u64,
}

impl TunnelAccessLog {
    /// Creates the access log of one thread.
    pub fn new(log: &AccessLog, settings: Settings) -> TunnelAccessLog {
        TunnelAccessLog { sink: log.sink(), settings }
    }

    /// Writes the record if the mode requires it.
    pub fn record(&self, record: &TunnelRecord<'_>) {
        if !self.settings.mode.should_write(record.failed) {
            return;
        }
        let began = SystemTime::now().checked_sub(record.duration).unwrap_or(SystemTime::UNIX_EPOCH);
        self.sink.write(|out| {
            let mut line = AccessLogLine::begin(out, self.settings.form, began);
            line.word("client", &record.client.to_string());
            if let Some(user) = record.user {
                line.text("user", user.as_bytes(), 256);
            }
            if let Some(destination) = &record.destination {
                line.text("destination", destination.as_bytes(), 300);
            }
            line.word("reply", record.reply);
            if let Some(dial) = record.dial {
                line.micros("dial_us", dial);
            }
            line.micros("total_us", record.duration);
            line.number("in", record.received);
            line.number("out", record.sent);
            if !record.cause.is_empty() {
                line.text("cause", record.cause.as_bytes(), 1024);
            }
            line.finish();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::writer::tests::CapturedOutput;
    use super::super::{AccessLogFormat, AccessLogMode};
    use super::*;
    use crate::observe::Metrics;

    fn lines(mode: AccessLogMode, form: AccessLogFormat) -> String {
        let written = CapturedOutput::default();
        let log = AccessLog::to_writer(Box::new(written.clone()), &Metrics::new()).unwrap();
        let tunnels = TunnelAccessLog::new(&log, Settings { mode, form });
        let record = |failed| TunnelRecord {
            client: "127.0.0.1:9".parse().unwrap(),
            user: Some("ja\"ne"),
            destination: Some("a.example:443".to_owned()),
            reply: if failed { "not_allowed" } else { "succeeded" },
            failed,
            cause: if failed { "no pattern\nmatches" } else { "" },
            dial: (!failed).then_some(Duration::from_micros(7)),
            duration: Duration::from_micros(9),
            received: 1,
            sent: 2,
        };
        tunnels.record(&record(false));
        tunnels.record(&record(true));
        log.flush();
        written.text().lines().map(|line| format!("{}\n", line.split_once("client").unwrap().1)).collect()
    }

    #[test]
    fn tunnel_access_log_modes_and_formats() {
        let failed = "=127.0.0.1:9 user=\"ja\\\"ne\" destination=\"a.example:443\" reply=not_allowed total_us=9 in=1 out=2 \
                      cause=\"no pattern\\u000amatches\"\n";
        assert_eq!(lines(AccessLogMode::Off, AccessLogFormat::Text), "");
        assert_eq!(lines(AccessLogMode::Errors, AccessLogFormat::Text), failed);
        let all = lines(AccessLogMode::All, AccessLogFormat::Text);
        assert!(
            all.starts_with("=127.0.0.1:9 user=\"ja\\\"ne\" destination=\"a.example:443\" reply=succeeded dial_us=7")
        );
        assert!(all.ends_with(failed), "{all}");
        assert!(
            lines(AccessLogMode::Errors, AccessLogFormat::Json).contains("\"reply\":\"not_allowed\",\"total_us\":9")
        );
    }
}
