//! The `process_*` metrics, with the usual Prometheus names, read from procfs.

use std::fs;

use super::exposition::{MetricType, MetricsText};

/// Statistics of this process; unreadable values are `None`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ProcessStats {
    cpu_seconds: Option<f64>,
    max_fds: Option<u64>,
    open_fds: Option<u64>,
    resident_bytes: Option<u64>,
    start_seconds: Option<f64>,
    virtual_bytes: Option<u64>,
}

impl ProcessStats {
    /// Reads the current statistics.
    pub(super) fn read() -> ProcessStats {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let mut reading = ProcessStats::parse(
            &read("/proc/self/stat"),
            &read("/proc/stat"),
            rustix::param::clock_ticks_per_second() as f64,
            rustix::param::page_size() as u64,
        );
        // Without the descriptor that reads the directory.
        reading.open_fds = fs::read_dir("/proc/self/fd").ok().map(|entries| (entries.count() as u64).saturating_sub(1));
        reading.max_fds = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        reading
    }

    /// Parses `/proc/self/stat` and the boot time in `/proc/stat` (proc(5)).
    fn parse(own: &str, system: &str, ticks: f64, page: u64) -> ProcessStats {
        // The second field is the command in parentheses; it may contain any character.
        let fields: Vec<&str> =
            own.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
        // Field numbers as in the manual; the first after the command is 3.
        let field = |n: usize| fields.get(n - 3).and_then(|text| text.parse::<u64>().ok());
        let boot = system.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<f64>().ok());
        ProcessStats {
            cpu_seconds: field(14).zip(field(15)).map(|(user, kernel)| (user + kernel) as f64 / ticks),
            start_seconds: field(22).zip(boot).map(|(start, boot)| boot + start as f64 / ticks),
            virtual_bytes: field(23),
            resident_bytes: field(24).map(|pages| pages * page),
            ..ProcessStats::default()
        }
    }

    pub(super) fn render(&self, text: &mut MetricsText) {
        if let Some(seconds) = self.cpu_seconds {
            text.family(
                "process_cpu_seconds_total",
                MetricType::Counter,
                "Total user and system CPU time spent in seconds.",
            );
            text.sample(&[], seconds);
        }
        if let Some(count) = self.max_fds {
            text.family("process_max_fds", MetricType::Gauge, "Maximum number of open file descriptors.");
            text.sample(&[], count);
        }
        if let Some(count) = self.open_fds {
            text.family("process_open_fds", MetricType::Gauge, "Number of open file descriptors.");
            text.sample(&[], count);
        }
        if let Some(bytes) = self.resident_bytes {
            text.family("process_resident_memory_bytes", MetricType::Gauge, "Resident memory size in bytes.");
            text.sample(&[], bytes);
        }
        if let Some(seconds) = self.start_seconds {
            text.family(
                "process_start_time_seconds",
                MetricType::Gauge,
                "Start time of the process since unix epoch in seconds.",
            );
            text.sample(&[], seconds);
        }
        if let Some(bytes) = self.virtual_bytes {
            text.family("process_virtual_memory_bytes", MetricType::Gauge, "Virtual memory size in bytes.");
            text.sample(&[], bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn procfs_command_may_hold_parentheses() {
        let own = "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 3 0 1000 8192 2 18446744073709551615";
        let reading = ProcessStats::parse(own, "cpu 1\nbtime 1700000000\n", 100.0, 4096);
        assert_eq!(reading.cpu_seconds, Some(2.0));
        assert_eq!(reading.start_seconds, Some(1_700_000_010.0));
        assert_eq!(reading.virtual_bytes, Some(8192));
        assert_eq!(reading.resident_bytes, Some(8192));
    }

    #[test]
    fn procfs_missing_values_are_omitted() {
        assert_eq!(ProcessStats::parse("", "", 100.0, 4096), ProcessStats::default());
    }

    #[test]
    fn procfs_reads_this_process() {
        let reading = ProcessStats::read();
        assert!(reading.resident_bytes.is_some_and(|bytes| bytes > 0));
        assert!(reading.open_fds.is_some_and(|count| count >= 3));
    }
}
