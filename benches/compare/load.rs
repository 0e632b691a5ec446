//! Load by h2load and wrk, and their counts of successful responses.

use std::process::Command;

use crate::fixtures::{BenchEnvironment, Proxy};

pub(crate) enum Load {
    Http1 { connections: usize },
    Http2 { clients: usize, streams: usize },
}

/// Loads `proxy` for `seconds` with the bench's own resource `name`; the number of answers. Panics when any answer was
/// not a success.
pub(crate) fn run(load: &Load, environment: &BenchEnvironment, proxy: &Proxy, name: &str, seconds: u32) -> u64 {
    run_at(load, environment, proxy, &format!("/apis/bench.narthex.dev/v1/namespaces/default/{name}"), &[], seconds)
}

/// The same at any path, with further headers. "304 Not Modified" is a success.
pub(crate) fn run_at(
    load: &Load,
    environment: &BenchEnvironment,
    proxy: &Proxy,
    path: &str,
    headers: &[String],
    seconds: u32,
) -> u64 {
    let url = format!("https://127.0.0.1:{}{path}", proxy.port);
    let token = format!("Authorization: Bearer {}", environment.token);
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]);
    match load {
        Load::Http1 { connections } => {
            command.args(["wrk", "-t1", &format!("-c{connections}"), &format!("-d{seconds}s")])
        }
        Load::Http2 { clients, streams } => {
            command.args(["h2load", "-t1", &format!("-c{clients}"), &format!("-m{streams}"), &format!("-D{seconds}")])
        }
    };
    for header in headers.iter().chain([&token]) {
        command.args(["-H", header]);
    }
    let output = command.arg(&url).output().expect("the load tool starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let count = match load {
        Load::Http1 { .. } => {
            assert!(!text.contains("Non-2xx"), "wrk saw failures:\n{text}");
            number_before(&text, " requests in ")
        }
        Load::Http2 { .. } => {
            let failed = [" failed,", " 4xx,", " 5xx"].map(|mark| number_before(&text, mark));
            assert_eq!(failed, [Some(0); 3], "h2load saw failures:\n{text}");
            let count = |mark| number_before(&text, mark).unwrap_or_default();
            Some(count(" 2xx,") + count(" 3xx,"))
        }
    };
    count.filter(|count| *count > 0).unwrap_or_else(|| panic!("no answers:\n{text}\n{}", proxy.log()))
}

fn number_before(text: &str, mark: &str) -> Option<u64> {
    let before = &text[..text.find(mark)?];
    before.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
