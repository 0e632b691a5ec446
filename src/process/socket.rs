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
    socket.set_nodelay(true)?;
    let keep_alive = TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE);
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
        let socket = SockRef::from(&socket);
        assert!(socket.keepalive().unwrap());
        assert_eq!(
            (socket.tcp_keepalive_time().unwrap(), socket.tcp_keepalive_interval().unwrap()),
            (KEEP_ALIVE, KEEP_ALIVE)
        );
    }
}
