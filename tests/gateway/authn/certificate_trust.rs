//! Trusted CAs, serving certificates and tokens, and their effect on open connections when files change.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use http::Request;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use narthex::tls::{Authority, CertificateSpec as CertificateRequest, Issued};
use rustls::SignatureScheme;
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::client::TlsStream;

use crate::support::backend::{Backend, BackendSettings, data_frame, json_response, streamed_response};
use crate::support::bad_certs::BadCertIssuer;
use crate::support::client::{Client, connect, get, next_chunk};
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TEST_TIMEOUT, TestEnvironment, eventually};

const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

type BodySender = mpsc::UnboundedSender<Result<hyper::body::Frame<bytes::Bytes>, std::io::Error>>;

/// A backend whose watches the test feeds.
struct WatchFixture {
    _backend: Backend,
    senders: mpsc::UnboundedReceiver<BodySender>,
}

/// A watch that runs.
struct OpenWatch {
    sender: BodySender,
    body: Incoming,
}

impl WatchFixture {
    async fn start(environment: &TestEnvironment) -> WatchFixture {
        let (send, senders) = mpsc::unbounded_channel();
        let backend = Backend::start(environment, BackendSettings::default(), move |request| {
            let reply = if request.uri().query() == Some("watch=1") {
                let (sender, reply) = streamed_response(200);
                send.send(sender).unwrap();
                reply
            } else {
                json_response(200, "{}")
            };
            async { reply }
        })
        .await;
        environment.register_apiservice("things.example.com", "v1", &[&backend]);
        WatchFixture { _backend: backend, senders }
    }

    async fn open_watch(&mut self, client: &Client, more: &[(&str, &str)]) -> OpenWatch {
        let path = format!("{THINGS}?watch=1");
        let pending = client.send(get(&path, more));
        let opening = async {
            let sender = self.senders.recv().await.unwrap();
            sender.send(data_frame("begin\n")).unwrap();
            sender
        };
        let (response, sender) = tokio::join!(pending, opening);
        let response = response.unwrap();
        assert_eq!(response.status(), 200);
        let mut body = response.into_body();
        assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), "begin\n");
        OpenWatch { sender, body }
    }
}

impl OpenWatch {
    /// Asserts that events still come through.
    async fn assert_runs(&mut self) {
        self.sender.send(data_frame("event\n")).unwrap();
        assert_eq!(next_chunk(&mut self.body).await.unwrap().unwrap(), "event\n");
    }

    /// Asserts that it breaks, which its client must not take for an end.
    async fn assert_breaks(&mut self) {
        assert!(next_chunk(&mut self.body).await.expect("not a clean end").is_err());
    }
}

/// A client's TLS settings, to be spoilt.
fn client_tls_builder(
    environment: &TestEnvironment,
) -> rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(environment.serving_ca.certificate().clone()).unwrap();
    rustls::ClientConfig::builder_with_provider(narthex::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
}

async fn connect_with_name(
    gateway: &GatewayProcess,
    config: &Arc<rustls::ClientConfig>,
    name: &str,
) -> TlsStream<TcpStream> {
    let socket = TcpStream::connect(gateway.address).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
    tokio_rustls::TlsConnector::from(config.clone()).connect(name, socket).await.unwrap()
}

/// The certificate that the gateway serves to `localhost`.
async fn served_certificate(environment: &TestEnvironment, gateway: &GatewayProcess) -> CertificateDer<'static> {
    leaf_certificate(&connect(environment, gateway.address, None, &["h2"]).await)
}

fn leaf_certificate(stream: &TlsStream<TcpStream>) -> CertificateDer<'static> {
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

fn issue_serving(authority: &Authority, names: &[&str]) -> Issued {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    authority.issue(&CertificateRequest::serving(&names), SystemTime::now()).unwrap()
}

fn first_certificate(issued: &Issued) -> CertificateDer<'static> {
    CertKeyPair::from_issued(issued).0.0[0].clone()
}

fn issue_client(authority: &Authority, name: &str) -> CertKeyPair {
    CertKeyPair::from_issued(&authority.issue(&CertificateRequest::client(name, &[]), SystemTime::now()).unwrap())
}

/// The handshake succeeds, the request does not; the log says which certificate and why.
#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_untrusted_is_401_with_logged_reason() {
    let environment = TestEnvironment::new();
    let bad_issuer = BadCertIssuer::new_trusted(&environment, "client-ca.crt");
    let backend = Backend::start(&environment, BackendSettings::default(), async |_| json_response(200, "{}")).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let gateway = environment.start_gateway(&[]);
    let cn = |name: &'static str| [(rcgen::DnType::CommonName, name)];
    let at = |days: i32| {
        let now = SystemTime::now();
        if days < 0 { now - DAY * days.unsigned_abs() } else { now + DAY * days.unsigned_abs() }
    };
    let expired = bad_issuer.issue_with(&cn("expired"), |params| {
        (params.not_before, params.not_after) = (at(-9).into(), at(-1).into());
    });
    let early = bad_issuer.issue_with(&cn("early"), |params| {
        (params.not_before, params.not_after) = (at(1).into(), at(9).into());
    });
    let server = bad_issuer.issue_with(&cn("server"), |params| {
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    });
    let untrusted = TestEnvironment::new().issue_user("stranger", &["system:masters"]);
    let serving = CertKeyPair::from_issued(&issue_serving(&environment.serving_ca, &["mallory"]));
    // The very authority, as if it were a client.
    let (authority, issued) = Authority::new("authority", SystemTime::now()).unwrap();
    drop(authority);
    let itself = CertKeyPair::from_issued(&issued);
    for (what, pair, why) in [
        ("expired", expired, "expired on"),
        ("early", early, "is not valid before"),
        ("server", server, "is not for client authentication"),
        ("stranger", untrusted, "no authority of the bundle signed it"),
        ("mallory", serving, "no authority of the bundle signed it"),
        ("authority", itself, ""),
    ] {
        for client in [
            Client::http1(&environment, &gateway, Some(&pair)).await,
            Client::http2(&environment, &gateway, Some(&pair)).await,
        ] {
            client.send_and_read(get(THINGS, &[("x-remote-user", "admin")])).await.assert_failure(401, "Unauthorized");
        }
        gateway.wait_for_log(&[" access ", "status=401", "client certificate: ", what, why]).await;
    }
    // The access log is where it is told.
    assert!(
        !gateway.log_lines().iter().any(|line| line.contains("certificate is not trusted") && !line.contains("DEBUG"))
    );
    assert!(backend.received().is_empty());
}

/// A certificate without the key of it is no certificate.
#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_without_key_fails_handshake() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&[]);
    let (jane, mallory) = (environment.issue_user("jane", &[]), environment.issue_user("mallory", &[]));

    #[derive(Debug)]
    struct StolenCertificate(Arc<CertifiedKey>);
    impl ResolvesClientCert for StolenCertificate {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            Some(self.0.clone())
        }
        fn has_certs(&self) -> bool {
            true
        }
    }
    let key = narthex::tls::provider().key_provider.load_private_key(mallory.0.1.clone_key()).unwrap();
    let stolen = StolenCertificate(Arc::new(CertifiedKey::new(jane.0.0.clone(), key)));
    let mut config = client_tls_builder(&environment).with_client_cert_resolver(Arc::new(stolen));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let socket = TcpStream::connect(gateway.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let answered = async {
        let mut stream = connector.connect("localhost".try_into().unwrap(), socket).await?;
        stream.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").await?;
        stream.read_u8().await
    };
    assert!(tokio::time::timeout(TEST_TIMEOUT, answered).await.expect("an end").is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn serving_certificate_rotation_keeps_open_watches() {
    let environment = TestEnvironment::new();
    let mut watched = WatchFixture::start(&environment).await;
    let gateway = environment.start_gateway(&[]);
    let jane = environment.issue_user("jane", &[]);
    let mut watches = [
        watched.open_watch(&Client::http1(&environment, &gateway, Some(&jane)).await, &[]).await,
        watched.open_watch(&Client::http2(&environment, &gateway, Some(&jane)).await, &[]).await,
    ];
    let old = served_certificate(&environment, &gateway).await;
    let new = issue_serving(&environment.serving_ca, &["new.example.com", "localhost"]);

    // Half of it: the old pair stays, and both files are named.
    fs::write(environment.path("serving.crt"), &new.certificate).unwrap();
    gateway.wait_for_log(&["serving.crt", "serving.key", "the last good one stays"]).await;
    assert_eq!(served_certificate(&environment, &gateway).await, old);
    fs::write(environment.path("serving.crt"), "nonsense").unwrap();
    eventually("the other mistake to be told", async || {
        let message = gateway.log_lines().iter().filter(|line| line.contains("the last good one stays")).count();
        (message > 1).then_some(())
    })
    .await;
    assert_eq!(served_certificate(&environment, &gateway).await, old);

    environment.write_pair("serving", &new);
    eventually("the new certificate", async || {
        (served_certificate(&environment, &gateway).await == first_certificate(&new)).then_some(())
    })
    .await;
    gateway.wait_for_log(&["certificates reloaded", "serving.crt"]).await;
    for watch in &mut watches {
        watch.assert_runs().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_ca_removal_closes_connections() {
    let environment = TestEnvironment::new();
    let mut watched = WatchFixture::start(&environment).await;
    fs::write(environment.path("tokens.csv"), "s3cret,tom,1\n").unwrap();
    let gateway =
        environment.start_gateway(&[&format!("--token-auth-file={}", environment.path("tokens.csv").display())]);
    let (other, issued) = Authority::new("other-client-ca", SystemTime::now()).unwrap();
    let (jane, mary) = (environment.issue_user("jane", &[]), issue_client(&other, "mary"));
    let mut janes = [
        watched.open_watch(&Client::http1(&environment, &gateway, Some(&jane)).await, &[]).await,
        watched.open_watch(&Client::http2(&environment, &gateway, Some(&jane)).await, &[]).await,
    ];
    let tom = Client::http2(&environment, &gateway, None).await;
    let mut toms = watched.open_watch(&tom, &[("authorization", "Bearer s3cret")]).await;
    let proxy = Client::http2(&environment, &gateway, Some(&environment.issue_front_proxy("outer-proxy"))).await;
    let mut proxys = watched.open_watch(&proxy, &[("x-remote-user", "ann")]).await;
    Client::http1(&environment, &gateway, Some(&mary)).await.get(THINGS).await.assert_failure(401, "Unauthorized");

    // Both, then only the other: jane stays for as long as she is vouched for.
    let both = environment.read_file("client-ca.crt") + &issued.certificate;
    fs::write(environment.path("client-ca.crt"), both).unwrap();
    eventually("mary to be known", async || {
        (Client::http1(&environment, &gateway, Some(&mary)).await.get(THINGS).await.status == 200).then_some(())
    })
    .await;
    for watch in &mut janes {
        watch.assert_runs().await;
    }
    fs::write(environment.path("client-ca.crt"), &issued.certificate).unwrap();
    for watch in &mut janes {
        watch.assert_breaks().await;
    }
    gateway.wait_for_log(&["connection closed", "no longer trusted"]).await;
    Client::http1(&environment, &gateway, Some(&jane)).await.get(THINGS).await.assert_failure(401, "Unauthorized");
    assert_eq!(Client::http1(&environment, &gateway, Some(&mary)).await.get(THINGS).await.status, 200);
    toms.assert_runs().await;
    proxys.assert_runs().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_header_ca_removal_closes_front_proxy_connections() {
    let environment = TestEnvironment::new();
    let mut watched = WatchFixture::start(&environment).await;
    let gateway = environment.start_gateway(&[]);
    let (other, issued) = Authority::new("other-requestheader-ca", SystemTime::now()).unwrap();
    let old = environment.issue_front_proxy("outer-proxy");
    let new = issue_client(&other, "outer-proxy");
    let ann = [("x-remote-user", "ann")];
    let mut anns = watched.open_watch(&Client::http2(&environment, &gateway, Some(&old)).await, &ann).await;
    let mut janes = watched
        .open_watch(&Client::http2(&environment, &gateway, Some(&environment.issue_user("jane", &[]))).await, &[])
        .await;
    fs::write(environment.path("requestheader-ca.crt"), &issued.certificate).unwrap();
    anns.assert_breaks().await;
    Client::http1(&environment, &gateway, Some(&old))
        .await
        .send_and_read(get(THINGS, &ann))
        .await
        .assert_failure(401, "Unauthorized");
    assert_eq!(
        Client::http1(&environment, &gateway, Some(&new)).await.send_and_read(get(THINGS, &ann)).await.status,
        200
    );
    janes.assert_runs().await;
}

/// What was opened by an upgrade is a connection of its user, too.
#[tokio::test(flavor = "multi_thread")]
async fn client_ca_removal_closes_tunnels() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http1(), async |mut request: Request<Incoming>| {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let (mut read, mut write) = tokio::io::split(TokioIo::new(upgrade.await.unwrap()));
            let _ = tokio::io::copy(&mut read, &mut write).await;
        });
        let mut reply = json_response(101, "");
        reply.headers_mut().insert("connection", "Upgrade".parse().unwrap());
        reply.headers_mut().insert("upgrade", "websocket".parse().unwrap());
        reply
    })
    .await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let gateway = environment.start_gateway(&[]);
    let mut stream =
        connect(&environment, gateway.address, Some(&environment.issue_user("jane", &[])), &["http/1.1"]).await;
    let request = format!(
        "GET {THINGS}/one/exec HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    stream.write_all(b"hello").await.unwrap();
    let mut echo = [0; 5];
    stream.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"hello");

    let (_, issued) = Authority::new("other-client-ca", SystemTime::now()).unwrap();
    fs::write(environment.path("client-ca.crt"), &issued.certificate).unwrap();
    let mut rest = Vec::new();
    let ending = stream.read_to_end(&mut rest);
    let _ = tokio::time::timeout(TEST_TIMEOUT, ending).await.expect("the tunnel is closed");
    assert!(rest.is_empty());
}

/// A certificate that ends while a watch runs ends the watch.
#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_expiry_closes_connection() {
    let environment = TestEnvironment::new();
    let bad_issuer = BadCertIssuer::new_trusted(&environment, "client-ca.crt");
    let mut watched = WatchFixture::start(&environment).await;
    let gateway = environment.start_gateway(&[]);
    let brief = bad_issuer.issue_with(&[(rcgen::DnType::CommonName, "jane")], |params| {
        params.not_before = (SystemTime::now() - DAY).into();
        params.not_after = (SystemTime::now() + Duration::from_secs(3)).into();
    });
    let mut watch = watched.open_watch(&Client::http2(&environment, &gateway, Some(&brief)).await, &[]).await;
    watch.assert_breaks().await;
    gateway.wait_for_log(&["connection closed", "expired on"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn token_file_reloaded_and_invalid_one_ignored() {
    let environment = TestEnvironment::new();
    let mut watched = WatchFixture::start(&environment).await;
    let file = environment.path("tokens.csv");
    fs::write(&file, "one,tom,1\n").unwrap();
    let gateway = environment.start_gateway(&[&format!("--token-auth-file={}", file.display())]);
    let ask = async |token: &str| {
        let client = Client::http1(&environment, &gateway, None).await;
        client.send_and_read(get(THINGS, &[("authorization", &format!("Bearer {token}"))])).await.status.as_u16()
    };
    let tom = Client::http2(&environment, &gateway, None).await;
    let mut toms = watched.open_watch(&tom, &[("authorization", "Bearer one")]).await;
    // Half a file changes nothing, and is complained about.
    fs::write(&file, "two,an\n").unwrap();
    gateway.wait_for_log(&["tokens.csv", "the last good tokens stay"]).await;
    assert_eq!((ask("one").await, ask("two").await), (200, 401));
    fs::write(&file, "two,ann,2\n").unwrap();
    eventually("the new token", async || (ask("two").await == 200).then_some(())).await;
    assert_eq!(ask("one").await, 401);
    tom.send_and_read(get(THINGS, &[("authorization", "Bearer one")])).await.assert_failure(401, "Unauthorized");
    toms.assert_runs().await;
}

/// A volume as the kubelet writes it: names that lead through `..data` to a folder with a date.
struct MountedVolume(PathBuf);

impl MountedVolume {
    fn write(&self, generation: &str, files: &[(&str, &str)]) {
        let folder = self.0.join(format!("..{generation}"));
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            fs::write(folder.join(name), text).unwrap();
            let _ = symlink(format!("..data/{name}"), self.0.join(name));
        }
        symlink(format!("..{generation}"), self.0.join("..data_tmp")).unwrap();
        fs::rename(self.0.join("..data_tmp"), self.0.join("..data")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mounted_volume_symlink_swap_reloads_all_files() {
    let environment = TestEnvironment::new();
    let mut watched = WatchFixture::start(&environment).await;
    let volume = MountedVolume(environment.path("volume"));
    let old = issue_serving(&environment.serving_ca, &["localhost"]);
    volume.write(
        "2026_1",
        &[
            ("tls.crt", &old.certificate),
            ("tls.key", &old.key),
            ("client.crt", &environment.read_file("client-ca.crt")),
            ("front.crt", &environment.read_file("requestheader-ca.crt")),
            ("tokens.csv", "one,tom,1\n"),
        ],
    );
    let file = |name: &str| volume.0.join(name).display().to_string();
    let gateway = environment.start_gateway(&[
        &format!("--tls-cert-file={}", file("tls.crt")),
        &format!("--tls-private-key-file={}", file("tls.key")),
        &format!("--client-ca-file={}", file("client.crt")),
        &format!("--requestheader-client-ca-file={}", file("front.crt")),
        &format!("--token-auth-file={}", file("tokens.csv")),
    ]);
    let jane = environment.issue_user("jane", &[]);
    let mut janes = watched.open_watch(&Client::http2(&environment, &gateway, Some(&jane)).await, &[]).await;
    assert_eq!(served_certificate(&environment, &gateway).await, first_certificate(&old));

    let new = issue_serving(&environment.serving_ca, &["localhost"]);
    let (others, other_ca) = Authority::new("other-client-ca", SystemTime::now()).unwrap();
    let (fronts, front_ca) = Authority::new("other-requestheader-ca", SystemTime::now()).unwrap();
    volume.write(
        "2026_2",
        &[
            ("tls.crt", &new.certificate),
            ("tls.key", &new.key),
            ("client.crt", &(environment.read_file("client-ca.crt") + &other_ca.certificate)),
            ("front.crt", &front_ca.certificate),
            ("tokens.csv", "two,ann,2\n"),
        ],
    );
    eventually("the new certificate", async || {
        (served_certificate(&environment, &gateway).await == first_certificate(&new)).then_some(())
    })
    .await;
    let (mary, proxy) = (issue_client(&others, "mary"), issue_client(&fronts, "outer-proxy"));
    assert_eq!(Client::http1(&environment, &gateway, Some(&mary)).await.get(THINGS).await.status, 200);
    let ann = [("x-remote-user", "ann")];
    assert_eq!(
        Client::http1(&environment, &gateway, Some(&proxy)).await.send_and_read(get(THINGS, &ann)).await.status,
        200
    );
    let old_proxy = environment.issue_front_proxy("outer-proxy");
    Client::http1(&environment, &gateway, Some(&old_proxy))
        .await
        .send_and_read(get(THINGS, &ann))
        .await
        .assert_failure(401, "Unauthorized");
    eventually("the new token", async || {
        let client = Client::http1(&environment, &gateway, None).await;
        (client.send_and_read(get(THINGS, &[("authorization", "Bearer two")])).await.status == 200).then_some(())
    })
    .await;
    janes.assert_runs().await;
}

/// Which authorities a client reads in the handshake, so that it can choose among its certificates.
#[tokio::test(flavor = "multi_thread")]
async fn tls_handshake_lists_client_cas() {
    #[derive(Debug, Default)]
    struct AuthorityRecorder(Mutex<Vec<Vec<u8>>>);
    impl ResolvesClientCert for AuthorityRecorder {
        fn resolve(&self, hints: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            *self.0.lock().unwrap() = hints.iter().map(|hint| hint.to_vec()).collect();
            None
        }
        fn has_certs(&self) -> bool {
            true
        }
    }
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&[]);
    let names = async || {
        let curious = Arc::new(AuthorityRecorder::default());
        let config = client_tls_builder(&environment).with_client_cert_resolver(curious.clone());
        connect_with_name(&gateway, &Arc::new(config), "localhost").await;
        let hints = curious.0.lock().unwrap();
        let mut names: Vec<_> = hints.iter().map(|hint| String::from_utf8_lossy(hint).into_owned()).collect();
        names.sort();
        names
    };
    let ends = |names: &[String], expected: &[&str]| {
        names.len() == expected.len() && names.iter().zip(expected).all(|(name, expected)| name.ends_with(expected))
    };
    let named = names().await;
    assert!(ends(&named, &["client-ca", "requestheader-ca"]), "{named:?}");
    let (_, issued) = Authority::new("other-ca", SystemTime::now()).unwrap();
    fs::write(environment.path("client-ca.crt"), &issued.certificate).unwrap();
    eventually("the new authority to be named", async || {
        ends(&names().await, &["other-ca", "requestheader-ca"]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sni_certificates_selected_by_name() {
    let environment = TestEnvironment::new();
    for (file, names) in
        [("one", &["one.example.com"][..]), ("wild", &["*.wild.example.com"]), ("two", &["other.example.com"])]
    {
        environment.write_pair(file, &issue_serving(&environment.serving_ca, names));
    }
    let pair = |name: &str| format!("{0}.crt,{0}.key", environment.path(name).display());
    let gateway = environment.start_gateway(&[
        &format!("--tls-sni-cert-key={}", pair("one")),
        &format!("--tls-sni-cert-key={}", pair("wild")),
        &format!("--tls-sni-cert-key={}:two.example.com", pair("two")),
    ]);
    let file = |name: &str| {
        use rustls_pki_types::pem::PemObject;
        CertificateDer::from_pem_slice(environment.read_file(&format!("{name}.crt")).as_bytes()).unwrap()
    };
    let config = |environment: &TestEnvironment| Arc::new(client_tls_builder(environment).with_no_client_auth());
    for (name, expected) in [
        ("localhost", "serving"),
        ("one.example.com", "one"),
        ("ONE.example.com", "one"),
        ("a.wild.example.com", "wild"),
    ] {
        assert_eq!(
            leaf_certificate(&connect_with_name(&gateway, &config(&environment), name).await),
            file(expected),
            "{name}"
        );
    }
    // A name given only by the flag, and an unknown name: which certificate is presented, not whether it is valid.
    for (name, expected) in [("two.example.com", "two"), ("nobody.example.com", "serving"), ("127.0.0.1", "serving")] {
        let seen = Arc::new(Mutex::new(None));
        let config = rustls::ClientConfig::builder_with_provider(narthex::tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(CertificateRecorder(seen.clone())))
            .with_no_client_auth();
        connect_with_name(&gateway, &Arc::new(config), name).await;
        assert_eq!(seen.lock().unwrap().take(), Some(file(expected)), "{name}");
    }
    // Followed like the others.
    let new = issue_serving(&environment.serving_ca, &["one.example.com"]);
    environment.write_pair("one", &new);
    eventually("the new certificate", async || {
        (leaf_certificate(&connect_with_name(&gateway, &config(&environment), "one.example.com").await)
            == first_certificate(&new))
        .then_some(())
    })
    .await;
}

/// Takes any certificate and remembers it.
#[derive(Debug)]
pub(crate) struct CertificateRecorder(pub(crate) Arc<Mutex<Option<CertificateDer<'static>>>>);

impl rustls::client::danger::ServerCertVerifier for CertificateRecorder {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        *self.0.lock().unwrap() = Some(leaf.clone().into_owned());
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// A session that is taken up again would skip the judgment of the certificate.
#[tokio::test(flavor = "multi_thread")]
async fn tls_session_resumption_disabled() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&["--anonymous-auth"]);
    let jane = environment.issue_user("jane", &[]);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(environment.serving_ca.certificate().clone()).unwrap();
        let mut config = rustls::ClientConfig::builder_with_provider(narthex::tls::provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(jane.0.0.clone(), jane.0.1.clone_key())
            .unwrap();
        config.resumption = Resumption::in_memory_sessions(16);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let config = Arc::new(config);
        for _ in 0..3 {
            let mut stream = connect_with_name(&gateway, &config, "localhost").await;
            stream.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut reply = Vec::new();
            let _ = stream.read_to_end(&mut reply).await;
            assert!(reply.starts_with(b"HTTP/1.1 200 "));
            assert_eq!(stream.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Full));
        }
    }
}

/// Runs a gateway that should not start; its exit status and what it says.
fn run_failed_start(environment: &TestEnvironment, more: &[String]) -> (Option<i32>, String) {
    let mut arguments = vec!["gateway".to_owned(), "--admin-address=127.0.0.1:0".to_owned()];
    arguments.push(format!("--data-dir={}", environment.path("data").display()));
    arguments.extend(more.iter().cloned());
    let output =
        std::process::Command::new(env!("CARGO_BIN_EXE_narthex")).args(arguments).env_clear().output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn start_failures_explained() {
    let environment = TestEnvironment::new();
    environment.write_pair("other", &issue_serving(&environment.serving_ca, &["localhost"]));
    let file = |name: &str| environment.path(name).display().to_string();
    let pair = |certificate: &str, key: &str| {
        vec![
            "--secure-port=0".to_owned(),
            format!("--tls-cert-file={}", file(certificate)),
            format!("--tls-private-key-file={}", file(key)),
        ]
    };
    let (status, output_text) = run_failed_start(&environment, &pair("serving.crt", "other.key"));
    assert_eq!(status, Some(1), "{output_text}");
    assert!(output_text.contains(&file("serving.crt")) && output_text.contains(&file("other.key")), "{output_text}");

    // With the same CA for clients and front proxies, any client certificate could assert any identity.
    let mut arguments = pair("serving.crt", "serving.key");
    arguments.push(format!("--client-ca-file={}", file("client-ca.crt")));
    arguments.push(format!("--requestheader-client-ca-file={}", file("client-ca.crt")));
    let (status, output_text) = run_failed_start(&environment, &arguments);
    assert_eq!(status, Some(1), "{output_text}");
    assert!(output_text.contains("--requestheader-allowed-names"), "{output_text}");

    // The port belongs to another.
    let gateway = environment.start_gateway(&[]);
    let mut arguments = pair("serving.crt", "serving.key");
    arguments[0] = format!("--secure-port={}", gateway.address.port());
    arguments.push("--bind-address=127.0.0.1".to_owned());
    let (status, output_text) = run_failed_start(&environment, &arguments);
    assert_eq!(status, Some(1), "{output_text}");
    assert!(output_text.contains(&gateway.address.to_string()) && output_text.contains("in use"), "{output_text}");
}

/// With two kinds of trust in one change, one wrong file does not hold up the other.
#[tokio::test(flavor = "multi_thread")]
async fn ca_removal_effective_beside_broken_certificate_file() {
    let environment = TestEnvironment::new();
    let mut watched = WatchFixture::start(&environment).await;
    let gateway = environment.start_gateway(&[]);
    let mut janes = watched
        .open_watch(&Client::http2(&environment, &gateway, Some(&environment.issue_user("jane", &[]))).await, &[])
        .await;
    fs::write(environment.path("serving.crt"), "nonsense").unwrap();
    let (_, issued) = Authority::new("other-ca", SystemTime::now()).unwrap();
    fs::write(environment.path("client-ca.crt"), &issued.certificate).unwrap();
    janes.assert_breaks().await;
}
