//! The audit log: a thread that writes one line per event.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant, SystemTime};

use super::event::Event;
use super::losses::{Losses, TELL};
use super::queue::Queue;
use super::rotate::{Keep, Rotated};
use super::{BATCH_BYTES, MOST_WAITING};
use crate::observe::metrics::{AuditLoss, Metrics};
use crate::process::Problem;

/// Maximum number of queued events; upstream's `--audit-log-batch-buffer-size`.
const MOST_EVENTS: usize = 10_000;
/// Time for which events are collected before they are written together.
const GATHER: Duration = Duration::from_millis(20);
/// Maximum number of events per write.
const BATCH: usize = 500;

/// Path, format and rotation of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// `--audit-log-path`; `None` for standard output.
    pub path: Option<PathBuf>,
    /// `--audit-log-format`.
    pub format: Format,
    /// `--audit-log-maxage`, in days; 0 is unlimited.
    pub max_age: u64,
    /// `--audit-log-maxbackup`; 0 is unlimited.
    pub max_backups: usize,
    /// `--audit-log-maxsize`, in MiB; 0 is unlimited.
    pub max_size: u64,
}

/// Format of the audit log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One line of text.
    Legacy,
    /// One JSON object.
    #[default]
    Json,
}

/// The writer thread of the log.
pub(super) struct Writer {
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
    ended: Arc<AtomicBool>,
}

enum Output {
    File(Rotated),
    Stream(Box<dyn Write + Send>),
}

impl Writer {
    /// Opens the log and starts the thread.
    pub(super) fn start(settings: &LogSettings, metrics: &Arc<Metrics>) -> Result<Writer, Problem> {
        let (output, place) = match &settings.path {
            None => (Output::Stream(Box::new(io::stdout())), "standard output".to_owned()),
            Some(path) => {
                let keep = Keep {
                    bytes: settings.max_size << 20,
                    backups: settings.max_backups,
                    age: Duration::from_secs(settings.max_age.saturating_mul(86_400)),
                };
                let opened = Rotated::open(path, keep).map_err(|error| {
                    Problem::new("--audit-log-path", format_args!("{} cannot be written: {error}", path.display()))
                })?;
                (Output::File(opened), path.display().to_string())
            }
        };
        Writer::start_to(output, place, settings.format, metrics)
    }

    fn start_to(output: Output, place: String, format: Format, metrics: &Arc<Metrics>) -> Result<Writer, Problem> {
        // The queue wakes the thread, but the thread needs the queue to start.
        let writer: Arc<std::sync::OnceLock<Thread>> = Arc::default();
        let waking = writer.clone();
        let queue = Queue::new(MOST_EVENTS, MOST_WAITING, MOST_EVENTS / 2, move || {
            if let Some(writer) = waking.get() {
                writer.unpark();
            }
        });
        let ended = Arc::new(AtomicBool::new(false));
        let mut writing =
            Writing { queue: queue.clone(), output, format, metrics: metrics.clone(), losses: Losses::new(place) };
        let over = ended.clone();
        let thread = thread::Builder::new().name("audit-log".to_owned()).spawn(move || {
            while !over.load(Relaxed) {
                // With a timeout, to log losses even without further events.
                thread::park_timeout(TELL);
                thread::park_timeout(GATHER);
                writing.all();
            }
            writing.all();
        });
        let thread = thread.map_err(|error| Problem::new("thread audit-log", error))?;
        let _ = writer.set(thread.thread().clone());
        Ok(Writer { queue, thread, ended })
    }

    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Writes all queued events and ends the thread; waits for a blocked write until `until`.
    pub(super) fn end(&self, until: Instant) {
        self.ended.store(true, Relaxed);
        self.thread.thread().unpark();
        while !self.thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Writing {
    queue: Arc<Queue>,
    output: Output,
    format: Format,
    metrics: Arc<Metrics>,
    losses: Losses,
}

impl Writing {
    fn all(&mut self) {
        loop {
            let taken = self.queue.take(BATCH, BATCH_BYTES);
            if taken.events.is_empty() {
                return self.losses.tell(&self.queue);
            }
            let lines: Vec<Vec<u8>> = taken.events.iter().map(|event| self.line(event)).collect();
            let lines: Vec<&[u8]> = lines.iter().map(Vec::as_slice).collect();
            if let Err((written, error)) = self.output.write(&lines) {
                let lost = lines.len() - written;
                self.metrics.audit().lost(AuditLoss::Log, lost);
                self.losses.failed(lost, error.to_string());
            }
            self.losses.tell(&self.queue);
        }
    }

    fn line(&self, event: &Event) -> Vec<u8> {
        let mut line = Vec::with_capacity(1024);
        match self.format {
            Format::Json => event.write_json(&mut line, true),
            Format::Legacy => event.write_legacy(&mut line),
        }
        line.push(b'\n');
        line
    }
}

impl Output {
    fn write(&mut self, lines: &[&[u8]]) -> Result<(), (usize, io::Error)> {
        match self {
            Output::File(file) => file.write(lines, SystemTime::now()),
            Output::Stream(stream) => {
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
    use crate::observe::audit::Level;
    use crate::observe::metrics::Format as Exposition;

    /// Blocks until released; then accepts everything, or fails if `broken`.
    struct Stuck {
        told: mpsc::Sender<()>,
        gate: mpsc::Receiver<()>,
        written: Arc<Mutex<Vec<u8>>>,
        broken: bool,
    }

    impl Write for Stuck {
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
    struct World {
        metrics: Arc<Metrics>,
        writer: Writer,
        told: mpsc::Receiver<()>,
        go: mpsc::Sender<()>,
        written: Arc<Mutex<Vec<u8>>>,
    }

    impl World {
        fn new(broken: bool) -> World {
            let (metrics, written) = (Metrics::new(), Arc::default());
            let ((tell, told), (go, gate)) = (mpsc::channel(), mpsc::channel());
            let output = Stuck { told: tell, gate, written: Arc::clone(&written), broken };
            let output = Output::Stream(Box::new(output));
            let writer = Writer::start_to(output, "it".to_owned(), Format::Json, &metrics).unwrap();
            World { metrics, writer, told, go, written }
        }
    }

    #[test]
    fn a_log_that_is_stuck_costs_events_and_the_rest_is_written_at_the_end() {
        let World { writer, told, go, written, .. } = World::new(false);
        let event = Event::for_test();
        assert_eq!(writer.queue.push(&event), 0);
        told.recv().unwrap();
        let taken = (1..MOST_EVENTS + 5).filter(|_| writer.queue.push(&event) == 0).count();
        assert_eq!((taken, writer.queue.dropped()), (MOST_EVENTS - 1, 5));
        drop(go);
        writer.end(Instant::now() + Duration::from_secs(60));
        let written = written.lock().clone();
        let lines: Vec<_> = written.split_inclusive(|byte| *byte == b'\n').collect();
        assert_eq!(lines.len(), MOST_EVENTS);
        assert!(lines.iter().all(|line| line.starts_with(b"{\"kind\":\"Event\"") && line.ends_with(b"}\n")));
        assert_eq!(writer.queue.held(), 0);
    }

    #[test]
    fn what_cannot_be_written_is_counted() {
        let World { metrics, writer, go, .. } = World::new(true);
        metrics.audit().judged(Level::Metadata);
        let event = Event::for_test();
        for _ in 0..3 {
            assert_eq!(writer.queue.push(&event), 0);
        }
        drop(go);
        writer.end(Instant::now() + Duration::from_secs(60));
        let text = metrics.render(Exposition::Classic);
        assert!(text.contains("apiserver_audit_error_total{plugin=\"log\"} 3\n"), "{text}");
    }
}
