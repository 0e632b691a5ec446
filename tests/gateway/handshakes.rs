//! Backends with TLS errors: each is reported with its reason, and a request that was not sent may be retried.

use std::sync::Arc;
use std::time::SystemTime;

use http::Method;
use narthex::tls::Request as CertificateRequest;
use tokio::io::AsyncWriteExt;

use crate::backend::{Backend, Settings, json};
use crate::client::{Client, request};
use crate::refused::{discreet, retry_after_seconds, says};
use crate::scene::{Scene, THINGS};
use crate::world::{Pair, World};

/// What is wrong with a backend's TLS is said by its reason, and a request that never left may be repeated.
#[tokio::test(flavor = "multi_thread")]
async fn faults_of_tls_are_told_apart() {
    let world = World::new();
    let names = ["things-v1.things.svc".to_owned()];
    let issue = |names: &[String], days_ago: u64| {
        let mut request = CertificateRequest::serving(names);
        request.days = 1;
        let then = SystemTime::now() - std::time::Duration::from_secs(days_ago * 86_400);
        Pair::of(&world.backend.issue(&request, then).unwrap())
    };
    let expired = issue(&names, 10);
    let wrong_name = issue(&["other.things.svc".to_owned()], 0);
    let no_san = without_san(&world);
    let wrong_usage = {
        let request = CertificateRequest::client("things-v1.things.svc", &[]);
        Pair::of(
            &world.backend.issue(&CertificateRequest { names: names.to_vec(), ..request }, SystemTime::now()).unwrap(),
        )
    };
    let stranger = Pair::of(&world.client.issue(&CertificateRequest::serving(&names), SystemTime::now()).unwrap());
    let cases = [
        ("CertificateExpired", expired),
        ("NameMismatch", wrong_name),
        ("MissingSAN", no_san),
        ("WrongUsage", wrong_usage),
        ("UnknownIssuer", stranger),
    ];
    let mut backends = Vec::new();
    for (number, (reason, pair)) in cases.into_iter().enumerate() {
        let settings = Settings { pair: Some(pair), ..Settings::default() };
        backends.push((reason, number, Backend::start(&world, settings, async |_| json(200, "{}")).await));
    }
    // What answers without TLS, what hangs up, and what is not there.
    let plain = plain(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let closes = plain_silent(true).await;
    let stalls = plain_silent(false).await;
    let nobody = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let mut places: Vec<_> = backends.iter().map(|(reason, _, backend)| (*reason, backend.address)).collect();
    places.extend([
        ("NotTLS", plain),
        ("ConnectionClosed", closes),
        ("ConnectTimeout", stalls),
        ("ConnectionRefused", nobody),
    ]);
    let annotations = crate::scene::annotated(&[("connect-timeout", "500ms")]);
    for (number, (_, address)) in places.iter().enumerate() {
        let text = world.manifests("things.example.com", &format!("v{}", number + 1), &[*address], &annotations);
        // All are the same Service by name, so that one certificate's name fits all.
        let text =
            text.replace("\nspec:\n  group", "\n    narthex.dev/server-name: things-v1.things.svc\nspec:\n  group");
        world.registry(&format!("{number}.yaml"), &text);
    }
    let gateway = world.gateway(&[]);
    let jane = world.user("jane", &[]);
    let clients =
        [Client::http1(&world, &gateway, Some(&jane)).await, Client::http2(&world, &gateway, Some(&jane)).await];
    for (number, (reason, address)) in places.iter().enumerate() {
        let version = number + 1;
        let path = format!("/apis/things.example.com/v{version}/things");
        let answer = clients[number % 2].ask(request(Method::POST, &path, &[], "{}")).await;
        let status = answer.refused(503, "ServiceUnavailable");
        says(&status, reason);
        assert!(retry_after_seconds(&answer).is_some(), "{reason}");
        let text = answer.text();
        assert!(text.contains(&format!("v{version}.things.example.com")), "{text}");
        assert!(!text.contains("127.0.0.1") && !text.contains(&address.port().to_string()), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_that_does_not_believe_our_certificate_says_so() {
    for protocols in [vec!["h2"], vec!["http/1.1"]] {
        let world = World::new();
        // It trusts another request-header authority than the one our certificate is from.
        let other = World::new();
        let pair = world.backend_pair(&["things-v1.things.svc"]);
        let settings = Settings { protocols, pair: Some(pair), ..Settings::default() };
        let backend = Backend::start(&other, settings, async |_| json(200, "{}")).await;
        let scene = Scene::new(world, &[&backend], &[]);
        for client in scene.both().await {
            for (method, body) in [(Method::GET, ""), (Method::POST, "{}")] {
                let answer = client.ask(request(method.clone(), THINGS, &[], body)).await;
                let status = answer.refused(503, "ServiceUnavailable");
                says(&status, "ClientCertificateRefused");
                assert!(retry_after_seconds(&answer).is_some(), "nothing was begun: {method} {status}");
                discreet(&answer, &backend);
            }
        }
    }
}

/// A serving certificate with a common name alone, as nobody should make them any more.
fn without_san(world: &World) -> Pair {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::default();
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "things-v1.things.svc");
    parameters.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let authority = rcgen::KeyPair::from_pem(&world.read("backend-ca.key")).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(&world.read("backend-ca.crt"), authority).unwrap();
    let certificate = parameters.signed_by(&key, &issuer).unwrap();
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    Pair(Arc::new((vec![certificate.der().clone()], key)))
}

/// Answers whatever comes with `text`, without TLS.
async fn plain(text: &'static [u8]) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut some = [0; 100];
                let _ = tokio::io::AsyncReadExt::read(&mut socket, &mut some).await;
                let _ = socket.write_all(text).await;
                while let Ok(1..) = tokio::io::AsyncReadExt::read(&mut socket, &mut some).await {}
            });
        }
    });
    address
}

/// Takes connections and closes them within the handshake, or says nothing.
async fn plain_silent(closes: bool) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            if closes {
                let mut some = [0; 4096];
                let _ = tokio::io::AsyncReadExt::read(&mut socket, &mut some).await;
            } else {
                kept.push(socket);
            }
        }
    });
    address
}
