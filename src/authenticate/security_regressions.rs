//! Security regressions: known mistakes of other authenticating proxies, each tested on the whole chain.

mod client_certificates;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderName, HeaderValue};
use kubeapi::User;
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::authenticator::{AuthenticatedUser, AuthenticationError, Authenticator, Settings};
use super::{Peer, RequestHeaderConfig, RequestHeaderNames, StaticTokens};
use crate::message::Refusal;
use crate::message::test_headers;
use crate::observe::metrics::Authentication;
use crate::process::{Published, Publisher};
use crate::tls::{Bundle, ClientTrust};

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    bundle: Bundle,
}

fn ca(name: &str) -> Ca {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2040, 1, 1));
    let bundle = Bundle::from_pem(params.self_signed(&key).unwrap().pem().as_bytes(), name).unwrap();
    Ca { issuer: Issuer::new(params, key), bundle }
}

impl Ca {
    fn issue(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Vec<CertificateDer<'static>> {
        let mut params = CertificateParams::default();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = (date_time_ymd(2024, 1, 1), date_time_ymd(2030, 1, 1));
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        vec![params.signed_by(&key, &self.issuer).unwrap().der().clone()]
    }

    fn client(&self, name: &str) -> Peer {
        peer(self.issue(name, |_| {}))
    }
}

fn peer(chain: Vec<CertificateDer<'static>>) -> Peer {
    Peer::new(SocketAddr::from(([192, 0, 2, 1], 1234)), chain)
}

/// 2026-01-01, well inside every certificate's life.
fn now() -> UnixTime {
    at(1_767_225_600)
}

fn at(seconds: u64) -> UnixTime {
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

struct AuthenticationFixture {
    clients: Ca,
    proxies: Ca,
    trust: Publisher<ClientTrust>,
    authenticator: Authenticator,
}

fn fixture(change: impl FnOnce(&mut Settings)) -> AuthenticationFixture {
    let (clients, proxies) = (ca("clients"), ca("front proxies"));
    let (trust, reader) = Published::new(ClientTrust {
        client: Some(clients.bundle.clone()),
        request_header: Some(proxies.bundle.clone()),
        generation: 1,
        ..ClientTrust::default()
    });
    let mut settings = Settings {
        trust: reader,
        request_headers: RequestHeaderConfig {
            names: RequestHeaderNames {
                uids: vec![HeaderName::from_static("x-remote-uid")],
                ..RequestHeaderNames::standard()
            },
            allowed_names: vec!["front-proxy-client".to_owned()],
        },
        tokens: Some(Published::fixed(StaticTokens::parse("s3cret,tina,7,\"devs\"\n", "tokens").unwrap())),
        jwt: None,
        group_filter: crate::authenticate::GroupFilter::default(),
        service_accounts: None,
        token_reviews: Vec::new(),
        audiences: Vec::new(),
        anonymous: false,
        auth_header_names: Vec::new(),
    };
    change(&mut settings);
    AuthenticationFixture { clients, proxies, trust, authenticator: Authenticator::new(settings) }
}

impl AuthenticationFixture {
    fn authenticate_with(
        &self,
        peer: &Peer,
        headers: &mut HeaderMap,
    ) -> Result<AuthenticatedUser, AuthenticationError> {
        self.authenticator.authenticate_at(peer, "/", headers, now).now_or_never().expect("nothing here waits")
    }

    /// The name, or the cause.
    fn authenticate(&self, peer: &Peer, lines: &[(&str, &str)]) -> Result<String, String> {
        let answer = self.authenticate_with(peer, &mut test_headers(lines));
        answer.map(|user| user.name.clone()).map_err(|nobody| nobody.cause().to_owned())
    }
}

const SPOOFED: [(&str, &str); 12] = [
    ("X-Remote-User", "root"),
    ("X-Remote-Uid", "0"),
    ("X-Remote-Group", "system:masters"),
    ("X-Remote-Extra-Scopes", "all"),
    ("X_Remote_User", "root"),
    ("x_remote_uid", "0"),
    ("X-Remote_Group", "system:masters"),
    ("X_REMOTE_EXTRA_SCOPES", "all"),
    ("Authorization", "Basic cm9vdDpyb290"),
    ("Authorization", "Bearer wrong"),
    ("Authorization_", "kept"),
    ("Accept", "*/*"),
];

fn remaining_names(headers: &HeaderMap) -> Vec<&str> {
    let mut names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    names
}

#[test]
fn identity_headers_of_untrusted_client_are_stripped_and_ignored() {
    let world = fixture(|_| {});
    for (peer, expected) in [(world.clients.client("jane"), Some("jane")), (peer(vec![]), None)] {
        let mut headers = test_headers(&SPOOFED);
        let answer = world.authenticate_with(&peer, &mut headers);
        assert_eq!(answer.as_ref().ok().map(|user| &*user.name), expected);
        assert_eq!(remaining_names(&headers), ["accept", "authorization_"]);
        if let Ok(user) = answer {
            assert_eq!(user.groups, ["system:authenticated"]);
            assert_eq!(user.extra.keys().collect::<Vec<_>>(), ["authentication.kubernetes.io/credential-id"]);
        }
    }
}

#[test]
fn identity_headers_with_configured_names_are_stripped_too() {
    let world = fixture(|settings| {
        settings.request_headers.names = RequestHeaderNames {
            usernames: vec![HeaderName::from_static("x-corp-user")],
            groups: vec![HeaderName::from_static("x-corp-group")],
            uids: Vec::new(),
            extra_prefixes: vec!["x-corp-extra-".to_owned()],
        };
    });
    let lines = [
        ("x-corp-user", "jane"),
        ("x-corp-group", "devs"),
        ("x-corp-extra-scope", "a"),
        ("x_corp_user", "root"),
        ("x-remote-user", "root"),
        ("x-remote-uid", "0"),
    ];
    let mut map = test_headers(&lines);
    let user = world.authenticate_with(&world.proxies.client("front-proxy-client"), &mut map).unwrap();
    assert_eq!(&*user.name, "jane");
    assert_eq!(user.groups, ["devs", "system:authenticated"]);
    assert!(user.uid.is_empty() && map.is_empty());
}

#[test]
fn request_headers_require_proxy_certificate_and_allowed_name() {
    let world = fixture(|_| {});
    let lines = [
        ("x-remote-user", "jane"),
        ("x-remote-uid", "42"),
        ("x-remote-group", "devs"),
        ("x-remote-group", "a,b"),
        ("x-remote-extra-example.com%2fscope", "one"),
    ];
    let jane = world.authenticate_with(&world.proxies.client("front-proxy-client"), &mut test_headers(&lines)).unwrap();
    let expected = User {
        name: "jane".into(),
        uid: "42".into(),
        groups: vec!["devs".into(), "a,b".into(), "system:authenticated".into()],
        extra: [("example.com/scope".to_owned(), vec!["one".to_owned()])].into(),
    };
    assert_eq!(**jane.user(), expected);

    let cause = world.authenticate(&world.proxies.client("another"), &lines).unwrap_err();
    assert!(cause.contains("request header: x509: subject with cn=another is not in the allowed list"), "{cause}");
    // The client CA signed this common name, but not for a front proxy.
    assert_eq!(world.authenticate(&world.clients.client("front-proxy-client"), &lines).unwrap(), "front-proxy-client");
    let cause = world.authenticate(&peer(vec![]), &lines).unwrap_err();
    assert_eq!(cause, "no credentials that a configured authenticator accepts");
}

#[test]
fn request_headers_without_user_do_not_authenticate_the_proxy() {
    // One CA for both: the case in which Kubernetes takes the proxy for the caller.
    let mut shared = None;
    let world = fixture(|settings| {
        let both = ca("both");
        settings.trust = Published::fixed(ClientTrust {
            client: Some(both.bundle.clone()),
            request_header: Some(both.bundle.clone()),
            generation: 1,
            ..ClientTrust::default()
        });
        settings.anonymous = true;
        shared = Some(both);
    });
    let peer = shared.unwrap().client("front-proxy-client");
    for lines in [&[("x-remote-user", "")][..], &[("x-remote-user", "  ")], &[("x-remote-group", "system:masters")]] {
        let cause = world.authenticate(&peer, lines).unwrap_err();
        assert!(cause.contains("the front proxy names no user"), "{cause}");
    }
    assert_eq!(world.authenticate(&peer, &[("x-remote-user", "jane")]).unwrap(), "jane");
}

#[test]
fn identity_with_control_characters_is_rejected() {
    let world = fixture(|_| {});
    let proxy = world.proxies.client("front-proxy-client");
    for lines in
        [[("x-remote-user", "a\tb"), ("x-remote-uid", "1")], [("x-remote-user", "a"), ("x-remote-group", "b\tc")]]
    {
        assert!(world.authenticate(&proxy, &lines).unwrap_err().contains("control character"));
    }
    let mut invalid = test_headers(&[]);
    invalid.insert("x-remote-user", HeaderValue::from_bytes(b"\xc3\x28").unwrap());
    assert!(world.authenticate_with(&proxy, &mut invalid).unwrap_err().cause().contains("not UTF-8"));
    for name in ["a\nb", "a\0", " root"] {
        let cause = world.authenticate(&world.clients.client(name), &[]).unwrap_err();
        assert!(cause.contains("control character") || cause.contains("begins or ends with a space"), "{cause}");
    }
    assert_eq!(world.authenticate(&proxy, &[("x-remote-user", "jürgen")]).unwrap(), "jürgen");
}

#[test]
fn bearer_token_stripped_whichever_authenticator_succeeds() {
    let world = fixture(|_| {});
    for (peer, expected) in [(peer(vec![]), "tina"), (world.clients.client("jane"), "jane")] {
        let mut headers = test_headers(&[("authorization", "Bearer s3cret"), ("authorization", "Bearer other")]);
        assert_eq!(&*world.authenticate_with(&peer, &mut headers).unwrap().name, expected);
        assert!(headers.is_empty());
    }
}

#[test]
fn request_headers_use_first_user_only() {
    let world = fixture(|_| {});
    let proxy = world.proxies.client("front-proxy-client");
    assert_eq!(world.authenticate(&proxy, &[("x-remote-user", "jane"), ("x-remote-user", "root")]).unwrap(), "jane");
}

#[test]
fn websocket_token_stripped_whichever_authenticator_succeeds() {
    let world = fixture(|_| {});
    // "s3cret"
    let protocols = "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.czNjcmV0, v4.channel.k8s.io";
    let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket"), ("sec-websocket-protocol", protocols)];
    for (peer, expected) in [(peer(vec![]), "tina"), (world.clients.client("jane"), "jane")] {
        let mut headers = test_headers(&upgrade);
        headers.append("sec_websocket_protocol", HeaderValue::from_static(protocols));
        assert_eq!(&*world.authenticate_with(&peer, &mut headers).unwrap().name, expected);
        assert_eq!(headers["sec-websocket-protocol"], "v5.channel.k8s.io,v4.channel.k8s.io");
        assert_eq!(remaining_names(&headers), ["connection", "sec-websocket-protocol", "upgrade"]);
    }
    // Without an upgrade it is not used for authentication, but still stripped.
    let mut headers = test_headers(&upgrade[2..]);
    assert!(world.authenticate_with(&peer(vec![]), &mut headers).is_err());
    assert_eq!(headers["sec-websocket-protocol"], "v5.channel.k8s.io,v4.channel.k8s.io");
}

#[test]
fn websocket_token_invalid_is_rejected() {
    let world = fixture(|settings| settings.anonymous = true);
    for (protocols, cause) in [
        ("base64url.bearer.authorization.k8s.io.czNjcmV0", "websocket token: missing additional subprotocol"),
        ("base64url.bearer.authorization.k8s.io.d3Jvbmc,a", "websocket token: invalid bearer token"),
        (
            "base64url.bearer.authorization.k8s.io.%,a",
            "websocket token: invalid base64.bearer.authorization token encoding",
        ),
    ] {
        let lines = [("connection", "upgrade"), ("upgrade", "WebSocket"), ("sec-websocket-protocol", protocols)];
        let mut headers = test_headers(&lines);
        assert_eq!(world.authenticate_with(&peer(vec![]), &mut headers).unwrap_err().cause(), cause);
        assert!(!format!("{headers:?}").contains("bearer"));
    }
    let none = [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-protocol", "a")];
    assert_eq!(world.authenticate(&peer(vec![]), &none).unwrap(), "system:anonymous");
}

#[test]
fn anonymous_denied_after_authentication_error() {
    let world = fixture(|settings| settings.anonymous = true);
    let anonymous = world.authenticate_with(&peer(vec![]), &mut HeaderMap::new()).unwrap();
    assert_eq!(
        (&*anonymous.name, &anonymous.groups[..]),
        ("system:anonymous", &["system:unauthenticated".to_owned()][..])
    );
    assert!(anonymous.is_anonymous());
    for (peer, lines) in [
        (peer(vec![]), &[("authorization", "Bearer wrong")][..]),
        (ca("others").client("x"), &[]),
        (world.proxies.client("not-allowed"), &[("x-remote-user", "jane")]),
    ] {
        let unauthenticated = world.authenticate_with(&peer, &mut test_headers(lines)).unwrap_err();
        assert_eq!(unauthenticated.result(), Authentication::Error);
        let refusal = Refusal::from(unauthenticated);
        assert_eq!((refusal.status().code, &*refusal.status().message), (401, "Unauthorized"));
        assert!(!refusal.cause().is_empty());
    }
    // Other schemes and malformed tokens are no credentials.
    for value in ["Basic abc", "Bearer", "Bearer: x"] {
        assert_eq!(world.authenticate(&peer(vec![]), &[("authorization", value)]).unwrap(), "system:anonymous");
    }
}

#[test]
fn authenticator_chain_succeeds_after_earlier_error() {
    let world = fixture(|_| {});
    let stranger = ca("others").client("x");
    assert_eq!(world.authenticate(&stranger, &[("authorization", "Bearer s3cret")]).unwrap(), "tina");
}

#[test]
fn anonymous_denied_by_default() {
    let world = fixture(|_| {});
    let error = world.authenticate_with(&peer(vec![]), &mut HeaderMap::new()).unwrap_err();
    assert_eq!(error.result(), Authentication::Failure);
}

#[test]
fn anonymous_denied_for_token_without_authenticator() {
    let world = fixture(|settings| (settings.tokens, settings.anonymous) = (None, true));
    assert!(
        world
            .authenticate(&peer(vec![]), &[("authorization", "Bearer x")])
            .unwrap_err()
            .contains("no token is accepted here")
    );
}

/// The last token of a connection is cached for that token alone, and only while the token file has it.
#[test]
fn token_cached_per_connection_matches_only_itself() {
    let read = |text: &str| StaticTokens::parse(text, "tokens").unwrap();
    let (tokens, reader) = Published::new(read("s3cret,tina,7\nother,tom,8\n"));
    let world = fixture(|settings| settings.tokens = Some(reader));
    let connection = peer(vec![]);
    let ask = |token: &str| world.authenticate(&connection, &[("authorization", &format!("Bearer {token}"))]);
    for (token, name) in [("s3cret", "tina"), ("s3cret", "tina"), ("other", "tom"), ("s3cret", "tina")] {
        assert_eq!(ask(token).unwrap(), name);
    }
    for wrong in ["s3cre", "s3crets", "s3creT", "x"] {
        ask(wrong).unwrap_err();
        assert_eq!(ask("s3cret").unwrap(), "tina");
    }
    tokens.publish(Arc::new(read("other,tom,8\ns3cret,tanja,9\n")));
    assert_eq!(ask("s3cret").unwrap(), "tanja");
    tokens.publish(Arc::new(read("other,tom,8\n")));
    ask("s3cret").unwrap_err();
}

#[test]
fn bearer_token_with_extra_space_yields_warning() {
    let world = fixture(|settings| settings.anonymous = true);
    let lines = [("authorization", "Bearer  s3cret")];
    let anonymous = world.authenticate_with(&peer(vec![]), &mut test_headers(&lines)).unwrap();
    let warning = "the provided Authorization header contains extra space before the bearer token, and is ignored";
    assert_eq!((&*anonymous.name, anonymous.notes().warning), ("system:anonymous", Some(warning)));
}

#[test]
fn impersonation_headers_detected_in_every_spelling_and_kept() {
    let world = fixture(|_| {});
    for name in ["impersonate-user", "Impersonate-Extra-x", "impersonate_group", "IMPERSONATE_UID"] {
        let mut headers = test_headers(&[(name, "root")]);
        assert!(world.authenticate_with(&world.clients.client("jane"), &mut headers).unwrap().impersonates());
        assert_eq!(headers.len(), 1);
    }
    assert!(!world.authenticate_with(&world.clients.client("jane"), &mut HeaderMap::new()).unwrap().impersonates());
}
