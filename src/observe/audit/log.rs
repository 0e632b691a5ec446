//! The audit log: a thread that writes one line per event.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant, SystemTime};

use super::event::AuditEvent;
use super::queue::AuditQueue;
use super::queue::{LossReporter, REPORT_INTERVAL};
use super::rotate::{RotatedFile, RotationPolicy};
use super::{MAX_BATCH_BYTES, MAX_WAITING_BYTES};
use crate::observe::metrics::{AuditLoss, Metrics};
use crate::process::Problem;

/// Maximum number of queued events; Kubernetes' `--audit-log-batch-buffer-size`.
const MAX_EVENTS: usize = 10_000;
/// Time for which events are collected before they are written together.
const FLUSH_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of events per write.
const MAX_BATCH_EVENTS: usize = 500;

/// Path, format and rotation of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLogSettings {
    /// `--audit-log-path`; `None` for standard output.
    pub path: Option<PathBuf>,
    /// Value of `--audit-log-format`.
    pub format: AuditLogFormat,
    /// `--audit-log-maxage`, in days; 0 is unlimited.
    pub max_age: u64,
    /// `--audit-log-maxbackup`; 0 is unlimited.
    pub max_backups: usize,
    /// `--audit-log-maxsize`, in MiB; 0 is unlimited.
    pub max_size: u64,
}

/// Format of the audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AuditLogFormat {
    /// One line of text.
    Legacy,
    /// One JSON object.
    #[default]
    Json,
}

/// The writer thread of the log.
pub(super) struct AuditLogWriter {
    queue: Arc<AuditQueue>,
    thread: JoinHandle<()>,
    ended: Arc<AtomicBool>,
}

enum AuditLogOutput {
    File(RotatedFile),
    Stream(Box<dyn Write + Send>),
}

impl AuditLogWriter {
    /// Opens the log and starts the thread.
    pub(super) fn start(settings: &AuditLogSettings, metrics: &Arc<Metrics>) -> Result<AuditLogWriter, Problem> {
        let (output, place) = match &settings.path {
            None => (AuditLogOutput::Stream(Box::new(io::stdout())), "standard output".to_owned()),
            Some(path) => {
                let keep = RotationPolicy {
                    bytes: settings.max_size << 20,
                    backups: settings.max_backups,
                    age: Duration::from_secs(settings.max_age.saturating_mul(86_400)),
                };
                let opened = RotatedFile::open(path, keep).map_err(|error| {
                    Problem::new("--audit-log-path", format_args!("{} cannot be written: {error}", path.display()))
                })?;
                (AuditLogOutput::File(opened), path.display().to_string())
            }
        };
        AuditLogWriter::start_to(output, place, settings.format, metrics)
    }

    fn start_to(
        output: AuditLogOutput,
        location: String,
        format: AuditLogFormat,
        metrics: &Arc<Metrics>,
    ) -> Result<AuditLogWriter, Problem> {
        // The queue wakes the thread, but the thread needs the queue to start.
        let writer: Arc<std::sync::OnceLock<Thread>> = Arc::default();
        let waking = writer.clone();
        let queue = AuditQueue::new(MAX_EVENTS, MAX_WAITING_BYTES, MAX_EVENTS / 2, move || {
            if let Some(writer) = waking.get() {
                writer.unpark();
            }
        });
        let ended = Arc::new(AtomicBool::new(false));
        let mut writing = AuditLogTask {
            queue: queue.clone(),
            output,
            format,
            metrics: metrics.clone(),
            losses: LossReporter::new(location),
        };
        let is_ended = ended.clone();
        let thread = thread::Builder::new().name("audit-log".to_owned()).spawn(move || {
            while !is_ended.load(Relaxed) {
                // With a timeout, to log losses even without further events.
                thread::park_timeout(REPORT_INTERVAL);
                thread::park_timeout(FLUSH_INTERVAL);
                writing.write_waiting();
            }
            writing.write_waiting();
        });
        let thread = thread.map_err(|error| Problem::new("thread audit-log", error))?;
        let _ = writer.set(thread.thread().clone());
        Ok(AuditLogWriter { queue, thread, ended })
    }

    pub(super) fn queue(&self) -> &Arc<AuditQueue> {
        &self.queue
    }

    /// Writes all queued events and ends the thread; waits for a blocked write until `until`.
    pub(super) fn finish(&self, until: Instant) {
        self.ended.store(true, Relaxed);
        self.thread.thread().unpark();
        while !self.thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

struct AuditLogTask {
    queue: Arc<AuditQueue>,
    output: AuditLogOutput,
    format: AuditLogFormat,
    metrics: Arc<Metrics>,
    losses: LossReporter,
}

impl AuditLogTask {
    fn write_waiting(&mut self) {
        loop {
            let taken = self.queue.take(MAX_BATCH_EVENTS, MAX_BATCH_BYTES);
            if taken.events.is_empty() {
                return self.losses.report(&self.queue);
            }
            let lines: Vec<Vec<u8>> = taken.events.iter().map(|event| self.line(event)).collect();
            let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
            if let Err((count, error)) = self.output.write(&lines) {
                let lost = lines.len() - count;
                self.metrics.audit().record_lost(AuditLoss::Log, lost);
                self.losses.record_failure(lost, error.to_string());
            }
            self.losses.report(&self.queue);
        }
    }

    fn line(&self, event: &AuditEvent) -> Vec<u8> {
        let mut line = Vec::with_capacity(1024);
        match self.format {
            AuditLogFormat::Json => event.write_json(&mut line, true),
            AuditLogFormat::Legacy => event.write_legacy(&mut line),
        }
        line.push(b'\n');
        line
    }
}

impl AuditLogOutput {
    fn write(&mut self, lines: &[&[u8]]) -> Result<(), (usize, io::Error)> {
        match self {
            AuditLogOutput::File(file) => file.write(lines, SystemTime::now()),
            AuditLogOutput::Stream(stream) => {
                stream.write_all(&lines.concat()).and_then(|()| stream.flush()).map_err(|error| (0, error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use parking_lot::Mutex;

    use super::*;
    use crate::observe::audit::AuditLevel;
    use crate::observe::metrics::ExpositionFormat as Exposition;

    /// Blocks until released; then accepts everything, or fails if `broken`.
    struct BlockedLog {
        told: mpsc::Sender<()>,
        gate: mpsc::Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
        broken: bool,
    }

    impl Write for BlockedLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.told.send(());
            let _ = self.gate.recv();
            if self.broken {
                return Err(io::Error::other("no space left"));
            }
            self.written.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A writer with an output that blocks until `go` is dropped.
    struct AuditLogFixture {
        metrics: Arc<Metrics>,
        writer: AuditLogWriter,
        told: mpsc::Receiver<()>,
        go: mpsc::Sender<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl AuditLogFixture {
        fn new(broken: bool) -> AuditLogFixture {
            let (metrics, written) = (Metrics::new(), Arc::default());
            let ((tell, told), (go, gate)) = (mpsc::channel(), mpsc::channel());
            let output = BlockedLog { told: tell, gate, written: Arc::clone(&written), broken };
            let output = AuditLogOutput::Stream(Box::new(output));
            let writer = AuditLogWriter::start_to(output, "it".to_owned(), AuditLogFormat::Json, &metrics).unwrap();
            AuditLogFixture { metrics, writer, told, go, written }
        }
    }

    #[test]
    fn audit_log_blocked_output_drops_events_and_flushes_at_shutdown() {
        let AuditLogFixture { writer, told, go, written, .. } = AuditLogFixture::new(false);
        let event = AuditEvent::for_test();
        assert_eq!(writer.queue.push(&event), 0);
        told.recv().unwrap();
        let taken = (1..MAX_EVENTS + 5).filter(|_| writer.queue.push(&event) == 0).count();
        assert_eq!((taken, writer.queue.dropped()), (MAX_EVENTS - 1, 5));
        drop(go);
        writer.finish(Instant::now() + Duration::from_secs(60));
        let written = written.lock().clone();
        let lines: Vec<_> = written.split_inclusive(|byte| *byte == b'\n').collect();
        assert_eq!(lines.len(), MAX_EVENTS);
        assert!(lines.iter().all(|line| line.starts_with(b"{\"kind\":\"Event\"") && line.ends_with(b"}\n")));
        assert_eq!(writer.queue.pending(), 0);
    }

    #[test]
    fn audit_log_write_errors_are_counted() {
        let AuditLogFixture { metrics, writer, go, .. } = AuditLogFixture::new(true);
        metrics.audit().record_level(AuditLevel::Metadata);
        let event = AuditEvent::for_test();
        for _ in 0..3 {
            assert_eq!(writer.queue.push(&event), 0);
        }
        drop(go);
        writer.finish(Instant::now() + Duration::from_secs(60));
        let text = metrics.render(Exposition::Classic);
        assert!(text.contains("apiserver_audit_error_total{plugin=\"log\"} 3\n"), "{text}");
    }
}
