//! Charts of the status page: SVG paths of the last 15 minutes, and their text alternatives.

use std::fmt::Write;

use super::traffic_report::TrafficReport;
use crate::observe::metrics::SAMPLE_COUNT;

/// Height of the drawing area in units of the view box; its width is [`SAMPLE_COUNT`].
const HEIGHT: u32 = 60;

/// One chart: a filled area and its line, and a second path on top.
pub(super) struct Sparkline {
    /// Outline of the area; closed at the bottom.
    pub(super) area: String,
    /// The second path: bars of errors, or the line of the median.
    pub(super) overlay: String,
    /// Text alternative.
    pub(super) description: String,
}

impl Sparkline {
    /// The view box of every chart.
    pub(super) const VIEW_BOX: &'static str = "0 0 89 61";

    /// Requests, with errors as bars.
    pub(super) fn requests(traffic: &TrafficReport) -> Sparkline {
        let highest = traffic.requests.iter().copied().max().unwrap_or(0);
        let mut bars = String::new();
        for (at, (errors, y)) in traffic.errors.iter().zip(heights(&traffic.errors, highest)).enumerate() {
            if *errors > 0 {
                let _ = write!(bars, "M{} {HEIGHT}V{}", start(&traffic.errors) + at, y.min(HEIGHT - 4));
            }
        }
        Sparkline {
            area: area(&traffic.requests, highest),
            overlay: bars,
            description: format!(
                "Requests over 15 minutes: now {}, highest {}, errors {}",
                traffic.rate(),
                traffic.highest_rate(),
                traffic.error_share()
            ),
        }
    }

    /// The 99th percentile of the latency, with the median as a line.
    pub(super) fn latency(traffic: &TrafficReport) -> Sparkline {
        let highest = traffic.p99_micros.iter().copied().max().unwrap_or(0);
        Sparkline {
            area: area(&traffic.p99_micros, highest),
            overlay: line(&traffic.p50_micros, highest),
            description: format!(
                "Latency over 15 minutes: median now {}, 99th percentile now {}, highest {}",
                traffic.p50(),
                traffic.p99(),
                crate::observe::times::format_latency(Some(u64::from(highest)))
            ),
        }
    }
}

/// Horizontal position of the first value; the last is at the right edge.
fn start(values: &[u32]) -> usize {
    SAMPLE_COUNT.saturating_sub(values.len())
}

/// Distance of each value from the top.
fn heights(values: &[u32], highest: u32) -> impl Iterator<Item = u32> {
    values.iter().map(move |value| {
        let height = u64::from(*value) * u64::from(HEIGHT) / u64::from(highest.max(1));
        HEIGHT.saturating_sub(u32::try_from(height).unwrap_or(HEIGHT))
    })
}

fn line(values: &[u32], highest: u32) -> String {
    let mut path = String::new();
    let (mut before, mut flat) = (None, 0);
    for y in heights(values, highest) {
        match before {
            None => drop(write!(path, "M{} {y}", start(values))),
            Some(last) if last == y => flat += 1,
            Some(last) => {
                write_flat(&mut path, &mut flat);
                let _ = write!(path, "l1 {}", i64::from(y) - i64::from(last));
            }
        }
        before = Some(y);
    }
    write_flat(&mut path, &mut flat);
    path
}

/// Equal values are one horizontal line, so that the chart of a quiet server is a few bytes.
fn write_flat(path: &mut String, flat: &mut u32) {
    if *flat > 0 {
        let _ = write!(path, "h{flat}");
        *flat = 0;
    }
}

fn area(values: &[u32], highest: u32) -> String {
    if values.is_empty() {
        return String::new();
    }
    format!("{}V{HEIGHT}H{}z", line(values, highest), start(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparkline_of_requests_ends_at_the_right_edge() {
        let traffic = TrafficReport {
            interval_seconds: 10,
            requests: vec![0, 0, 10, 5],
            errors: vec![0, 0, 5, 0],
            p50_micros: vec![0, 0, 10, 20],
            p99_micros: vec![0, 0, 40, 40],
        };
        let requests = Sparkline::requests(&traffic);
        assert_eq!(requests.area, "M86 60h1l1 -60l1 30V60H86z");
        assert_eq!(requests.overlay, "M88 60V30");
        assert_eq!(requests.description, "Requests over 15 minutes: now 0.5/s, highest 1.0/s, errors 5 (33%)");
        assert_eq!(Sparkline::latency(&traffic).overlay, "M86 60h1l1 -15l1 -15");
        let none = Sparkline::requests(&TrafficReport::default());
        assert_eq!((none.area, none.overlay), (String::new(), String::new()));
    }
}
