//! Socket options of every TCP connection, accepted or dialed.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Default of Go's `net.Dialer` and `net.ListenConfig`.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Disables Nagle's algorithm and enables keep-alive, so that the watches of a vanished peer end.
///
/// # Errors
/// The socket is closed already.
pub fn set_up(socket: &TcpStream) -> io::Result<()> {
    set_up_with(socket, KEEP_ALIVE)
}

/// Like [`set_up`], with a configured keep-alive period. Zero is the default, as for Go's `net.Dialer`. The resolution
/// is one second.
///
/// # Errors
/// The socket is closed already.
pub fn set_up_with(socket: &TcpStream, keep_alive: Duration) -> io::Result<()> {
    socket.set_nodelay(true)?;
    // The kernel takes whole seconds, and rejects zero.
    let keep_alive = if keep_alive.is_zero() { KEEP_ALIVE } else { keep_alive.max(Duration::from_secs(1)) };
    let keep_alive = TcpKeepalive::new().with_time(keep_alive).with_interval(keep_alive);
    SockRef::from(socket).set_tcp_keepalive(&keep_alive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn small_messages_are_not_held_back_and_silence_is_noticed() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        set_up(&socket).unwrap();
        assert!(socket.nodelay().unwrap());
        let times = || {
            let socket = SockRef::from(&socket);
            assert!(socket.keepalive().unwrap());
            (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap())
        };
        assert_eq!(times(), (KEEP_ALIVE, KEEP_ALIVE));
        for (wanted, seconds) in [(40_000, 40), (0, 15), (10, 1)] {
            set_up_with(&socket, Duration::from_millis(wanted)).unwrap();
            assert_eq!(times(), (Duration::from_secs(seconds), Duration::from_secs(seconds)));
        }
    }
}
