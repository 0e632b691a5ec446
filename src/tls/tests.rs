//! Tests of TLS handshakes between server and client configurations, with files on disk.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, HandshakeKind, ProtocolVersion, ServerConfig, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::client::{self, ClientSettings};
use super::server::{self, NamedCertKey, ServingSettings};
use super::{
    Authority, CertificateSpec, ClientTlsStream, ConnectionFailure, Issued, KeyPair, PairFiles, ServerTlsStream,
};
use crate::process::{Drain, Problems, ShutdownPhase};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A server with its files and authorities.
pub(super) struct TlsFixture {
    dir: TempDir,
    servers: Authority,
    clients: Authority,
    settings: ServingSettings,
}

/// The result of a handshake on both sides.
#[derive(Debug)]
struct HandshakeOutcome {
    chain: Vec<CertificateDer<'static>>,
    server_kind: HandshakeKind,
    client_kind: HandshakeKind,
    version: ProtocolVersion,
    alpn: Option<Vec<u8>>,
    server_certificate: CertificateDer<'static>,
}

impl TlsFixture {
    pub(super) fn new() -> TlsFixture {
        let dir = tempfile::tempdir().unwrap();
        let (servers, clients) = (Authority::generate("servers"), Authority::generate("clients"));
        let settings = ServingSettings {
            pair: Some(PairFiles::new(dir.path().join("tls.crt"), dir.path().join("tls.key"))),
            client_ca: Some(dir.path().join("clients.crt")),
            http2: true,
            ..ServingSettings::default()
        };
        let world = TlsFixture { dir, servers, clients, settings };
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
        self.servers.issue(&CertificateSpec::serving(&[name.to_owned()]), SystemTime::now()).unwrap()
    }

    pub(super) fn client(&self, identity: Option<KeyPair>) -> Arc<ClientConfig> {
        client::build_config(&ClientSettings { identity: identity.map(Arc::new), ..trusting(&self.servers) }).unwrap()
    }

    /// A client of one TLS version, without a certificate or with `certified`.
    pub(super) fn client_of_version(
        &self,
        version: &'static SupportedProtocolVersion,
        certified: Option<rustls::sign::CertifiedKey>,
    ) -> Arc<ClientConfig> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.servers.certificate().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(super::provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots);
        Arc::new(match certified {
            Some(certified) => {
                builder.with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)))
            }
            None => builder.with_no_client_auth(),
        })
    }

    fn files(&self) -> server::ServingFiles {
        server::ServingFiles::open(self.settings.clone()).map_err(|it| it.to_string()).unwrap()
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        self.files().publish().map_err(|it| it.to_string()).unwrap().1.config.get().as_ref().clone()
    }
}

fn trusting(authority: &Authority) -> ClientSettings {
    ClientSettings {
        ca_bundle: Some(authority.bundle()),
        insecure_skip_verify: false,
        identity: None,
        alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
    }
}

/// One connection: handshake, a byte in each direction, and a clean close.
async fn handshake(server: Arc<ServerConfig>, client: Arc<ClientConfig>, name: &str) -> io::Result<HandshakeOutcome> {
    let (near, far) = tokio::io::duplex(64 * 1024);
    let serve = async move {
        let mut stream = ServerTlsStream::accept(server, far).await?;
        let mut byte = [0];
        stream.read_exact(&mut byte).await?;
        stream.write_all(&byte).await?;
        stream.shutdown().await?;
        let connection = stream.state();
        let chain = connection.peer_certificates().unwrap_or_default().to_vec();
        let kind = connection.handshake_kind().expect("the handshake is done");
        let version = connection.protocol_version().expect("the handshake is done");
        Ok::<_, io::Error>((chain, kind, version, connection.alpn_protocol().map(<[u8]>::to_vec)))
    };
    let call = async move {
        let name = client::server_name(name).unwrap();
        let mut stream = ClientTlsStream::connect(client, name, near).await?;
        stream.write_all(b"x").await?;
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await?;
        assert_eq!(rest, b"x");
        let connection = stream.state();
        let certificate = connection.peer_certificates().expect("a server has a certificate")[0].clone();
        Ok::<_, io::Error>((connection.handshake_kind().expect("the handshake is done"), certificate))
    };
    // The client's error first: the server only sees the alert.
    let (served, called) = tokio::join!(Box::pin(serve), Box::pin(call));
    let (client_kind, server_certificate) = called?;
    let (chain, server_kind, version, alpn) = served?;
    Ok(HandshakeOutcome { chain, server_kind, client_kind, version, alpn, server_certificate })
}

async fn handshake_failure(server: Arc<ServerConfig>, client: Arc<ClientConfig>, name: &str) -> ConnectionFailure {
    ConnectionFailure::from_io(&handshake(server, client, name).await.unwrap_err())
}

#[tokio::test]
async fn handshake_accepts_untrusted_client_certificate() {
    let world = TlsFixture::new();
    let bundle = world.clients.bundle();
    let jane = CertificateSpec::client("jane", &[]);

    let met = handshake(world.config(), world.client(None), "localhost").await.unwrap();
    assert!(met.chain.is_empty());
    assert_eq!((met.version, met.alpn.as_deref()), (ProtocolVersion::TLSv1_3, Some(&b"h2"[..])));

    let trusted = world.clients.pair(&jane);
    let met = handshake(world.config(), world.client(Some(trusted)), "localhost").await.unwrap();
    assert!(bundle.verify_client(&met.chain, UnixTime::now()).is_ok());

    let strange = Authority::generate("strangers").pair(&jane);
    let met = handshake(world.config(), world.client(Some(strange)), "localhost").await.unwrap();
    assert!(bundle.verify_client(&met.chain, UnixTime::now()).is_err());
}

#[tokio::test]
async fn handshake_accepts_version_1_client_certificate() {
    let world = TlsFixture::new();
    let issued = world.clients.issue(&CertificateSpec::client("jane", &[]), SystemTime::now()).unwrap();
    let pair = KeyPair::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), "jane").unwrap();
    let old = world.clients.version_1(&issued);
    let certified = rustls::sign::CertifiedKey::new(vec![old], pair.certified().key.clone());
    for version in [&TLS12, &TLS13] {
        let client = world.client_of_version(version, Some(certified.clone()));
        let met = handshake(world.config(), client, "localhost").await.unwrap();
        assert!(world.clients.bundle().verify_client(&met.chain, UnixTime::now()).is_ok());
    }
}

#[tokio::test]
async fn handshake_fails_without_client_key() {
    let world = TlsFixture::new();
    let jane = world.clients.pair(&CertificateSpec::client("jane", &[]));
    let thief = world.clients.pair(&CertificateSpec::client("thief", &[]));
    let stolen = rustls::sign::CertifiedKey::new(jane.chain().to_vec(), thief.certified().key.clone());
    for version in [&TLS12, &TLS13] {
        let client = world.client_of_version(version, Some(stolen.clone()));
        assert!(handshake(world.config(), client, "localhost").await.is_err());
    }
}

/// A listener of Konnectivity, which verifies its clients in the handshake.
#[tokio::test]
async fn handshake_with_client_below_a_path_length_is_refused() {
    let world = TlsFixture::new();
    let authority = |name: &str, limit: rcgen::BasicConstraints| {
        let mut params = rcgen::CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.is_ca = rcgen::IsCa::Ca(limit);
        params
    };
    let key = || rcgen::KeyPair::generate().unwrap();
    for (limit, is_accepted) in [(0, false), (1, true)] {
        let root = authority("root", rcgen::BasicConstraints::Constrained(limit));
        let root_key = key();
        let root_pem = root.self_signed(&root_key).unwrap().pem();
        let root = rcgen::Issuer::new(root, root_key);
        let (second, second_key) = (authority("second", rcgen::BasicConstraints::Unconstrained), key());
        let second_pem = second.signed_by(&second_key, &root).unwrap().pem();
        let second = rcgen::Issuer::new(second, second_key);
        let leaf_key = key();
        let leaf = rcgen::CertificateParams::default().signed_by(&leaf_key, &second).unwrap().pem();
        let chain = leaf + &second_pem;
        let pair = KeyPair::from_pem(chain.as_bytes(), leaf_key.serialize_pem().as_bytes(), "x").unwrap();
        let settings = server::MutualTlsSettings {
            pair: world.settings.pair.clone().unwrap(),
            client_ca: Some(world.write("root.crt", &root_pem)),
            flags: ["--cert", "--ca"],
            alpn: b"h2",
            min_version: String::new(),
            cipher_suites: Vec::new(),
        };
        let (_, readers) = server::MutualTlsFiles::open(settings).map_err(|it| it.to_string()).unwrap();
        let met = handshake(readers.config.get().as_ref().clone(), world.client(Some(pair)), "localhost").await;
        assert_eq!(met.is_ok(), is_accepted, "{met:?}");
    }
}

#[tokio::test]
async fn session_resumption_disabled() {
    for min_version in ["VersionTLS12", "VersionTLS13"] {
        let mut world = TlsFixture::new();
        world.settings.min_version = min_version.to_owned();
        let server = world.config();
        // A client that would resume if it could: one configuration, two connections.
        let client = world.client(Some(world.clients.pair(&CertificateSpec::client("jane", &[]))));
        for _ in 0..3 {
            let met = handshake(server.clone(), client.clone(), "localhost").await.unwrap();
            assert_ne!(met.server_kind, HandshakeKind::Resumed);
            assert_ne!(met.client_kind, HandshakeKind::Resumed);
            assert_eq!(met.chain.len(), 1);
        }
    }
}

/// A backend that would resume sessions of both versions.
#[tokio::test]
async fn session_resumption_towards_backends_is_of_tls_1_3() {
    let world = TlsFixture::new();
    let issued = world.serving("localhost");
    let pair = KeyPair::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), "localhost").unwrap();
    for (version, expected) in [(&TLS12, HandshakeKind::Full), (&TLS13, HandshakeKind::Resumed)] {
        let server = ServerConfig::builder_with_provider(super::provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(pair.certified().as_ref().clone())));
        let (server, client) = (Arc::new(server), world.client(None));
        handshake(server.clone(), client.clone(), "localhost").await.unwrap();
        let met = handshake(server, client, "localhost").await.unwrap();
        assert_eq!((met.client_kind, met.server_kind), (expected, expected), "{:?}", met.version);
    }
}

#[tokio::test]
async fn session_resumption_disabled_tls_1_2() {
    let world = TlsFixture::new();
    let (server, client) = (world.config(), world.client_of_version(&TLS12, None));
    for _ in 0..2 {
        let met = handshake(server.clone(), client.clone(), "localhost").await.unwrap();
        assert_eq!(met.version, ProtocolVersion::TLSv1_2);
        assert_ne!(met.server_kind, HandshakeKind::Resumed);
    }
}

/// Records the CA hints of the server and presents no certificate.
#[derive(Debug, Default)]
struct HintRecorder(Mutex<Vec<Vec<u8>>>);

impl rustls::client::ResolvesClientCert for HintRecorder {
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
async fn handshake_hints_name_both_ca_bundles() {
    let mut world = TlsFixture::new();
    let proxies = Authority::generate("proxies");
    world.settings.request_header_ca = Some(world.write("proxies.crt", &proxies.pem()));
    let listening = Arc::new(HintRecorder::default());
    let mut client = ClientConfig::clone(&world.client(None));
    client.client_auth_cert_resolver = listening.clone();
    handshake(world.config(), Arc::new(client), "localhost").await.unwrap();
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
async fn sni_selects_certificate() {
    let mut world = TlsFixture::new();
    world.write_pair("other", &world.serving("*.example.com"));
    let flag = format!("{0}/other.crt,{0}/other.key", world.dir.path().display());
    world.settings.named = vec![NamedCertKey::parse(&flag).unwrap()];
    let default = handshake(world.config(), world.client(None), "localhost").await.unwrap().server_certificate;
    let other = handshake(world.config(), world.client(None), "a.example.com").await.unwrap().server_certificate;
    assert_ne!(default, other);
    // The name is unknown: the default is presented, and the client refuses it.
    assert_eq!(
        handshake_failure(world.config(), world.client(None), "elsewhere").await,
        ConnectionFailure::NameMismatch
    );
}

#[tokio::test]
async fn backend_certificate_failures_have_reasons() {
    let world = TlsFixture::new();
    let serve = |issued: Issued| {
        world.write_pair("tls", &issued);
        world.config()
    };
    let localhost = CertificateSpec::serving(&["localhost".to_owned()]);
    let now = SystemTime::now();
    let client = || world.client(None);
    let old = Authority::with_key("servers", rcgen::KeyPair::generate().unwrap(), now - 900 * DAY).unwrap().0;

    let expired = serve(old.issue(&localhost, now - 800 * DAY).unwrap());
    let trusting_old = client::build_config(&trusting(&old)).unwrap();
    assert_eq!(handshake_failure(expired, trusting_old, "localhost").await, ConnectionFailure::CertificateExpired);

    let early = serve(world.servers.issue(&localhost, now + 10 * DAY).unwrap());
    assert_eq!(handshake_failure(early, client(), "localhost").await, ConnectionFailure::CertificateNotYetValid);

    let nameless = CertificateSpec { common_name: "localhost".to_owned(), ..CertificateSpec::client("", &[]) };
    let wrong_usage = CertificateSpec { names: vec!["localhost".to_owned()], ..nameless.clone() };
    let wrong_usage = serve(world.servers.issue(&wrong_usage, now).unwrap());
    assert_eq!(handshake_failure(wrong_usage, client(), "localhost").await, ConnectionFailure::WrongUsage);

    // Also an authority that only has the same name.
    for name in ["strangers", "servers"] {
        let stranger = serve(Authority::generate(name).issue(&localhost, now).unwrap());
        assert_eq!(handshake_failure(stranger, client(), "localhost").await, ConnectionFailure::UnknownIssuer);
    }

    let good = serve(world.servers.issue(&localhost, now).unwrap());
    assert_eq!(handshake_failure(good.clone(), client(), "elsewhere").await, ConnectionFailure::NameMismatch);
    assert_eq!(handshake_failure(good.clone(), client(), "127.0.0.1").await, ConnectionFailure::NameMismatch);
    assert!(handshake(good, client(), "localhost").await.is_ok());
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
async fn backend_certificate_pinned_in_bundle() {
    let world = TlsFixture::new();
    for authority in [true, false] {
        let made = self_signed(&["localhost"], authority);
        world.write_pair("tls", &made);
        let bundle = super::Bundle::from_pem(made.certificate.as_bytes(), "caBundle").unwrap();
        let settings = ClientSettings { ca_bundle: Some(bundle), ..trusting(&world.servers) };
        let client = client::build_config(&settings).unwrap();
        assert!(handshake(world.config(), client.clone(), "localhost").await.is_ok());
        assert_eq!(handshake_failure(world.config(), client, "elsewhere").await, ConnectionFailure::NameMismatch);
        let other = self_signed(&["localhost"], authority);
        let bundle = super::Bundle::from_pem(other.certificate.as_bytes(), "caBundle").unwrap();
        let client = client::build_config(&ClientSettings { ca_bundle: Some(bundle), ..settings }).unwrap();
        assert!(handshake(world.config(), client, "localhost").await.is_err());
    }
}

#[tokio::test]
async fn backend_certificate_without_san_has_reason() {
    let world = TlsFixture::new();
    let made = self_signed(&[], false);
    world.write_pair("tls", &made);
    let bundle = super::Bundle::from_pem(made.certificate.as_bytes(), "caBundle").unwrap();
    let settings = ClientSettings { ca_bundle: Some(bundle), ..trusting(&world.servers) };
    assert_eq!(
        handshake_failure(world.config(), client::build_config(&settings).unwrap(), "localhost").await,
        ConnectionFailure::MissingSan
    );
    assert_eq!(ConnectionFailure::MissingSan.reason(), "MissingSAN");
    let insecure = ClientSettings { insecure_skip_verify: true, ..settings };
    assert!(handshake(world.config(), client::build_config(&insecure).unwrap(), "localhost").await.is_ok());
}

#[tokio::test]
async fn client_certificate_refused_by_backend_has_reason() {
    let world = TlsFixture::new();
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
    let stranger = Authority::generate("strangers").pair(&CertificateSpec::client("proxy", &[]));
    assert_eq!(
        handshake_failure(server.clone(), world.client(Some(stranger)), "localhost").await,
        ConnectionFailure::ClientCertificateRefused
    );
    assert_eq!(
        handshake_failure(server, world.client(None), "localhost").await,
        ConnectionFailure::ClientCertificateRefused
    );
}

#[test]
fn serving_files_report_all_problems() {
    let mut world = TlsFixture::new();
    world.settings.min_version = "VersionTLS11".to_owned();
    world.settings.cipher_suites = vec!["TLS_NULL".to_owned()];
    world.settings.request_header_ca = Some(world.dir.path().join("missing.crt"));
    world.write_pair("tls", &Issued { key: world.serving("x").key, ..world.serving("y") });
    world.write("clients.crt", &world.serving("z").certificate);
    let problems = server::ServingFiles::open(world.settings).err().unwrap();
    let text = problems.to_string();
    assert_eq!(problems.0.len(), 5, "{text}");
    for expected in ["VersionTLS11", "TLS_NULL", "missing.crt", "does not belong", "CN=z\" is none"] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn client_ca_bundle_with_a_certificate_that_is_no_authority_is_used() {
    let world = TlsFixture::new();
    let leaf = world.clients.issue(&CertificateSpec::client("jane", &[]), SystemTime::now()).unwrap();
    world.write("clients.crt", &(leaf.certificate + &world.clients.pem()));
    let (_, readers) = world.files().publish().map_err(|it| it.to_string()).unwrap();
    let bundle = readers.trust.load().client.clone().unwrap();
    let other = world.clients.pair(&CertificateSpec::client("joe", &[]));
    assert!(bundle.verify_client(other.chain(), UnixTime::now()).is_ok());
    assert_eq!(bundle.non_authority_subjects(), ["CN=jane"]);
}

#[test]
fn request_header_ca_shared_with_client_ca_refused() {
    let mut world = TlsFixture::new();
    let more = world.clients.pem() + &Authority::generate("proxies").pem();
    world.settings.request_header_ca = Some(world.write("proxies.crt", &more));
    let problems = server::ServingFiles::open(world.settings.clone()).err().unwrap();
    assert!(problems.to_string().contains("could claim to be any user"), "{problems}");
    world.settings.request_header_names_given = true;
    assert!(server::ServingFiles::open(world.settings).is_ok());
}

/// Problems reported by the reload; an empty entry means that all is valid again.
type FailureReceiver = tokio::sync::mpsc::UnboundedReceiver<Problems>;

/// Waits until `expected` is reported. A reload may fall between the two steps of a write and report more.
async fn wait_for_report(receiver: &mut FailureReceiver, expected: impl Fn(&Problems) -> bool) {
    let heard = async { while !expected(&receiver.recv().await.unwrap()) {} };
    tokio::time::timeout(Duration::from_secs(30), heard).await.expect("the reload reports");
}

#[tokio::test]
async fn serving_files_reload_keeps_pair_while_half_written() {
    let world = TlsFixture::new();
    let files = world.files();
    let (publishers, readers) = files.publish().map_err(|it| it.to_string()).unwrap();
    let server::ServingReaders { mut config, mut trust, in_use } = readers;
    assert_eq!(in_use.get().len(), 2);
    let first_serving = handshake(config.get().as_ref().clone(), world.client(None), "localhost").await.unwrap();
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
            wait_for_report(&mut receiver, |it| it.to_string().contains("only one of the two files replaced")).await;
            let met = handshake(config.get().as_ref().clone(), world.client(None), "localhost").await.unwrap();
            assert_eq!(met.server_certificate, first_serving.server_certificate);

            // A bundle that shrinks meanwhile takes effect.
            assert_eq!(trust.get().generation, 1);
            world.write("clients.crt", &Authority::generate("successors").pem());
            trust.changed().await;
            assert_eq!(trust.get().generation, 2);
            assert_ne!(trust.get().client, Some(world.clients.bundle()));
            config.changed().await;

            world.write("tls.key", &next.key);
            config.changed().await;
            wait_for_report(&mut receiver, |it| it.0.is_empty()).await;
            let met = handshake(config.get().as_ref().clone(), world.client(None), "localhost").await.unwrap();
            assert_eq!(met.server_certificate, next.der().unwrap());
            assert_eq!(trust.get().generation, 2);
            drainer.advance(ShutdownPhase::Ending);
            follower.await.unwrap();
        })
        .await;
}
