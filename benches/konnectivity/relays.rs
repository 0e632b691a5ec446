//! Two relays in place of a server and an agent: the least that a proxy with the same connections does.
//!
//! They have the connections of a server and an agent, with the same TLS, and copy bytes. Without a protocol, queues or
//! flow control, each tunnel has a TLS connection of its own between them. Each relay is a process with one thread.

use std::path::Path;
use std::sync::Arc;

use narthex::tls::{ClientTlsStream, ServerTlsStream};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional_with_sizes};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::task::LocalSet;

use crate::client::{Arguments, Stream, certificates, client_config};

const BUFFER_BYTES: usize = 64 << 10;

/// Relays until the process is killed, as server if `--agent` names the address of the other relay, else as agent.
pub(crate) fn run(arguments: &[String]) {
    let arguments = Arguments(arguments);
    let (listen, pki) = (arguments.word("relay"), Path::new(arguments.word("pki")));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        match arguments.word("agent") {
            "" => accept_tcp(listen, server_config(pki), relay_to_target).await,
            agent => {
                let connector = AgentConnector { address: agent.to_owned(), config: client_config(pki) };
                let relay = move |client: Box<dyn Stream>| relay_to_agent(client, connector.clone());
                if listen.starts_with('/') {
                    let listener = UnixListener::bind(listen).unwrap();
                    while let Ok((stream, _)) = listener.accept().await {
                        tokio::task::spawn_local(relay(Box::new(stream)));
                    }
                } else {
                    accept_tcp(listen, server_config(pki), relay).await;
                }
            }
        }
    }));
}

/// How the server's relay reaches the agent's.
#[derive(Clone)]
struct AgentConnector {
    address: String,
    config: Arc<rustls::ClientConfig>,
}

fn server_config(pki: &Path) -> Arc<rustls::ServerConfig> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::from_pem_file(pki.join("serving.key")).unwrap();
    Arc::new(config.with_no_client_auth().with_single_cert(certificates(&pki.join("serving.crt")), key).unwrap())
}

async fn accept_tcp<F: Future<Output = ()> + 'static>(
    address: &str,
    config: Arc<rustls::ServerConfig>,
    relay: impl Fn(Box<dyn Stream>) -> F + Clone + 'static,
) {
    let listener = TcpListener::bind(address).await.unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).unwrap();
        let (config, relay) = (config.clone(), relay.clone());
        tokio::task::spawn_local(async move {
            if let Ok(stream) = ServerTlsStream::accept(config, stream).await {
                relay(Box::new(stream)).await;
            }
        });
    }
}

/// Reads up to `end`, one byte at a time.
async fn read_until(stream: &mut impl Stream, end: &str) -> String {
    let mut head = String::new();
    while !head.ends_with(end) {
        head.push(char::from(stream.read_u8().await.unwrap()));
    }
    head
}

/// As server: takes an HTTP CONNECT request, and sends the agent a line with its destination.
async fn relay_to_agent(mut client: Box<dyn Stream>, agent: AgentConnector) {
    let head = read_until(&mut client, "\r\n\r\n").await;
    let target = head.split(' ').nth(1).unwrap();
    let stream = TcpStream::connect(&agent.address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = ClientTlsStream::connect(agent.config, name, stream).await.unwrap();
    stream.write_all(format!("{target}\n").as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    client.flush().await.unwrap();
    let _ = copy_bidirectional_with_sizes(&mut client, &mut stream, BUFFER_BYTES, BUFFER_BYTES).await;
}

async fn relay_to_target(mut server: Box<dyn Stream>) {
    let target = read_until(&mut server, "\n").await;
    let mut stream = TcpStream::connect(target.trim_end()).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let _ = copy_bidirectional_with_sizes(&mut server, &mut stream, BUFFER_BYTES, BUFFER_BYTES).await;
}
