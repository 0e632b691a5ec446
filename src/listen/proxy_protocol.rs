//! The PROXY protocol, versions 1 and 2: a load balancer sends the address of its client.
//!
//! <https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt>. The header is read from the socket before
//! TLS begins, and only from trusted peers.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ppp::v1;
use ppp::v2;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Settings of the PROXY protocol (`--proxy-protocol`).
#[derive(Clone)]
pub struct ProxyProtocol {
    /// Whether a connection without the header, or from an untrusted peer, is closed.
    pub required: bool,
    /// Whether this peer may send the header.
    pub trusted: Arc<dyn Fn(IpAddr) -> bool + Send + Sync>,
}

impl std::fmt::Debug for ProxyProtocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProxyProtocol").field("required", &self.required).finish_non_exhaustive()
    }
}

/// Maximum length of a version 1 line, including CR LF.
const V1_MAX_LEN: usize = 107;
/// Maximum length after the first sixteen bytes of version 2; far more than any real load balancer sends.
const V2_MAX_LEN: usize = 2048;

impl ProxyProtocol {
    /// The client's address from the header, or `remote` without one. Call it within the
    /// handshake timeout.
    ///
    /// # Errors
    /// If a required header is missing, or a header is malformed.
    pub(super) async fn client_address(&self, socket: &mut TcpStream, remote: SocketAddr) -> io::Result<SocketAddr> {
        if !(self.trusted)(remote.ip()) {
            return if self.required {
                Err(invalid_header("the peer is not in --proxy-protocol-trusted-cidrs"))
            } else {
                Ok(remote)
            };
        }
        let mut first = [0];
        if socket.peek(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match first[0] {
            b'P' => read_v1(socket, remote).await,
            b'\r' => read_v2(socket, remote).await,
            _ if self.required => Err(invalid_header("the connection does not begin with a PROXY header")),
            _ => Ok(remote),
        }
    }
}

fn invalid_header(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

async fn read_v1(socket: &mut TcpStream, remote: SocketAddr) -> io::Result<SocketAddr> {
    let mut line = Vec::with_capacity(V1_MAX_LEN);
    // Byte by byte, so that nothing of the following TLS handshake is read.
    while !line.ends_with(b"\r\n") {
        if line.len() == V1_MAX_LEN {
            return Err(invalid_header("the PROXY header is too long"));
        }
        line.push(socket.read_u8().await?);
    }
    address_v1(&line, remote)
}

async fn read_v2(socket: &mut TcpStream, remote: SocketAddr) -> io::Result<SocketAddr> {
    let mut header = vec![0; 16];
    socket.read_exact(&mut header).await?;
    let length = usize::from(u16::from_be_bytes([header[14], header[15]]));
    if length > V2_MAX_LEN {
        return Err(invalid_header("the PROXY header is too long"));
    }
    header.resize(16 + length, 0);
    socket.read_exact(&mut header[16..]).await?;
    address_v2(&header, remote)
}

fn address_v1(line: &[u8], remote: SocketAddr) -> io::Result<SocketAddr> {
    let header = v1::Header::try_from(line).map_err(|_| invalid_header("the PROXY header is malformed"))?;
    Ok(match header.addresses {
        v1::Addresses::Tcp4(it) => SocketAddr::from((it.source_address, it.source_port)),
        v1::Addresses::Tcp6(it) => SocketAddr::from((it.source_address, it.source_port)),
        v1::Addresses::Unknown => remote,
    })
}

fn address_v2(header: &[u8], remote: SocketAddr) -> io::Result<SocketAddr> {
    let header = v2::Header::try_from(header).map_err(|_| invalid_header("the PROXY header is malformed"))?;
    // LOCAL: the load balancer's own connection, for example a health check.
    if header.command == v2::Command::Local {
        return Ok(remote);
    }
    Ok(match header.addresses {
        v2::Addresses::IPv4(it) => SocketAddr::from((it.source_address, it.source_port)),
        v2::Addresses::IPv6(it) => SocketAddr::from((it.source_address, it.source_port)),
        v2::Addresses::Unspecified | v2::Addresses::Unix(_) => remote,
    })
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// The client address of a connection that begins with `bytes`, and the unread rest.
    async fn client_address_and_rest(bytes: &[u8], required: bool, trusted: bool) -> (io::Result<String>, Vec<u8>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut socket, remote) = listener.accept().await.unwrap();
        client.write_all(bytes).await.unwrap();
        drop(client);
        let settings = ProxyProtocol { required, trusted: Arc::new(move |_| trusted) };
        let judged = settings.client_address(&mut socket, remote).await;
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).await.unwrap();
        (judged.map(|address| if address == remote { "itself".to_owned() } else { address.to_string() }), rest)
    }

    const V1: &[u8] = b"PROXY TCP4 192.0.2.7 10.0.0.1 4711 6443\r\n\x16rest";

    fn v2(command: u8) -> Vec<u8> {
        let mut bytes = b"\r\n\r\n\0\r\nQUIT\n".to_vec();
        bytes.extend([0x20 | command, 0x11, 0, 12, 192, 0, 2, 7, 10, 0, 0, 1, 0x12, 0x67, 0x19, 0x2b]);
        bytes.extend(b"\x16rest");
        bytes
    }

    #[tokio::test]
    async fn proxy_protocol_v1_and_v2_client_address() {
        for bytes in [V1.to_vec(), v2(1)] {
            let (client, rest) = client_address_and_rest(&bytes, false, true).await;
            assert_eq!((client.unwrap().as_str(), &*rest), ("192.0.2.7:4711", &b"\x16rest"[..]));
        }
        assert_eq!(client_address_and_rest(&v2(0), false, true).await.0.unwrap(), "itself");
    }

    #[tokio::test]
    async fn proxy_protocol_untrusted_peer_ignored_or_refused() {
        let (client, rest) = client_address_and_rest(V1, false, false).await;
        assert_eq!((client.unwrap().as_str(), &*rest), ("itself", V1));
        assert!(client_address_and_rest(V1, true, false).await.0.is_err());
    }

    #[tokio::test]
    async fn proxy_protocol_missing_header_optional_or_required() {
        assert_eq!(client_address_and_rest(b"\x16rest", false, true).await.0.unwrap(), "itself");
        assert!(client_address_and_rest(b"\x16rest", true, true).await.0.is_err());
    }

    #[tokio::test]
    async fn proxy_protocol_malformed_header_refused() {
        let long = [b"PROXY ".to_vec(), vec![b'x'; 200]].concat();
        for bytes in [&b"PROXY TCP4 nonsense\r\n"[..], &long, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff", b"PROXY"] {
            assert!(client_address_and_rest(bytes, false, true).await.0.is_err(), "{bytes:?}");
        }
    }
}
