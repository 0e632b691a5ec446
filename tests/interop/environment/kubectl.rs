//! kubectl programs and their output.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use super::process::{TIMEOUT, deadline};

/// A kubectl of one version.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl {
    /// Minor version, for example `v1.36`; part of test names.
    pub(crate) version: String,
    pub(crate) program: PathBuf,
}

impl Kubectl {
    /// Returns the program with its version, or `None` if it cannot be run.
    pub(crate) fn at(program: &Path) -> Option<Kubectl> {
        let output = Command::new(program).args(["version", "--client", "-o", "json"]).output().ok()?;
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        let version = document["clientVersion"]["gitVersion"].as_str()?;
        let short: Vec<&str> = version.splitn(3, '.').take(2).collect();
        Some(Kubectl { version: short.join("."), program: program.to_owned() })
    }

    /// A command with `kubeconfig` and `home` (for kubectl's caches) and without the caller's environment.
    pub(crate) fn command(&self, kubeconfig: &Path, home: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", home);
        command.arg(format!("--kubeconfig={}", kubeconfig.display()));
        command
    }
}

/// Runs a command with `input` on standard input. It is killed after [`TIMEOUT`].
pub(crate) fn run(mut command: Command, input: &str) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kubectl starts");
    let mut stdin = child.stdin.take().unwrap();
    // A program may close standard input without reading it; a write error is ignored.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let id = child.id();
    let (ended, end) = channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if end.recv_timeout(TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    watchdog.join().unwrap();
    output
}

/// A kubectl that keeps running (`get -w`, `wait`). It is killed on drop.
pub(crate) struct RunningKubectl {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
    args: String,
}

impl RunningKubectl {
    pub(crate) fn start(mut command: Command) -> RunningKubectl {
        let args = format!("{command:?}");
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kubectl starts");
        let (sender, lines) = channel();
        let outputs: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        for output in outputs {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        RunningKubectl { child, lines, seen: Vec::new(), args }
    }

    /// Waits for the next line that contains `text`.
    pub(crate) fn line_with(&mut self, text: &str) -> String {
        let deadline = deadline();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(error) => panic!("no line with {text:?} ({error}) from {}; seen: {:#?}", self.args, self.seen),
            }
        }
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the process to end; returns whether it succeeded and all its lines.
    pub(crate) fn finish(mut self) -> (bool, Vec<String>) {
        let deadline = deadline();
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.seen.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("{} never ended; seen: {:#?}", self.args, self.seen),
            }
        }
        (self.child.wait().unwrap().success(), std::mem::take(&mut self.seen))
    }
}

impl Drop for RunningKubectl {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
