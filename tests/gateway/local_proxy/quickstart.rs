//! `run_narthex quickstart`: one command, and the commands it prints work unchanged.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use tokio::net::TcpStream;

use crate::support::client::{get, read_response};
use crate::support::fixtures::TEST_TIMEOUT;

/// A running quickstart, and what it printed.
struct QuickstartProcess {
    child: Child,
    text: String,
}

impl QuickstartProcess {
    fn start(data: &Path) -> QuickstartProcess {
        let mut child = Command::new(env!("CARGO_BIN_EXE_narthex"))
            .arg("quickstart")
            .arg(format!("--data-dir={}", data.display()))
            .args(["--secure-port=0", "--admin-address=127.0.0.1:0"])
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = child.stdout.take().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let mut text = String::new();
        while !text.contains("Ctrl-C ends it.") {
            let line =
                receiver.recv_timeout(TEST_TIMEOUT).unwrap_or_else(|_| panic!("the quickstart said only:\n{text}"));
            text.push_str(&line);
            text.push('\n');
        }
        QuickstartProcess { child, text }
    }

    /// The lines that begin with `word`.
    fn lines(&self, word: &str) -> Vec<String> {
        self.text.lines().map(str::trim).filter(|line| line.starts_with(word)).map(str::to_owned).collect()
    }

    /// Ctrl-C; the exit status and what it wrote to standard error.
    fn interrupt(mut self) -> (Option<i32>, String) {
        assert!(Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap().success());
        let until = Instant::now() + TEST_TIMEOUT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "the quickstart does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (status.code(), errors)
    }
}

impl Drop for QuickstartProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a shell makes of a line.
fn shell_words(line: &str) -> Vec<String> {
    let output = Command::new("sh").arg("-c").arg(format!("printf '%s\\n' {line}")).output().unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Does what the curl line says, without curl.
async fn run_curl_line(line: &str) -> Value {
    let words = shell_words(line);
    let of = |flag: &str| std::fs::read(&words[words.iter().position(|word| word == flag).unwrap() + 1]).unwrap();
    let (authority, certificate, key) = (of("--cacert"), of("--cert"), of("--key"));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&authority).unwrap()).unwrap();
    let chain = CertificateDer::pem_slice_iter(&certificate).map(Result::unwrap).collect();
    let config = rustls::ClientConfig::builder_with_provider(narthex::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(&key).unwrap())
        .unwrap();
    let url: http::Uri = words.last().unwrap().parse().unwrap();
    let host = url.authority().unwrap().to_string();
    let socket = TcpStream::connect(&host).await.unwrap();
    let name = url.host().unwrap().to_owned().try_into().unwrap();
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let response = read_response(
        sender.send_request(get(url.path_and_query().unwrap().as_str(), &[("host", &host)])).await.unwrap(),
    )
    .await;
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn quickstart_printed_commands_work() {
    let folder = tempfile::tempdir().unwrap();
    // A folder whose name needs quotes.
    let data = folder.path().join("it's two words");
    let first = QuickstartProcess::start(&data);
    assert!(first.text.starts_with("Created "), "{}", first.text);
    let (kubectl, curl) = (first.lines("kubectl "), first.lines("curl "));
    assert_eq!((kubectl.len(), curl.len()), (6, 1), "{}", first.text);
    assert_eq!(first.text.matches("kubectl").count(), 6, "{}", first.text);
    let kubeconfig = data.join("admin.kubeconfig").display().to_string();
    for line in &kubectl {
        let words = shell_words(line);
        assert_eq!(words[..3], ["kubectl".to_owned(), "--kubeconfig".to_owned(), kubeconfig.clone()], "{line}");
    }
    assert!(std::fs::read_to_string(&kubeconfig).unwrap().contains("current-context"));

    let list = run_curl_line(&curl[0]).await;
    assert_eq!(list["kind"], "GreetingList", "{list}");
    assert!(!list["items"].as_array().unwrap().is_empty(), "there is something from the start: {list}");
    let bells = |version: &str, query: &str| {
        let path = format!("/apis/samples.narthex.dev/{version}/namespaces/default/bells{query}");
        curl[0].replace("/apis/example.narthex.dev/v1/namespaces/default/greetings", &path)
    };
    let names = |list: &Value| {
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for version in ["v1", "v1alpha1"] {
        assert_eq!(names(&run_curl_line(&bells(version, "")).await), ["angelus", "gloriosa", "sunday"]);
        let selected = run_curl_line(&bells(version, "?fieldSelector=spec.tone=c")).await;
        assert_eq!(
            (&selected["kind"], names(&selected)),
            (&Value::from("BellList"), vec!["angelus".into(), "sunday".into()])
        );
    }
    if Command::new("curl").arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success()) {
        let output = Command::new("sh").args(["-c", &curl[0]]).output().unwrap();
        let output_text = String::from_utf8_lossy(&output.stderr);
        let with_curl: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output_text}"));
        assert_eq!(with_curl["items"], list["items"]);
    }
    for item in list["items"].as_array().unwrap() {
        assert_eq!(item["status"]["createdBy"], "narthex quickstart", "{item}");
    }
    let doors = curl[0].replace("v1/namespaces/default/greetings", "v1alpha1/doors");
    assert_eq!(names(&run_curl_line(&doors).await), ["nave", "street"]);
    let page = first.lines("Status page: ")[0].clone();
    let address = page.trim_start_matches("Status page: http://").trim_end_matches('/').to_owned();
    let status = crate::support::fixtures::run_narthex(&["status".to_owned(), format!("--admin-address={address}")]);
    assert!(String::from_utf8_lossy(&status.stdout).contains("greetings.example.narthex.dev"));

    // Another one with the same directory ends, and leaves the files as they are.
    let files = || ["pki/admin.crt", "admin.kubeconfig"].map(|name| std::fs::read(data.join(name)).unwrap());
    let (before, data_dir) = (files(), format!("--data-dir={}", data.display()));
    let arguments = ["quickstart", &data_dir, "--secure-port=0", "--admin-address="].map(str::to_owned);
    let another = crate::support::fixtures::run_narthex(&arguments);
    let errors = String::from_utf8_lossy(&another.stderr).into_owned();
    assert_eq!(another.status.code(), Some(1), "{errors}");
    assert!(errors.contains(&format!("is in use by process {}", first.child.id())), "{errors}");
    assert_eq!(files(), before);

    let [certificate, _] = before;
    assert_eq!(first.interrupt(), (Some(0), String::new()));

    let second = QuickstartProcess::start(&data);
    assert!(second.text.starts_with("Found "), "{}", second.text);
    assert_eq!(std::fs::read(data.join("pki/admin.crt")).unwrap(), certificate);
    let curl = second.lines("curl ")[0].clone();
    assert_eq!(run_curl_line(&curl).await["kind"], "GreetingList");
    // The samples are those of the first start.
    let again =
        curl.replace("/apis/example.narthex.dev/v1/namespaces/default/greetings", "/apis/samples.narthex.dev/v1/bells");
    assert_eq!(run_curl_line(&again).await["items"].as_array().unwrap().len(), 3);
    assert_eq!(second.interrupt(), (Some(0), String::new()));
}
