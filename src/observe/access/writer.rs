//! Writes access records to standard error without blocking requests.
//!
//! Every worker appends whole lines to its own buffer; one thread writes the buffers. A full buffer drops lines and
//! counts them, so that a blocked reader of standard error does not block the gateway.

use std::cell::RefCell;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::refusals::{RefusalLog, RefusedRequest};
use crate::observe::health::HealthCheck;
use crate::observe::metrics::Metrics;
use crate::process::Problem;

/// Maximum number of buffered bytes per worker.
const MAX_BUFFERED_BYTES: usize = 1024 * 1024;
/// Time for which lines are collected before they are written together.
const FLUSH_INTERVAL: Duration = Duration::from_millis(20);
/// Duration of one write after which the log counts as blocked.
const BLOCKED_AFTER: Duration = Duration::from_secs(120);

/// The access log of the process; buffered records are written when it is dropped.
pub struct AccessLog {
    shared: Arc<AccessLogShared>,
    writer: thread::Thread,
}

/// Line buffer of one worker.
pub(super) struct LineSink {
    lines: Arc<Mutex<Vec<u8>>>,
    scratch: RefCell<Vec<u8>>,
    shared: Arc<AccessLogShared>,
    writer: thread::Thread,
}

struct AccessLogShared {
    waiting: Mutex<Vec<Arc<Mutex<Vec<u8>>>>>,
    output: Mutex<AccessLogOutput>,
    dropped: Arc<AtomicU64>,
    refusals: RefusalLog,
    began: Instant,
    /// Start of the current write in milliseconds after `began`, plus 1; 0 between writes.
    writing: AtomicU64,
    ended: AtomicBool,
}

struct AccessLogOutput {
    to: Box<dyn Write + Send>,
    batch: Vec<u8>,
    /// Number of dropped records reported so far.
    reported: u64,
}

impl AccessLog {
    /// Creates a log on standard error. Dropped records are counted in `metrics`.
    pub fn to_standard_error(metrics: &Metrics) -> Result<AccessLog, Problem> {
        AccessLog::to_writer(Box::new(std::io::stderr()), metrics)
    }

    /// Creates a log on `output`; each write is one or more whole lines.
    pub fn to_writer(output: Box<dyn Write + Send>, metrics: &Metrics) -> Result<AccessLog, Problem> {
        let shared = Arc::new(AccessLogShared {
            waiting: Mutex::default(),
            output: Mutex::new(AccessLogOutput { to: output, batch: Vec::new(), reported: 0 }),
            dropped: metrics.access_records_dropped(),
            refusals: RefusalLog::default(),
            began: Instant::now(),
            writing: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        });
        let thread = thread::Builder::new().name("access-log".into()).spawn({
            let shared = shared.clone();
            move || {
                // A sink with an empty buffer unparks this thread, so that no wake-up is lost and an idle process does
                // not wake up.
                while !shared.ended.load(Ordering::Acquire) {
                    thread::park();
                    thread::park_timeout(FLUSH_INTERVAL);
                    shared.drain();
                }
            }
        });
        let thread = thread.map_err(|error| {
            Problem::new("--access-log", format!("cannot start the thread that writes access records: {error}"))
        })?;
        Ok(AccessLog { shared, writer: thread.thread().clone() })
    }

    pub(super) fn sink(&self) -> LineSink {
        let lines = Arc::new(Mutex::new(Vec::new()));
        self.shared.waiting.lock().push(lines.clone());
        LineSink { lines, scratch: RefCell::default(), shared: self.shared.clone(), writer: self.writer.clone() }
    }

    /// The last refused and failed requests of all workers, newest first.
    pub fn refusals(&self) -> Vec<RefusedRequest> {
        self.shared.refusals.snapshot()
    }

    /// Writes all buffered records now.
    pub fn flush(&self) {
        self.shared.drain();
    }

    /// The health check `log`: fails with Kubernetes' message when one write has been blocked for two minutes.
    pub fn check(&self) -> HealthCheck {
        let shared = self.shared.clone();
        HealthCheck::new("log", move || {
            if shared.write_duration(Instant::now()) < BLOCKED_AFTER {
                Ok(())
            } else {
                Err("logging blocked".to_owned())
            }
        })
    }
}

impl LineSink {
    /// Adds a refused or failed request to the refusal log.
    pub(super) fn push_refusal(&self, refused: RefusedRequest) {
        self.shared.refusals.push(refused);
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.writer.unpark();
        // If the thread is blocked in a write, buffered records are lost, and the process still ends.
        if self.shared.output.try_lock_for(Duration::from_secs(1)).is_some() {
            self.shared.drain();
        }
    }
}

impl LineSink {
    /// Appends the line that `format` writes, or drops it if the buffer is full.
    pub(super) fn write(&self, format: impl FnOnce(&mut Vec<u8>)) {
        // Formatted outside the lock, so that the writer thread does not wait for it.
        let mut line = self.scratch.borrow_mut();
        line.clear();
        format(&mut line);
        let mut lines = self.lines.lock();
        if lines.len() + line.len() > MAX_BUFFERED_BYTES {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let before = lines.len();
        lines.extend_from_slice(&line);
        let after = lines.len();
        drop(lines);
        // The first line wakes the writer; a half full buffer ends its collection time.
        if before == 0 || (before < MAX_BUFFERED_BYTES / 2 && after >= MAX_BUFFERED_BYTES / 2) {
            self.writer.unpark();
        }
    }
}

impl AccessLogShared {
    fn millis(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.began).as_millis() as u64
    }

    fn write_duration(&self, now: Instant) -> Duration {
        match self.writing.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_millis((self.millis(now) + 1).saturating_sub(since)),
        }
    }

    fn drain(&self) {
        let mut output = self.output.lock();
        let AccessLogOutput { to, batch, reported: told } = &mut *output;
        self.writing.store(self.millis(Instant::now()) + 1, Ordering::Relaxed);
        // Errors are ignored: a closed standard error cannot be reported.
        for lines in self.waiting.lock().clone() {
            batch.clear();
            std::mem::swap(batch, &mut *lines.lock());
            if !batch.is_empty() {
                let _ = to.write_all(batch);
            }
        }
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped != *told {
            let now = dropped - *told;
            let notice = format!("narthex: {now} access records dropped: standard error is read too slowly\n");
            let _ = to.write_all(notice.as_bytes());
            *told = dropped;
        }
        let _ = to.flush();
        self.writing.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::mpsc;

    use super::*;

    /// An output that captures what is written.
    #[derive(Clone, Default)]
    pub(in crate::observe::access) struct CapturedOutput(Arc<Mutex<Vec<u8>>>);

    impl CapturedOutput {
        pub(in crate::observe::access) fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    impl Write for CapturedOutput {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// An output that blocks until it is released.
    struct BlockedOutput(mpsc::Receiver<()>, mpsc::Sender<()>, CapturedOutput);

    impl Write for BlockedOutput {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.1.send(());
            let _ = self.0.recv();
            self.2.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn access_log_writer_keeps_lines_whole_and_ordered() {
        let written = CapturedOutput::default();
        let log = AccessLog::to_writer(Box::new(written.clone()), &Metrics::new()).unwrap();
        let sink = log.sink();
        for n in 0..100 {
            sink.write(|out| out.extend_from_slice(format!("line {n}\n").as_bytes()));
        }
        drop(log);
        let expected: String = (0..100).map(|n| format!("line {n}\n")).collect();
        assert_eq!(written.text(), expected);
    }

    #[test]
    fn access_log_writer_drops_records_when_output_blocks() {
        let (go, gate) = mpsc::channel();
        let (told, stuck) = mpsc::channel();
        let (metrics, written) = (Metrics::new(), CapturedOutput::default());
        let log = AccessLog::to_writer(Box::new(BlockedOutput(gate, told, written.clone())), &metrics).unwrap();
        let sink = log.sink();
        let line = [b'x'; 1024];
        sink.write(|out| out.extend_from_slice(&line));
        stuck.recv().unwrap();
        for _ in 0..2000 {
            sink.write(|out| out.extend_from_slice(&line));
        }
        let dropped = metrics.access_records_dropped().load(Ordering::Relaxed);
        assert_eq!(dropped, 2000 - 1024);
        assert!(log.shared.write_duration(Instant::now() + BLOCKED_AFTER) >= BLOCKED_AFTER);
        drop(go);
        log.flush();
        assert!(written.text().contains("976 access records dropped: standard error is read too slowly\n"));
    }
}
