//! Requests of an APIService or endpoint over the last 15 minutes.

use serde::{Deserialize, Serialize};

use crate::observe::metrics::{RequestHistory, SAMPLE_INTERVAL};
use crate::observe::times::format_latency;

/// Requests of the last 15 minutes in intervals, oldest first. Intervals before the first request are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TrafficReport {
    /// Length of an interval in seconds.
    pub interval_seconds: u64,
    /// Requests that ended in each interval.
    pub requests: Vec<u32>,
    /// Number of those with a status 5xx, without a response, or with one that was cut off.
    pub errors: Vec<u32>,
    /// Median latency in microseconds: to the response headers of a backend, or of the whole request where there is no
    /// backend; 0 without requests.
    pub p50_micros: Vec<u32>,
    /// 99th percentile of the latency in microseconds; 0 without requests.
    pub p99_micros: Vec<u32>,
}

impl TrafficReport {
    /// The report of APIService `service`, or of its endpoint `address` if that is not empty.
    pub(super) fn from_history(history: &RequestHistory, service: &str, address: &str) -> TrafficReport {
        let mut report = TrafficReport::default();
        for sample in history.samples(service, address) {
            report.interval_seconds = SAMPLE_INTERVAL.as_secs();
            report.requests.push(sample.requests);
            report.errors.push(sample.errors);
            report.p50_micros.push(sample.p50_micros);
            report.p99_micros.push(sample.p99_micros);
        }
        report
    }

    /// Whether there was no request.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Requests per second in the last interval, as `12/s` or `0.3/s`; empty without requests.
    pub fn rate(&self) -> String {
        self.requests.last().map(|count| format_rate(*count, self.interval_seconds)).unwrap_or_default()
    }

    /// Highest number of requests per second of an interval.
    pub fn highest_rate(&self) -> String {
        self.requests.iter().max().map(|count| format_rate(*count, self.interval_seconds)).unwrap_or_default()
    }

    /// Number of errors in all intervals.
    pub fn error_count(&self) -> u64 {
        self.errors.iter().map(|count| u64::from(*count)).sum()
    }

    /// Errors as `12 (3%)`; `0` without errors, empty without requests.
    pub fn error_share(&self) -> String {
        let (errors, requests) = (self.error_count(), self.requests.iter().map(|count| u64::from(*count)).sum::<u64>());
        match (requests, errors) {
            (0, _) => String::new(),
            (_, 0) => "0".to_owned(),
            _ if errors * 100 < requests => format!("{errors} (<1%)"),
            _ => format!("{errors} ({}%)", errors * 100 / requests),
        }
    }

    /// Median latency of the last interval that had requests, as `0.7ms`; empty without one.
    pub fn p50(&self) -> String {
        latest_latency(&self.p50_micros)
    }

    /// 99th percentile of the last interval that had requests, as `0.7ms`; empty without one.
    pub fn p99(&self) -> String {
        latest_latency(&self.p99_micros)
    }
}

fn latest_latency(micros: &[u32]) -> String {
    format_latency(micros.iter().rev().find(|micros| **micros > 0).map(|micros| u64::from(*micros)))
}

fn format_rate(count: u32, seconds: u64) -> String {
    let rate = f64::from(count) / seconds.max(1) as f64;
    if rate > 0.0 && rate < 10.0 { format!("{rate:.1}/s") } else { format!("{rate:.0}/s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_report_describes_last_interval_and_all_errors() {
        let report = TrafficReport {
            interval_seconds: 10,
            requests: vec![1000, 3, 0],
            errors: vec![20, 0, 0],
            p50_micros: vec![1000, 700, 0],
            p99_micros: vec![12_000, 3_400_000, 0],
        };
        assert_eq!(
            (report.rate(), report.highest_rate(), report.error_share()),
            ("0/s".into(), "100/s".into(), "20 (1%)".into())
        );
        assert_eq!((report.p50(), report.p99()), ("0.7ms".into(), "3.4s".into()));
        let none = TrafficReport::default();
        assert_eq!((none.rate(), none.error_share(), none.p50()), (String::new(), String::new(), String::new()));
    }
}
