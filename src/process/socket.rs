//! Socket options of every TCP connection, accepted or dialed.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Default of Go's `net.Dialer` and `net.ListenConfig`.
const DEFAULT_KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Disables Nagle's algorithm and enables keep-alive, so that the watches of a vanished peer end.
///
/// # Errors
/// The socket is closed already.
pub fn configure_socket(socket: &TcpStream) -> io::Result<()> {
    configure_socket_with_keep_alive(socket, DEFAULT_KEEP_ALIVE)
}

/// Like [`configure_socket`], with a configured keep-alive period. Zero is the default, as for Go's `net.Dialer`. The resolution
/// is one second.
///
/// # Errors
/// The socket is closed already.
pub fn configure_socket_with_keep_alive(socket: &TcpStream, keep_alive: Duration) -> io::Result<()> {
    socket.set_nodelay(true)?;
    // The kernel takes whole seconds, and rejects zero.
    let keep_alive = if keep_alive.is_zero() { DEFAULT_KEEP_ALIVE } else { keep_alive.max(Duration::from_secs(1)) };
    let keep_alive = TcpKeepalive::new().with_time(keep_alive).with_interval(keep_alive);
    SockRef::from(socket).set_tcp_keepalive(&keep_alive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn socket_has_nodelay_and_keep_alive() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        configure_socket(&socket).unwrap();
        assert!(socket.nodelay().unwrap());
        let times = || {
            let socket = SockRef::from(&socket);
            assert!(socket.keepalive().unwrap());
            (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap())
        };
        assert_eq!(times(), (DEFAULT_KEEP_ALIVE, DEFAULT_KEEP_ALIVE));
        for (wanted, seconds) in [(40_000, 40), (0, 15), (10, 1)] {
            configure_socket_with_keep_alive(&socket, Duration::from_millis(wanted)).unwrap();
            assert_eq!(times(), (Duration::from_secs(seconds), Duration::from_secs(seconds)));
        }
    }
}
