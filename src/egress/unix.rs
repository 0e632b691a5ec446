//! Connecting to a Unix domain socket, and what its errors mean.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;

use super::dial::{DialError, DialPhase};

/// How long until the next try while as many wait to be accepted as the server lets wait, at first and at most.
const WAIT: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Connects; as long as the server's queue is full, for as long as it is polled.
///
/// The kernel puts nobody off: where a TCP connection would wait, connecting to a socket with a full queue fails at once
/// with `EAGAIN`. Queues are short (Python's servers have 5 places), and a burst of requests is no reason to fail.
pub(super) async fn connect(path: &Path) -> io::Result<UnixStream> {
    let mut wait = WAIT.0;
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(WAIT.1);
            }
            connected => return connected,
        }
    }
}

/// What is wrong, for a person.
pub(super) fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "the socket is not there (yet)".to_owned(),
        io::ErrorKind::ConnectionRefused => "nobody listens at the socket".to_owned(),
        io::ErrorKind::PermissionDenied => "we may not use the socket; it must be writable for us".to_owned(),
        _ => error.to_string(),
    }
}

/// What came of connecting to `path`.
pub(super) fn failed(path: &Path, error: &io::Error) -> DialError {
    let reason = match error.kind() {
        // Nothing listens there, whether something is left of who did or not.
        io::ErrorKind::NotFound => crate::tls::Failure::ConnectionRefused.reason(),
        _ => crate::tls::classify(error),
    };
    DialError { phase: DialPhase::Connect, reason, cause: format!("unix:{}: {}", path.display(), describe(error)) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn who_finds_the_queue_full_waits_for_a_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
        socket.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
        socket.listen(0).unwrap();
        let listener: UnixListener = std::os::fd::OwnedFd::from(socket).into();
        let _first = connect(&path).await.unwrap();
        let mut waiting = Box::pin(connect(&path));
        assert!(tokio::time::timeout(Duration::from_millis(20), &mut waiting).await.is_err(), "there is one place");
        listener.accept().unwrap();
        waiting.await.unwrap();
    }

    #[tokio::test]
    async fn errors_say_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let why = async || {
            let error = connect(&path).await.unwrap_err();
            let DialError { reason, cause, .. } = failed(&path, &error);
            (reason, cause.replace(folder.path().to_str().unwrap(), ""))
        };
        assert_eq!(why().await, ("ConnectionRefused", "unix:/s: the socket is not there (yet)".to_owned()));
        drop(UnixListener::bind(&path).unwrap());
        assert_eq!(why().await, ("ConnectionRefused", "unix:/s: nobody listens at the socket".to_owned()));
    }
}
