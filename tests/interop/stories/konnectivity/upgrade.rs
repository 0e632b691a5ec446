//! A connection that is upgraded, through narthex and an agent to a backend that speaks no Kubernetes after that.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::pattern;
use crate::world::{Front, Gateway, Konnectivity, World, configuration, eventually, runtime};

pub(super) const BASE: &str = "/apis/upgrade.example.com/v1";

pub(super) const DOCUMENT: &str =
    r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"upgrade.example.com/v1","resources":[]}"#;

const REGISTRY: &str = "
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.upgrade.example.com, annotations: {narthex.dev/probe-interval: 1s}}
spec:
  {group: upgrade.example.com, version: v1, service: {namespace: echo, name: echo}, caBundle: CA_BUNDLE,
   groupPriorityMinimum: 1000, versionPriority: 15}
---
apiVersion: v1
kind: Service
metadata: {name: echo, namespace: echo}
spec: {clusterIP: 10.0.0.51, ports: [{name: https, port: 443, targetPort: 8443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo-1, namespace: echo, labels: {kubernetes.io/service-name: echo}}
addressType: IPv4
ports: [{name: https, port: PORT, protocol: TCP}]
endpoints: [{addresses: [127.0.0.1], conditions: {ready: true}}]
";

pub(super) fn echoes(world: &World) {
    for (front, name) in [
        (Front::GrpcUnix, "upgraded-grpc"),
        (Front::ConnectUnix, "upgraded-connect"),
        (Front::ConnectTls, "upgraded-connect-tls"),
    ] {
        let (gateway, konnectivity) = before(world, front, name, backend(world));
        let admin = world.cluster.admin();
        runtime().block_on(async {
            let mut stream = gateway.door.connect(Some(admin), b"http/1.1").await.unwrap();
            let request = format!(
                "POST {BASE}/namespaces/a/things/b/exec HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
                 Upgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
            let words = pattern(4 << 20);
            let mut back = vec![0; words.len()];
            let (mut reader, mut writer) = tokio::io::split(stream);
            let (read, written) = tokio::join!(reader.read_exact(&mut back), writer.write_all(&words));
            read.unwrap();
            written.unwrap();
            assert!(back == words);
            writer.write_all(b"bye").await.unwrap();
            let mut rest = Vec::new();
            // The backend hangs up when it is told goodbye, without TLS's own, so how it ends is open.
            let _ = reader.read_to_end(&mut rest).await;
            assert_eq!(rest, b"bye");
        });
        assert!(konnectivity.count("konnectivity_network_proxy_server_dial_duration_seconds_count") > 0.0);
    }
}

/// narthex and an agent before a backend on loopback.
pub(super) fn before(world: &World, front: Front, name: &str, port: u16) -> (Gateway, Konnectivity) {
    let directory = world.scratch(name);
    let konnectivity = Konnectivity::with_agent(&directory, front);
    let registry = directory.join("registry");
    std::fs::create_dir_all(&registry).unwrap();
    let manifests = REGISTRY.replace("PORT", &port.to_string()).replace("CA_BUNDLE", &authority(world));
    std::fs::write(registry.join("echo.yaml"), manifests).unwrap();
    let egress = configuration(&konnectivity, &directory);
    let flags =
        [("--registry-dir", registry.to_str().unwrap()), ("--egress-selector-config-file", egress.to_str().unwrap())];
    let gateway = Gateway::bare(&world.cluster, &directory, name, &flags);
    eventually("the backend through the tunnel", || {
        let answer = gateway.door.get(Some(world.cluster.admin()), BASE)?;
        if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
    });
    (gateway, konnectivity)
}

fn authority(world: &World) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(std::fs::read(&world.cluster.authorities.backend.file).unwrap())
}

/// Its side of TLS, speaking `protocol` if one is named.
pub(super) fn serving(world: &World, protocol: Option<&[u8]>) -> Arc<ServerConfig> {
    let identity = world.cluster.authorities.backend.server("echo", &["echo.echo.svc"]);
    let chain = vec![CertificateDer::from_pem_file(&identity.certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.alpn_protocols = protocol.into_iter().map(<[u8]>::to_vec).collect();
    Arc::new(config)
}

/// A server that knows one document, and echoes to whom asks for an upgrade.
fn backend(world: &World) -> u16 {
    let config = serving(world, None);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let config = config.clone();
            std::thread::spawn(move || {
                let session = ServerConnection::new(config).unwrap();
                // What becomes of the connection is the client's to judge.
                let _ = serve(StreamOwned::new(session, socket));
            });
        }
    });
    port
}

fn serve(mut stream: impl Read + Write) -> std::io::Result<()> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        if head.contains("\r\nupgrade: ") {
            stream
                .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")?;
            let mut buffer = vec![0; 16 << 10];
            loop {
                let length = stream.read(&mut buffer)?;
                stream.write_all(&buffer[..length])?;
                stream.flush()?;
                if length == 0 || buffer[..length].ends_with(b"bye") {
                    return Ok(());
                }
            }
        }
        let (status, body) =
            if head.contains(&format!(" {BASE} ")) { ("200 OK", DOCUMENT) } else { ("404 Not Found", "") };
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        stream.flush()?;
    }
}
