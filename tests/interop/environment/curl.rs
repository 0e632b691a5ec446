//! curl, a second client that sends requests exactly as given.

use std::io::Write;
use std::process::{Command, Stdio};

use super::http::HttpsEndpoint;
use super::{Identity, process::TIMEOUT};

/// Runs curl with `args` and the client certificate of `identity`; returns status and body.
pub(crate) fn curl(endpoint: &HttpsEndpoint, identity: Option<&Identity>, path: &str, args: &[&str]) -> (u16, String) {
    curl_with_input(endpoint, identity, path, args, b"")
}

/// Like [`curl`], with `input` on standard input, where `args` may read it (`-T -`).
pub(crate) fn curl_with_input(
    endpoint: &HttpsEndpoint,
    identity: Option<&Identity>,
    path: &str,
    args: &[&str],
    input: &[u8],
) -> (u16, String) {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--write-out", "\n%{http_code}"]);
    command.args(["--max-time", &TIMEOUT.as_secs().to_string(), "--cacert"]).arg(&endpoint.authority).args(args);
    if let Some(identity) = identity {
        command.arg("--cert").arg(&identity.certificate).arg("--key").arg(&identity.key);
    }
    command
        .arg(format!("{}{path}", endpoint.url()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("curl starts");
    let mut stdin = child.stdin.take().expect("standard input is a pipe");
    let output = std::thread::scope(|scope| {
        // curl may stop reading once it has the response; a write error is expected.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().expect("curl ends")
    });
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let (body, status) = text.rsplit_once('\n').expect("a line with the status");
    (status.parse().expect("a status"), body.to_owned())
}
