//! Why an agent cannot connect is in one line of its log: what was refused, and what to do.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, SystemTime};

use narthex::tls::CertificateSpec;

use crate::konnectivity::fixture::{
    KonnectivityProcess, ServerProcess, agent_arguments, free_port, issue_agent, new_environment,
};
use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::fixtures::{CertKeyPair, TestEnvironment};

/// An agent that cannot connect.
struct Case {
    name: &'static str,
    host: &'static str,
    port: u16,
    /// Flags that replace those of [`agent_arguments`].
    flags: Vec<String>,
    /// What the line says, beside the address.
    words: Vec<String>,
}

impl Case {
    fn new(name: &'static str, host: &'static str, port: u16, flags: &[String], words: &[&str]) -> Case {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Case { name, host, port, flags: flags.to_vec(), words }
    }

    async fn check(&self, environment: &TestEnvironment) {
        let mut arguments = agent_arguments(environment, "a", self.host, self.port);
        arguments.extend(["--sync-interval=20ms".to_owned(), "--sync-interval-cap=20ms".to_owned()]);
        arguments.extend(self.flags.iter().cloned());
        let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
        command.args(arguments);
        let agent = KonnectivityProcess::spawn(command);
        const LINE: &str = "cannot connect to a Konnectivity server";
        let line = agent.wait_for_log(&[LINE]).await;
        println!("{}:\n  {line}", self.name);
        for word in &self.words {
            assert!(line.contains(word), "{}: {word:?} is not in {line}", self.name);
        }
        // One line, however often it tries: 20 ms apart.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let lines = agent.log_lines();
        let repeated: Vec<_> = lines.iter().filter(|line| line.contains(LINE)).collect();
        assert_eq!(repeated.len(), 1, "{}: {repeated:#?}", self.name);
    }
}

/// Answers each connection with a response without TLS.
fn start_plaintext_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread")]
async fn konnectivity_agent_errors_are_one_line_each() {
    let environment = new_environment();
    let at = ("0.0.0.0", free_port());
    let server = ServerProcess::start_at(&environment, "server", "http-connect", at, &[]).await;
    let port = server.agent_port;
    // A server whose certificate has expired.
    let expired = new_environment();
    let names = ["127.0.0.1".to_owned()];
    let mut spec = CertificateSpec::serving(&names);
    spec.days = 1;
    let then = SystemTime::now() - Duration::from_secs(864_000);
    expired.write_pair("konnectivity", &expired.serving_ca.issue(&spec, then).unwrap());
    let at = ("127.0.0.1", free_port());
    let expired_server = ServerProcess::start_at(&expired, "expired", "http-connect", at, &[]).await;
    // The clock of the agent, or of the server, is ten days behind.
    let early = new_environment();
    let later = SystemTime::now() + Duration::from_secs(864_000);
    early.write_pair("konnectivity", &early.serving_ca.issue(&spec, later).unwrap());
    let at = ("127.0.0.1", free_port());
    let early_server = ServerProcess::start_at(&early, "early", "http-connect", at, &[]).await;
    let early_agent = environment.client_ca.issue(&CertificateSpec::client("agent", &[]), later).unwrap();
    environment.write_pair("early", &early_agent);
    // An HTTP/2 server that is no Konnectivity server, and one without HTTP/2.
    let pair = CertKeyPair::from_files(&environment.path("konnectivity").display().to_string());
    let settings = |protocols: &[&'static str]| BackendSettings {
        protocols: protocols.to_vec(),
        pair: Some(pair.clone()),
        allows_anonymous: true,
        front_proxies: vec![environment.client_ca.certificate().clone()],
        handles_probes: true,
        ..BackendSettings::default()
    };
    let other = Backend::start(&environment, settings(&["h2"]), async |_| json_response(404, "{}")).await;
    let old = Backend::start(&environment, settings(&["http/1.1"]), async |_| json_response(404, "{}")).await;
    // A client certificate of another authority.
    environment.write_pair("stranger", &issue_agent(&environment.backend_ca));
    let file = |flag: &str, name: &str| format!("--{flag}={}", environment.path(name).display());
    let stranger = [file("agent-cert", "stranger.crt"), file("agent-key", "stranger.key")];
    let none = ["--agent-cert=".to_owned(), "--agent-key=".to_owned()];
    let early_pair = [file("agent-cert", "early.crt"), file("agent-key", "early.key")];
    let early_ca = format!("--ca-cert={}", early.path("serving-ca.crt").display());
    let expired_ca = format!("--ca-cert={}", expired.path("serving-ca.crt").display());
    let port_of = |backend: &Backend| backend.address.port();
    let cases = [
        Case::new(
            "wrong CA",
            "127.0.0.1",
            port,
            &[file("ca-cert", "backend-ca.crt")],
            &[
                "server certificate \"CN=localhost\" (serial ",
                "issued by \"CN=serving-ca\"",
                "backend-ca.crt",
                "--ca-cert",
            ],
        ),
        Case::new(
            "expired certificate",
            "127.0.0.1",
            expired_server.agent_port,
            &[expired_ca],
            &["server certificate \"CN=127.0.0.1\"", "expired on ", "--cluster-cert"],
        ),
        Case::new(
            "certificate not yet valid",
            "127.0.0.1",
            early_server.agent_port,
            &[early_ca],
            &["server certificate \"CN=127.0.0.1\"", "not valid before ", "check the clock of this machine"],
        ),
        Case::new(
            "client certificate not yet valid",
            "127.0.0.1",
            port,
            &early_pair,
            &["CertificateExpired", "early.crt", "clock"],
        ),
        Case::new(
            "name not in the certificate",
            "127.0.0.9",
            port,
            &[],
            &["it is for localhost, 127.0.0.1", "not for 127.0.0.9", "--proxy-server-host"],
        ),
        Case::new("refused connection", "127.0.0.1", free_port(), &[], &["Connection refused", "--proxy-server-port"]),
        Case::new("unresolvable name", "nowhere.invalid", port, &[], &["\"nowhere.invalid\"", "--proxy-server-host"]),
        Case::new("no TLS", "127.0.0.1", start_plaintext_server(), &[], &["without TLS", "--agent-port"]),
        Case::new("not gRPC", "127.0.0.1", port_of(&other), &[], &["HTTP status 404", "--agent-port"]),
        Case::new("no HTTP/2", "127.0.0.1", port_of(&old), &[], &["HTTP/2", "--agent-port"]),
        Case::new(
            "no client certificate",
            "127.0.0.1",
            port,
            &none,
            &["CertificateRequired", "set --agent-cert and --agent-key"],
        ),
        Case::new(
            "client certificate of another authority",
            "127.0.0.1",
            port,
            &stranger,
            &["UnknownCA", "stranger.crt", "--cluster-ca-cert"],
        ),
    ];
    for case in &cases {
        case.check(&environment).await;
    }
}
