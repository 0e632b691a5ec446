//! How every TCP connection of ours is set up, whichever side opened it.

use std::io;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// As net/http does on both sides.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Switches Nagle's delay off and keep-alive on: a peer that vanished without a word must not hold its watches
/// for ever.
///
/// # Errors
/// The socket is closed already.
pub fn set_up(socket: &TcpStream) -> io::Result<()> {
    set_up_with(socket, KEEP_ALIVE)
}

/// The same with a time of the operator's own, after which a silent peer is asked for a sign of life; zero is the usual
/// one, as for `net.Dialer` of Go. Whole seconds count.
///
/// # Errors
/// The socket is closed already.
pub fn set_up_with(socket: &TcpStream, keep_alive: Duration) -> io::Result<()> {
    socket.set_nodelay(true)?;
    // The kernel has seconds, and none of them is no time at all.
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
