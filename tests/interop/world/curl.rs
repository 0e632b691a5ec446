//! curl: another client than kubectl, that sends what it is told.

use std::io::Write;
use std::process::{Command, Stdio};

use super::http::Door;
use super::{Identity, process::PATIENCE};

/// Asks `path` at `door` as `who`, with curl's own `words`: status and body.
pub(crate) fn curl(door: &Door, who: Option<&Identity>, path: &str, words: &[&str]) -> (u16, String) {
    curl_with_input(door, who, path, words, b"")
}

/// The same with something on standard input, where `words` may read it from (`-T -`).
pub(crate) fn curl_with_input(
    door: &Door,
    who: Option<&Identity>,
    path: &str,
    words: &[&str],
    input: &[u8],
) -> (u16, String) {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--write-out", "\n%{http_code}"]);
    command.args(["--max-time", &PATIENCE.as_secs().to_string(), "--cacert"]).arg(&door.authority).args(words);
    if let Some(identity) = who {
        command.arg("--cert").arg(&identity.certificate).arg("--key").arg(&identity.key);
    }
    command.arg(format!("{}{path}", door.url())).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("curl starts");
    let mut stdin = child.stdin.take().expect("standard input is a pipe");
    let output = std::thread::scope(|scope| {
        // It may stop reading when it has its answer: no matter.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().expect("curl ends")
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let (body, status) = text.rsplit_once('\n').expect("a line with the status");
    (status.parse().expect("a status"), body.to_owned())
}
