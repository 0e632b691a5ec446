//! Taking the port, once.

use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use crate::process::Problem;

/// Binds `address` and listens on it.
///
/// `SO_REUSEPORT` stays off: a second process on the same port must fail instead of taking a share of
/// the connections. `SO_REUSEADDR` is on, so that a restart need not wait for `TIME_WAIT` to pass.
///
/// # Errors
/// A [`Problem`] that names the address and says what to do; `flag` is where the operator writes the port.
pub fn bind(address: SocketAddr, flag: &str) -> Result<TcpListener, Problem> {
    let listen = || {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(4096)?;
        Ok(TcpListener::from(socket))
    };
    listen().map_err(|error: std::io::Error| {
        let advice = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("the address is in use: stop the process that listens there, or choose another {flag}")
            }
            std::io::ErrorKind::PermissionDenied => {
                format!("not permitted: ports below 1024 need CAP_NET_BIND_SERVICE, or choose another {flag}")
            }
            std::io::ErrorKind::AddrNotAvailable => {
                "no such address on this machine: choose one that it has".to_owned()
            }
            _ => return Problem::new(address, format!("cannot listen: {error}")),
        };
        Problem::new(address, advice)
    })
}

/// Raises the limit of open file descriptors to the hard limit, and says how many there are.
///
/// Each connection needs one descriptor, its way to a backend up to one more.
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
    fn a_second_listener_on_the_port_fails_and_says_so() {
        let first = bind("127.0.0.1:0".parse().unwrap(), "--listen").unwrap();
        let problem = bind(first.local_addr().unwrap(), "--listen").unwrap_err();
        assert!(problem.message.ends_with("or choose another --listen"), "{problem}");
    }
}
