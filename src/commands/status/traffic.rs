//! The columns of recent requests: rate, errors, latency, and a chart of the last 15 minutes.

use crate::admin::{ApiServiceReport, StatusReport, TrafficReport};

/// Column titles.
pub(super) const COLUMNS: [&str; 5] = ["RATE", "ERRORS", "P50", "P99", "LAST 15M"];

/// Samples of one character of the chart; it has 30 characters.
const SAMPLES_PER_CHARACTER: usize = 3;
const CHART_WIDTH: usize = 30;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Whether any APIService had requests.
pub(super) fn has_traffic(report: &StatusReport) -> bool {
    report.apiservices.iter().any(ApiServiceReport::has_traffic)
}

/// Cells of one APIService or endpoint.
pub(super) fn cells(traffic: &TrafficReport) -> [String; 5] {
    [traffic.rate(), traffic.error_share(), traffic.p50(), traffic.p99(), chart(&traffic.requests)]
}

/// Requests as bars, the newest at the right.
fn chart(requests: &[u32]) -> String {
    let columns: Vec<u32> =
        requests.rchunks(SAMPLES_PER_CHARACTER).map(|some| some.iter().copied().max().unwrap_or(0)).collect();
    let highest = columns.iter().copied().max().unwrap_or(0).max(1);
    let bar = |value: &u32| match *value {
        0 => ' ',
        some => BARS[(u64::from(some) * (BARS.len() as u64 - 1) / u64::from(highest)) as usize],
    };
    let bars: String = columns.iter().rev().map(bar).collect();
    format!("{bars:>CHART_WIDTH$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traffic_chart_shows_highest_of_three_samples() {
        assert_eq!(chart(&[8, 0, 0, 0, 1, 0, 16]).trim_start(), "▄ █");
        assert_eq!(chart(&[1; 90]), "█".repeat(30));
        assert_eq!(chart(&[0, 0, 0, 8]).chars().count(), 30);
    }
}
