//! Backends with TLS errors: each is reported with its reason, and a request that was not sent may be retried.

use std::sync::Arc;
use std::time::SystemTime;

use http::Method;
use narthex::tls::CertificateSpec as CertificateRequest;
use tokio::io::AsyncWriteExt;

use crate::support::assert_refused::{assert_cause, assert_no_internals, retry_after_seconds};
use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{Client, request};
use crate::support::fixtures::{CertKeyPair, TestEnvironment};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

/// What is wrong with a backend's TLS is said by its reason, and a request that never left may be repeated.
#[tokio::test(flavor = "multi_thread")]
async fn backend_tls_errors_reported_by_reason() {
    let environment = TestEnvironment::new();
    let names = ["things-v1.things.svc".to_owned()];
    let issue = |names: &[String], days_ago: u64| {
        let mut request = CertificateRequest::serving(names);
        request.days = 1;
        let then = SystemTime::now() - std::time::Duration::from_secs(days_ago * 86_400);
        CertKeyPair::from_issued(&environment.backend_ca.issue(&request, then).unwrap())
    };
    let expired = issue(&names, 10);
    let wrong_name = issue(&["other.things.svc".to_owned()], 0);
    let no_san = issue_without_san(&environment);
    let wrong_usage = {
        let request = CertificateRequest::client("things-v1.things.svc", &[]);
        CertKeyPair::from_issued(
            &environment
                .backend_ca
                .issue(&CertificateRequest { names: names.to_vec(), ..request }, SystemTime::now())
                .unwrap(),
        )
    };
    let untrusted = CertKeyPair::from_issued(
        &environment.client_ca.issue(&CertificateRequest::serving(&names), SystemTime::now()).unwrap(),
    );
    let cases = [
        ("CertificateExpired", expired),
        ("NameMismatch", wrong_name),
        ("MissingSAN", no_san),
        ("WrongUsage", wrong_usage),
        ("UnknownIssuer", untrusted),
    ];
    let mut backends = Vec::new();
    for (number, (reason, pair)) in cases.into_iter().enumerate() {
        let settings = BackendSettings { pair: Some(pair), ..BackendSettings::default() };
        backends.push((
            reason,
            number,
            Backend::start(&environment, settings, async |_| json_response(200, "{}")).await,
        ));
    }
    // What answers without TLS, what hangs up, and what is not there.
    let plain = start_plaintext_responder(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let closes = start_silent_listener(true).await;
    let stalls = start_silent_listener(false).await;
    let anonymous = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let mut places: Vec<_> = backends.iter().map(|(reason, _, backend)| (*reason, backend.address)).collect();
    places.extend([
        ("NotTLS", plain),
        ("ConnectionClosed", closes),
        ("ConnectTimeout", stalls),
        ("ConnectionRefused", anonymous),
    ]);
    let annotations = crate::support::gateway_fixture::annotations_yaml(&[("connect-timeout", "500ms")]);
    for (number, (_, address)) in places.iter().enumerate() {
        let text = environment.apiservice_manifests(
            "things.example.com",
            &format!("v{}", number + 1),
            &[*address],
            &annotations,
        );
        // All are the same Service by name, so that one certificate's name fits all.
        let text =
            text.replace("\nspec:\n  group", "\n    narthex.dev/server-name: things-v1.things.svc\nspec:\n  group");
        environment.write_registry(&format!("{number}.yaml"), &text);
    }
    let gateway = environment.start_gateway(&[]);
    let jane = environment.issue_user("jane", &[]);
    let clients = [
        Client::http1(&environment, &gateway, Some(&jane)).await,
        Client::http2(&environment, &gateway, Some(&jane)).await,
    ];
    for (number, (reason, address)) in places.iter().enumerate() {
        let version = number + 1;
        let path = format!("/apis/things.example.com/v{version}/things");
        let response = clients[number % 2].send_and_read(request(Method::POST, &path, &[], "{}")).await;
        let status = response.assert_failure(503, "ServiceUnavailable");
        assert_cause(&status, reason);
        assert!(retry_after_seconds(&response).is_some(), "{reason}");
        let text = response.text();
        assert!(text.contains(&format!("v{version}.things.example.com")), "{text}");
        assert!(!text.contains("127.0.0.1") && !text.contains(&address.port().to_string()), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn backend_tls_client_certificate_rejection_reported() {
    for protocols in [vec!["h2"], vec!["http/1.1"]] {
        let environment = TestEnvironment::new();
        // It trusts another request-header authority than the one our certificate is from.
        let other = TestEnvironment::new();
        let pair = environment.issue_backend(&["things-v1.things.svc"]);
        let settings = BackendSettings { protocols, pair: Some(pair), ..BackendSettings::default() };
        let backend = Backend::start(&other, settings, async |_| json_response(200, "{}")).await;
        let fixture = GatewayFixture::new(environment, &[&backend], &[]);
        for client in fixture.both_protocols().await {
            for (method, body) in [(Method::GET, ""), (Method::POST, "{}")] {
                let response = client.send_and_read(request(method.clone(), THINGS, &[], body)).await;
                let status = response.assert_failure(503, "ServiceUnavailable");
                assert_cause(&status, "ClientCertificateRefused");
                assert!(retry_after_seconds(&response).is_some(), "nothing was begun: {method} {status}");
                assert_no_internals(&response, &backend);
            }
        }
    }
}

/// A serving certificate with a common name only, which is obsolete.
fn issue_without_san(environment: &TestEnvironment) -> CertKeyPair {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut parameters = rcgen::CertificateParams::default();
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "things-v1.things.svc");
    parameters.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let authority = rcgen::KeyPair::from_pem(&environment.read_file("backend-ca.key")).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(&environment.read_file("backend-ca.crt"), authority).unwrap();
    let certificate = parameters.signed_by(&key, &issuer).unwrap();
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    CertKeyPair(Arc::new((vec![certificate.der().clone()], key)))
}

/// Answers whatever comes with `text`, without TLS.
async fn start_plaintext_responder(text: &'static [u8]) -> std::net::SocketAddr {
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
async fn start_silent_listener(closes: bool) -> std::net::SocketAddr {
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
