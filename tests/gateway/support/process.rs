//! A backend in a separate process that can be stopped, continued and killed by signals.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use http::Request;
use hyper::body::Incoming;
use narthex::tls::CertificateSpec as CertificateRequest;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::support::backend::{
    Backend, BackendResponse, BackendSettings, data_frame, json_response, streamed_response,
};
use crate::support::fixtures::{CertKeyPair, TEST_TIMEOUT, TestEnvironment};

/// A running backend; killed when dropped. Its answers are `{"by":"NAME"}`, its watches lines of that.
pub(crate) struct BackendProcess {
    child: Child,
    pub(crate) address: SocketAddr,
}

/// What the process is told, in its environment.
const FOLDER: &str = "NARTHEX_TEST_BACKEND_FOLDER";
const NAME: &str = "NARTHEX_TEST_BACKEND_NAME";
const PROTOCOL: &str = "NARTHEX_TEST_BACKEND_PROTOCOL";
const ADDRESS: &str = "NARTHEX_TEST_BACKEND_ADDRESS";

impl BackendProcess {
    /// Begins to serve at `settings.address`; `name` is what it signs its answers with.
    pub(crate) fn start(environment: &TestEnvironment, name: &str, settings: &BackendSettings) -> BackendProcess {
        let names: Vec<String> = settings.names.iter().map(|name| (*name).to_owned()).collect();
        environment.write_pair(
            name,
            &environment.backend_ca.issue(&CertificateRequest::serving(&names), SystemTime::now()).unwrap(),
        );
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "support::process::serves", "--ignored", "--nocapture", "--test-threads=1"])
            .env(FOLDER, environment.folder.path())
            .env(NAME, name)
            .env(PROTOCOL, settings.protocols.join(","))
            .env(ADDRESS, settings.address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // The test harness speaks first, and on the same line.
        let address = lines.find_map(|line| line.unwrap().split_once("listens at ")?.1.parse().ok()).unwrap();
        std::thread::spawn(move || lines.for_each(drop));
        BackendProcess { child, address }
    }

    /// It neither reads nor writes from now on; the kernel goes on for it.
    pub(crate) fn pause(&self) {
        self.signal("STOP");
        // A thread that runs on another core stops a little later, and may answer until then.
        let until = Instant::now() + TEST_TIMEOUT;
        while !self.is_stopped() {
            assert!(Instant::now() < until, "the backend does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether none of its threads runs.
    fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).ok()).all(|stat| {
            // The state follows the name, which is in parentheses.
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        })
    }

    pub(crate) fn resume(&self) {
        self.signal("CONT");
    }

    /// Ends it at once, as a machine that fails.
    pub(crate) fn kill(mut self) -> SocketAddr {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.address
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for BackendProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Response of every backend in these tests: its name, after `?wait=` milliseconds; a watch sends it every 50 ms.
pub(crate) async fn signed_response(name: &str, request: Request<Incoming>) -> BackendResponse {
    let query = request.uri().query().unwrap_or_default().to_owned();
    if query.contains("watch=1") {
        let (writer, response) = streamed_response(200);
        let name = name.to_owned();
        tokio::spawn(async move {
            for number in 0.. {
                if writer.send(data_frame(&format!("{{\"by\":\"{name}\",\"number\":{number}}}\n"))).is_err() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        return response;
    }
    if let Some(wait) = query.split('&').find_map(|pair| pair.strip_prefix("wait=")?.parse().ok()) {
        tokio::time::sleep(Duration::from_millis(wait)).await;
    }
    json_response(200, &format!("{{\"by\":\"{name}\"}}"))
}

#[test]
#[ignore = "the process that Process::start begins"]
fn serves() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let value = |name| std::env::var(name).unwrap();
    let name = value(NAME);
    let protocols: Vec<&'static str> = ["h2", "http/1.1"]
        .into_iter()
        .filter(|one| value(PROTOCOL).split(',').any(|recorded| recorded == *one))
        .collect();
    let file = |name: &str| format!("{folder}/{name}");
    let front_proxies = CertificateDer::from_pem_file(file("requestheader-ca.crt")).unwrap();
    let pair = CertKeyPair::from_files(&file(&name));
    let settings =
        BackendSettings { protocols, address: value(ADDRESS).parse().unwrap(), ..BackendSettings::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let signature = name.clone();
        let handler = move |request| {
            let name = signature.clone();
            async move { signed_response(&name, request).await }
        };
        let backend = Backend::start_as(&front_proxies, &pair, settings, handler).await;
        println!("listens at {}", backend.address);
        // Until the test that began this is no more.
        let orphaned = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
        let _ = orphaned.await;
    });
}
