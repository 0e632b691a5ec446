//! `narthex proxy` with kubectl's global flags, which override the kubeconfig.

use std::process::Stdio;
use std::time::SystemTime;

use narthex::tls::Request as CertificateRequest;

use crate::backend::{Backend, Settings, json as answer};
use crate::proxy::{Door, at_home};
use crate::world::{World, narthex};

/// A kubeconfig that leads nowhere as it stands, and the server that the flags lead to.
struct Scene {
    world: World,
    server: Backend,
}

impl Scene {
    async fn new() -> Scene {
        let world = World::new();
        let server = Backend::start(&world, at_home(Settings::http2()), |_| async { answer(200, "{}") }).await;
        // It wants to see a certificate, from whomever.
        let other = CertificateRequest::client("other", &[]);
        world.keep("other", &world.request_header.issue(&other, SystemTime::now()).unwrap());
        let text = "{current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}], clusters: [{name: c, cluster: \
                    {server: 'https://192.0.2.1', certificate-authority: client-ca.crt, tls-server-name: elsewhere}}, \
                    {name: open, cluster: {server: 'https://SERVER', insecure-skip-tls-verify: true}}], users: [{name: u, \
                    user: {tokenFile: token, as: root, as-groups: [system:masters], OWN}}, {name: other, user: {token: other, \
                    OWN}}]}";
        let text = text.replace("OWN", "client-certificate: front-proxy.crt, client-key: front-proxy.key");
        std::fs::write(world.path("kubeconfig"), text.replace("SERVER", &server.address.to_string())).unwrap();
        std::fs::write(world.path("token"), "written").unwrap();
        Scene { world, server }
    }

    fn file(&self, flag: &str, name: &str) -> String {
        format!("--{flag}={}", self.world.path(name).display())
    }

    fn server(&self) -> String {
        format!("--server=https://{}", self.server.address)
    }

    /// What the server sees of a request through a door with these flags.
    async fn seen(&self, more: &[&str]) -> Seen {
        let arguments: Vec<_> = ["-p0"].iter().chain(more).copied().collect();
        let door = Door::of(&arguments, &[], Stdio::inherit());
        let said = door.get("/api").await;
        assert_eq!((said.status, said.body.as_str()), (200, "{}"), "{more:?}");
        let seen = self.server.last();
        Seen { token: seen.all("authorization"), user: seen.all("impersonate-user"), seen }
    }

    /// What is said instead of a start.
    fn refused(&self, more: &[&str]) -> String {
        let line: Vec<_> = ["proxy", "-p0"].iter().chain(more).map(|word| (*word).to_owned()).collect();
        let output = narthex(&line);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    }
}

struct Seen {
    token: Vec<String>,
    user: Vec<String>,
    seen: crate::backend::Seen,
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_flag_says_stands_over_what_is_written() {
    let scene = Scene::new().await;
    let (kubeconfig, server) = (scene.file("kubeconfig", "kubeconfig"), scene.server());
    let authority = scene.file("certificate-authority", "backend-ca.crt");
    let there = [kubeconfig.as_str(), &server, &authority];
    let with = |more: &[&'static str]| [&there[..], more].concat();

    // Of the server's name in the kubeconfig nothing is left; the credentials stay.
    let seen = scene.seen(&there).await;
    assert_eq!((seen.token, seen.user), (vec!["Bearer written".to_owned()], vec!["root".to_owned()]));
    assert_eq!(seen.seen.peer, "narthex-front-proxy");

    let acting =
        ["--as=jane", "--as-group=a", "--as-group=b,c", "--as-uid=1", "--as-user-extra=k=v", "--as-user-extra=k=w=x"];
    let seen = scene.seen(&[&with(&["--token=given"])[..], &acting].concat()).await;
    assert_eq!((seen.token, seen.user), (vec!["Bearer given".to_owned()], vec!["jane".to_owned()]));
    assert_eq!(
        (seen.seen.all("impersonate-group"), seen.seen.all("impersonate-uid")),
        (vec!["a".into(), "b,c".into()], vec!["1".into()])
    );
    assert_eq!(seen.seen.all("impersonate-extra-k"), ["v", "w=x"]);

    let (certificate, key) = (scene.file("client-certificate", "other.crt"), scene.file("client-key", "other.key"));
    let seen = scene.seen(&[&there[..], &[&certificate, &key]].concat()).await;
    assert_eq!(seen.seen.peer, "other");

    // By the name that the certificate has, or without a look at it.
    scene.seen(&[&kubeconfig, &server, &authority, "--tls-server-name=127.0.0.1"]).await;
    scene.seen(&[&kubeconfig, &server, "--insecure-skip-tls-verify"]).await;
    let seen = scene.seen(&[&kubeconfig, "--cluster=open", "--user=other", "--username=", "-n", "x"]).await;
    assert_eq!(seen.token, ["Bearer other"]);

    let own = [authority.as_str(), &certificate, &key];
    // Without any kubeconfig, and with all that means nothing here.
    let nothing = ["-nx", "--request-timeout=5s", "--cache-dir=/x", "--disable-compression", "--vmodule=a=1", "-v2"];
    let seen = scene.seen(&[&["-s", &server["--server=".len()..], "--token=t"][..], &own, &nothing].concat()).await;
    assert_eq!((seen.token, seen.user), (vec!["Bearer t".to_owned()], Vec::<String>::new()));
    let seen = scene.seen(&[&[server.as_str(), "--username=jane", "--password=secret"][..], &own].concat()).await;
    assert_eq!(seen.token, ["Basic amFuZTpzZWNyZXQ="]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_flag_is_said_of_the_flag() {
    let scene = Scene::new().await;
    let (kubeconfig, server) = (scene.file("kubeconfig", "kubeconfig"), scene.server());
    let (nowhere, authority) =
        ("--certificate-authority=/nowhere/ca.crt", scene.file("certificate-authority", "backend-ca.crt"));
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
        // Nobody is to listen in on what was meant for the server.
        (&["--server=http://127.0.0.1:1", "--token=t"], "--server: must be https"),
    ] {
        let said = scene.refused(&[&[kubeconfig.as_str()], more].concat());
        assert!(said.contains(expected), "{more:?}: {said}");
    }
    let said = scene.refused(&["--kubeconfig=/nowhere/kubeconfig", &server]);
    assert!(said.contains("--kubeconfig /nowhere/kubeconfig: cannot be read"), "{said}");
}

/// The credentials of a kubeconfig are for its server, over TLS.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_gets_no_credentials() {
    let scene = Scene::new().await;
    let kubeconfig = scene.file("kubeconfig", "kubeconfig");
    let own = [
        scene.file("certificate-authority", "backend-ca.crt"),
        scene.file("client-certificate", "other.crt"),
        scene.file("client-key", "other.key"),
    ];
    let inner = Door::of(&["-p0", &scene.server(), &own[0], &own[1], &own[2]], &[], Stdio::inherit());
    let outer = Door::of(&["-p0", &kubeconfig, &format!("--server=http://{}", inner.place)], &[], Stdio::inherit());
    assert_eq!(outer.get("/api").await.status, 200);
    let seen = scene.server.last();
    assert_eq!((seen.all("authorization"), seen.all("impersonate-user")), (vec![], vec!["root".to_owned()]));
}
