//! Answers of narthex's server and agent on their HTTP ports and to CONNECT clients, beside those of the reference.

use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::process::Signal;

use super::pairs::OWN;
use crate::environment::{Konnectivity, KonnectivityMode, KonnectivityPair, TestEnvironment, eventually, free_port};

/// After this time without a byte, a connection stays open.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A request, and the status line, content type, body and end of its response.
type Answer = (String, String);

const HEALTH_PATHS: [&str; 10] = [
    "/healthz",
    "/readyz",
    "/ready",
    "/readyz?verbose",
    "/readyz?verbose=1",
    "/readyz?a=b&verbose",
    "/healthz?verbose",
    "/livez",
    "/",
    "/unknown",
];

/// Requests of clients that get no tunnel. PORT is a port where nothing listens.
const CONNECT_REQUESTS: [&str; 10] = [
    "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "GET http://127.0.0.1:PORT/ HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\nConnection: close\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab",
    "garbage\r\n\r\n",
    "CONNECT 127.0.0.1:PORT HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n",
    "CONNECT 127.0.0.1:PORT HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "CONNECT 127.0.0.1:PORT HTTP/1.0\r\n\r\n",
    "CONNECT / HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n",
    "CONNECT 127.0.0.1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
];

fn exchange(mut stream: impl std::io::Read + std::io::Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut response = Vec::new();
    // A server may reset the connection after its response.
    let end = stream.read_to_end(&mut response);
    let is_open = end.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
    let response = String::from_utf8(response).unwrap();
    let Some((head, body)) = response.split_once("\r\n\r\n") else { return format!("{response:?} {end:?}") };
    let kind = head.lines().find(|line| line.to_ascii_lowercase().starts_with("content-type:")).unwrap_or_default();
    let end = if is_open { "stays open" } else { "ends" };
    format!("{} {} {body:?} {end}", head.lines().next().unwrap_or_default(), kind.to_ascii_lowercase())
}

fn get(port: u16, path: &str) -> String {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    exchange(stream, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
}

fn health_answers(who: &str, port: u16) -> Vec<Answer> {
    HEALTH_PATHS.iter().map(|path| (format!("{who}: {path}"), get(port, path))).collect()
}

fn connect_answers(who: &str, konnectivity: &Konnectivity, closed_port: u16) -> Vec<Answer> {
    let answer = |request: &&str| {
        let stream = UnixStream::connect(&konnectivity.socket).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let request = request.replace("PORT", &closed_port.to_string());
        (format!("{who}: {request:?}"), exchange(stream, &request))
    };
    CONNECT_REQUESTS.iter().map(answer).collect()
}

/// All answers of one pair, which do not depend on its ports.
fn answers(environment: &TestEnvironment, pair: KonnectivityPair, closed_port: u16) -> Vec<Answer> {
    let directory = environment.scratch(&format!("http-answers-{}", pair.has_own_server));
    let mut konnectivity = Konnectivity::start_with(&directory, KonnectivityMode::ConnectUnix, pair, None);
    let mode = std::fs::metadata(&konnectivity.socket).unwrap().permissions().mode();
    let mut answers = vec![("mode of the socket".to_owned(), format!("{mode:o}"))];
    answers.extend(health_answers("server without agents", konnectivity.health));
    answers.extend(connect_answers("without agents", &konnectivity, closed_port));
    konnectivity.start_agent("agent-a", None);
    answers.extend(health_answers("server", konnectivity.health));
    answers.extend(connect_answers("with an agent", &konnectivity, closed_port));
    let health = konnectivity.agents[0].health;
    answers.extend(health_answers("agent", health));
    konnectivity.server.signal(Signal::KILL);
    eventually("the agent to lose its server", || {
        let answer = get(health, "/readyz");
        if answer.starts_with("HTTP/1.1 200") { Err(answer) } else { Ok(()) }
    });
    answers.extend(health_answers("agent without a server", health));
    answers
}

pub(super) fn are_alike(environment: &TestEnvironment) {
    let closed_port = free_port();
    let own = answers(environment, OWN, closed_port);
    let reference = answers(environment, KonnectivityPair::REFERENCE, closed_port);
    assert_eq!(own.len(), reference.len());
    let different = own.iter().zip(&reference).filter(|(own, reference)| own != reference);
    let different: Vec<_> = different
        .map(|(own, reference)| format!("{}\n  narthex   {}\n  reference {}", own.0, own.1, reference.1))
        .collect();
    assert!(different.is_empty(), "{}", different.join("\n"));
    println!("{} answers are alike", own.len());
}
