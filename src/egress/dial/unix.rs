//! Connects to Unix domain sockets.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;

use crate::egress::dial_result::{DialError, DialPhase};

/// Delay between tries while the server's accept queue is full, initial and maximum.
const FULL_QUEUE_BACKOFF: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Connects; retries while the server's accept queue is full, until dropped.
///
/// Where a TCP connect would wait, connecting to a Unix socket with a full queue fails at once with `EAGAIN`. Queues
/// are short (5 in Python's servers), and a burst of requests is no reason to fail.
pub(in crate::egress) async fn connect(path: &Path) -> io::Result<UnixStream> {
    let mut wait = FULL_QUEUE_BACKOFF.0;
    loop {
        match UnixStream::connect(path).await {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(FULL_QUEUE_BACKOFF.1);
            }
            connected => return connected,
        }
    }
}

/// Describes a connect error for the operator.
pub(in crate::egress) fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "the socket does not exist (yet)".to_owned(),
        io::ErrorKind::ConnectionRefused => "no server listens on the socket".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied; the socket must be writable for the gateway".to_owned(),
        _ => error.to_string(),
    }
}

/// The dial error for a failed connect to `path`.
pub(in crate::egress) fn dial_error(path: &Path, error: &io::Error) -> DialError {
    let reason = match error.kind() {
        // No server listens, whether its socket file exists or not.
        io::ErrorKind::NotFound => crate::tls::ConnectionFailure::ConnectionRefused.reason(),
        _ => crate::tls::failure_reason(error),
    };
    DialError { phase: DialPhase::Connect, reason, cause: format!("unix:{}: {}", path.display(), describe(error)) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn unix_connect_waits_while_accept_queue_is_full() {
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
    async fn unix_connect_errors_are_described() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let why = async || {
            let error = connect(&path).await.unwrap_err();
            let DialError { reason, cause, .. } = dial_error(&path, &error);
            (reason, cause.replace(folder.path().to_str().unwrap(), ""))
        };
        assert_eq!(why().await, ("ConnectionRefused", "unix:/s: the socket does not exist (yet)".to_owned()));
        drop(UnixListener::bind(&path).unwrap());
        assert_eq!(why().await, ("ConnectionRefused", "unix:/s: no server listens on the socket".to_owned()));
    }
}
