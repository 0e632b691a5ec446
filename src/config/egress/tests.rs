//! The 37 files of kube-apiserver's kind with the messages of k8s.io/apiserver 0.36.3, and our own kind.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::*;
use crate::egress::{EgressRouteSettings, NoProxy, ProxyAddress, ProxyKind, ProxyScheme, ProxySettings, ProxyTlsFiles};
use crate::tls::PairFiles;

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/egress_config")
}

/// The text after it names the program.
const SCHEME: &str = " in scheme ";

#[test]
fn egress_selector_configuration_as_kube_apiserver() {
    let expected = fs::read_to_string(cases().join("expected.json")).unwrap();
    let expected: BTreeMap<String, String> = serde_json::from_str(&expected).unwrap();
    assert_eq!(expected.len(), 37);
    for (name, expected) in expected {
        let text = fs::read_to_string(cases().join(&name)).unwrap();
        let found = match parse(Path::new("f.yaml"), &text) {
            Ok(_) => "ok".to_owned(),
            Err(problems) => {
                assert_eq!(problems.0.len(), 1, "{name}");
                let text = problems.to_string();
                let (prefix, short) = if expected.starts_with("read: ") {
                    ("f.yaml: failed to read egress selector config: ", "read: ")
                } else {
                    ("f.yaml: failed to validate egress selector configuration: ", "validate: ")
                };
                let message = text.strip_prefix(prefix).unwrap_or_else(|| panic!("{name}: {text}"));
                format!("{short}{message}")
            }
        };
        let until = |text: &str| text.split(SCHEME).next().unwrap().to_owned();
        assert_eq!(until(&found), until(&expected), "{name}");
    }
}

fn read(text: &str) -> Vec<EgressSelectionSettings> {
    parse(Path::new("/etc/narthex/egress.yaml"), text).unwrap()
}

fn refused(text: &str) -> String {
    parse(Path::new("f.yaml"), text).unwrap_err().to_string()
}

const HEAD: &str = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n";
const OURS: &str = "apiVersion: narthex.dev/v1alpha1\nkind: EgressConfiguration\n";

#[test]
fn egress_selector_configuration_settings() {
    let case = |name: &str| read(&fs::read_to_string(cases().join(name)).unwrap());
    let proxy = |kind, address| ProxySettings {
        kind,
        addresses: vec![address],
        tls: ProxyTlsFiles::default(),
        credentials_file: None,
    };
    let socket = proxy(ProxyKind::Grpc, ProxyAddress::Unix("/x.sock".into()));
    let [cluster] = &case("01-ok-grpc-uds.yaml")[..] else { panic!() };
    assert_eq!((cluster.name.as_str(), &cluster.route), ("cluster", &EgressRouteSettings::Proxy(socket)));
    assert_eq!(cluster.dial_timeout.as_secs(), 8);
    let [alias] = &case("02-ok-alpha-master.yaml")[..] else { panic!() };
    assert_eq!((alias.name.as_str(), &alias.route), ("controlplane", &EgressRouteSettings::Direct));
    // TCP beside the socket is ignored.
    let [both] = &case("28-grpc-both.yaml")[..] else { panic!() };
    let EgressRouteSettings::Proxy(both) = &both.route else { panic!() };
    assert_eq!(both.addresses, [ProxyAddress::Unix("/x".into())]);
    let [plain] = &case("16-http-plain-ok.yaml")[..] else { panic!() };
    let EgressRouteSettings::Proxy(plain) = &plain.route else { panic!() };
    assert!(matches!(&plain.addresses[..], [ProxyAddress::Url(url)] if url.scheme == ProxyScheme::Http), "{plain:?}");

    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let path = folder.path().join(name);
        fs::write(&path, "").unwrap();
        path
    };
    let (authorities, certificate, key) = (file("ca"), file("crt"), file("key"));
    let text = format!(
        "{HEAD}egressSelections: [{{name: Cluster, connection: {{proxyProtocol: HTTPConnect, transport: {{tcp: {{url: \
         \"https://h:8131/ignored\", tlsConfig: {{caBundle: {}, clientCert: {}, clientKey: {}, tlsServerName: \
         proxy.example}}}}}}}}}}]",
        authorities.display(),
        certificate.display(),
        key.display()
    );
    let EgressRouteSettings::Proxy(secure) = read(&text).remove(0).route else { panic!() };
    assert!(matches!(&secure.addresses[..], [ProxyAddress::Url(url)] if url.to_string() == "https://h:8131"));
    let expected = ProxyTlsFiles {
        authorities: Some(authorities),
        identity: Some(PairFiles::new(certificate, key)),
        server_name: Some("proxy.example".to_owned()),
    };
    assert_eq!(secure.tls, expected);
}

#[test]
fn egress_selector_configuration_more_errors() {
    let selection = |rest: &str| format!("{HEAD}egressSelections: [{{name: cluster, {rest}}}]");
    for (text, expected) in [
        (
            "kind: EgressSelectorConfiguration".to_owned(),
            "read egress selector config: Object 'apiVersion' is missing in",
        ),
        ("- a".to_owned(), "couldn't get version/kind; json parse error: json: cannot unmarshal array"),
        ("apiVersion: a/b/c\nkind: K".to_owned(), "unexpected GroupVersion string: a/b/c"),
        ("a: [".to_owned(), "failed to read egress selector config: yaml: line "),
        (
            format!("{HEAD}egressSelections: {{}}"),
            "cannot unmarshal object into Go struct field EgressSelectorConfiguration.egressSelections of type \
             []v1beta1.EgressSelection",
        ),
        (
            selection("connection: {proxyProtocol: 1}"),
            "json: cannot unmarshal number into Go struct field Connection.egressSelections.connection.proxyProtocol of \
             type string",
        ),
        (
            selection("foo: 1, connection: {bar: 1}"),
            "strict decoding error: unknown field \"egressSelections[0].connection.bar\", unknown field \
             \"egressSelections[0].foo\"",
        ),
        (
            selection("connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: \"http://h:x\"}}}"),
            "failed to create dialer for egressSelection \"cluster\": invalid proxy server url \"http://h:x\": the port",
        ),
        (
            selection(
                "connection: {proxyProtocol: HTTPConnect, transport: {uds: {}, tcp: {url: \"http://a:b@h\", tlsConfig: \
                 {clientKey: k}}}}",
            ),
            "{\"URL\":\"http://…@h\",\"TLSConfig\":{\"CABundle\":\"\",\"ClientKey\":\"k\",\"ClientCert\":\"\",\
             \"TLSServerName\":\"\"}}: TCP and UDS cannot both be set",
        ),
    ] {
        let found = refused(&text);
        assert!(found.contains(expected), "{text}\n{found}");
    }
    let nowhere = load(Path::new("/nonexistent.yaml")).unwrap_err().to_string();
    assert_eq!(
        nowhere,
        "/nonexistent.yaml: failed to read egress selector config: unable to read egress selector configuration from \
         \"/nonexistent.yaml\" [open /nonexistent.yaml: no such file or directory]"
    );
}

#[test]
fn egress_configuration_settings() {
    let selections = read(&format!(
        "{OURS}egressSelections:
- name: cluster
  connection:
    proxyProtocol: SOCKS5
    transport:
      tcp: {{urls: [socks5://a, 'socks5-local://[::1]:9'], credentialsFile: proxy.creds}}
  noProxy: [10.0.0.0/8, .svc]
  dialTimeout: 1m30s
- name: site-2.example
  connection:
    proxyProtocol: HTTPConnect
    transport:
      tcp: {{url: 'https://u:p@proxy', tlsConfig: {{caBundle: ca.crt, tlsServerName: p.example}}}}
- name: master
  connection:
    proxyProtocol: GRPC
    transport:
      tcp: {{url: 'https://k:8131', tlsConfig: {{clientCert: /abs/c.crt, clientKey: c.key}}}}
- name: here
  connection: {{proxyProtocol: GRPC, transport: {{uds: {{udsName: run/front.sock}}}}}}
- name: direct
  connection: {{proxyProtocol: Direct}}
"
    ));
    let names: Vec<_> = selections.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["cluster", "site-2.example", "controlplane", "here", "direct"]);
    let proxy = |number: usize| match &selections[number].route {
        EgressRouteSettings::Proxy(proxy) => proxy,
        EgressRouteSettings::Direct => panic!("{number} is direct"),
    };
    let urls = |number: usize| proxy(number).addresses.iter().map(|it| format!("{it:?}")).collect::<Vec<_>>();
    let folder = Path::new("/etc/narthex");
    assert_eq!(proxy(0).kind, ProxyKind::Socks5);
    assert_eq!(urls(0), ["Url(socks5://a:1080)", "Url(socks5-local://[::1]:9)"]);
    assert_eq!(proxy(0).credentials_file, Some(folder.join("proxy.creds")));
    assert_eq!(selections[0].no_proxy, NoProxy::parse(["10.0.0.0/8", ".svc"]).unwrap());
    assert_eq!(selections[0].dial_timeout.as_secs(), 90);
    assert_eq!(urls(1), ["Url(https://proxy:443 with credentials)"]);
    assert_eq!(proxy(1).tls.authorities, Some(folder.join("ca.crt")));
    assert_eq!(proxy(2).tls.identity, Some(PairFiles::new("/abs/c.crt", folder.join("c.key"))));
    assert_eq!(proxy(3).addresses, [ProxyAddress::Unix(folder.join("run/front.sock"))]);
    assert_eq!(selections[4].route, EgressRouteSettings::Direct);
    assert_eq!(read(OURS), []);
}

#[test]
fn every_mistake_in_our_own_kind_with_its_field() {
    let long = "x".repeat(256);
    let problems = refused(&format!(
        "{OURS}metadata: {{}}
egressSelections:
- connection: {{proxyProtocol: socks5}}
  noproxy: []
- name: a b
  connection: {{proxyProtocol: Direct, transport: {{}}}}
  noProxy: [a]
- name: a
  connection: {{proxyProtocol: SOCKS5, transport: {{uds: {{udsName: x}}}}}}
  noProxy: [ok, 10.0.0.0/99, 'a*']
  dialTimeout: 0s
- name: A
  dialTimeout: 10
- name: c
  connection:
    proxyProtocol: SOCKS5
    transport:
      tcp:
        urls: ['http://h', socks5://h, 'socks5h://h:1080', 'socks5://{long}:p@h', 'socks5://u:pw@h:0']
        tlsConfig: {{clientCert: c}}
- name: d
  connection: {{proxyProtocol: HTTPConnect, transport: {{tcp: {{url: 'http://u:p@h', credentialsFile: f, tlsConfig: {{clientKey: k, tlsServerName: 'a b'}}}}}}}}
- name: e
  connection: {{proxyProtocol: GRPC, transport: {{tcp: {{url: 'https://h', urls: ['https://i'], credentialsFile: f}}}}}}
- name: f
  connection: {{proxyProtocol: GRPC, transport: {{tcp: {{url: 'https://h'}}}}}}
- name: g
  connection: {{proxyProtocol: GRPC, transport: {{tcp: {{}}, uds: {{}}}}}}
- name: h
  connection: {{proxyProtocol: HTTPConnect}}
- name: i
  connection: {{proxyProtocol: GRPC, transport: {{tcp: {{url: 'https://h', tlsConfig: {{}}}}}}}}
- name: j
  connection: {{transport: {{tcp: {{url: 1}}}}}}
"
    ));
    insta::assert_snapshot!(problems);
}

#[test]
fn egress_configuration_samples_load() {
    let sample = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/egress").join(name);
    let names = |name: &str| load(&sample(name)).unwrap().into_iter().map(|it| it.name).collect::<Vec<_>>();
    assert_eq!(names("egress.yaml"), ["cluster", "controlplane", "site-b", "company"]);
    assert_eq!(names("selector.yaml"), ["cluster"]);
}

#[test]
fn egress_configuration_unknown_kind_or_version() {
    assert!(
        refused("apiVersion: narthex.dev/v1\nkind: EgressConfiguration").contains("narthex.dev/v1alpha1 is needed")
    );
    assert!(refused("apiVersion: narthex.dev/v1alpha1\nkind: X").contains("EgressConfiguration is needed"));
    assert!(
        refused("apiVersion: a/v1\nkind: X")
            .contains("use kind EgressSelectorConfiguration of apiserver.k8s.io/v1beta1")
    );
}

#[test]
fn egress_configuration_parse_never_panics() {
    bolero::check!().with_type::<String>().with_iterations(1000).for_each(|text| {
        let _ = parse(Path::new("f"), text);
        for head in [HEAD, OURS] {
            let _ = parse(Path::new("f"), &format!("{head}{text}"));
            let _ = parse(Path::new("f"), &format!("{head}egressSelections:\n- {text}"));
        }
    });
}
