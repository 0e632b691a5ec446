//! Reading kubeconfigs, and errors in them.

use std::time::SystemTime;

use base64::Engine as _;

use super::*;
use crate::egress::HttpVersion;
use crate::tls::{Authority, CertificateSpec};

struct KubeconfigFixture {
    folder: tempfile::TempDir,
}

impl KubeconfigFixture {
    fn new() -> KubeconfigFixture {
        let world = KubeconfigFixture { folder: tempfile::tempdir().unwrap() };
        let authority = Authority::generate("api");
        let pair = authority.issue(&CertificateSpec::client("narthex", &[]), SystemTime::now()).unwrap();
        world.write("ca.crt", &authority.pem());
        world.write("me.crt", &pair.certificate);
        world.write("me.key", &pair.key);
        world.write("token", "s3cret\n");
        world
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn data(&self, name: &str) -> String {
        base64::engine::general_purpose::STANDARD.encode(std::fs::read(self.folder.path().join(name)).unwrap())
    }

    fn load(&self, cluster: &str, user: &str) -> Result<Kubeconfig, Vec<String>> {
        self.write(
            "kubeconfig",
            &format!(
                "apiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: here\n\
                 contexts: [{{name: here, context: {{cluster: c, user: u, namespace: x}}}}, {{name: there}}]\n\
                 clusters:\n- name: other\n- {{name: c, cluster: {{{cluster}}}}}\n\
                 users:\n- {{name: u, user: {{{user}}}}}\n"
            ),
        );
        self.load_file()
    }

    fn load_file(&self) -> Result<Kubeconfig, Vec<String>> {
        let folder = self.folder.path().display().to_string();
        Kubeconfig::load(&self.folder.path().join("kubeconfig"))
            .map_err(|problems| problems.0.iter().map(|it| it.to_string().replace(&folder, "DIR")).collect())
    }
}

#[test]
fn kubeconfig_in_cluster_from_service_account() {
    let world = KubeconfigFixture::new();
    let load = |host: &str| {
        let value = |name: &str| match name {
            "KUBERNETES_SERVICE_HOST" => host.to_owned(),
            "KUBERNETES_SERVICE_PORT" => "443".to_owned(),
            _ => String::new(),
        };
        Kubeconfig::in_cluster(world.folder.path(), &value).map_err(|problems| problems.to_string())
    };
    let found = load("fd00::1").ok().unwrap();
    assert_eq!(found.server().to_string(), "[fd00::1]:443");
    assert_eq!(found.authorization.unwrap(), "Bearer s3cret");
    assert_eq!(found.files, ["token", "ca.crt"].map(|name| world.folder.path().join(name)));
    let why = load("").err().unwrap();
    assert!(why.contains("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must be defined"), "{why}");
    std::fs::remove_file(world.folder.path().join("token")).unwrap();
    assert!(load("10.0.0.1").err().unwrap().contains("token cannot be read"));
}

#[test]
fn kubeconfig_files_and_data_equal_and_paths_relative_to_file() {
    let world = KubeconfigFixture::new();
    let files = world
        .load(
            "server: 'https://10.0.0.1:6443/k8s/', certificate-authority: ca.crt, tls-server-name: api.example",
            "client-certificate: me.crt, client-key: me.key, tokenFile: token, token: other",
        )
        .ok()
        .unwrap();
    let data = world
        .load(
            &format!(
                "server: 'https://10.0.0.1:6443', tls-server-name: api.example, certificate-authority: gone, \
                 certificate-authority-data: {}",
                world.data("ca.crt")
            ),
            &format!(
                "client-certificate-data: {}, client-key-data: {}, token: s3cret",
                world.data("me.crt"),
                world.data("me.key")
            ),
        )
        .ok()
        .unwrap();
    assert_eq!(files.server().to_string(), "10.0.0.1:6443");
    assert_eq!((files.prefix.as_str(), data.prefix.as_str()), ("/k8s", ""));
    assert!(files.wire == data.wire);
    let authorization = files.authorization.clone().unwrap();
    assert_eq!(Some(&authorization), data.authorization.as_ref());
    assert_eq!((authorization.as_bytes(), authorization.is_sensitive()), (&b"Bearer s3cret"[..], true));
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
    let followed: Vec<_> = files.files.iter().map(name).collect();
    assert_eq!(followed, ["kubeconfig", "me.crt", "me.key", "token", "ca.crt"]);
    let bare = world.load("server: 'https://[::1]', certificate-authority: ca.crt", "").ok().unwrap();
    assert_eq!((bare.server().to_string(), bare.authorization), ("[::1]:443".to_owned(), None));
}

#[test]
fn kubeconfig_errors_reported_together_with_file_and_field() {
    let world = KubeconfigFixture::new();
    let problems = world
        .load(
            "server: 'http://api', certificate-authority-data: '%%', proxy-url: '127.0.0.1:18802'",
            "client-certificate: gone.crt, client-key: me.key, tokenFile: nowhere, exec: {command: x}",
        )
        .err()
        .unwrap();
    assert_eq!(
        problems,
        [
            "DIR/kubeconfig: users[0].user.exec: is not supported here; use a client certificate, token or tokenFile",
            "DIR/kubeconfig: users[0].user.client-certificate: DIR/gone.crt cannot be read: No such file or directory \
             (os error 2)",
            "DIR/kubeconfig: users[0].user.tokenFile: DIR/nowhere cannot be read: No such file or directory (os error 2)",
            "DIR/kubeconfig: clusters[1].cluster.server: must be https: its responses decide authorization",
            "DIR/kubeconfig: clusters[1].cluster.certificate-authority-data: is not valid base64",
            "DIR/kubeconfig: clusters[1].cluster.proxy-url: could not parse: 127.0.0.1:18802",
        ]
    );
}

#[test]
fn kubeconfig_event_sink_may_use_http_without_credentials() {
    let world = KubeconfigFixture::new();
    let load = |user: &str| {
        let _ = world.load("server: 'http://127.0.0.1:9765/k8s-audit'", user);
        Kubeconfig::load_event_sink(&world.folder.path().join("kubeconfig"))
    };
    let plain = load("").ok().unwrap();
    assert!(plain.wire == TransportSecurity::Plaintext(HttpVersion::Http1));
    assert_eq!((plain.prefix.as_str(), plain.destination.port), ("/k8s-audit", 9765));
    assert!(Kubeconfig::load(&world.folder.path().join("kubeconfig")).is_err());
    for user in ["token: x", "client-certificate: me.crt, client-key: me.key"] {
        let problems = load(user).err().unwrap();
        assert!(problems.to_string().contains("clusters[1].cluster.server: must be https: the user's"), "{problems}");
    }
}

#[test]
fn kubeconfig_single_errors() {
    let world = KubeconfigFixture::new();
    let good = "server: 'https://api', certificate-authority: ca.crt";
    for (cluster, user, expected) in [
        ("server: api", "", "clusters[1].cluster.server: \"api\": use a URL such as https://host:6443"),
        ("server: ''", "", "clusters[1].cluster.server: \"\": use a URL"),
        ("server: 'https://u:p@api'", "", "clusters[1].cluster.server: must be a host"),
        (good, "client-key: me.key", "users[0].user.client-certificate: is missing; client-key needs it"),
        (good, "client-certificate: me.crt", "users[0].user.client-key: is missing; client-certificate needs it"),
        (good, "password: p", "users[0].user.username: is missing; password needs it"),
        (good, "username: 'u:v', password: p", "users[0].user.username: must not contain a colon"),
        (
            good,
            "username: u, password: p, token: t",
            "users[0].user: more than one authentication method found for u; found [token basicAuth], only one is allowed",
        ),
        (good, "auth-provider: {name: oidc}", "users[0].user.auth-provider: is not supported here; use a client"),
        (good, "as-groups: [g]", "users[0].user.as: is missing: as-uid, as-groups and as-user-extra need it"),
        (good, "as: \"a\\nb\"", "users[0].user.as: has bytes that are not allowed in a header"),
        (good, "token: \"a\\nb\"", "users[0].user.token: has bytes that are not allowed in a token"),
        (good, "token: [1]", "users[0].user.token: is of an invalid type"),
        ("server: 'https://api', certificate-authority: me.key", "", "DIR/me.key: contains a private key"),
        (
            "server: 'https://api', certificate-authority: ca.crt, insecure-skip-tls-verify: true",
            "",
            "insecure-skip-tls-verify: specifying a root certificates file with the insecure flag is not allowed",
        ),
    ] {
        let problems = world.load(cluster, user).err().unwrap();
        assert_eq!(problems.len(), 1, "{cluster} {user}: {problems:?}");
        assert!(problems[0].contains(expected), "{expected}: {problems:?}");
    }
    for (text, expected) in [
        ("", "current-context: is not set"),
        ("clusters: null", "current-context: is not set"),
        ("current-context: x", "current-context: there is no single context \"x\""),
        ("current-context: x\ncontexts: [{name: x}]", "contexts[0].context: is missing"),
        ("{", "not YAML at line"),
        ("token: {secret: [", "not YAML at line"),
    ] {
        world.write("kubeconfig", text);
        let problems = world.load_file().err().unwrap();
        assert!(problems[0].contains(expected) && !problems[0].contains("secret"), "{text}: {problems:?}");
    }
    world.write("kubeconfig", "current-context: x\ncontexts: [{name: x, context: {cluster: a, user: b}}]");
    assert_eq!(world.load_file().err().unwrap().len(), 2);
}

#[test]
fn kubeconfig_basic_auth_and_impersonation() {
    let world = KubeconfigFixture::new();
    let good = "server: 'https://api', certificate-authority: ca.crt";
    let found = world.load(good, "username: jane, password: 'a:b'").ok().unwrap();
    let authorization = found.authorization.unwrap();
    assert_eq!((authorization.as_bytes(), authorization.is_sensitive()), (&b"Basic amFuZTphOmI="[..], true));
    let user =
        "token: t, as: joe, as-uid: '7', as-groups: [dev, 'a b'], as-user-extra: {'example.com/x': [one, two], y: []}";
    let found = world.load(good, user).ok().unwrap();
    let headers: Vec<_> =
        found.impersonation.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    assert_eq!(
        headers,
        [
            ("impersonate-user", "joe"),
            ("impersonate-uid", "7"),
            ("impersonate-group", "dev"),
            ("impersonate-group", "a b"),
            ("impersonate-extra-example.com%2fx", "one"),
            ("impersonate-extra-example.com%2fx", "two"),
        ]
    );
    // Written by Go, which writes absent values as null.
    assert!(world.load(good, "token: t, as: null, exec: null, as-groups: null").is_ok());
}

/// The kubeconfig of a local user with these fields.
fn load_for_local_user(world: &KubeconfigFixture, cluster: &str, user: &str) -> Result<Kubeconfig, String> {
    let _ = world.load(cluster, user);
    let folder = world.folder.path();
    Kubeconfig::load_for_local_user(&[folder.join("kubeconfig")], &ConfigOverrides::default())
        .map_err(|problems| problems.to_string().replace(&folder.display().to_string(), "DIR"))
}

#[test]
fn kubeconfig_local_user_allows_exec_and_auth_provider() {
    let world = KubeconfigFixture::new();
    let good = "server: 'https://api', certificate-authority: ca.crt";
    let exec = |more: &str| format!("exec: {{apiVersion: client.authentication.k8s.io/v1{more}}}");
    assert!(
        world.load(good, &exec(", command: x, interactiveMode: Never")).err().unwrap()[0]
            .contains("not supported here")
    );
    for (more, has) in [("", true), (", token: t", false), (", username: u, password: p", false), (", as: joe", true)] {
        let user =
            format!("{}{more}", exec(", command: x, interactiveMode: Never, env: null, args: [a], installHint: null"));
        let found = load_for_local_user(&world, good, &user).ok().unwrap();
        assert_eq!(found.plugin.is_some(), has, "credentials in the file take precedence over a plugin: {more}");
    }
    for (user, expected) in [
        (exec(", interactiveMode: Never"), "DIR/kubeconfig: users[0].user.exec.command: is missing"),
        (
            exec(", command: x"),
            "DIR/kubeconfig: users[0].user.exec.interactiveMode: \"\": use Never, IfAvailable or Always",
        ),
        (
            exec("beta1, command: x, interactiveMode: never"),
            "DIR/kubeconfig: users[0].user.exec.interactiveMode: \"never\": use",
        ),
        (
            exec("alpha1, command: x"),
            "users[0].user.exec.apiVersion: \"client.authentication.k8s.io/v1alpha1\": use client.auth",
        ),
        (exec("beta1, command: x, env: [{value: x}]"), "users[0].user.exec.env: a variable has no name"),
        (exec("beta1, command: x, args: [1]"), "users[0].user.exec.args[0]: is of an invalid type"),
        (
            format!("{}, auth-provider: {{name: oidc}}", exec("beta1, command: x")),
            "users[0].user: authProvider cannot be provided in combination with an exec plugin for u",
        ),
        (
            "auth-provider: {name: gcp}".to_owned(),
            "auth-provider.name: client-go has removed \"gcp\"; use exec with gke-",
        ),
        ("auth-provider: {name: x}".to_owned(), "auth-provider.name: no Auth Provider found for name \"x\""),
        (
            "auth-provider: {name: oidc, config: {idp-issuer-url: 'http://issuer', client-id: k, id-token: t}}"
                .to_owned(),
            "auth-provider.config.idp-issuer-url: \"http://issuer\": use a URL such as https://issuer.example",
        ),
        (
            "auth-provider: {name: oidc, config: {idp-issuer-url: 'https://issuer', client-id: k}}".to_owned(),
            "auth-provider.config.refresh-token: is missing, and so is id-token",
        ),
    ] {
        let why = load_for_local_user(&world, good, &user).err().unwrap();
        assert!(why.contains(expected), "{user}: {why}");
    }
    let plain = load_for_local_user(&world, "server: 'http://api'", &exec("beta1, command: x")).err().unwrap();
    assert!(plain.contains("clusters[1].cluster.server: must be https: the user's credentials"), "{plain}");
    assert!(load_for_local_user(&world, "server: 'http://api'", "as: joe").is_ok());
}

#[test]
fn kubeconfig_merge_takes_first_file_with_entry() {
    let world = KubeconfigFixture::new();
    let folder = world.folder.path();
    std::fs::create_dir(folder.join("sub")).unwrap();
    std::fs::write(folder.join("sub/token"), "below").unwrap();
    let files = |names: &[&str]| names.iter().map(|name| folder.join(name)).collect::<Vec<_>>();
    let load = |names: &[&str]| {
        Kubeconfig::load_for_local_user(&files(names), &ConfigOverrides::default())
            .map_err(|problems| problems.to_string().replace(&folder.display().to_string(), "DIR"))
    };
    world.write(
        "one",
        "current-context: here\nusers: [{name: u, user: {tokenFile: token}}]\n\
         clusters: [{name: far, cluster: {server: 'https://10.0.0.9'}}]",
    );
    world.write(
        "sub/two",
        "current-context: there\ncontexts: [{name: here, context: {cluster: c, user: u}}]\n\
         clusters: [{name: c, cluster: {server: 'https://10.0.0.1', certificate-authority: ../ca.crt}}]\n\
         users: [{name: u, user: {tokenFile: token, as: nobody}}]",
    );
    let found = load(&["gone", "one", "sub/two"]).ok().unwrap();
    assert_eq!(found.server().to_string(), "10.0.0.1:443");
    // The whole entry of the first file, with paths relative to it.
    assert_eq!((found.authorization.unwrap().as_bytes(), found.impersonation.len()), (&b"Bearer s3cret"[..], 0));
    assert_eq!(found.files, files(&["gone", "one", "sub/two", "token", "sub/../ca.crt"]));
    let other = load(&["sub/two", "one"]).err().unwrap();
    assert_eq!(other, "DIR/sub/two: current-context: there is no single context \"there\"; the contexts are \"here\"");
    world.write("sub/two", &std::fs::read_to_string(folder.join("sub/two")).unwrap().replace("there", "here"));
    let other = load(&["sub/two", "one"]).ok().unwrap();
    assert_eq!((other.authorization.unwrap().as_bytes(), other.impersonation.len()), (&b"Bearer below"[..], 1));
    // Errors of any file are reported. Missing files are reported only if none exists.
    world.write("bad", "{");
    assert!(load(&["bad", "one", "sub/two"]).err().unwrap().contains("DIR/bad: not YAML"));
    assert_eq!(load(&["gone", "lost"]).err().unwrap().lines().count(), 2);
    world.write("wrong", "users: [{name: u, user: {tokenFile: lost}}]");
    let why = load(&["wrong", "sub/two"]).err().unwrap();
    assert_eq!(
        why,
        "DIR/wrong: users[0].user.tokenFile: DIR/lost cannot be read: No such file or directory (os error 2)"
    );
}
