//! Child processes that are killed on drop, with logs that are printed on failure.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time limit of every wait. Generous: no test measures time by it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(90);

/// The end of [`TIMEOUT`] from now.
pub(crate) fn deadline() -> Instant {
    Instant::now() + TIMEOUT
}

/// Repeats `probe` until it succeeds; panics with `what` and the last error after [`TIMEOUT`].
pub(crate) fn eventually<T>(what: &str, probe: impl FnMut() -> Result<T, String>) -> T {
    retry(TIMEOUT, probe).unwrap_or_else(|error| panic!("timed out waiting for {what}: {error}"))
}

/// Repeats `probe` until it succeeds or `timeout` has passed; then returns its last error.
pub(crate) fn retry<T>(timeout: Duration, mut probe: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    let deadline = Instant::now() + timeout;
    loop {
        match probe() {
            Err(error) if Instant::now() > deadline => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
            response => return response,
        }
    }
}

/// A running program. It is killed on drop; on a panic the end of its log is printed.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program`; standard output and error go to `directory/logs/name.log`.
    pub(crate) fn start(
        name: &str,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        directory: &Path,
    ) -> Process {
        let logs = directory.join("logs");
        std::fs::create_dir_all(&logs).unwrap();
        let log = logs.join(format!("{name}.log"));
        let output = File::options().create(true).append(true).open(&log).unwrap();
        // setpriv kills the child when the thread that started it ends, even when this process is killed.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap_or_else(|error| panic!("starting {name} by setpriv: {error}"));
        Process { name: name.to_owned(), child, log }
    }

    /// Waits until `ready` succeeds; panics at once, with the log, when the process exits.
    pub(crate) fn wait_until<T>(&mut self, mut ready: impl FnMut() -> Result<T, String>) -> T {
        let name = self.name.clone();
        eventually(&format!("{name} to be ready"), || {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("{name} ended before it was ready: {status}");
            }
            ready()
        })
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap_or_else(|error| panic!("signalling {}: {error}", self.name));
    }

    /// Sends SIGSTOP and waits until all threads are stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        eventually(&format!("{} to stop", self.name), || {
            let tasks =
                std::fs::read_dir(format!("/proc/{}/task", self.child.id())).map_err(|error| error.to_string())?;
            let states: Vec<String> =
                tasks.flatten().flat_map(|task| std::fs::read_to_string(task.path().join("stat"))).collect();
            let stopped =
                states.iter().all(|state| state.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" T")));
            if stopped { Ok(()) } else { Err(states.join("")) }
        });
    }

    /// Number of open file descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Resident memory in kB.
    pub(crate) fn resident_kilobytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Waits for the exit status.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let name = self.name.clone();
        eventually(&format!("the exit of {name}"), || match self.child.try_wait().unwrap() {
            Some(status) => Ok(status),
            None => Err("still running".to_owned()),
        })
    }

    /// The exit status, if the process ends within `timeout`.
    pub(crate) fn exit_within(&mut self, timeout: Duration) -> Option<ExitStatus> {
        retry(timeout, || self.child.try_wait().unwrap().ok_or_else(|| "still running".to_owned())).ok()
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        self.reader()()
    }

    /// A function that reads the log without borrowing the process.
    pub(crate) fn reader(&self) -> impl Fn() -> String + use<> {
        let log = self.log.clone();
        move || String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned()
    }

    pub(crate) fn print_tail(&self, lines: usize) {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        println!("---- the end of {}", self.log.display());
        for line in &all[all.len().saturating_sub(lines)..] {
            println!("{line}");
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.print_tail(30);
        }
    }
}
