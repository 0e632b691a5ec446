//! A child process that ends with its guard, and whose log is there when something failed.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long anything may take before we say it never will. Generous: nothing measures time with it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// The moment at which [`PATIENCE`] ends.
pub(crate) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// Asks again until `probe` has an answer; panics with `what` and the last complaint at the deadline.
pub(crate) fn eventually<T>(what: &str, mut probe: impl FnMut() -> Result<T, String>) -> T {
    let deadline = deadline();
    loop {
        match probe() {
            Ok(answer) => return answer,
            Err(complaint) if Instant::now() > deadline => panic!("{what} never came true: {complaint}"),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// A running program. Dropping it kills it; when dropped by a panic it prints the end of its log.
pub(crate) struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` with `arguments`; both its outputs go to `directory/name.log`.
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
        // setpriv ends the child with the thread that started it, even when this process is killed.
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

    /// Waits until `ready` is satisfied; panics at once, with the log, when the process ends instead.
    pub(crate) fn wait_until<T>(&mut self, mut ready: impl FnMut() -> Result<T, String>) -> T {
        let name = self.name.clone();
        eventually(&format!("{name} being ready"), || {
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

    /// Stops it, and waits until all of it stands still.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        eventually(&format!("{} standing still", self.name), || {
            let tasks =
                std::fs::read_dir(format!("/proc/{}/task", self.child.id())).map_err(|error| error.to_string())?;
            let states: Vec<String> =
                tasks.flatten().flat_map(|task| std::fs::read_to_string(task.path().join("stat"))).collect();
            let stopped =
                states.iter().all(|state| state.rsplit_once(')').is_some_and(|(_, rest)| rest.starts_with(" T")));
            if stopped { Ok(()) } else { Err(states.join("")) }
        });
    }

    /// Files and sockets it has open.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// The exit status, waited for.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        let name = self.name.clone();
        eventually(&format!("the end of {name}"), || match self.child.try_wait().unwrap() {
            Some(status) => Ok(status),
            None => Err("still running".to_owned()),
        })
    }

    /// All it wrote so far.
    pub(crate) fn log(&self) -> String {
        self.reader()()
    }

    /// The same, for a closure that must not borrow the process.
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
        // It may have ended already: nothing to do then.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            self.print_tail(30);
        }
    }
}
