//! An upgraded connection through narthex and an agent to a backend.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::pattern;
use crate::environment::{
    Gateway, Konnectivity, KonnectivityMode, TestEnvironment, eventually, runtime, write_egress_configuration,
};

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

pub(super) fn echoes(environment: &TestEnvironment) {
    for (mode, name) in [
        (KonnectivityMode::GrpcUnix, "upgraded-grpc"),
        (KonnectivityMode::ConnectUnix, "upgraded-connect"),
        (KonnectivityMode::ConnectTls, "upgraded-connect-tls"),
    ] {
        let (gateway, konnectivity) = start_gateway_with_agent(environment, mode, name, backend(environment));
        let admin = environment.cluster.admin();
        runtime().block_on(async {
            let mut stream = gateway.endpoint.connect(Some(admin), b"http/1.1").await.unwrap();
            let request = format!(
                "POST {BASE}/namespaces/a/things/b/exec HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n\
                 Upgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
            let args = pattern(4 << 20);
            let mut back = vec![0; args.len()];
            let (mut reader, mut writer) = tokio::io::split(stream);
            // Without a flush the last records may stay in the TLS session.
            let writing = async {
                writer.write_all(&args).await?;
                writer.flush().await
            };
            let (read, written) = tokio::join!(reader.read_exact(&mut back), writing);
            read.unwrap();
            written.unwrap();
            assert!(back == args);
            writer.write_all(b"bye").await.unwrap();
            writer.flush().await.unwrap();
            let mut rest = Vec::new();
            // The backend closes without a TLS close_notify, so the kind of end is not asserted.
            let _ = reader.read_to_end(&mut rest).await;
            assert_eq!(rest, b"bye");
        });
        assert!(konnectivity.count("konnectivity_network_proxy_server_dial_duration_seconds_count") > 0.0);
    }
}

/// Starts narthex and an agent in front of a backend on loopback.
pub(super) fn start_gateway_with_agent(
    environment: &TestEnvironment,
    mode: KonnectivityMode,
    name: &str,
    port: u16,
) -> (Gateway, Konnectivity) {
    let directory = environment.scratch(name);
    let konnectivity = Konnectivity::with_agent(&directory, mode);
    let registry = directory.join("registry");
    std::fs::create_dir_all(&registry).unwrap();
    let manifests = REGISTRY.replace("PORT", &port.to_string()).replace("CA_BUNDLE", &authority(environment));
    std::fs::write(registry.join("echo.yaml"), manifests).unwrap();
    let egress = write_egress_configuration(&konnectivity, &directory);
    let flags =
        [("--registry-dir", registry.to_str().unwrap()), ("--egress-selector-config-file", egress.to_str().unwrap())];
    let gateway = Gateway::start_without_registry(&environment.cluster, &directory, name, &flags);
    eventually("the backend through the tunnel", || {
        let response = gateway.endpoint.get(Some(environment.cluster.admin()), BASE)?;
        if response.status == 200 { Ok(()) } else { Err(response.text()) }
    });
    (gateway, konnectivity)
}

fn authority(environment: &TestEnvironment) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD
        .encode(std::fs::read(&environment.cluster.authorities.backend.file).unwrap())
}

/// TLS configuration of the backend, with ALPN `protocol` if given.
pub(super) fn serving(environment: &TestEnvironment, protocol: Option<&[u8]>) -> Arc<ServerConfig> {
    let identity = environment.cluster.authorities.backend.server("echo", &["echo.echo.svc"]);
    let chain = vec![CertificateDer::from_pem_file(&identity.certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.alpn_protocols = protocol.into_iter().map(<[u8]>::to_vec).collect();
    Arc::new(config)
}

/// A backend that serves one document and echoes on upgraded connections.
fn backend(environment: &TestEnvironment) -> u16 {
    let config = serving(environment, None);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in listener.incoming().map_while(Result::ok) {
            let config = config.clone();
            std::thread::spawn(move || {
                let session = ServerConnection::new(config).unwrap();
                // Connection errors are ignored: the client asserts the outcome.
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
