//! A kubeconfig: which API server, whom to expect there, and who we are to it.
//!
//! Read as `k8s.io/client-go/tools/clientcmd` reads it: unknown fields say nothing, relative paths are relative
//! to the file, data stands over a file, `tokenFile` over `token`. What we cannot do is an error that says so,
//! instead of a request without credentials.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use http::{HeaderValue, Uri};
use serde::Deserialize;

use crate::egress::{BackendTls, Destination, Host, Protocol, ProxyUrl, Way, Wire};
use crate::process::{Problem, Problems};
use crate::tls::client::ClientSettings;
use crate::tls::{Bundle, KeyPair};

/// An API server and our credentials for it, checked and ready to use. Has no `Debug`: it holds a token.
pub struct Kubeconfig {
    pub(super) destination: Destination,
    /// What stands before every path; empty, or `/prefix`.
    pub(super) prefix: String,
    pub(super) wire: Wire,
    /// The proxy it is reached by, if it names one; then no other way counts.
    pub(super) proxy: Option<Way>,
    /// Marked as sensitive.
    pub(super) authorization: Option<HeaderValue>,
    /// The file itself and every file it names.
    pub(super) files: Vec<PathBuf>,
}

/// What of a kubeconfig is used instead of what its current context says (`--context`, `--cluster` and `--user` of
/// kubectl).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chosen {
    /// The context.
    pub context: Option<String>,
    /// The cluster, whatever the context says.
    pub cluster: Option<String>,
    /// The user, whatever the context says.
    pub user: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default, expecting = "a mapping")]
pub(super) struct Written {
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
    contexts: Option<Vec<NamedContext>>,
    current_context: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default, expecting = "a mapping")]
struct NamedCluster {
    name: String,
    cluster: Option<Cluster>,
}

#[derive(Deserialize, Default)]
#[serde(default, expecting = "a mapping")]
struct NamedUser {
    name: String,
    user: Option<User>,
}

#[derive(Deserialize, Default)]
#[serde(default, expecting = "a mapping")]
struct NamedContext {
    name: String,
    context: Option<Context>,
}

#[derive(Deserialize, Default)]
#[serde(default, expecting = "a mapping")]
pub(super) struct Context {
    cluster: String,
    user: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default, expecting = "a mapping")]
pub(super) struct Cluster {
    server: String,
    tls_server_name: String,
    pub(super) insecure_skip_tls_verify: bool,
    certificate_authority: String,
    certificate_authority_data: String,
    proxy_url: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default, expecting = "a mapping")]
struct User {
    client_certificate: String,
    client_certificate_data: String,
    client_key: String,
    client_key_data: String,
    token: String,
    #[serde(rename = "tokenFile")]
    token_file: String,
    r#as: String,
    username: String,
    auth_provider: Option<serde_json::Value>,
    exec: Option<serde_json::Value>,
}

impl Kubeconfig {
    /// Reads the file's current context and every file that it names; all mistakes at once.
    pub fn load(path: &Path) -> Result<Kubeconfig, Problems> {
        Kubeconfig::read(path, false)
    }

    /// The same of somebody whose answers decide nothing: it may be `http`, if no credentials go there.
    pub(super) fn of_collector(path: &Path) -> Result<Kubeconfig, Problems> {
        Kubeconfig::read(path, true)
    }

    fn read(path: &Path, may_be_plain: bool) -> Result<Kubeconfig, Problems> {
        Written::read(path, may_be_plain, |reading, written| reading.all(written))
    }

    /// What somebody uses on a machine of their own, whose requests decide nothing: it may be `http`, if no credentials
    /// go there.
    pub(super) fn of_person(path: &Path, chosen: &Chosen) -> Result<Kubeconfig, Problems> {
        Written::read(path, true, |reading, written| Reading { chosen: chosen.clone(), ..reading }.all(written))
    }

    /// What a pod knows of its cluster: the service account in `folder`, and variables of its `environment`.
    pub(super) fn in_cluster(folder: &Path, environment: &dyn Fn(&str) -> String) -> Result<Kubeconfig, Problems> {
        Written::of_pod(folder, environment, |reading, written| reading.all(written))
    }

    /// The API server, as `host:port`.
    pub fn server(&self) -> &Destination {
        &self.destination
    }

    /// The path of the API server's URL; empty, or `/prefix`.
    pub fn path(&self) -> &str {
        &self.prefix
    }
}

impl Written {
    /// Makes what a pod knows of its cluster into a kubeconfig, for `what` is needed of it.
    pub(super) fn of_pod<T>(
        folder: &Path,
        environment: &dyn Fn(&str) -> String,
        what: impl FnOnce(Reading<'_>, &Written) -> Result<T, Problems>,
    ) -> Result<T, Problems> {
        const PLACE: &str = "in-cluster configuration";
        let (host, port) = (environment("KUBERNETES_SERVICE_HOST"), environment("KUBERNETES_SERVICE_PORT"));
        if host.is_empty() || port.is_empty() {
            // In the words of client-go, which people search for.
            let message = "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT \
                           must be defined";
            return Err(Problem::new(PLACE, message).into());
        }
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let name = || PLACE.to_owned();
        let cluster = Cluster {
            server: format!("https://{host}:{port}"),
            certificate_authority: "ca.crt".to_owned(),
            ..Cluster::default()
        };
        let user = User { token_file: "token".to_owned(), ..User::default() };
        let written = Written {
            clusters: Some(vec![NamedCluster { name: name(), cluster: Some(cluster) }]),
            users: Some(vec![NamedUser { name: name(), user: Some(user) }]),
            contexts: Some(vec![NamedContext {
                name: name(),
                context: Some(Context { cluster: name(), user: name() }),
            }]),
            current_context: Some(name()),
        };
        let (problems, files) = (Problems::default(), Vec::new());
        let chosen = Chosen::default();
        what(Reading { place: name(), folder, problems, files, may_be_plain: false, chosen }, &written)
    }

    /// Reads the file for `what` is needed of it; all mistakes at once.
    pub(super) fn read<T>(
        path: &Path,
        may_be_plain: bool,
        what: impl FnOnce(Reading<'_>, &Written) -> Result<T, Problems>,
    ) -> Result<T, Problems> {
        let place = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Problem::new(&place, format_args!("cannot be read: {error}")))?;
        // JSON is YAML, too.
        let value: serde_json::Value = serde_saphyr::from_str(&text).map_err(|error| {
            let at = error.location().map(|at| format!(" at line {}, column {}", at.line(), at.column()));
            // Not the parser's own words: they may quote the line, and the line may be a key.
            Problem::new(&place, format_args!("not YAML{}", at.unwrap_or_default()))
        })?;
        // A file with comments only is empty, not wrong.
        let value = if value.is_null() { serde_json::json!({}) } else { value };
        let written: Written = serde_path_to_error::deserialize(&value).map_err(|error| {
            let field = error.path().to_string();
            Problem::field(&place, if field == "." { "" } else { &field }, "not what a kubeconfig has there")
        })?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let (problems, files) = (Problems::default(), vec![path.to_owned()]);
        what(Reading { place, folder, problems, files, may_be_plain, chosen: Chosen::default() }, &written)
    }
}

impl Cluster {
    /// The name that the server's certificate must have.
    pub(super) fn name_at(&self, destination: &Destination) -> String {
        match &destination.host {
            _ if !self.tls_server_name.is_empty() => self.tls_server_name.clone(),
            Host::Ip(ip) => ip.to_string(),
            Host::Name(name) => name.clone(),
        }
    }
}

pub(super) struct Reading<'p> {
    place: String,
    folder: &'p Path,
    pub(super) problems: Problems,
    pub(super) files: Vec<PathBuf>,
    may_be_plain: bool,
    chosen: Chosen,
}

impl Reading<'_> {
    fn all(mut self, written: &Written) -> Result<Kubeconfig, Problems> {
        let read = self.current(written);
        let Reading { problems, files, .. } = self;
        let read = problems.or(read)?;
        // Without a problem there is always something.
        read.map(|read| Kubeconfig { files, ..read }).ok_or_else(Problems::default)
    }

    fn current(&mut self, written: &Written) -> Option<Kubeconfig> {
        let (field, context) = self.context(written)?;
        let cluster = self.cluster(written, &field, context);
        let users = written.users.as_deref().unwrap_or_default();
        let nobody = User::default();
        let wanted = self.chosen.user.clone().unwrap_or_else(|| context.user.clone());
        let user = match only(users.iter().enumerate().filter(|(_, user)| user.name == wanted)) {
            Some((number, user)) => Some((format!("users[{number}].user"), user.user.as_ref().unwrap_or(&nobody))),
            // As client-go: no user at all is nobody.
            None if wanted.is_empty() => Some((String::new(), &nobody)),
            None => self.wrong(&format!("{field}.user"), format_args!("there is no single user {wanted:?}")),
        };
        let identity = user.as_ref().map(|(field, user)| (self.identity(field, user), self.token(field, user)));
        let (field, cluster) = cluster?;
        let server = self.server(&field, cluster);
        let authorities = self.authorities(&field, cluster);
        let proxy = self.proxy(&field, cluster, authorities.as_ref());
        let ((destination, prefix, plain), authorities, (identity, authorization)) = (server?, authorities?, identity?);
        let credentials = matches!(identity, Some(Some(_))) || matches!(authorization, Some(Some(_)));
        if plain && credentials {
            let why = "must be https: the user's credentials are not sent to where everybody can read them";
            return self.wrong(&format!("{field}.server"), why);
        }
        let settings = ClientSettings {
            authorities,
            insecure_skip_verify: cluster.insecure_skip_tls_verify,
            identity: identity?,
            alpn: Vec::new(),
        };
        let wire = if plain {
            Wire::Plain(Protocol::Http1)
        } else {
            match BackendTls::new(&cluster.name_at(&destination), settings) {
                Ok(tls) => Wire::Tls(Arc::new(tls)),
                Err(problem) => return self.wrong(&field, problem),
            }
        };
        let (proxy, authorization) = (proxy?, authorization?);
        Some(Kubeconfig { destination, prefix, wire, proxy, authorization, files: Vec::new() })
    }

    pub(super) fn context<'w>(&mut self, written: &'w Written) -> Option<(String, &'w Context)> {
        let current = written.current_context.as_deref().unwrap_or_default();
        let name = self.chosen.context.clone().unwrap_or_else(|| current.to_owned());
        if name.is_empty() {
            return self.wrong("current-context", "is not set; it must name one of the contexts");
        }
        let contexts = written.contexts.as_deref().unwrap_or_default();
        let named = only(contexts.iter().enumerate().filter(|(_, context)| context.name == name));
        let Some((number, context)) = named else {
            return self.wrong("current-context", format_args!("there is no single context {name:?}"));
        };
        let field = format!("contexts[{number}].context");
        let Some(context) = &context.context else { return self.wrong(&field, "is missing") };
        Some((field, context))
    }

    pub(super) fn cluster<'w>(
        &mut self,
        written: &'w Written,
        field: &str,
        context: &Context,
    ) -> Option<(String, &'w Cluster)> {
        let clusters = written.clusters.as_deref().unwrap_or_default();
        let wanted = self.chosen.cluster.clone().unwrap_or_else(|| context.cluster.clone());
        match only(clusters.iter().enumerate().filter(|(_, cluster)| cluster.name == wanted)) {
            Some((number, NamedCluster { cluster: Some(cluster), .. })) => {
                Some((format!("clusters[{number}].cluster"), cluster))
            }
            _ => self.wrong(&format!("{field}.cluster"), format_args!("there is no single cluster {wanted:?}")),
        }
    }

    /// Where the API server is, and what stands before every path.
    pub(super) fn server(&mut self, field: &str, cluster: &Cluster) -> Option<(Destination, String, bool)> {
        let field = format!("{field}.server");
        let uri: Uri = match cluster.server.parse() {
            Ok(uri) => uri,
            Err(_) => {
                return self.wrong(&field, format_args!("{:?}: use a URL such as https://host:6443", cluster.server));
            }
        };
        let plain = uri.scheme_str() == Some("http");
        match uri.scheme_str() {
            Some("https") => {}
            Some("http") if self.may_be_plain => {}
            Some("http") => return self.wrong(&field, "must be https: what it says decides who is let in"),
            _ => return self.wrong(&field, format_args!("{:?}: use a URL such as https://host:6443", cluster.server)),
        }
        if uri.query().is_some() || uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return self.wrong(&field, "must be a host, and perhaps a port and a path");
        }
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let host = host.parse().map_or_else(|_| Host::Name(host.to_owned()), Host::Ip);
        let destination = Destination { host, port: uri.port_u16().unwrap_or(if plain { 80 } else { 443 }) };
        Some((destination, uri.path().trim_end_matches('/').to_owned(), plain))
    }

    /// Who vouches for the API server; none for the system's roots.
    pub(super) fn authorities(&mut self, field: &str, cluster: &Cluster) -> Option<Option<Bundle>> {
        let name = format!("{field}.certificate-authority");
        let given = self.content(&name, &cluster.certificate_authority, &cluster.certificate_authority_data)?;
        if cluster.insecure_skip_tls_verify {
            if given.is_some() {
                // In the words of client-go, which refuses it, too.
                let why = "specifying a root certificates file with the insecure flag is not allowed";
                return self.wrong(&format!("{field}.insecure-skip-tls-verify"), why);
            }
            tracing::warn!(
                file = self.place,
                "insecure-skip-tls-verify: whoever can put themselves between us and this API server decides who is let in"
            );
        }
        let Some((origin, pem)) = given else { return Some(None) };
        self.problems.keep(Bundle::from_pem(&pem, origin)).map(Some)
    }

    /// The proxy on the way there; none inside when none is named.
    ///
    /// client-go holds a proxy of its own TLS to what it holds the API server to. So do we, but without showing it the
    /// user's certificate.
    pub(super) fn proxy(
        &mut self,
        field: &str,
        cluster: &Cluster,
        authorities: Option<&Option<Bundle>>,
    ) -> Option<Option<Way>> {
        if cluster.proxy_url.is_empty() {
            return Some(None);
        }
        let field = format!("{field}.proxy-url");
        let url = match ProxyUrl::of_kubeconfig(&cluster.proxy_url) {
            Ok(url) => url,
            Err(why) => return self.wrong(&field, why),
        };
        let settings = ClientSettings {
            authorities: authorities?.clone(),
            insecure_skip_verify: cluster.insecure_skip_tls_verify,
            identity: None,
            alpn: Vec::new(),
        };
        match Way::by_url("proxy-url", &url, settings) {
            Ok(way) => Some(Some(way)),
            Err(problem) => self.wrong(&field, problem),
        }
    }

    /// Our certificate, if we have one.
    fn identity(&mut self, field: &str, user: &User) -> Option<Option<Arc<KeyPair>>> {
        for (name, given) in [
            ("exec", user.exec.as_ref().is_some_and(|it| !it.is_null())),
            ("auth-provider", user.auth_provider.as_ref().is_some_and(|it| !it.is_null())),
            ("username", !user.username.is_empty()),
            ("as", !user.r#as.is_empty()),
        ] {
            if given {
                let why = "is not supported here; use a client certificate, token or tokenFile";
                self.wrong::<()>(&format!("{field}.{name}"), why);
            }
        }
        let certificate = format!("{field}.client-certificate");
        let chain = self.content(&certificate, &user.client_certificate, &user.client_certificate_data);
        let key = self.content(&format!("{field}.client-key"), &user.client_key, &user.client_key_data);
        match (chain?, key?) {
            (None, None) => Some(None),
            (Some((chain_of, chain)), Some((key_of, key))) => {
                let place = if chain_of == key_of { chain_of } else { format!("{chain_of} with {key_of}") };
                self.problems.keep(KeyPair::from_pem(&chain, &key, &place)).map(|pair| Some(Arc::new(pair)))
            }
            (Some(_), None) => self.wrong(&format!("{field}.client-key"), "is missing; client-certificate needs it"),
            (None, Some(_)) => self.wrong(&certificate, "is missing; client-key needs it"),
        }
    }

    /// Our token, if we have one.
    fn token(&mut self, field: &str, user: &User) -> Option<Option<HeaderValue>> {
        let (name, token) = if user.token_file.is_empty() {
            ("token", user.token.clone())
        } else {
            let path = self.path(&user.token_file);
            match std::fs::read_to_string(&path) {
                Ok(token) if !token.trim().is_empty() => ("tokenFile", token),
                // client-go goes on with `token` until the file can be read.
                _ if !user.token.is_empty() => ("token", user.token.clone()),
                Ok(_) => return self.wrong(&format!("{field}.tokenFile"), format_args!("{} is empty", path.display())),
                Err(error) => {
                    let why = format!("{} cannot be read: {error}", path.display());
                    return self.wrong(&format!("{field}.tokenFile"), why);
                }
            }
        };
        let token = token.trim();
        if token.is_empty() {
            return Some(None);
        }
        match HeaderValue::try_from(format!("Bearer {token}")) {
            Ok(mut value) => {
                value.set_sensitive(true);
                Some(Some(value))
            }
            Err(_) => self.wrong(&format!("{field}.{name}"), "holds bytes that no token has"),
        }
    }

    /// What stands in a field as base64 or in a file, and what to call it; none inside when neither is given.
    fn content(&mut self, field: &str, file: &str, data: &str) -> Option<Option<(String, Vec<u8>)>> {
        if !data.is_empty() {
            let field = format!("{field}-data");
            let data: String = data.split_ascii_whitespace().collect();
            return match base64::engine::general_purpose::STANDARD.decode(data) {
                Ok(content) => Some(Some((format!("{}: {field}", self.place), content))),
                Err(_) => self.wrong(&field, "is not base64"),
            };
        }
        if file.is_empty() {
            return Some(None);
        }
        let path = self.path(file);
        match std::fs::read(&path) {
            Ok(content) => Some(Some((path.display().to_string(), content))),
            Err(error) => self.wrong(field, format_args!("{} cannot be read: {error}", path.display())),
        }
    }

    fn path(&mut self, named: &str) -> PathBuf {
        let path = self.folder.join(named);
        self.files.push(path.clone());
        path
    }

    pub(super) fn wrong<T>(&mut self, field: &str, why: impl std::fmt::Display) -> Option<T> {
        self.problems.0.push(Problem::field(&self.place, field, why));
        None
    }
}

/// The one thing there is, if there is one only.
fn only<T>(mut things: impl Iterator<Item = T>) -> Option<T> {
    things.next().filter(|_| things.next().is_none())
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::tls::{Authority, Request};

    struct World {
        folder: tempfile::TempDir,
    }

    impl World {
        fn new() -> World {
            let world = World { folder: tempfile::tempdir().unwrap() };
            let authority = Authority::made("api");
            let pair = authority.issue(&Request::client("narthex", &[]), SystemTime::now()).unwrap();
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
            self.load_as_written()
        }

        fn load_as_written(&self) -> Result<Kubeconfig, Vec<String>> {
            let folder = self.folder.path().display().to_string();
            Kubeconfig::load(&self.folder.path().join("kubeconfig"))
                .map_err(|problems| problems.0.iter().map(|it| it.to_string().replace(&folder, "DIR")).collect())
        }
    }

    #[test]
    fn what_a_pod_knows_of_its_cluster() {
        let world = World::new();
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
    fn files_and_data_name_the_same_and_relative_paths_are_the_file_s() {
        let world = World::new();
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
    fn all_mistakes_at_once_with_file_and_field() {
        let world = World::new();
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
                "DIR/kubeconfig: clusters[1].cluster.server: must be https: what it says decides who is let in",
                "DIR/kubeconfig: clusters[1].cluster.certificate-authority-data: is not base64",
                "DIR/kubeconfig: clusters[1].cluster.proxy-url: could not parse: 127.0.0.1:18802",
            ]
        );
    }

    #[test]
    fn what_decides_nothing_may_be_overheard_but_not_with_credentials() {
        let world = World::new();
        let load = |user: &str| {
            let _ = world.load("server: 'http://127.0.0.1:9765/k8s-audit'", user);
            Kubeconfig::of_collector(&world.folder.path().join("kubeconfig"))
        };
        let plain = load("").ok().unwrap();
        assert!(
            plain.wire == Wire::Plain(Protocol::Http1)
                && plain.prefix == "/k8s-audit"
                && plain.destination.port == 9765
        );
        assert!(Kubeconfig::load(&world.folder.path().join("kubeconfig")).is_err());
        for user in ["token: x", "client-certificate: me.crt, client-key: me.key"] {
            let problems = load(user).err().unwrap();
            assert!(
                problems.to_string().contains("clusters[1].cluster.server: must be https: the user's"),
                "{problems}"
            );
        }
    }

    #[test]
    fn single_mistakes() {
        let world = World::new();
        let good = "server: 'https://api', certificate-authority: ca.crt";
        for (cluster, user, expected) in [
            ("server: api", "", "clusters[1].cluster.server: \"api\": use a URL such as https://host:6443"),
            ("server: ''", "", "clusters[1].cluster.server: \"\": use a URL"),
            ("server: 'https://u:p@api'", "", "clusters[1].cluster.server: must be a host"),
            (good, "client-key: me.key", "users[0].user.client-certificate: is missing; client-key needs it"),
            (good, "client-certificate: me.crt", "users[0].user.client-key: is missing; client-certificate needs it"),
            (good, "username: u, password: p", "users[0].user.username: is not supported here"),
            (good, "token: \"a\\nb\"", "users[0].user.token: holds bytes that no token has"),
            (good, "token: [1]", "users[0].user.token: not what a kubeconfig has there"),
            ("server: 'https://api', certificate-authority: me.key", "", "DIR/me.key: holds a private key"),
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
            let problems = world.load_as_written().err().unwrap();
            assert!(problems[0].contains(expected) && !problems[0].contains("secret"), "{text}: {problems:?}");
        }
        world.write("kubeconfig", "current-context: x\ncontexts: [{name: x, context: {cluster: a, user: b}}]");
        assert_eq!(world.load_as_written().err().unwrap().len(), 2);
    }
}
