//! Exposition formats: Prometheus text format, and OpenMetrics if the scraper accepts it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

/// Exposition format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpositionFormat {
    /// Prometheus text format 0.0.4, which kube-apiserver uses.
    Classic,
    /// OpenMetrics 1.0.
    OpenMetrics,
}

impl ExpositionFormat {
    /// OpenMetrics if the `Accept` header names it, else classic. Names and values are the same in both: a counter
    /// without `_total` in its Kubernetes name has type `unknown` in OpenMetrics, which would otherwise rename it.
    pub fn negotiate(accept: &str) -> ExpositionFormat {
        if accept.contains("application/openmetrics-text") {
            ExpositionFormat::OpenMetrics
        } else {
            ExpositionFormat::Classic
        }
    }

    /// `Content-Type` of the format.
    pub fn content_type(self) -> &'static str {
        match self {
            ExpositionFormat::Classic => "text/plain; version=0.0.4; charset=utf-8",
            ExpositionFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricType {
    Counter,
    Gauge,
    Histogram,
}

/// Renders metrics. A family without samples is omitted, as in Kubernetes.
pub(super) struct MetricsText {
    out: String,
    format: ExpositionFormat,
    pending: Option<(&'static str, MetricType, &'static str)>,
    name: &'static str,
    /// Value of the label `control_plane` of each sample.
    control_plane: Option<Arc<str>>,
}

impl MetricsText {
    pub(super) fn new(format: ExpositionFormat) -> MetricsText {
        MetricsText { out: String::with_capacity(16 * 1024), format, pending: None, name: "", control_plane: None }
    }

    /// Adds the label `control_plane` to each sample from here on.
    pub(super) fn set_control_plane(&mut self, name: Option<Arc<str>>) {
        self.control_plane = name;
    }

    /// The text of all `parts`, in which the samples of a family are together and families are sorted by name.
    pub(super) fn merged(format: ExpositionFormat, parts: impl Iterator<Item = MetricsText>) -> MetricsText {
        // The help and type of each family, and its samples.
        let mut families: BTreeMap<String, (String, String)> = BTreeMap::new();
        for part in parts {
            let mut before = (String::new(), String::new());
            let mut family = &mut before;
            let mut is_first = false;
            // No label value contains a line end.
            for line in part.out.split_inclusive('\n') {
                if let Some(named) = line.strip_prefix("# HELP ") {
                    family = families.entry(named.split(' ').next().unwrap_or_default().to_owned()).or_default();
                    is_first = family.0.is_empty();
                }
                match line.starts_with("# ") {
                    true if is_first => family.0.push_str(line),
                    true => {}
                    false => family.1.push_str(line),
                }
            }
        }
        let mut text = MetricsText::new(format);
        for (head, samples) in families.values() {
            text.out.push_str(head);
            text.out.push_str(samples);
        }
        text
    }

    /// Starts the family `name`; its samples follow.
    pub(super) fn family(&mut self, name: &'static str, kind: MetricType, help: &'static str) {
        self.pending = Some((name, kind, help));
        self.name = name;
    }

    /// Appends one sample of the family.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl SampleValue) {
        self.line("", labels, None, value);
    }

    /// Appends one series of a histogram from its bucket counts (not cumulative) and sum. A histogram without
    /// observations is omitted.
    pub(super) fn histogram(&mut self, labels: &[(&str, &str)], printed: &[&str], buckets: &[u64], sum: f64) {
        if buckets.iter().all(|bucket| *bucket == 0) {
            return;
        }
        let mut count = 0;
        for (n, bucket) in buckets.iter().enumerate() {
            count += bucket;
            let bound = printed.get(n).copied().unwrap_or("+Inf");
            // In OpenMetrics, bounds are floats.
            if self.format == ExpositionFormat::OpenMetrics && bound.bytes().all(|byte| byte.is_ascii_digit()) {
                self.line("_bucket", labels, Some(&format!("{bound}.0")), count);
            } else {
                self.line("_bucket", labels, Some(bound), count);
            }
        }
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count);
    }

    /// Returns the text.
    pub(super) fn finish(mut self) -> String {
        if self.format == ExpositionFormat::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }

    fn head(&mut self) {
        let Some((name, kind, help)) = self.pending.take() else { return };
        let (family, kind) = match (self.format, kind) {
            (_, MetricType::Gauge) => (name, "gauge"),
            (_, MetricType::Histogram) => (name, "histogram"),
            (ExpositionFormat::Classic, MetricType::Counter) => (name, "counter"),
            // The family name without `_total` is taken by a gauge.
            (ExpositionFormat::OpenMetrics, MetricType::Counter)
                if name == "aggregator_unavailable_apiservice_total" =>
            {
                (name, "unknown")
            }
            (ExpositionFormat::OpenMetrics, MetricType::Counter) => match name.strip_suffix("_total") {
                Some(family) => (family, "counter"),
                None => (name, "unknown"),
            },
        };
        // Help texts contain neither a backslash nor a line end.
        self.write(format_args!("# HELP {family} {help}\n# TYPE {family} {kind}\n"));
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<&str>, value: impl SampleValue) {
        self.head();
        self.out.push_str(self.name);
        self.out.push_str(suffix);
        let mut separator = '{';
        let control_plane = self.control_plane.clone();
        let control_plane = control_plane.iter().map(|name| ("control_plane", &**name));
        let labels = labels.iter().copied().chain(control_plane);
        for (name, value) in labels.chain(bound.map(|bound| ("le", bound))) {
            self.out.push(separator);
            separator = ',';
            self.out.push_str(name);
            self.out.push_str("=\"");
            for character in value.chars() {
                match character {
                    '\\' => self.out.push_str("\\\\"),
                    '"' => self.out.push_str("\\\""),
                    '\n' => self.out.push_str("\\n"),
                    other => self.out.push(other),
                }
            }
            self.out.push('"');
        }
        if separator == ',' {
            self.out.push('}');
        }
        self.out.push(' ');
        value.write(&mut self.out);
        self.out.push('\n');
    }

    fn write(&mut self, arguments: std::fmt::Arguments<'_>) {
        // Writing to a String does not fail.
        let _ = self.out.write_fmt(arguments);
    }
}

/// A number that can be the value of a sample.
pub(super) trait SampleValue {
    fn write(self, out: &mut String);
}

impl SampleValue for u64 {
    fn write(self, out: &mut String) {
        let _ = write!(out, "{self}");
    }
}

impl SampleValue for i64 {
    fn write(self, out: &mut String) {
        let _ = write!(out, "{self}");
    }
}

impl SampleValue for f64 {
    fn write(self, out: &mut String) {
        let _ = match self {
            v if v.is_nan() => write!(out, "NaN"),
            v if v == f64::INFINITY => write!(out, "+Inf"),
            v if v == f64::NEG_INFINITY => write!(out, "-Inf"),
            v => write!(out, "{v}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposition_label_values_are_escaped() {
        let mut text = MetricsText::new(ExpositionFormat::Classic);
        text.family("a_total", MetricType::Counter, "Help.");
        text.sample(&[("file", "a\\b\"c\nd")], 1_u64);
        assert_eq!(
            text.finish(),
            "# HELP a_total Help.\n# TYPE a_total counter\na_total{file=\"a\\\\b\\\"c\\nd\"} 1\n"
        );
    }

    #[test]
    fn exposition_omits_family_without_samples() {
        let mut text = MetricsText::new(ExpositionFormat::Classic);
        text.family("a_total", MetricType::Counter, "Help.");
        text.family("b", MetricType::Gauge, "Help.");
        text.sample(&[], -3_i64);
        assert_eq!(text.finish(), "# HELP b Help.\n# TYPE b gauge\nb -3\n");
    }

    #[test]
    fn exposition_openmetrics_keeps_sample_names() {
        let mut text = MetricsText::new(ExpositionFormat::OpenMetrics);
        text.family("requests_total", MetricType::Counter, "Help.");
        text.sample(&[], 1_u64);
        text.family("attempts", MetricType::Counter, "Help.");
        text.sample(&[], 2_u64);
        text.family("sizes", MetricType::Histogram, "Help.");
        text.histogram(&[], &["1000", "1e+06"], &[1, 0, 2], 3e6);
        assert_eq!(
            text.finish(),
            "# HELP requests Help.\n# TYPE requests counter\nrequests_total 1\n\
             # HELP attempts Help.\n# TYPE attempts unknown\nattempts 2\n\
             # HELP sizes Help.\n# TYPE sizes histogram\n\
             sizes_bucket{le=\"1000.0\"} 1\nsizes_bucket{le=\"1e+06\"} 1\nsizes_bucket{le=\"+Inf\"} 3\n\
             sizes_sum 3000000\nsizes_count 3\n# EOF\n"
        );
    }

    #[test]
    fn exposition_format_follows_accept_header() {
        assert_eq!(
            ExpositionFormat::negotiate("application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5"),
            ExpositionFormat::OpenMetrics
        );
        assert_eq!(ExpositionFormat::negotiate("text/plain"), ExpositionFormat::Classic);
        assert_eq!(ExpositionFormat::negotiate(""), ExpositionFormat::Classic);
    }
}
