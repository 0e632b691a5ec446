//! `run_narthex proxy` with kubectl's global flags, which override the kubeconfig.

use std::process::Stdio;
use std::time::SystemTime;

use narthex::tls::CertificateSpec as CertificateRequest;

use crate::local_proxy::proxy::{ProxyProcess, loopback_settings};
use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::fixtures::{TestEnvironment, run_narthex};

/// A kubeconfig that leads nowhere as it stands, and the server that the flags lead to.
struct ProxyFlagsFixture {
    environment: TestEnvironment,
    server: Backend,
}

impl ProxyFlagsFixture {
    async fn new() -> ProxyFlagsFixture {
        let environment = TestEnvironment::new();
        let server = Backend::start(&environment, loopback_settings(BackendSettings::http2()), |_| async {
            response(200, "{}")
        })
        .await;
        // It wants to see a certificate, from whomever.
        let other = CertificateRequest::client("other", &[]);
        environment.write_pair("other", &environment.request_header_ca.issue(&other, SystemTime::now()).unwrap());
        let text = "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: \
                    {server: 'https://192.0.2.1', certificate-authority: client-ca.crt, tls-server-name: elsewhere}}, \
                    {name: open, cluster: {server: 'https://SERVER', insecure-skip-tls-verify: true}}], users: [{name: u, \
                    user: {tokenFile: token, as: root, as-groups: [system:masters], OWN}}, {name: other, user: {token: other, \
                    OWN}}]}";
        let text = text.replace("OWN", "client-certificate: front-proxy.crt, client-key: front-proxy.key");
        std::fs::write(environment.path("kubeconfig"), text.replace("SERVER", &server.address.to_string())).unwrap();
        std::fs::write(environment.path("token"), "written").unwrap();
        ProxyFlagsFixture { environment, server }
    }

    fn file_flag(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", self.environment.path(name).display())
    }

    fn server(&self) -> String {
        format!("--server=https://{}", self.server.address)
    }

    /// What the server sees of a request through a door with these flags.
    async fn request_with(&self, more: &[&str]) -> ReceivedCredentials {
        let arguments: Vec<_> = ["-p0"].iter().chain(more).copied().collect();
        let proxy_process = ProxyProcess::spawn(&arguments, &[], Stdio::inherit());
        let output_text = proxy_process.get("/api").await;
        assert_eq!((output_text.status, output_text.body.as_str()), (200, "{}"), "{more:?}");
        let seen = self.server.last_request();
        ReceivedCredentials {
            token: seen.header_values("authorization"),
            user: seen.header_values("impersonate-user"),
            request: seen,
        }
    }

    /// What is said instead of a start.
    fn run_refused(&self, more: &[&str]) -> String {
        let line: Vec<_> = ["proxy", "-p0"].iter().chain(more).map(|word| (*word).to_owned()).collect();
        let output = run_narthex(&line);
        let output_text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{output_text}");
        output_text
    }
}

struct ReceivedCredentials {
    token: Vec<String>,
    user: Vec<String>,
    request: crate::support::backend::ReceivedRequest,
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_flags_override_kubeconfig() {
    let fixture = ProxyFlagsFixture::new().await;
    let (kubeconfig, server) = (fixture.file_flag("kubeconfig", "kubeconfig"), fixture.server());
    let authority = fixture.file_flag("certificate-authority", "backend-ca.crt");
    let there = [kubeconfig.as_str(), &server, &authority];
    let with = |more: &[&'static str]| [&there[..], more].concat();

    // Of the server's name in the kubeconfig nothing is left; the credentials stay.
    let seen = fixture.request_with(&there).await;
    assert_eq!((seen.token, seen.user), (vec!["Bearer written".to_owned()], vec!["root".to_owned()]));
    assert_eq!(seen.request.peer, "narthex-front-proxy");

    let acting =
        ["--as=jane", "--as-group=a", "--as-group=b,c", "--as-uid=1", "--as-user-extra=k=v", "--as-user-extra=k=w=x"];
    let seen = fixture.request_with(&[&with(&["--token=given"])[..], &acting].concat()).await;
    assert_eq!((seen.token, seen.user), (vec!["Bearer given".to_owned()], vec!["jane".to_owned()]));
    assert_eq!(
        (seen.request.header_values("impersonate-group"), seen.request.header_values("impersonate-uid")),
        (vec!["a".into(), "b,c".into()], vec!["1".into()])
    );
    assert_eq!(seen.request.header_values("impersonate-extra-k"), ["v", "w=x"]);

    let (certificate, key) =
        (fixture.file_flag("client-certificate", "other.crt"), fixture.file_flag("client-key", "other.key"));
    let seen = fixture.request_with(&[&there[..], &[&certificate, &key]].concat()).await;
    assert_eq!(seen.request.peer, "other");

    // By the name that the certificate has, or without a look at it.
    fixture.request_with(&[&kubeconfig, &server, &authority, "--tls-server-name=127.0.0.1"]).await;
    fixture.request_with(&[&kubeconfig, &server, "--insecure-skip-tls-verify"]).await;
    let seen = fixture.request_with(&[&kubeconfig, "--cluster=open", "--user=other", "--username=", "-n", "x"]).await;
    assert_eq!(seen.token, ["Bearer other"]);

    let own = [authority.as_str(), &certificate, &key];
    // Without any kubeconfig, and with all that means nothing here.
    let nothing = ["-nx", "--request-timeout=5s", "--cache-dir=/x", "--disable-compression", "--vmodule=a=1", "-v2"];
    let seen =
        fixture.request_with(&[&["-s", &server["--server=".len()..], "--token=t"][..], &own, &nothing].concat()).await;
    assert_eq!((seen.token, seen.user), (vec!["Bearer t".to_owned()], Vec::<String>::new()));
    let seen =
        fixture.request_with(&[&[server.as_str(), "--username=jane", "--password=secret"][..], &own].concat()).await;
    assert_eq!(seen.token, ["Basic amFuZTpzZWNyZXQ="]);
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_flag_errors_name_the_flag() {
    let fixture = ProxyFlagsFixture::new().await;
    let (kubeconfig, server) = (fixture.file_flag("kubeconfig", "kubeconfig"), fixture.server());
    let (nowhere, authority) =
        ("--certificate-authority=/nowhere/ca.crt", fixture.file_flag("certificate-authority", "backend-ca.crt"));
    for (more, expected) in [
        (&["--context=nope"][..], "--context: there is no single context \"nope\"; the contexts are \""),
        (&["--cluster=nope"], "--cluster: there is no single cluster \"nope\""),
        (&["--user=nope"], "--user: there is no single user \"nope\""),
        (&["--server=127.0.0.1:6443"], "--server: \"127.0.0.1:6443\": use a URL"),
        (&[nowhere], "--certificate-authority: /nowhere/ca.crt cannot be read"),
        (
            &[&authority, "--insecure-skip-tls-verify"],
            "--insecure-skip-tls-verify: specifying a root certificates file",
        ),
        (&["--client-certificate=/nowhere/a.crt"], "--client-certificate: /nowhere/a.crt cannot be read"),
        (&["--token=a\u{7f}b"], "--token: has bytes that are not allowed in a token"),
        (&["--user=other", "--as-group=a"], "--as: is missing"),
        (&["--as-user-extra=a"], "--as-user-extra: \"a\": use KEY=VALUE"),
        (&["--request-timeout=soon"], "--request-timeout: \"soon\": Invalid timeout value."),
        (&["--username=jane"], "more than one authentication method found for u"),
        // Prevents that the traffic to the server is intercepted.
        (&["--server=http://127.0.0.1:1", "--token=t"], "--server: must be https"),
    ] {
        let output_text = fixture.run_refused(&[&[kubeconfig.as_str()], more].concat());
        assert!(output_text.contains(expected), "{more:?}: {output_text}");
    }
    let output_text = fixture.run_refused(&["--kubeconfig=/nowhere/kubeconfig", &server]);
    assert!(output_text.contains("--kubeconfig /nowhere/kubeconfig: cannot be read"), "{output_text}");
}

/// The credentials of a kubeconfig are for its server, over TLS.
#[tokio::test(flavor = "multi_thread")]
async fn proxy_credentials_not_sent_without_tls() {
    let fixture = ProxyFlagsFixture::new().await;
    let kubeconfig = fixture.file_flag("kubeconfig", "kubeconfig");
    let own = [
        fixture.file_flag("certificate-authority", "backend-ca.crt"),
        fixture.file_flag("client-certificate", "other.crt"),
        fixture.file_flag("client-key", "other.key"),
    ];
    let inner = ProxyProcess::spawn(&["-p0", &fixture.server(), &own[0], &own[1], &own[2]], &[], Stdio::inherit());
    let outer = ProxyProcess::spawn(
        &["-p0", &kubeconfig, &format!("--server=http://{}", inner.address)],
        &[],
        Stdio::inherit(),
    );
    assert_eq!(outer.get("/api").await.status, 200);
    let seen = fixture.server.last_request();
    assert_eq!(
        (seen.header_values("authorization"), seen.header_values("impersonate-user")),
        (vec![], vec!["root".to_owned()])
    );
}
