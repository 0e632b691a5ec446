//! Fake egress proxies: SOCKS5, HTTP/1.1 CONNECT and Konnectivity, over TCP, TLS or a Unix socket.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::task::{JoinHandle, JoinSet};

use crate::egress::konnectivity;
use crate::support::fixtures::{CertKeyPair, TestEnvironment};

/// A request to a proxy: target and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EgressProxyRequest {
    /// `host:port`, as it was said.
    pub(crate) target: String,
    /// `user:password`; empty for none.
    pub(crate) credentials: String,
    /// All of a CONNECT's head.
    pub(crate) head: String,
}

/// What a proxy does about it.
#[derive(Clone, Debug)]
pub(crate) enum ProxyAction {
    /// Connects to this address, and carries.
    Connect(SocketAddr),
    /// Says this, and closes.
    Reply(Vec<u8>),
    /// Connects to this address, and says this instead of its usual yes.
    ConnectAndReply(SocketAddr, Vec<u8>),
    /// Says nothing, and does not close.
    Hang,
}

/// What is spoken to a proxy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProxyProtocol {
    Socks5,
    HttpConnect,
    /// GRPC; what a [`ProxyAction::Reply`] says is why the dial failed.
    Konnectivity,
}

/// A listening proxy; it stops when dropped, and cuts all it carries.
pub(crate) struct FakeEgressProxy {
    pub(crate) address: SocketAddr,
    requests: Arc<Mutex<Vec<EgressProxyRequest>>>,
    task: JoinHandle<()>,
}

enum ProxyListener {
    Tcp(TcpListener, Option<tokio_rustls::TlsAcceptor>),
    Unix(UnixListener),
}

pub(crate) trait ProxyClientStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> ProxyClientStream for S {}

pub(crate) type ProxyPolicy = Arc<dyn Fn(&EgressProxyRequest) -> ProxyAction + Send + Sync>;

impl ProxyListener {
    async fn accept(&self) -> Option<Box<dyn ProxyClientStream>> {
        match self {
            ProxyListener::Unix(listener) => Some(Box::new(listener.accept().await.ok()?.0)),
            ProxyListener::Tcp(listener, tls) => {
                let (socket, _) = listener.accept().await.ok()?;
                socket.set_nodelay(true).ok()?;
                let Some(tls) = tls else { return Some(Box::new(socket)) };
                // One handshake after another will do.
                match tls.accept(socket).await {
                    Ok(stream) => Some(Box::new(stream)),
                    Err(_) => Some(Box::new(tokio::io::join(tokio::io::empty(), tokio::io::sink()))),
                }
            }
        }
    }
}

impl FakeEgressProxy {
    /// A SOCKS5 proxy on TCP. It requires user and password from clients that offer that method.
    pub(crate) async fn start_socks5(
        policy: impl Fn(&EgressProxyRequest) -> ProxyAction + Send + Sync + 'static,
    ) -> FakeEgressProxy {
        FakeEgressProxy::start_tcp(ProxyProtocol::Socks5, None, "127.0.0.1:0".parse().unwrap(), policy).await
    }

    /// A proxy for CONNECT on TCP.
    pub(crate) async fn start_connect(
        policy: impl Fn(&EgressProxyRequest) -> ProxyAction + Send + Sync + 'static,
    ) -> FakeEgressProxy {
        FakeEgressProxy::start_tcp(ProxyProtocol::HttpConnect, None, "127.0.0.1:0".parse().unwrap(), policy).await
    }

    /// A proxy at an address; over TLS where there is a certificate for it, and then only for clients with one of the
    /// environment's client CA.
    pub(crate) async fn start_tcp(
        kind: ProxyProtocol,
        tls: Option<(&TestEnvironment, &CertKeyPair)>,
        address: SocketAddr,
        policy: impl Fn(&EgressProxyRequest) -> ProxyAction + Send + Sync + 'static,
    ) -> FakeEgressProxy {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let tls =
            tls.map(|(environment, pair)| tokio_rustls::TlsAcceptor::from(Arc::new(server_config(environment, pair))));
        FakeEgressProxy::serve(kind, address, ProxyListener::Tcp(listener, tls), policy)
    }

    /// A proxy on a Unix socket.
    pub(crate) fn start_unix(
        kind: ProxyProtocol,
        path: &Path,
        policy: impl Fn(&EgressProxyRequest) -> ProxyAction + Send + Sync + 'static,
    ) -> FakeEgressProxy {
        let listener = ProxyListener::Unix(UnixListener::bind(path).unwrap());
        FakeEgressProxy::serve(kind, "0.0.0.0:0".parse().unwrap(), listener, policy)
    }

    fn serve(
        kind: ProxyProtocol,
        address: SocketAddr,
        listener: ProxyListener,
        policy: impl Fn(&EgressProxyRequest) -> ProxyAction + Send + Sync + 'static,
    ) -> FakeEgressProxy {
        let recorded = Arc::new(Mutex::new(Vec::new()));
        let kept = recorded.clone();
        let policy: ProxyPolicy = Arc::new(policy);
        let task = tokio::spawn(async move {
            // Dropping the set ends all that is carried with the proxy.
            let mut running = JoinSet::new();
            while let Some(stream) = listener.accept().await {
                let (policy, kept) = (policy.clone(), kept.clone());
                running.spawn(async move {
                    match kind {
                        ProxyProtocol::Socks5 => serve_socks5(stream, &policy, &kept).await,
                        ProxyProtocol::HttpConnect => serve_connect(stream, &policy, &kept).await,
                        ProxyProtocol::Konnectivity => konnectivity::serve_grpc(stream, policy, kept).await,
                    }
                });
                while running.try_join_next().is_some() {}
            }
        });
        FakeEgressProxy { address, requests: recorded, task }
    }

    /// All that was asked so far.
    pub(crate) fn requests(&self) -> Vec<EgressProxyRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// The targets so far, each once.
    pub(crate) fn targets(&self) -> Vec<String> {
        let mut targets: Vec<String> = self.requests().into_iter().map(|recorded| recorded.target).collect();
        targets.sort();
        targets.dedup();
        targets
    }

    /// Stops listening and cuts all it carries.
    pub(crate) async fn stop(mut self) -> SocketAddr {
        self.task.abort();
        let _ = (&mut self.task).await;
        self.address
    }
}

impl Drop for FakeEgressProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A SOCKS5 reply with this code.
pub(crate) fn socks5_reply(code: u8) -> Vec<u8> {
    vec![5, code, 0, 1, 0, 0, 0, 0, 0, 0]
}

async fn serve_socks5(
    mut stream: Box<dyn ProxyClientStream>,
    policy: &ProxyPolicy,
    kept: &Mutex<Vec<EgressProxyRequest>>,
) -> Option<()> {
    let text = async |stream: &mut Box<dyn ProxyClientStream>| {
        let length = stream.read_u8().await.ok()?;
        let mut bytes = vec![0; length.into()];
        stream.read_exact(&mut bytes).await.ok()?;
        Some(bytes)
    };
    (stream.read_u8().await.ok()? == 5).then_some(())?;
    let methods = text(&mut stream).await?;
    let method = if methods.contains(&2) { 2 } else { 0 };
    stream.write_all(&[5, method]).await.ok()?;
    let mut credentials = String::new();
    if method == 2 {
        (stream.read_u8().await.ok()? == 1).then_some(())?;
        let (user, password) = (text(&mut stream).await?, text(&mut stream).await?);
        credentials = format!("{}:{}", String::from_utf8(user).ok()?, String::from_utf8(password).ok()?);
        stream.write_all(&[1, u8::from(credentials.contains("wrong"))]).await.ok()?;
    }
    let mut head = [0; 4];
    stream.read_exact(&mut head).await.ok()?;
    (head[..3] == [5, 1, 0]).then_some(())?;
    let host = match head[3] {
        1 => std::net::Ipv4Addr::from(stream.read_u32().await.ok()?).to_string(),
        4 => format!("[{}]", std::net::Ipv6Addr::from(stream.read_u128().await.ok()?)),
        _ => String::from_utf8(text(&mut stream).await?).ok()?,
    };
    let target = format!("{host}:{}", stream.read_u16().await.ok()?);
    let recorded = EgressProxyRequest { target, credentials, head: String::new() };
    let deed = policy(&recorded);
    kept.lock().unwrap().push(recorded);
    perform_action(stream, deed, socks5_reply(0), socks5_reply(5)).await
}

async fn serve_connect(
    mut stream: Box<dyn ProxyClientStream>,
    policy: &ProxyPolicy,
    kept: &Mutex<Vec<EgressProxyRequest>>,
) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).ok()?;
    let target = head.strip_prefix("CONNECT ")?.split(' ').next()?.to_owned();
    let credentials = head.lines().find_map(|line| line.strip_prefix("Proxy-Authorization: Basic "));
    let credentials = credentials.map_or(Some(String::new()), |text| {
        String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).ok()?).ok()
    })?;
    let recorded = EgressProxyRequest { target, credentials, head };
    let deed = policy(&recorded);
    kept.lock().unwrap().push(recorded);
    let yes = b"HTTP/1.1 200 Connection Established\r\n\r\n".to_vec();
    perform_action(stream, deed, yes, b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\nrefused".to_vec()).await
}

async fn perform_action(
    mut stream: Box<dyn ProxyClientStream>,
    deed: ProxyAction,
    yes: Vec<u8>,
    no: Vec<u8>,
) -> Option<()> {
    let (address, yes) = match deed {
        ProxyAction::Connect(address) => (address, yes),
        ProxyAction::ConnectAndReply(address, yes) => (address, yes),
        ProxyAction::Reply(bytes) => {
            stream.write_all(&bytes).await.ok()?;
            stream.shutdown().await.ok()?;
            // Closing with something unread would be a reset, which takes back what was said.
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            return Some(());
        }
        ProxyAction::Hang => {
            let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
            return Some(());
        }
    };
    let Ok(mut far) = TcpStream::connect(address).await else {
        stream.write_all(&no).await.ok()?;
        return stream.shutdown().await.ok();
    };
    far.set_nodelay(true).ok()?;
    stream.write_all(&yes).await.ok()?;
    stream.flush().await.ok()?;
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut far).await;
    Some(())
}

fn server_config(environment: &TestEnvironment, pair: &CertKeyPair) -> rustls::ServerConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(environment.client_ca.certificate().clone()).unwrap();
    let verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), narthex::tls::provider())
            .build()
            .unwrap();
    let mut config = rustls::ServerConfig::builder_with_provider(narthex::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(pair.0.0.clone(), pair.0.1.clone_key())
        .unwrap();
    // As the Konnectivity server does.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config
}
