//! Certificates, configuration files and processes of one comparison.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// What is compared.
#[derive(Clone, Copy)]
pub(crate) enum Contender {
    Narthex,
    NarthexLogsAll,
    Haproxy,
    /// With the same headers set and removed as Narthex does.
    HaproxySameHeaders,
    /// The webhook reviews the token and authorizes the request.
    NarthexReviews,
    /// The same by kube-rbac-proxy.
    KubeRbacProxy,
    /// What no APIService claims is the backend's, too.
    NarthexDelegates,
    /// That, and the registry is that of a kube-apiserver.
    NarthexOfCluster,
    /// kube-apiserver's own aggregation layer, with etcd.
    KubeApiserver,
}

impl Contender {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Contender::Narthex => "narthex",
            Contender::NarthexLogsAll => "narthex, log all",
            Contender::Haproxy => "haproxy",
            Contender::HaproxySameHeaders => "haproxy, same headers",
            Contender::NarthexReviews => "narthex, reviews",
            Contender::KubeRbacProxy => "kube-rbac-proxy",
            Contender::NarthexDelegates => "narthex, delegate",
            Contender::NarthexOfCluster => "narthex, cluster",
            Contender::KubeApiserver => "kube-apiserver",
        }
    }
}

/// What stands in front of one server.
#[derive(Clone, Copy)]
pub(crate) enum SidecarKind {
    /// The webhook reviews the token and authorizes the request.
    Narthex,
    /// Token file, authorization AlwaysAllow.
    NarthexRelays,
    /// No authentication or authorization.
    Haproxy,
    KubeRbacProxy,
}

impl SidecarKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            SidecarKind::Narthex => "narthex sidecar",
            SidecarKind::NarthexRelays => "narthex sidecar, relays",
            SidecarKind::Haproxy => "haproxy",
            SidecarKind::KubeRbacProxy => "kube-rbac-proxy",
        }
    }
}

/// How the server behind a sidecar is spoken to.
#[derive(Clone, Copy)]
pub(crate) enum Upstream {
    /// HTTP/1.1 without TLS.
    Plain,
    /// HTTP/2 over TLS without client certificates.
    Tls,
    /// HTTP/2 over TLS with a certificate on both sides.
    Mutual,
}

/// A folder with all that both contenders need.
pub(crate) struct BenchEnvironment {
    folder: tempfile::TempDir,
    /// The program under test.
    narthex: PathBuf,
    /// The bearer token of the load.
    pub(crate) token: String,
    /// The bearer token of a user in `system:masters`.
    pub(crate) admin_token: String,
    backend_port: u16,
    reviewer_port: u16,
    cluster_port: u16,
}

/// A running process; it ends when dropped.
pub(crate) struct ChildProcess(Child);

impl ChildProcess {
    pub(crate) fn spawn(command: &mut Command) -> ChildProcess {
        ChildProcess(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// User and system time of all threads so far.
    pub(crate) fn cpu_milliseconds(&self) -> f64 {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).expect("the process runs");
        let fields: Vec<&str> = text.rsplit(") ").next().expect("a stat line").split(' ').collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().expect("ticks")).sum();
        // USER_HZ is 100 on every Linux architecture in use.
        ticks as f64 * 10.0
    }

    pub(crate) fn resident_kilobytes(&self) -> i64 {
        self.figure("status", "VmRSS:")
    }

    pub(crate) fn threads(&self) -> i64 {
        self.figure("status", "Threads:")
    }

    /// Bytes that it had written to disks so far, including files that it deleted.
    pub(crate) fn written_bytes(&self) -> i64 {
        self.figure("io", "write_bytes:")
    }

    fn figure(&self, file: &str, name: &str) -> i64 {
        let text = fs::read_to_string(format!("/proc/{}/{file}", self.0.id())).expect("the process runs");
        let line = text.lines().find(|line| line.starts_with(name)).expect(name);
        line.split_whitespace().nth(1).expect("a figure").parse().expect("a number")
    }

    /// Sends it a signal, by name.
    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([format!("-{name}"), self.0.id().to_string()]).status();
        assert!(status.expect("kill is there").success());
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A contender that answers on `port`.
pub(crate) struct Proxy {
    process: ChildProcess,
    pub(crate) port: u16,
    log: PathBuf,
    /// What it needs to run, such as etcd.
    beside: Vec<ChildProcess>,
}

/// A gateway with a known admin port.
pub(crate) struct Gateway {
    pub(crate) proxy: Proxy,
    admin_port: u16,
}

impl Gateway {
    /// The body of a path of the admin listener.
    pub(crate) fn get_admin(&self, path: &str) -> String {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", self.admin_port)).expect("the admin listener");
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n\r\n", self.admin_port);
        stream.write_all(request.as_bytes()).expect("a request");
        let mut response = String::new();
        stream.read_to_string(&mut response).expect("a response");
        assert!(response.starts_with("HTTP/1.1 200"), "{path}: {response}");
        response.split_once("\r\n\r\n").expect("a body").1.to_owned()
    }

    /// The sum of all samples of a metric.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = self.get_admin("/metrics");
        let samples =
            text.lines().filter_map(|line| line.strip_prefix(name)).filter(|rest| rest.starts_with([' ', '{']));
        samples.filter_map(|rest| rest.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }
}

pub(crate) fn is_installed(tool: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file()))
        || Path::new("/usr/sbin").join(tool).is_file()
}

/// A program built by `tests/interop/peers/build`, or of this machine.
pub(crate) fn interop_peer(name: &str) -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/bin").join(name);
    if built.is_file() { Some(built) } else { is_installed(name).then(|| name.into()) }
}

pub(crate) fn kube_rbac_proxy() -> Option<PathBuf> {
    interop_peer("kube-rbac-proxy")
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

impl BenchEnvironment {
    /// With this program under test.
    pub(crate) fn new(narthex: PathBuf) -> BenchEnvironment {
        let environment = BenchEnvironment {
            folder: tempfile::tempdir().expect("a folder"),
            narthex,
            token: "bench-token-0123456789".into(),
            admin_token: "admin-token-0123456789".into(),
            backend_port: free_port(),
            reviewer_port: free_port(),
            cluster_port: free_port(),
        };
        environment.write_certificates();
        environment.write_registry(&[environment.backend_port]);
        environment.write_kubeconfigs();
        let (token, admin) = (&environment.token, &environment.admin_token);
        environment.write("tokens.csv", &format!("{token},jane,42,\"devs,admins\"\n{admin},root,1,system:masters\n"));
        environment
    }

    pub(crate) fn directory(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.directory().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }

    fn write_certificates(&self) {
        let authority_key = KeyPair::generate().expect("a key");
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, "bench");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let authority = parameters.self_signed(&authority_key).expect("an authority");
        self.write("ca.crt", &authority.pem());
        let issuer = Issuer::new(parameters, authority_key);
        let leaves: [(&str, &[&str], ExtendedKeyUsagePurpose); 3] = [
            ("server", &["localhost", "127.0.0.1"], ExtendedKeyUsagePurpose::ServerAuth),
            ("backend", &["bench.bench.svc", "127.0.0.1"], ExtendedKeyUsagePurpose::ServerAuth),
            ("front-proxy", &[], ExtendedKeyUsagePurpose::ClientAuth),
        ];
        for (name, names, usage) in leaves {
            let key = KeyPair::generate().expect("a key");
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut parameters = CertificateParams::new(names).expect("names");
            parameters.distinguished_name.push(DnType::CommonName, name);
            parameters.extended_key_usages = vec![usage];
            parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            let certificate = parameters.signed_by(&key, &issuer).expect("a certificate");
            self.write(&format!("{name}.crt"), &certificate.pem());
            self.write(&format!("{name}.key"), &key.serialize_pem());
            self.write(&format!("{name}.pem"), &format!("{}{}", certificate.pem(), key.serialize_pem()));
        }
    }

    /// Three backends behind one Service, in place of the one.
    pub(crate) fn start_three_backends(&self, http1: bool) -> [ChildProcess; 3] {
        let ports = [(); 3].map(|()| free_port());
        self.write_registry(&ports);
        ports.map(|port| self.start_backend_at(port, http1))
    }

    /// `number` groups beside the bench's own, all of them the one backend's.
    pub(crate) fn write_groups(&self, number: usize) {
        let text: String =
            (0..number).map(|one| format!("{}---\n", self.api_service(&format!("g{one}.bench")))).collect();
        self.write("registry/groups.yaml", &text);
    }

    pub(crate) fn backend_port(&self) -> u16 {
        self.backend_port
    }

    /// The certificate authority, as for `caBundle`.
    pub(crate) fn authority_base64(&self) -> String {
        let authority = fs::read_to_string(self.directory().join("ca.crt")).expect("the authority");
        base64::Engine::encode(&base64::engine::general_purpose::STANDARD, authority)
    }

    fn api_service(&self, group: &str) -> String {
        let bundle = self.authority_base64();
        format!(
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: v1.{group}}}\n\
             spec: {{group: {group}, version: v1, groupPriorityMinimum: 1000, versionPriority: 15, \
             caBundle: {bundle}, service: {{namespace: bench, name: bench, port: 443}}}}\n"
        )
    }

    fn write_registry(&self, ports: &[u16]) {
        let mut text = self.api_service("bench.narthex.dev");
        text.push_str(
            "---\napiVersion: v1\nkind: Service\nmetadata: {namespace: bench, name: bench}\n\
             spec: {type: ClusterIP, clusterIP: 127.0.0.1, ports: [{name: https, port: 443}]}\n",
        );
        for port in ports {
            let _ = write!(
                text,
                "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                 metadata: {{namespace: bench, name: bench-{port}, labels: {{kubernetes.io/service-name: bench}}}}\n\
                 addressType: IPv4\nports: [{{name: https, port: {port}}}]\n\
                 endpoints: [{{addresses: [127.0.0.1], conditions: {{ready: true}}}}]\n"
            );
        }
        self.write("registry/bench.yaml", &text);
    }

    fn write_kubeconfigs(&self) {
        for (name, port) in
            [("reviewer", self.reviewer_port), ("delegate", self.backend_port), ("cluster", self.cluster_port)]
        {
            self.write_kubeconfig(name, port, "reviewed");
        }
    }

    /// Writes the file `<name>.kubeconfig` of a user with `token` of the server at `port`.
    pub(crate) fn write_kubeconfig(&self, name: &str, port: u16, token: &str) {
        let text = format!(
            "{{apiVersion: v1, kind: Config, current-context: x, \
             contexts: [{{name: x, context: {{cluster: c, user: u}}}}], \
             clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{port}', certificate-authority: ca.crt}}}}], \
             users: [{{name: u, user: {{token: {token}}}}}]}}\n",
        );
        self.write(&format!("{name}.kubeconfig"), &text);
    }

    /// What stands in for a kube-apiserver that reviews tokens and access.
    pub(crate) fn start_reviewer(&self) -> ChildProcess {
        let child = Command::new("taskset")
            .args(["-c", "0"])
            .arg(std::env::current_exe().expect("our own path"))
            .arg("fake-apiserver")
            .arg(self.directory())
            .arg(self.reviewer_port.to_string())
            .spawn()
            .expect("the reviewer starts");
        wait_for(self.reviewer_port, "the reviewer");
        ChildProcess(child)
    }

    /// What stands in for a kube-apiserver that has the registry.
    pub(crate) fn start_cluster(&self) -> ChildProcess {
        let child = Command::new("taskset")
            .args(["-c", "0"])
            .arg(std::env::current_exe().expect("our own path"))
            .arg("cluster")
            .arg(self.directory())
            .arg(self.cluster_port.to_string())
            .spawn()
            .expect("the cluster starts");
        wait_for(self.cluster_port, "the cluster");
        ChildProcess(child)
    }

    /// What accepts all spans: OTLP over gRPC. Returns its address, too.
    pub(crate) fn start_collector(&self) -> (ChildProcess, String) {
        let port = free_port();
        let child = Command::new("taskset")
            .args(["-c", "0"])
            .arg(std::env::current_exe().expect("our own path"))
            .args(["collector", &port.to_string()])
            .spawn()
            .expect("the collector starts");
        wait_for(port, "the collector");
        (ChildProcess(child), format!("127.0.0.1:{port}"))
    }

    pub(crate) fn start_backend(&self, http1: bool) -> ChildProcess {
        self.start_backend_at(self.backend_port, http1)
    }

    pub(crate) fn start_upstream(&self, upstream: Upstream) -> ChildProcess {
        match upstream {
            Upstream::Plain => self.start_backend_with_protocol(self.backend_port, "plain"),
            Upstream::Tls => self.start_backend_with_protocol(self.backend_port, "tls"),
            Upstream::Mutual => self.start_backend_with_protocol(self.backend_port, "h2"),
        }
    }

    fn start_backend_at(&self, port: u16, http1: bool) -> ChildProcess {
        self.start_backend_with_protocol(port, if http1 { "h1" } else { "h2" })
    }

    fn start_backend_with_protocol(&self, port: u16, protocol: &str) -> ChildProcess {
        let child = Command::new("taskset")
            .args(["-c", "0"])
            .arg(std::env::current_exe().expect("our own path"))
            .arg("backend")
            .arg(self.directory())
            .args([port.to_string().as_str(), protocol])
            .spawn()
            .expect("the backend starts");
        wait_for(port, "the backend");
        ChildProcess(child)
    }

    /// `sidecar` in front of `upstream`, at rest.
    pub(crate) fn start_sidecar(&self, sidecar: SidecarKind, upstream: Upstream) -> Proxy {
        let proxy = self.spawn_sidecar(sidecar, upstream);
        wait_for(proxy.port, sidecar.name());
        std::thread::sleep(Duration::from_millis(300));
        proxy
    }

    /// The same, which may not listen yet.
    pub(crate) fn spawn_sidecar(&self, sidecar: SidecarKind, upstream: Upstream) -> Proxy {
        let port = free_port();
        let log = self.directory().join("proxy.log");
        let output = || Stdio::from(fs::File::create(&log).expect("a log"));
        let file = |name: &str| self.directory().join(name).display().to_string();
        let mut command = Command::new("taskset");
        command.args(["-c", "1"]).stdin(Stdio::null()).stdout(Stdio::null());
        let mut flags = vec![
            ("secure-listen-address", format!("127.0.0.1:{port}")),
            ("tls-cert-file", file("server.crt")),
            ("tls-private-key-file", file("server.key")),
            ("client-ca-file", file("ca.crt")),
        ];
        match upstream {
            Upstream::Plain => flags.push(("upstream", format!("http://127.0.0.1:{}", self.backend_port))),
            Upstream::Tls | Upstream::Mutual => {
                flags.push(("upstream", format!("https://127.0.0.1:{}", self.backend_port)));
            }
        }
        match (upstream, sidecar) {
            (Upstream::Plain, _) => {}
            // With authorities of its own it speaks HTTP/1.1, at seven times the price.
            (Upstream::Tls, SidecarKind::KubeRbacProxy) => drop(command.env("SSL_CERT_FILE", file("ca.crt"))),
            (Upstream::Tls, _) => flags.push(("upstream-ca-file", file("ca.crt"))),
            (Upstream::Mutual, _) => flags.extend([
                ("upstream-ca-file", file("ca.crt")),
                ("upstream-client-cert-file", file("front-proxy.crt")),
                ("upstream-client-key-file", file("front-proxy.key")),
            ]),
        }
        match sidecar {
            SidecarKind::Haproxy => {
                let rules = "http-request set-header X-Remote-User jane";
                let server = match upstream {
                    Upstream::Plain => format!("127.0.0.1:{}", self.backend_port),
                    Upstream::Tls => {
                        format!("127.0.0.1:{} {} alpn h2", self.backend_port, haproxy_verified_server(self.directory()))
                    }
                    Upstream::Mutual => haproxy_mtls_server(self.directory(), self.backend_port, "h2"),
                };
                self.write("haproxy.cfg", &haproxy_config(self.directory(), port, &server, rules));
                command.args(["haproxy", "-db", "-f", &file("haproxy.cfg")]).stdout(output()).stderr(Stdio::null());
                let process = ChildProcess(command.spawn().expect("the proxy starts"));
                return Proxy::new(process, port, log);
            }
            SidecarKind::KubeRbacProxy => {
                command.arg(kube_rbac_proxy().expect("kube-rbac-proxy is there"));
                flags.extend([
                    ("auth-header-fields-enabled", "true".to_owned()),
                    ("kubeconfig", file("reviewer.kubeconfig")),
                    ("kube-api-qps", "1000000".to_owned()),
                    ("kube-api-burst", "1000000".to_owned()),
                ]);
            }
            SidecarKind::Narthex | SidecarKind::NarthexRelays => {
                command.arg(&self.narthex).arg("sidecar");
                flags.extend([("admin-address", "127.0.0.1:0".to_owned()), ("data-dir", file("data"))]);
                if matches!(sidecar, SidecarKind::Narthex) {
                    let skip = ("authentication-skip-lookup", "true".to_owned());
                    flags.extend([("kubeconfig", file("reviewer.kubeconfig")), skip]);
                } else {
                    let mode = ("authorization-mode", "AlwaysAllow".to_owned());
                    flags.extend([("token-auth-file", file("tokens.csv")), mode]);
                }
            }
        }
        command.args(flags.into_iter().map(|(flag, value)| format!("--{flag}={value}"))).stderr(output());
        Proxy::new(ChildProcess::spawn(&mut command), port, log)
    }

    /// How many reviews the reviewer was asked for.
    pub(crate) fn review_count(&self) -> u64 {
        let text = get(self.directory(), self.reviewer_port, "/count", "").expect("the reviewer answers");
        text.parse().expect("a number")
    }

    /// The embedded API server with an empty store and a namespace `bench`. Everyone is allowed everything. With
    /// `has_backend` it also relays to the bench's backend.
    pub(crate) fn start_embedded_api(&self, has_backend: bool) -> Proxy {
        self.start_embedded_api_with(has_backend, "AlwaysAllow")
    }

    /// As [`start_embedded_api`](BenchEnvironment::start_embedded_api), with this `--authorization-mode`.
    pub(crate) fn start_embedded_api_with(&self, has_backend: bool, authorization_mode: &str) -> Proxy {
        let port = free_port();
        let log = self.directory().join("proxy.log");
        let data = tempfile::tempdir_in(self.directory()).expect("a folder").keep();
        let file = |name: &str| self.directory().join(name).display().to_string();
        let mut command = Command::new("taskset");
        command.args(["-c", "1"]).arg(&self.narthex).arg("gateway");
        for (flag, value) in [
            ("embedded-api", "true".to_owned()),
            ("authorization-mode", authorization_mode.to_owned()),
            ("bind-address", "127.0.0.1".to_owned()),
            ("secure-port", port.to_string()),
            ("admin-address", "127.0.0.1:0".to_owned()),
            ("data-dir", data.display().to_string()),
            ("tls-cert-file", file("server.crt")),
            ("tls-private-key-file", file("server.key")),
            ("token-auth-file", file("tokens.csv")),
        ] {
            command.arg(format!("--{flag}={value}"));
        }
        if has_backend {
            for (flag, name) in [
                ("registry-dir", "registry"),
                ("proxy-client-cert-file", "front-proxy.crt"),
                ("proxy-client-key-file", "front-proxy.key"),
            ] {
                command.arg(format!("--{flag}={}", file(name)));
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&log).expect("a log"));
        let proxy = Proxy::new(ChildProcess::spawn(&mut command), port, log);
        wait_for(port, "narthex");
        let namespace = serde_json::json!({"kind": "Namespace", "metadata": {"name": "bench"}});
        crate::kube_apiserver::create(self, &proxy, "/api/v1/namespaces", &namespace);
        proxy
    }

    /// A gateway at `port` with its certificates, without authentication and registry. The admin port 0 is any port.
    fn gateway_command(&self, port: u16, admin_port: u16) -> Command {
        let file = |name: &str| self.directory().join(name).display().to_string();
        let mut command = Command::new("taskset");
        command.args(["-c", "1"]).stdin(Stdio::null()).arg(&self.narthex).arg("gateway");
        for (flag, value) in [
            ("bind-address", "127.0.0.1".to_owned()),
            ("secure-port", port.to_string()),
            ("admin-address", format!("127.0.0.1:{admin_port}")),
            ("data-dir", file("data")),
            ("tls-cert-file", file("server.crt")),
            ("tls-private-key-file", file("server.key")),
            ("proxy-client-cert-file", file("front-proxy.crt")),
            ("proxy-client-key-file", file("front-proxy.key")),
        ] {
            command.arg(format!("--{flag}={value}"));
        }
        command
    }

    /// Starts a gateway with these flags, and returns it once it listens.
    pub(crate) fn start_gateway(&self, flags: &[String]) -> Gateway {
        let (port, admin_port) = (free_port(), free_port());
        let log = self.directory().join("proxy.log");
        let mut command = self.gateway_command(port, admin_port);
        command.args(flags).stdout(Stdio::null()).stderr(fs::File::create(&log).expect("a log"));
        let proxy = Proxy::new(ChildProcess::spawn(&mut command), port, log);
        wait_for(port, "narthex");
        wait_for(admin_port, "the admin listener of narthex");
        Gateway { proxy, admin_port }
    }

    pub(crate) fn start_proxy(&self, contender: Contender, backend_http1: bool) -> Proxy {
        let port = free_port();
        let log = self.directory().join("proxy.log");
        let output = || Stdio::from(fs::File::create(&log).expect("a log"));
        let file = |name: &str| self.directory().join(name).display().to_string();
        let mut command = Command::new("taskset");
        command.args(["-c", "1"]).stdin(Stdio::null());
        match contender {
            Contender::KubeApiserver => return crate::kube_apiserver::start(self),
            Contender::Haproxy | Contender::HaproxySameHeaders => {
                let rules = match contender {
                    Contender::HaproxySameHeaders => haproxy_header_rules(&self.token),
                    _ => "http-request set-header X-Remote-User jane".to_owned(),
                };
                let alpn = if backend_http1 { "http/1.1" } else { "h2" };
                let server = haproxy_mtls_server(self.directory(), self.backend_port, alpn);
                let text = haproxy_config(self.directory(), port, &server, &rules);
                self.write("haproxy.cfg", &text);
                command.args(["haproxy", "-db", "-f", &file("haproxy.cfg")]).stdout(output()).stderr(Stdio::null());
            }
            Contender::KubeRbacProxy => {
                command.arg(kube_rbac_proxy().expect("kube-rbac-proxy is there"));
                for (flag, value) in [
                    ("secure-listen-address", format!("127.0.0.1:{port}")),
                    ("upstream", format!("https://127.0.0.1:{}", self.backend_port)),
                    ("upstream-ca-file", file("ca.crt")),
                    ("upstream-client-cert-file", file("front-proxy.crt")),
                    ("upstream-client-key-file", file("front-proxy.key")),
                    ("tls-cert-file", file("server.crt")),
                    ("tls-private-key-file", file("server.key")),
                    ("auth-header-fields-enabled", "true".to_owned()),
                    ("kubeconfig", file("reviewer.kubeconfig")),
                    // Its own limit on questions, 5 a second, would be all that is seen of questions.
                    ("kube-api-qps", "1000000".to_owned()),
                    ("kube-api-burst", "1000000".to_owned()),
                ] {
                    command.arg(format!("--{flag}={value}"));
                }
                command.stdout(Stdio::null()).stderr(output());
            }
            Contender::Narthex
            | Contender::NarthexLogsAll
            | Contender::NarthexReviews
            | Contender::NarthexDelegates
            | Contender::NarthexOfCluster => {
                command = self.gateway_command(port, 0);
                if matches!(contender, Contender::NarthexReviews) {
                    for flag in ["authentication-kubeconfig", "authorization-kubeconfig"] {
                        command.arg(format!("--{flag}={}", file("reviewer.kubeconfig")));
                    }
                    command.args(["--authentication-skip-lookup", "--authorization-mode=Webhook"]);
                } else {
                    command.arg(format!("--token-auth-file={}", file("tokens.csv")));
                }
                if matches!(contender, Contender::NarthexOfCluster) {
                    command.args([&format!("--kubeconfig={}", file("cluster.kubeconfig")), "--leader-elect=false"]);
                } else {
                    command.arg(format!("--registry-dir={}", file("registry")));
                }
                if matches!(contender, Contender::NarthexDelegates | Contender::NarthexOfCluster) {
                    command.arg(format!("--delegate-kubeconfig={}", file("delegate.kubeconfig")));
                }
                if matches!(contender, Contender::NarthexLogsAll) {
                    command.arg("--access-log=all");
                }
                command.stdout(Stdio::null()).stderr(output());
            }
        }
        let proxy = Proxy::new(ChildProcess::spawn(&mut command), port, log);
        wait_for(port, contender.name());
        // Let start-up (first probes and discovery) pass before anything is measured.
        std::thread::sleep(Duration::from_millis(300));
        proxy
    }
}

impl Proxy {
    pub(crate) fn new(process: ChildProcess, port: u16, log: PathBuf) -> Proxy {
        Proxy { process, port, log, beside: Vec::new() }
    }

    /// Ends `process` when the proxy ends.
    pub(crate) fn beside(mut self, process: ChildProcess) -> Proxy {
        self.beside.push(process);
        self
    }

    /// User and system time of all threads so far.
    pub(crate) fn cpu_milliseconds(&self) -> f64 {
        self.process.cpu_milliseconds()
    }

    /// All processes of it: itself, and what it needs to run.
    pub(crate) fn processes(&self) -> impl Iterator<Item = &ChildProcess> {
        [&self.process].into_iter().chain(&self.beside)
    }

    /// CPU ms for 1,000 answers while `load`, which gets its seconds and gives how many came, runs for `seconds`; it runs
    /// for one before.
    pub(crate) fn cost_per_thousand(&self, seconds: u32, load: impl Fn(u32) -> u64) -> f64 {
        load(1);
        let before = self.cpu_milliseconds();
        let responses = load(seconds);
        (self.cpu_milliseconds() - before) / (responses as f64 / 1000.0)
    }

    pub(crate) fn resident_kilobytes(&self) -> i64 {
        self.process.resident_kilobytes()
    }

    /// Waits for the first good answer.
    pub(crate) fn wait_for_first_response(&self, environment: &BenchEnvironment) {
        self.wait_for_response_at(environment, "/apis/bench.narthex.dev/v1/namespaces/default/small");
    }

    /// Waits for the first good answer at a path.
    pub(crate) fn wait_for_response_at(&self, environment: &BenchEnvironment, path: &str) {
        let end = Instant::now() + Duration::from_secs(30);
        while get(environment.directory(), self.port, path, &environment.token).is_none() {
            assert!(Instant::now() < end, "no answer: {}", self.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

/// The body of a 200 over HTTP/1.1; None for anything else.
fn get(directory: &Path, port: u16, path: &str, token: &str) -> Option<String> {
    let head = format!("GET {path} HTTP/1.1\r\n");
    let text = exchange(directory, port, &head, token, "")?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200").then(|| body.to_owned())
}

/// Creates an object; the response with its head, or None when there was no connection.
pub(crate) fn post(directory: &Path, port: u16, path: &str, token: &str, object: &serde_json::Value) -> Option<String> {
    let body = object.to_string();
    let head = format!("POST {path} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n", body.len());
    exchange(directory, port, &head, token, &body)
}

fn exchange(directory: &Path, port: u16, head: &str, token: &str, body: &str) -> Option<String> {
    use std::io::{Read as _, Write as _};
    let mut config = client_config(directory);
    config.alpn_protocols.clear();
    let mut session = rustls::ClientConnection::new(Arc::new(config), "localhost".try_into().ok()?).ok()?;
    let mut socket = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    let mut stream = rustls::Stream::new(&mut session, &mut socket);
    let request = format!("{head}Host: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).ok()?;
    let mut response = Vec::new();
    // Some peers close without a TLS close_notify.
    let _ = stream.read_to_end(&mut response);
    Some(String::from_utf8_lossy(&response).into_owned())
}

fn wait_for(port: u16, user: &str) {
    for _ in 0..500 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{user} does not listen");
}

/// What Narthex does for a request with a bearer token, in HAProxy's words: the token is compared, the identity and
/// where the request came from are put on, an id goes both ways.
fn haproxy_header_rules(token: &str) -> String {
    let mut rules = format!("http-request deny unless {{ req.hdr(authorization) -m str \"Bearer {token}\" }}\n");
    for rule in [
        "request set-var(txn.id) uuid()",
        "request set-header Audit-Id %[var(txn.id)]",
        "request set-header X-Forwarded-Host %[req.hdr(host)]",
        "request set-header X-Forwarded-Proto https",
        "request set-header X-Forwarded-Uri %[path]",
        "request del-header x-remote- -m beg",
        "request del-header cookie",
        "request set-header X-Remote-User jane",
        "request set-header X-Remote-Uid 42",
        "request add-header X-Remote-Group devs",
        "request add-header X-Remote-Group admins",
        "request add-header X-Remote-Group system:authenticated",
        "response del-header set-cookie",
        "response set-header Audit-Id %[var(txn.id)]",
        "response set-header X-Content-Type-Options nosniff",
    ] {
        let _ = writeln!(rules, "  http-{rule}");
    }
    rules
}

/// A server that HAProxy speaks to as Narthex does.
fn haproxy_mtls_server(directory: &Path, backend: u16, alpn: &str) -> String {
    let actual = directory.join("front-proxy.pem");
    format!("127.0.0.1:{backend} {} crt {} alpn {alpn}", haproxy_verified_server(directory), actual.display())
}

fn haproxy_verified_server(directory: &Path) -> String {
    let authority = directory.join("ca.crt");
    format!("ssl ca-file {} verify required verifyhost bench.bench.svc sni str(bench.bench.svc)", authority.display())
}

fn haproxy_config(directory: &Path, port: u16, server: &str, rules: &str) -> String {
    let directory = directory.display();
    format!(
        "global\n  nbthread 1\n  maxconn 8000\n  tune.h2.max-concurrent-streams 1000\n  ssl-server-verify required\n\
         defaults\n  mode http\n  timeout connect 5s\n  timeout client 3600s\n  timeout server 3600s\n  \
         timeout http-keep-alive 3600s\n  option http-keep-alive\n  http-reuse always\n\
         frontend fe\n  bind 127.0.0.1:{port} ssl crt {directory}/server.pem ca-file {directory}/ca.crt verify optional \
         alpn h2,http/1.1\n  {rules}\n  http-request del-header Authorization\n  \
         option forwardfor\n  default_backend be\n\
         backend be\n  server s1 {server} pool-max-conn 4096 pool-purge-delay 3600s\n"
    )
}

fn certificates(directory: &Path, name: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(directory.join(name)).expect("a file").map(|c| c.expect("a certificate")).collect()
}

fn roots(directory: &Path) -> Arc<rustls::RootCertStore> {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates(directory, "ca.crt") {
        roots.add(certificate).expect("an authority");
    }
    Arc::new(roots)
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// For the backend, whose client authenticates with a front proxy certificate.
pub(crate) fn backend_config(directory: &Path, protocols: &[&[u8]]) -> rustls::ServerConfig {
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(roots(directory), provider())
        .build()
        .expect("a verifier");
    server_config(directory, "backend", verifier, protocols)
}

/// For a backend that asks for no certificate.
pub(crate) fn open_backend_config(directory: &Path) -> rustls::ServerConfig {
    server_config(directory, "backend", rustls::server::WebPkiClientVerifier::no_client_auth(), &[b"h2"])
}

/// For the reviewer.
pub(crate) fn reviewer_config(directory: &Path) -> rustls::ServerConfig {
    server_config(directory, "server", rustls::server::WebPkiClientVerifier::no_client_auth(), &[b"h2", b"http/1.1"])
}

fn server_config(
    directory: &Path,
    name: &str,
    verifier: Arc<dyn rustls::server::danger::ClientCertVerifier>,
    protocols: &[&[u8]],
) -> rustls::ServerConfig {
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            certificates(directory, &format!("{name}.crt")),
            PrivateKeyDer::from_pem_file(directory.join(format!("{name}.key"))).expect("a key"),
        )
        .expect("a pair");
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

/// A client that shows a certificate.
pub(crate) fn client_with_certificate(directory: &Path) -> rustls::ClientConfig {
    let key = PrivateKeyDer::from_pem_file(directory.join("front-proxy.key")).expect("a key");
    client_builder(directory).with_client_auth_cert(certificates(directory, "front-proxy.crt"), key).expect("a pair")
}

fn client_builder(directory: &Path) -> rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert> {
    rustls::ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots(directory))
}

pub(crate) fn client_config(directory: &Path) -> rustls::ClientConfig {
    let mut config = client_builder(directory).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}
