//! Fixtures of one test: CAs, users, a registry directory, and the process of a real `run_narthex start_gateway`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use narthex::tls::{Authority, CertificateSpec as CertificateRequest, Issued};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::support::backend::Backend;

/// How long anything may take before a test gives up on it. Generous: the machine may be busy.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The authorities of one test, kept apart as in production, and a folder for files.
pub(crate) struct TestEnvironment {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) serving_ca: Authority,
    pub(crate) client_ca: Authority,
    pub(crate) request_header_ca: Authority,
    pub(crate) backend_ca: Authority,
}

/// A certificate and its key, as rustls takes them.
#[derive(Clone)]
pub(crate) struct CertKeyPair(pub(crate) Arc<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>);

impl CertKeyPair {
    pub(crate) fn from_issued(issued: &Issued) -> CertKeyPair {
        let chain = CertificateDer::pem_slice_iter(issued.certificate.as_bytes()).map(|c| c.unwrap()).collect();
        CertKeyPair(Arc::new((chain, PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).unwrap())))
    }

    /// What [`TestEnvironment::write_pair`] wrote.
    pub(crate) fn from_files(place: &str) -> CertKeyPair {
        let chain = CertificateDer::pem_file_iter(format!("{place}.crt")).unwrap().map(|c| c.unwrap()).collect();
        CertKeyPair(Arc::new((chain, PrivateKeyDer::from_pem_file(format!("{place}.key")).unwrap())))
    }
}

impl TestEnvironment {
    pub(crate) fn new() -> TestEnvironment {
        let folder = tempfile::tempdir().unwrap();
        let authority = |name: &str| {
            let (authority, issued) = Authority::new(name, SystemTime::now()).unwrap();
            fs::write(folder.path().join(format!("{name}.crt")), &issued.certificate).unwrap();
            fs::write(folder.path().join(format!("{name}.key")), &issued.key).unwrap();
            authority
        };
        let (serving, client) = (authority("serving-ca"), authority("client-ca"));
        let (request_header, backend) = (authority("requestheader-ca"), authority("backend-ca"));
        let environment = TestEnvironment {
            serving_ca: serving,
            client_ca: client,
            request_header_ca: request_header,
            backend_ca: backend,
            folder,
        };
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        environment.write_pair(
            "serving",
            &environment.serving_ca.issue(&CertificateRequest::serving(&names), SystemTime::now()).unwrap(),
        );
        let front_proxy = CertificateRequest::client("narthex-front-proxy", &[]);
        environment
            .write_pair("front-proxy", &environment.request_header_ca.issue(&front_proxy, SystemTime::now()).unwrap());
        fs::create_dir(environment.path("registry")).unwrap();
        environment
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes `NAME.crt` and `NAME.key`.
    pub(crate) fn write_pair(&self, name: &str, issued: &Issued) {
        fs::write(self.path(&format!("{name}.crt")), &issued.certificate).unwrap();
        let key = self.path(&format!("{name}.key"));
        fs::write(&key, &issued.key).unwrap();
        fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// A client certificate of the client authority.
    pub(crate) fn issue_user(&self, name: &str, groups: &[&str]) -> CertKeyPair {
        CertKeyPair::from_issued(
            &self.client_ca.issue(&CertificateRequest::client(name, groups), SystemTime::now()).unwrap(),
        )
    }

    /// A client certificate of the request-header authority.
    pub(crate) fn issue_front_proxy(&self, name: &str) -> CertKeyPair {
        CertKeyPair::from_issued(
            &self.request_header_ca.issue(&CertificateRequest::client(name, &[]), SystemTime::now()).unwrap(),
        )
    }

    /// A serving certificate of the backend authority.
    pub(crate) fn issue_backend(&self, names: &[&str]) -> CertKeyPair {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        CertKeyPair::from_issued(
            &self.backend_ca.issue(&CertificateRequest::serving(&names), SystemTime::now()).unwrap(),
        )
    }

    pub(crate) fn read_file(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    /// Writes a file of the registry directory, by rename, as tools do.
    pub(crate) fn write_registry(&self, name: &str, text: &str) {
        let hidden = self.path(&format!("registry/.{name}.tmp"));
        fs::write(&hidden, text).unwrap();
        fs::rename(hidden, self.path(&format!("registry/{name}"))).unwrap();
    }

    /// Registers `group`/`version` with `backends` behind a Service of the group's first word.
    pub(crate) fn register_apiservice(&self, group: &str, version: &str, backends: &[&Backend]) {
        let addresses: Vec<SocketAddr> = backends.iter().map(|backend| backend.address).collect();
        self.write_registry(
            &format!("{version}.{group}.yaml"),
            &self.apiservice_manifests(group, version, &addresses, ""),
        );
    }

    /// The documents [`TestEnvironment::register_apiservice`] writes; `annotations` is YAML to stand below `metadata`.
    pub(crate) fn apiservice_manifests(
        &self,
        group: &str,
        version: &str,
        backends: &[SocketAddr],
        annotations: &str,
    ) -> String {
        use base64::Engine;
        let bundle = base64::engine::general_purpose::STANDARD.encode(self.read_file("backend-ca.crt"));
        let service = group.split('.').next().unwrap();
        let mut text = format!(
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata:\n  name: {version}.{group}\n{annotations}\n\
             spec:\n  group: {group}\n  version: {version}\n  groupPriorityMinimum: 1000\n  versionPriority: 15\n  \
             caBundle: {bundle}\n  service: {{namespace: {service}, name: {service}-{version}, port: 443}}\n---\n\
             apiVersion: v1\nkind: Service\nmetadata: {{namespace: {service}, name: {service}-{version}}}\n\
             spec: {{type: ClusterIP, clusterIP: 10.0.0.1, ports: [{{name: https, port: 443, targetPort: 8443}}]}}\n"
        );
        for (number, address) in backends.iter().enumerate() {
            text += &format!(
                "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  namespace: {service}\n  \
                 name: {service}-{version}-{number}\n  labels: {{kubernetes.io/service-name: {service}-{version}}}\n\
                 addressType: IPv4\nports: [{{name: https, port: {}}}]\n\
                 endpoints: [{{addresses: [{}], conditions: {{ready: true}}}}]\n",
                address.port(),
                address.ip()
            );
        }
        text
    }

    /// The gateway's command line with everything named, and `more`.
    pub(crate) fn gateway_arguments(&self, more: &[&str]) -> Vec<String> {
        let file = |name: &str| self.path(name).display().to_string();
        let mut arguments = vec![
            "--bind-address=127.0.0.1".to_owned(),
            "--secure-port=0".to_owned(),
            "--admin-address=127.0.0.1:0".to_owned(),
            format!("--data-dir={}", file("data")),
            format!("--registry-dir={}", file("registry")),
            format!("--tls-cert-file={}", file("serving.crt")),
            format!("--tls-private-key-file={}", file("serving.key")),
            format!("--client-ca-file={}", file("client-ca.crt")),
            format!("--requestheader-client-ca-file={}", file("requestheader-ca.crt")),
            "--requestheader-allowed-names=narthex-front-proxy,outer-proxy".to_owned(),
            format!("--proxy-client-cert-file={}", file("front-proxy.crt")),
            format!("--proxy-client-key-file={}", file("front-proxy.key")),
            "--log-format=json".to_owned(),
        ];
        arguments.extend(more.iter().map(|more| (*more).to_owned()));
        arguments
    }

    /// Flags of a gateway with anonymous authentication and a policy that allows all users everything.
    pub(crate) fn anonymous_flags(&self) -> [String; 3] {
        let policy = "kind: ClusterRole\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: all}\nrules:\n\
             - {verbs: ['*'], apiGroups: ['*'], resources: ['*']}\n- {verbs: ['*'], nonResourceURLs: ['*']}\n---\n\
             kind: ClusterRoleBinding\napiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: all}\n\
             roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: all}\nsubjects:\n\
             - {apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'system:authenticated'}\n\
             - {apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'system:unauthenticated'}\n";
        fs::write(self.path("everybody.yaml"), policy).unwrap();
        let policy = format!("--authorization-policy-file={}", self.path("everybody.yaml").display());
        ["--anonymous-auth".to_owned(), "--authorization-mode=RBAC".to_owned(), policy]
    }

    /// Starts the gateway with everything named on the command line, and `more`.
    pub(crate) fn start_gateway(&self, more: &[&str]) -> GatewayProcess {
        GatewayProcess::start(&self.gateway_arguments(more))
    }
}

/// Runs a command of the program to its end, which must come soon.
pub(crate) fn run_narthex(arguments: &[String]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
    command.args(arguments).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let id = child.id();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    receiver.recv_timeout(TEST_TIMEOUT).map(Result::unwrap).unwrap_or_else(|_| {
        let _ = Command::new("kill").args(["-KILL", &id.to_string()]).status();
        panic!("narthex {arguments:?} does not end")
    })
}

/// A running gateway; killed when dropped, and its log shown if the test failed.
pub(crate) struct GatewayProcess {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
}

impl GatewayProcess {
    pub(crate) fn start(arguments: &[String]) -> GatewayProcess {
        GatewayProcess::start_as("gateway", arguments)
    }

    /// Another command that serves, and says in the same words where.
    pub(crate) fn start_as(command: &str, arguments: &[String]) -> GatewayProcess {
        GatewayProcess::start_with_environment(command, arguments, &[])
    }

    /// The same, with these variables in its environment.
    pub(crate) fn start_with_environment(
        command: &str,
        arguments: &[String],
        env_vars: &[(&str, &str)],
    ) -> GatewayProcess {
        let mut program = Command::new(env!("CARGO_BIN_EXE_narthex"));
        // Under this name it is a command of itself.
        match command {
            "kube-rbac-proxy" => program.arg0(command),
            _ => program.arg(command),
        };
        GatewayProcess::spawn(program, arguments, env_vars)
    }

    /// A gateway that can have so many descriptors open.
    pub(crate) fn start_with_descriptors(most: usize, arguments: &[String]) -> GatewayProcess {
        let mut program = Command::new("/bin/sh");
        let line = format!("ulimit -n {most}; exec \"$0\" gateway \"$@\"");
        program.args(["-c", &line, env!("CARGO_BIN_EXE_narthex")]);
        GatewayProcess::spawn(program, arguments, &[])
    }

    pub(crate) fn spawn(mut program: Command, arguments: &[String], env_vars: &[(&str, &str)]) -> GatewayProcess {
        program.stdin(Stdio::null()).stdout(Stdio::null());
        GatewayProcess::spawn_with_stdio(program, arguments, env_vars)
    }

    /// The same, with the standard input and output that `program` has.
    pub(crate) fn spawn_with_stdio(
        mut program: Command,
        arguments: &[String],
        env_vars: &[(&str, &str)],
    ) -> GatewayProcess {
        let mut child =
            program.args(arguments).env_clear().envs(env_vars.iter().copied()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (sender, receiver) = std::sync::mpsc::channel();
        let (errors, kept) = (child.stderr.take().unwrap(), log.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                let _ = sender.send(line.clone());
                kept.lock().unwrap().push(line);
            }
        });
        let (mut address, mut admin) = (None, None);
        let until = Instant::now() + TEST_TIMEOUT;
        while address.is_none() || admin.is_none() {
            let Ok(line) = receiver.recv_timeout(until.saturating_duration_since(Instant::now())) else {
                panic!("the gateway did not say where it listens:\n{}", log.lock().unwrap().join("\n"));
            };
            address = address.or_else(|| parse_listen_address(&line, "serving"));
            admin = admin.or_else(|| parse_listen_address(&line, "admin listener"));
        }
        GatewayProcess { child, address: address.unwrap(), admin: admin.unwrap(), log }
    }

    /// The process ID.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for the end of the process.
    pub(crate) async fn wait_for_exit(&mut self) -> ExitStatus {
        let until = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < until, "the gateway does not end:\n{}", self.log_lines().join("\n"));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn log_lines(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Number of log lines so far.
    #[allow(dead_code, reason = "the tests of faults log the same more than once")]
    pub(crate) fn log_length(&self) -> usize {
        self.log.lock().unwrap().len()
    }

    /// Waits until a log line holds every one of `words`.
    pub(crate) async fn wait_for_log(&self, words: &[&str]) -> String {
        self.wait_for_log_after(0, words).await
    }

    /// Waits until a log line holds every one of `words`, without the first `skipped` lines: what is logged more than
    /// once.
    pub(crate) async fn wait_for_log_after(&self, skipped: usize, words: &[&str]) -> String {
        eventually(&format!("the log to say {words:?}"), async || {
            let log = self.log.lock().unwrap();
            log[skipped..].iter().find(|line| words.iter().all(|word| line.contains(word))).cloned()
        })
        .await
    }

    /// CPU time of all its threads so far, also of those that ended. The kernel counts hundredths of a second.
    #[allow(dead_code, reason = "benches want to know")]
    pub(crate) fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks = fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap());
        Duration::from_millis(10 * ticks.sum::<u64>())
    }

    /// Open files and sockets.
    pub(crate) fn descriptor_count(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Resident memory in kB.
    pub(crate) fn resident_kilobytes(&self) -> u64 {
        self.kilobytes("VmRSS:")
    }

    /// The most resident memory so far, in kB.
    pub(crate) fn peak_kilobytes(&self) -> u64 {
        self.kilobytes("VmHWM:")
    }

    fn kilobytes(&self, field: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for GatewayProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the gateway ---\n{}", self.log_lines().join("\n"));
        }
    }
}

/// The address in a log line whose message is `what`.
fn parse_listen_address(line: &str, what: &str) -> Option<SocketAddr> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    if line["message"].as_str()? != what {
        return None;
    }
    line["address"].as_str()?.parse().ok()
}

/// Runs `look` until it finds something.
pub(crate) async fn eventually<T>(what: &str, look: impl AsyncFnMut() -> Option<T>) -> T {
    eventually_within(TEST_TIMEOUT, what, look).await
}

/// Runs `look` until it finds something, at most for `limit`.
pub(crate) async fn eventually_within<T>(limit: Duration, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let until = Instant::now() + limit;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < until, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
