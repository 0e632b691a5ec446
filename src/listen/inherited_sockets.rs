//! Listening sockets that the service manager opened for this process (socket activation, `sd_listen_fds(3)`).
//!
//! The name of a socket (`FileDescriptorName=` of a systemd socket unit) is the flag whose address it replaces, without
//! the dashes: `secure-port`, `admin-address`.

use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;
use parking_lot::Mutex;
use socket2::SockRef;

/// Connections that the kernel completes before they are accepted.
pub(super) const BACKLOG: i32 = 4096;

/// Descriptors belong to the process, and so do these.
static INHERITED: Mutex<Option<InheritedSockets>> = Mutex::new(None);

struct InheritedSockets {
    sockets: ListenFd,
    /// Names of the sockets not yet taken, by index.
    names: Vec<Option<String>>,
}

/// Takes over the sockets that `LISTEN_FDS` announces, for later calls of [`super::bind`]. Call it once, before the
/// process has threads: it removes the variables from the environment, so that no child takes the sockets for its own.
pub fn inherit_sockets() {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let sockets = ListenFd::from_env();
    let mut names: Vec<_> = names.split(':').map(|name| Some(name.to_owned())).collect();
    // systemd's name of a socket without one.
    names.resize(sockets.len(), Some("unknown".to_owned()));
    *INHERITED.lock() = Some(InheritedSockets { sockets, names });
}

/// The TCP socket named like `flag`, if there is one.
pub(super) fn take_tcp_listener(flag: &str) -> io::Result<Option<TcpListener>> {
    let listener = take(flag, ListenFd::take_tcp_listener)?;
    listener.as_ref().map(|listener| listener.set_nonblocking(true)).transpose()?;
    Ok(listener)
}

/// The Unix socket named like `flag`, if there is one.
///
/// # Errors
/// A socket of this name that is of another kind.
pub fn take_unix_listener(flag: &str) -> io::Result<Option<UnixListener>> {
    let listener = take(flag, ListenFd::take_unix_listener)?;
    listener.as_ref().map(|listener| listener.set_nonblocking(true)).transpose()?;
    Ok(listener)
}

fn take<S: AsFd>(
    flag: &str,
    take: impl FnOnce(&mut ListenFd, usize) -> io::Result<Option<S>>,
) -> io::Result<Option<S>> {
    let mut inherited = INHERITED.lock();
    let Some(InheritedSockets { sockets, names }) = inherited.as_mut() else { return Ok(None) };
    let name = flag.trim_start_matches('-');
    let Some((index, taken)) = names.iter_mut().enumerate().find(|(_, found)| found.as_deref() == Some(name)) else {
        return Ok(None);
    };
    let socket = take(sockets, index)?;
    *taken = None;
    // It listens already, or is a connection, for which this fails.
    socket.as_ref().map(|socket| SockRef::from(socket).listen(BACKLOG)).transpose()?;
    Ok(socket)
}

/// Names of inherited sockets that no flag has taken.
pub fn unused_inherited_sockets() -> Vec<String> {
    let inherited = INHERITED.lock();
    let names = inherited.as_ref().map(|inherited| inherited.names.iter());
    names.into_iter().flatten().flatten().cloned().collect()
}
