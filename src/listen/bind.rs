//! Binds the listening socket.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use super::inherited_sockets::{BACKLOG, take_tcp_listener, unused_inherited_sockets};
use crate::process::Problem;

/// Binds `address` and listens on it. A socket named like `flag` that the service manager passed to this process is taken
/// in its place.
///
/// `SO_REUSEPORT` stays off: a second process on the same port must fail instead of taking a share of
/// the connections. `SO_REUSEADDR` is on, so that a restart need not wait for `TIME_WAIT` to pass.
///
/// `0.0.0.0` and `::` both are every address of both families, as with Go's `net.Listen` and so with kube-apiserver's
/// `--bind-address`; clients over IPv4 then have addresses such as `::ffff:127.0.0.1`.
///
/// # Errors
/// A [`Problem`] with the address and advice that names `flag`.
pub fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener, Problem> {
    match take_tcp_listener(flag) {
        Ok(Some(listener)) => {
            tracing::info!(flag, "listening socket inherited from the service manager");
            return Ok(listener);
        }
        Ok(None) => {}
        Err(error) => return Err(Problem::new(flag, format!("socket inherited from the service manager: {error}"))),
    }
    let listening = if address.ip().is_unspecified() {
        listen(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port())).or_else(|error| match error.kind() {
            _ if error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error()) => {
                listen_on_all_ipv4(address)
            }
            // IPv6 is compiled in but disabled.
            io::ErrorKind::AddrNotAvailable => listen_on_all_ipv4(address),
            _ => Err(error),
        })
    } else {
        listen(address)
    };
    listening.map_err(|error| {
        let advice = match error.kind() {
            io::ErrorKind::AddrInUse if !unused_inherited_sockets().is_empty() => format!(
                "the address is in use; the service manager passed the sockets {}: is one of them meant for {flag}? Its \
                 FileDescriptorName is {} then",
                unused_inherited_sockets().join(", "),
                flag.trim_start_matches('-')
            ),
            io::ErrorKind::AddrInUse => {
                format!("the address is in use: stop the process that listens there, or choose another {flag}")
            }
            io::ErrorKind::PermissionDenied => {
                format!("not permitted: ports below 1024 need CAP_NET_BIND_SERVICE, or choose another {flag}")
            }
            io::ErrorKind::AddrNotAvailable => {
                "this machine has no such address: choose one of its addresses".to_owned()
            }
            _ => return Problem::new(address, format!("cannot listen: {error}")),
        };
        Problem::new(address, advice)
    })
}

/// Listens on all IPv4 addresses, on a machine without IPv6.
fn listen_on_all_ipv4(address: SocketAddr) -> io::Result<TcpListener> {
    listen(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        // Independent of the system's default.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Number of proxied connections that fit into a limit of open file descriptors; none is no limit. Some descriptors stay
/// free for files and the admin listener; a proxied connection takes up to two.
pub fn proxied_connections_within(descriptors: Option<u64>) -> usize {
    descriptors.map_or(usize::MAX, |all| usize::try_from(all.saturating_sub(64) / 2).unwrap_or(usize::MAX))
}

/// Raises the limit of open file descriptors to the hard limit, and returns it.
///
/// Each client connection needs one descriptor, and up to one more for its backend.
pub fn raise_descriptor_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum && setrlimit(Resource::Nofile, raised).is_err() {
        return limit.current;
    }
    limit.maximum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bind_port_in_use_names_flag() {
        let first = bind("127.0.0.1:0".parse().unwrap(), "--listen").unwrap();
        let problem = bind(first.local_addr().unwrap(), "--listen").unwrap_err();
        assert!(problem.message.ends_with("or choose another --listen"), "{problem}");
    }

    #[test]
    fn bind_unspecified_address_is_dual_stack() {
        let ipv6 = TcpListener::bind("[::1]:0").is_ok();
        for any in ["0.0.0.0:0", "[::]:0"] {
            let listener = bind(any.parse().unwrap(), "--listen").unwrap();
            let port = listener.local_addr().unwrap().port();
            std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
            assert!(!ipv6 || std::net::TcpStream::connect(("::1", port)).is_ok(), "{any}");
        }
    }
}
