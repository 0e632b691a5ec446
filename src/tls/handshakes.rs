//! Tests of TLS handshakes between server and client configurations, with files on disk.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::{ClientConfig, HandshakeKind, ProtocolVersion, ServerConfig};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::client::{self, ClientSettings};
use super::server::{self, NamedPair, ServingSettings};
use super::{Authority, Failure, Issued, KeyPair, PairFiles, Request};
use crate::process::{Drain, Phase, Problems};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A server with its files and authorities.
struct World {
    dir: TempDir,
    servers: Authority,
    clients: Authority,
    settings: ServingSettings,
}

/// The result of a handshake on both sides.
#[derive(Debug)]
struct Met {
    chain: Vec<CertificateDer<'static>>,
    server_kind: HandshakeKind,
    client_kind: HandshakeKind,
    version: ProtocolVersion,
    alpn: Option<Vec<u8>>,
    server_certificate: CertificateDer<'static>,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let (servers, clients) = (Authority::made("servers"), Authority::made("clients"));
        let settings = ServingSettings {
            pair: Some(PairFiles::new(dir.path().join("tls.crt"), dir.path().join("tls.key"))),
            client_ca: Some(dir.path().join("clients.crt")),
            http2: true,
            ..ServingSettings::default()
        };
        let world = World { dir, servers, clients, settings };
        world.write("clients.crt", &world.clients.pem());
        world.write_pair("tls", &world.serving("localhost"));
        world
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn write_pair(&self, name: &str, issued: &Issued) {
        self.write(&format!("{name}.crt"), &issued.certificate);
        self.write(&format!("{name}.key"), &issued.key);
    }

    fn serving(&self, name: &str) -> Issued {
        self.servers.issue(&Request::serving(&[name.to_owned()]), SystemTime::now()).unwrap()
    }

    fn client(&self, identity: Option<KeyPair>) -> Arc<ClientConfig> {
        client::config(&ClientSettings { identity: identity.map(Arc::new), ..trusting(&self.servers) }).unwrap()
    }

    fn files(&self) -> server::Files {
        server::Files::open(self.settings.clone()).map_err(|it| it.to_string()).unwrap()
    }

    fn config(&self) -> Arc<ServerConfig> {
        self.files().publish().map_err(|it| it.to_string()).unwrap().1.config.get().as_ref().clone()
    }
}

fn trusting(authority: &Authority) -> ClientSettings {
    ClientSettings {
        authorities: Some(authority.bundle()),
        insecure_skip_verify: false,
        identity: None,
        alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
    }
}

/// One connection: handshake, a byte in each direction, and a clean close.
async fn meet(server: Arc<ServerConfig>, client: Arc<ClientConfig>, name: &str) -> io::Result<Met> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let serve = async move {
        let mut stream = TlsAcceptor::from(server).accept(far).await?;
        let mut byte = [0];
        stream.read_exact(&mut byte).await?;
        stream.write_all(&byte).await?;
        stream.shutdown().await?;
        let connection = stream.get_ref().1;
        let chain = connection.peer_certificates().unwrap_or_default().to_vec();
        let kind = connection.handshake_kind().expect("the handshake is done");
        let version = connection.protocol_version().expect("the handshake is done");
        Ok::<_, io::Error>((chain, kind, version, connection.alpn_protocol().map(<[u8]>::to_vec)))
    };
    let call = async move {
        let name = client::server_name(name).unwrap();
        let mut stream = TlsConnector::from(client).connect(name, near).await?;
        stream.write_all(b"x").await?;
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await?;
        assert_eq!(rest, b"x");
        let connection = stream.get_ref().1;
        let certificate = connection.peer_certificates().expect("a server has a certificate")[0].clone();
        Ok::<_, io::Error>((connection.handshake_kind().expect("the handshake is done"), certificate))
    };
    // The client's error first: the server only sees the alert.
    let (served, called) = tokio::join!(serve, call);
    let (client_kind, server_certificate) = called?;
    let (chain, server_kind, version, alpn) = served?;
    Ok(Met { chain, server_kind, client_kind, version, alpn, server_certificate })
}

async fn fails(server: Arc<ServerConfig>, client: Arc<ClientConfig>, name: &str) -> Failure {
    Failure::of(&meet(server, client, name).await.unwrap_err())
}

#[tokio::test]
async fn any_client_is_met_and_judged_afterwards() {
    let world = World::new();
    let bundle = world.clients.bundle();
    let jane = Request::client("jane", &[]);

    let met = meet(world.config(), world.client(None), "localhost").await.unwrap();
    assert!(met.chain.is_empty());
    assert_eq!((met.version, met.alpn.as_deref()), (ProtocolVersion::TLSv1_3, Some(&b"h2"[..])));

    let trusted = world.clients.pair(&jane);
    let met = meet(world.config(), world.client(Some(trusted)), "localhost").await.unwrap();
    assert!(bundle.judge_client(&met.chain, UnixTime::now()).is_ok());

    let strange = Authority::made("strangers").pair(&jane);
    let met = meet(world.config(), world.client(Some(strange)), "localhost").await.unwrap();
    assert!(bundle.judge_client(&met.chain, UnixTime::now()).is_err());
}

#[tokio::test]
async fn a_certificate_that_webpki_cannot_read_does_not_break_the_handshake() {
    let world = World::new();
    let issued = world.clients.issue(&Request::client("jane", &[]), SystemTime::now()).unwrap();
    let pair = KeyPair::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), "jane").unwrap();
    let old = world.clients.version_1(&issued);
    let certified = rustls::sign::CertifiedKey::new(vec![old], pair.certified().key.clone());
    for versions in [&[&rustls::version::TLS12][..], &[&rustls::version::TLS13]] {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(world.servers.certificate().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(super::provider())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified.clone())));
        let met = meet(world.config(), Arc::new(client), "localhost").await.unwrap();
        let refused = world.clients.bundle().judge_client(&met.chain, UnixTime::now()).unwrap_err();
        assert!(refused.why.contains("version 1"), "{refused}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_hold_the_key_fails_the_handshake() {
    let world = World::new();
    let jane = world.clients.pair(&Request::client("jane", &[]));
    let thief = world.clients.pair(&Request::client("thief", &[]));
    let stolen = rustls::sign::CertifiedKey::new(jane.chain().to_vec(), thief.certified().key.clone());
    for versions in [&[&rustls::version::TLS12][..], &[&rustls::version::TLS13]] {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(world.servers.certificate().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(super::provider())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(stolen.clone())));
        assert!(meet(world.config(), Arc::new(client), "localhost").await.is_err());
    }
}

#[tokio::test]
async fn no_session_is_ever_resumed() {
    for min_version in ["VersionTLS12", "VersionTLS13"] {
        let mut world = World::new();
        world.settings.min_version = min_version.to_owned();
        let server = world.config();
        // A client that would resume if it could: one configuration, two connections.
        let client = world.client(Some(world.clients.pair(&Request::client("jane", &[]))));
        for _ in 0..3 {
            let met = meet(server.clone(), client.clone(), "localhost").await.unwrap();
            assert_ne!(met.server_kind, HandshakeKind::Resumed);
            assert_ne!(met.client_kind, HandshakeKind::Resumed);
            assert_eq!(met.chain.len(), 1);
        }
    }
}

#[tokio::test]
async fn no_session_is_resumed_under_tls_1_2() {
    let world = World::new();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(world.servers.certificate().clone()).unwrap();
    let client = ClientConfig::builder_with_provider(super::provider())
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (server, client) = (world.config(), Arc::new(client));
    for _ in 0..2 {
        let met = meet(server.clone(), client.clone(), "localhost").await.unwrap();
        assert_eq!(met.version, ProtocolVersion::TLSv1_2);
        assert_ne!(met.server_kind, HandshakeKind::Resumed);
    }
}

/// Records the CA hints of the server and presents no certificate.
#[derive(Debug, Default)]
struct Listening(Mutex<Vec<Vec<u8>>>);

impl rustls::client::ResolvesClientCert for Listening {
    fn resolve(
        &self,
        hints: &[&[u8]],
        _schemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        *self.0.lock().unwrap() = hints.iter().map(|hint| hint.to_vec()).collect();
        None
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn the_authorities_of_both_bundles_are_named_in_the_handshake() {
    let mut world = World::new();
    let proxies = Authority::made("proxies");
    world.settings.request_header_ca = Some(world.write("proxies.crt", &proxies.pem()));
    let listening = Arc::new(Listening::default());
    let mut client = ClientConfig::clone(&world.client(None));
    client.client_auth_cert_resolver = listening.clone();
    meet(world.config(), Arc::new(client), "localhost").await.unwrap();
    let heard = listening.0.lock().unwrap().clone();
    let mut expected: Vec<_> = [&world.clients, &proxies]
        .iter()
        .flat_map(|it| it.bundle().subjects())
        .map(|subject| subject.as_ref().to_vec())
        .collect();
    expected.sort();
    assert_eq!(heard, expected);
}

#[tokio::test]
async fn the_server_name_chooses_the_certificate() {
    let mut world = World::new();
    world.write_pair("other", &world.serving("*.example.com"));
    let flag = format!("{0}/other.crt,{0}/other.key", world.dir.path().display());
    world.settings.named = vec![NamedPair::parse(&flag).unwrap()];
    let default = meet(world.config(), world.client(None), "localhost").await.unwrap().server_certificate;
    let other = meet(world.config(), world.client(None), "a.example.com").await.unwrap().server_certificate;
    assert_ne!(default, other);
    // The name is unknown: the default is presented, and the client refuses it.
    assert_eq!(fails(world.config(), world.client(None), "elsewhere").await, Failure::NameMismatch);
}

#[tokio::test]
async fn each_fault_of_a_backend_has_its_reason() {
    let world = World::new();
    let serve = |issued: Issued| {
        world.write_pair("tls", &issued);
        world.config()
    };
    let localhost = Request::serving(&["localhost".to_owned()]);
    let now = SystemTime::now();
    let client = || world.client(None);
    let old = Authority::with_key("servers", rcgen::KeyPair::generate().unwrap(), now - 900 * DAY).unwrap().0;

    let expired = serve(old.issue(&localhost, now - 800 * DAY).unwrap());
    let trusting_old = client::config(&trusting(&old)).unwrap();
    assert_eq!(fails(expired, trusting_old, "localhost").await, Failure::CertificateExpired);

    let early = serve(world.servers.issue(&localhost, now + 10 * DAY).unwrap());
    assert_eq!(fails(early, client(), "localhost").await, Failure::CertificateNotYetValid);

    let nameless = Request { common_name: "localhost".to_owned(), ..Request::client("", &[]) };
    let wrong_usage = Request { names: vec!["localhost".to_owned()], ..nameless.clone() };
    let wrong_usage = serve(world.servers.issue(&wrong_usage, now).unwrap());
    assert_eq!(fails(wrong_usage, client(), "localhost").await, Failure::WrongUsage);

    // Also an authority that only has the same name.
    for name in ["strangers", "servers"] {
        let stranger = serve(Authority::made(name).issue(&localhost, now).unwrap());
        assert_eq!(fails(stranger, client(), "localhost").await, Failure::UnknownIssuer);
    }

    let good = serve(world.servers.issue(&localhost, now).unwrap());
    assert_eq!(fails(good.clone(), client(), "elsewhere").await, Failure::NameMismatch);
    assert_eq!(fails(good.clone(), client(), "127.0.0.1").await, Failure::NameMismatch);
    assert!(meet(good, client(), "localhost").await.is_ok());
}

/// A self-signed serving certificate, as `openssl req -x509` creates it.
fn self_signed(names: &[&str], authority: bool) -> Issued {
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = rcgen::CertificateParams::new(names).unwrap();
    params.distinguished_name.push(rcgen::DnType::CommonName, "localhost");
    if authority {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    }
    let key = rcgen::KeyPair::generate().unwrap();
    Issued { certificate: params.self_signed(&key).unwrap().pem(), key: key.serialize_pem() }
}

#[tokio::test]
async fn a_backend_may_present_exactly_the_certificate_of_its_bundle() {
    let world = World::new();
    for authority in [true, false] {
        let made = self_signed(&["localhost"], authority);
        world.write_pair("tls", &made);
        let bundle = super::Bundle::from_pem(made.certificate.as_bytes(), "caBundle").unwrap();
        let settings = ClientSettings { authorities: Some(bundle), ..trusting(&world.servers) };
        let client = client::config(&settings).unwrap();
        assert!(meet(world.config(), client.clone(), "localhost").await.is_ok());
        assert_eq!(fails(world.config(), client, "elsewhere").await, Failure::NameMismatch);
        let other = self_signed(&["localhost"], authority);
        let bundle = super::Bundle::from_pem(other.certificate.as_bytes(), "caBundle").unwrap();
        let client = client::config(&ClientSettings { authorities: Some(bundle), ..settings }).unwrap();
        assert!(meet(world.config(), client, "localhost").await.is_err());
    }
}

#[tokio::test]
async fn a_backend_without_a_name_is_told_apart() {
    let world = World::new();
    let made = self_signed(&[], false);
    world.write_pair("tls", &made);
    let bundle = super::Bundle::from_pem(made.certificate.as_bytes(), "caBundle").unwrap();
    let settings = ClientSettings { authorities: Some(bundle), ..trusting(&world.servers) };
    assert_eq!(fails(world.config(), client::config(&settings).unwrap(), "localhost").await, Failure::MissingSan);
    assert_eq!(Failure::MissingSan.reason(), "MissingSAN");
    let insecure = ClientSettings { insecure_skip_verify: true, ..settings };
    assert!(meet(world.config(), client::config(&insecure).unwrap(), "localhost").await.is_ok());
}

#[tokio::test]
async fn a_backend_that_refuses_our_certificate_is_told_apart() {
    let world = World::new();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(world.clients.certificate().clone()).unwrap();
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots.into(), super::provider());
    let serving = KeyPair::load(world.settings.pair.as_ref().unwrap()).unwrap();
    let server = ServerConfig::builder_with_provider(super::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(serving.certified().as_ref().clone())));
    let server = Arc::new(server);
    let stranger = Authority::made("strangers").pair(&Request::client("proxy", &[]));
    assert_eq!(
        fails(server.clone(), world.client(Some(stranger)), "localhost").await,
        Failure::ClientCertificateRefused
    );
    assert_eq!(fails(server, world.client(None), "localhost").await, Failure::ClientCertificateRefused);
}

#[test]
fn all_mistakes_are_reported_at_once() {
    let mut world = World::new();
    world.settings.min_version = "VersionTLS11".to_owned();
    world.settings.cipher_suites = vec!["TLS_NULL".to_owned()];
    world.settings.request_header_ca = Some(world.dir.path().join("missing.crt"));
    world.write_pair("tls", &Issued { key: world.serving("x").key, ..world.serving("y") });
    world.write("clients.crt", &world.serving("z").certificate);
    let problems = server::Files::open(world.settings).err().unwrap();
    let text = problems.to_string();
    assert_eq!(problems.0.len(), 5, "{text}");
    for expected in ["VersionTLS11", "TLS_NULL", "missing.crt", "does not belong", "CN=z\" is none"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn one_authority_for_clients_and_unnamed_front_proxies_is_refused() {
    let mut world = World::new();
    let more = world.clients.pem() + &Authority::made("proxies").pem();
    world.settings.request_header_ca = Some(world.write("proxies.crt", &more));
    let problems = server::Files::open(world.settings.clone()).err().unwrap();
    assert!(problems.to_string().contains("could claim to be any user"), "{problems}");
    world.settings.request_header_names_given = true;
    assert!(server::Files::open(world.settings).is_ok());
}

/// Problems reported by the reload; an empty entry means that all is valid again.
type Told = tokio::sync::mpsc::UnboundedReceiver<Problems>;

/// Waits until `expected` is reported. A reload may fall between the two steps of a write and report more.
async fn told(receiver: &mut Told, expected: impl Fn(&Problems) -> bool) {
    let heard = async { while !expected(&receiver.recv().await.unwrap()) {} };
    tokio::time::timeout(Duration::from_secs(30), heard).await.expect("the reload reports");
}

#[tokio::test]
async fn files_are_followed_and_a_half_written_pair_keeps_the_old_one() {
    let world = World::new();
    let files = world.files();
    let (publishers, readers) = files.publish().map_err(|it| it.to_string()).unwrap();
    let server::ServingReaders { mut config, mut trust, in_use } = readers;
    assert_eq!(in_use.get().len(), 2);
    let first_serving = meet(config.get().as_ref().clone(), world.client(None), "localhost").await.unwrap();
    let (drainer, drain) = Drain::new();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let on_failure = Box::new(move |problems: &Problems| drop(sender.send(problems.clone())));
    let local = tokio::task::LocalSet::new();
    let follower = local.spawn_local(files.follow(publishers, on_failure, drain));
    local
        .run_until(async move {
            // Only the certificate changed: the old pair is still served, and the problem is reported once.
            let next = world.serving("localhost");
            world.write("tls.crt", &next.certificate);
            told(&mut receiver, |it| it.to_string().contains("only one of the two files replaced")).await;
            let met = meet(config.get().as_ref().clone(), world.client(None), "localhost").await.unwrap();
            assert_eq!(met.server_certificate, first_serving.server_certificate);

            // A bundle that shrinks meanwhile takes effect.
            assert_eq!(trust.get().generation, 1);
            world.write("clients.crt", &Authority::made("successors").pem());
            trust.changed().await;
            assert_eq!(trust.get().generation, 2);
            assert_ne!(trust.get().client, Some(world.clients.bundle()));
            config.changed().await;

            world.write("tls.key", &next.key);
            config.changed().await;
            told(&mut receiver, |it| it.0.is_empty()).await;
            let met = meet(config.get().as_ref().clone(), world.client(None), "localhost").await.unwrap();
            assert_eq!(met.server_certificate, next.der().unwrap());
            assert_eq!(trust.get().generation, 2);
            drainer.advance(Phase::Ending);
            follower.await.unwrap();
        })
        .await;
}

/// The error of a session closed without close_notify has no link.
#[tokio::test]
async fn session_cut_without_close_notify_has_no_address_of_a_manual_in_its_error() {
    let world = World::new();
    let (near, far) = tokio::io::duplex(64 * 1024);
    let server = TlsAcceptor::from(world.config());
    let client = TlsConnector::from(world.client(None));
    let name = client::server_name("localhost").unwrap();
    let (served, called) = tokio::join!(server.accept(far), client.connect(name, near));
    drop(served.unwrap());
    let error = called.unwrap().read_to_end(&mut Vec::new()).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("docs.rs"), "{text}");
    let cleaned = super::without_manual(error);
    assert_eq!(cleaned.kind(), io::ErrorKind::UnexpectedEof);
    assert!(cleaned.to_string().contains("close_notify") && !cleaned.to_string().contains("://"), "{cleaned}");
    assert_eq!(Failure::of(&cleaned), Failure::ConnectionClosed);
}
