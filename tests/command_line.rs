//! The command line: output streams and exit codes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn narthex(line: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
    command.env_clear().env("HOME", env!("CARGO_TARGET_TMPDIR")).envs(environment.iter().copied());
    command.args(line).output().expect("the command starts")
}

fn exit_code(line: &[&str], environment: &[(&str, &str)]) -> i32 {
    narthex(line, environment).status.code().expect("the command ends by itself")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

#[test]
fn help_version_and_completion_printed_to_stdout() {
    for line in [&["--help"][..], &["--version"], &["gateway", "--help"], &["completion", "bash"]] {
        let output = narthex(line, &[]);
        assert_eq!(output.status.code(), Some(0), "{line:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{line:?}");
    }
    assert_eq!(text(&narthex(&["--version"], &[]).stdout), format!("narthex {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn manual_pages_are_accepted_by_mandoc() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("manual-pages");
    let _ = std::fs::remove_dir_all(&directory);
    let output = narthex(&["man", "--output-dir", directory.to_str().expect("UTF-8")], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let pages: Vec<_> =
        std::fs::read_dir(&directory).expect("pages").map(|page| page.expect("a page").path()).collect();
    assert!(pages.len() > 15, "{pages:?}");
    for page in [&["man"][..], &["man", "pki", "issue"]] {
        let name = page.join("-").replacen("man", "narthex", 1);
        let written = std::fs::read(directory.join(format!("{name}.1"))).expect("a page of this name");
        assert_eq!(narthex(page, &[]).stdout, written, "{name}");
    }
    assert_eq!(exit_code(&["man", "no", "such"], &[]), 1);
    // mandoc (Debian: mandoc) is not everywhere.
    match Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).args(&pages).output() {
        Ok(output) => {
            let found = text(&output.stdout);
            // A date would differ from build to build.
            let found: Vec<&str> = found.lines().filter(|line| !line.contains("missing date")).collect();
            assert!(found.is_empty(), "{found:#?}");
        }
        Err(_) => println!("mandoc is not installed: the pages are not checked"),
    }
}

#[test]
fn exit_code_2_for_invalid_command_line() {
    for line in [
        &[][..],
        &["no-such-command"],
        &["gateway", "--no-such-flag"],
        &["check", "gateway", "--anonymous-auth", "false"],
        &["completion", "tcsh"],
    ] {
        let output = narthex(line, &[]);
        assert_eq!(output.status.code(), Some(2), "{line:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{line:?}");
    }
    let suggestion = text(&narthex(&["gateway", "--registry-dri=x"], &[]).stderr);
    assert!(suggestion.contains("--registry-dir"), "{suggestion}");
}

#[test]
fn exit_code_1_for_invalid_configuration_with_all_errors() {
    let line = [
        "check",
        "gateway",
        "--tls-min-version=VersionTLS10",
        "--tracing-config-file=/nowhere/tracing.yaml",
        "--registry-dir=/nowhere",
    ];
    let output = narthex(&line, &[("NARTHEX_GOAWAY_CHANCE", "1")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let errors = text(&output.stderr);
    for word in ["VersionTLS13", "/nowhere/tracing.yaml: ", "/nowhere", "NARTHEX_GOAWAY_CHANCE: 1 is not"] {
        assert!(errors.contains(word), "{word} is missing:\n{errors}");
    }
    // Wherever a value stands, what is wrong with it is the same.
    for line in [&["check", "gateway", "--secure-port=http"][..], &["check", "gateway", "--handshake-timeout=5"]] {
        assert_eq!(exit_code(line, &[]), 1, "{line:?}");
    }
    assert_eq!(exit_code(&["check", "gateway"], &[("NARTHEX_SECURE_PORT", "http")]), 1);
}

/// A finding is followed by the section of the documents about it, once.
#[test]
fn check_names_the_section_about_a_finding() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        let text = format!(
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: v1.{name}.example.com}}\nspec: {{group: \
             {name}.example.com, version: v1, groupPriorityMinimum: 1, versionPriority: 1, service: {{name: api, namespace: ns}}}}\n"
        );
        std::fs::write(folder.path().join(format!("{name}.yaml")), text).unwrap();
    }
    let output = narthex(&["check", "gateway", &format!("--registry-dir={}", folder.path().display())], &[]);
    let errors = text(&output.stderr);
    assert_eq!(errors.matches("ServiceNotFound").count(), 2, "{errors}");
    let links: Vec<&str> = errors.lines().filter(|line| line.starts_with("narthex: see ")).collect();
    assert_eq!(links, ["narthex: see narthex help troubleshooting service-not-resolved"], "{errors}");
}

#[test]
fn exit_code_0_for_valid_configuration() {
    let output = narthex(&["check", "gateway", "--secure-port=1", "--secure-port=2", "--anonymous-auth=false"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "gateway: no mistakes found\n");
}

/// kube-apiserver's 37 files, as k8s.io/apiserver 0.36.3 takes and refuses them.
#[test]
fn egress_selector_configuration_accepted_and_refused_as_kube_apiserver() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/egress_config");
    let expected = std::fs::read_to_string(format!("{folder}/expected.json")).unwrap();
    let expected: std::collections::BTreeMap<String, String> = serde_json::from_str(&expected).unwrap();
    assert_eq!(expected.len(), 37);
    for (name, expected) in expected {
        let output = narthex(&["check", "gateway", &format!("--egress-selector-config-file={folder}/{name}")], &[]);
        let errors = text(&output.stderr);
        if expected == "ok" {
            assert_eq!(output.status.code(), Some(0), "{name}: {errors}");
            continue;
        }
        assert_eq!(output.status.code(), Some(1), "{name}: {errors}");
        let (phase, message) = expected.split_once(": ").unwrap();
        let phase = match phase {
            "read" => "failed to read egress selector config",
            _ => "failed to validate egress selector configuration",
        };
        // What follows names the program that refuses.
        let message = message.split(" in scheme ").next().unwrap();
        // There paths are relative to the working directory, here to the file.
        let message = message.replace("\"run/", &format!("\"{folder}/run/"));
        assert!(errors.contains(&format!("{folder}/{name}: {phase}: {message}")), "{name}: {errors}");
    }
}

/// Authorization files of kube-rbac-proxy, each wrong in one field, and what is said of it.
#[test]
fn rbac_proxy_config_file_errors_reported() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rbac_proxy_config");
    let expected = std::fs::read_to_string(format!("{folder}/expected.json")).unwrap();
    let expected: std::collections::BTreeMap<String, Vec<String>> = serde_json::from_str(&expected).unwrap();
    let files = std::fs::read_dir(folder).unwrap().flatten().filter(|file| file.path().extension().is_some());
    // Beside them this list and its description.
    assert_eq!(files.count(), expected.len() + 2, "each file stands in the list");
    for (name, expected) in expected {
        let (error_text, status) = checked_as_kube_rbac_proxy(&[&format!("--config-file={folder}/{name}")]);
        let error_text: Vec<_> = error_text
            .iter()
            .map(|line| line.replace("--config-file ", "").replace(&format!("{folder}/{name}: "), ""))
            .collect();
        let wrong = expected.iter().any(|line| !line.starts_with("narthex: warning: "));
        assert_eq!((error_text, status), (expected.clone(), i32::from(wrong)), "{name}");
    }
    let sample = concat!("--config-file=", env!("CARGO_MANIFEST_DIR"), "/deploy/sidecar/rules.yaml");
    assert_eq!(checked_as_kube_rbac_proxy(&[sample]), (Vec::new(), 0));
}

/// What is said, line by line, and the exit status, beside flags that are right.
fn checked_as_kube_rbac_proxy(flags: &[&str]) -> (Vec<String>, i32) {
    let right = ["--secure-listen-address=127.0.0.1:8443", "--upstream=http://127.0.0.1:8080/"];
    let kubeconfig = concat!("--kubeconfig=", env!("CARGO_MANIFEST_DIR"), "/tests/rbac_proxy_config/kubeconfig");
    let line: Vec<&str> = ["check", "kube-rbac-proxy", kubeconfig].iter().chain(&right).chain(flags).copied().collect();
    let output = narthex(&line, &[]);
    let error_text = text(&output.stderr);
    // One problem stands behind the name of the role, several below their number.
    let error_text = error_text.lines().filter(|line| !line.ends_with(" problems"));
    let error_text =
        error_text.map(|line| line.trim_start_matches("narthex kube-rbac-proxy: ").trim_start().to_owned());
    (error_text.collect(), output.status.code().expect("an exit status"))
}

#[test]
fn rbac_proxy_flags_checked() {
    assert_eq!(checked_as_kube_rbac_proxy(&["--oidc-issuer=https://a", "--oidc-clientID=b"]), (vec![], 0));
    let (error_text, status) = checked_as_kube_rbac_proxy(&[
        "--oidc-issuer=http://a",
        "--oidc-sign-alg=HS256",
        "--token-auth-file=/nowhere/tokens.csv",
        "--proxy-endpoints-port=8443",
        "--insecure-listen-address=:8080",
        "--allow-paths=[",
        "--ignore-paths=/x",
        "--auth-header-user-field-name=a b",
        "--auth-token-audiences=a",
        "--http2-max-size=many",
        "--upstream-client-cert-file=/nowhere/a.crt",
        "--config-file=/nowhere/config.yaml",
        "--authorization-config=/nowhere/authorization.yaml",
        "--client-ca-file=/nowhere/ca.crt",
    ]);
    let expected = [
        "--token-auth-file: cannot be given together with --oidc-issuer, which is the only authenticator then",
        "--config-file: cannot be given together with --authorization-config",
        "--proxy-endpoints-port: must differ from the port of --secure-listen-address",
        "--insecure-listen-address: tokens would be sent in the clear",
        "--allow-paths: \"[\" is not a path pattern",
        "--ignore-paths: cannot be given together with --allow-paths",
        "--auth-header-user-field-name: \"a b\": not a valid header name",
        "--http2-max-size: \"many\": use a whole number",
        "--upstream-client-cert-file: /nowhere/a.crt needs its key",
        "--oidc-issuer: URL scheme must be https",
        "--oidc-clientID: required with --oidc-issuer",
        "--oidc-sign-alg: \"HS256\" is not an asymmetric algorithm",
        "warning: --auth-token-audiences: not used with --oidc-issuer",
        "warning: --client-ca-file: not used with --oidc-issuer",
        "/nowhere/authorization.yaml",
    ];
    for words in expected {
        assert!(error_text.iter().any(|line| line.contains(words)), "{words} is missing:\n{}", error_text.join("\n"));
    }
    assert_eq!(status, 1);
    let (error_text, status) = checked_as_kube_rbac_proxy(&["--secure-listen-address=[127.0.0.1:8443"]);
    assert_eq!((error_text.len(), status), (1, 1), "{error_text:?}");
    assert!(
        error_text[0].contains("--secure-listen-address: \"[127.0.0.1:8443\": missing ']' in address"),
        "{error_text:?}"
    );
    // Without a place to serve at nothing is served, as there.
    let output = narthex(&["check", "kube-rbac-proxy", "--upstream=http://127.0.0.1:1", "--kubeconfig=/nowhere"], &[]);
    assert!(text(&output.stderr).contains("--secure-listen-address: required"), "{}", text(&output.stderr));
}

/// They would take the message apart, or say what somebody else says under them.
#[test]
fn identity_header_names_reserved_by_http_refused() {
    let reserved = [
        "content-length",
        "connection",
        "Transfer_Encoding",
        "host",
        "te",
        "upgrade",
        "authorization",
        "sec-websocket-protocol",
        "impersonate-user",
        "x-forwarded-for",
        "audit-id",
    ];
    for name in reserved {
        for flag in ["--auth-header-user-field-name", "--auth-header-groups-field-name"] {
            let (error_text, status) = checked_as_kube_rbac_proxy(&[&format!("{flag}={name}")]);
            assert!(error_text.len() == 1 && error_text[0].contains(&format!("{flag}: {name:?}: ")), "{error_text:?}");
            assert_eq!(status, 1);
        }
        for flag in ["username-headers", "uid-headers", "group-headers", "extra-headers-prefix"] {
            let output = narthex(&["check", "gateway", &format!("--requestheader-{flag}=X-Remote-A,{name}")], &[]);
            let error_text = text(&output.stderr);
            assert!(error_text.contains(&format!("--requestheader-{flag}: {name:?} ")), "{flag}: {error_text}");
            assert_ne!(output.status.code(), Some(0));
        }
    }
    for (flag, name) in
        [("--auth-header-user-field-name", "X-Forwarded-User"), ("--auth-header-groups-field-name", "X-Teams")]
    {
        assert_eq!(checked_as_kube_rbac_proxy(&[&format!("{flag}={name}")]), (vec![], 0));
    }
    let (error_text, _) = checked_as_kube_rbac_proxy(&["--auth-header-user-field-name=cookie"]);
    assert!(error_text[0].contains("--auth-header-user-field-name: \"cookie\": "), "{error_text:?}");
    let output = narthex(&["check", "gateway", "--requestheader-extra-headers-prefix=content-"], &[]);
    assert!(text(&output.stderr).contains("--requestheader-extra-headers-prefix: \"content-\" "));
}

/// A gateway with a store, whose log has been read up to its last line about the start.
struct StoreGateway {
    process: Child,
    log: BufReader<std::process::ChildStderr>,
}

impl StoreGateway {
    fn start(data: &Path) -> StoreGateway {
        let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
        command.args(["gateway", "--data-dir"]).arg(data).args(["--secure-port=0", "--admin-address=127.0.0.1:0"]);
        let mut process = command.stderr(Stdio::piped()).spawn().expect("the gateway starts");
        let mut log = BufReader::new(process.stderr.take().expect("a pipe"));
        let mut line = String::new();
        while !line.contains("objects are stored") {
            line.clear();
            assert!(log.read_line(&mut line).expect("text") > 0, "the gateway has ended");
        }
        StoreGateway { process, log }
    }

    /// Ends it in order; returns the rest of its log.
    fn stop(mut self) -> String {
        let id = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("it runs");
        let mut rest = String::new();
        self.log.read_to_string(&mut rest).expect("text");
        assert!(self.process.wait().expect("it ends").success(), "{rest}");
        rest
    }
}

#[test]
fn failed_second_start_writes_no_file_and_orderly_stop_warns_of_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let gateway = StoreGateway::start(folder.path());
    let files = || {
        let mut found = Vec::new();
        for entry in
            std::fs::read_dir(folder.path()).unwrap().chain(std::fs::read_dir(folder.path().join("pki")).unwrap())
        {
            let path = entry.unwrap().path();
            if path.is_file() && !path.to_string_lossy().contains("store.db") {
                found.push((path.clone(), std::fs::read(path).unwrap()));
            }
        }
        found.sort();
        found
    };
    let before = files();
    assert!(before.iter().any(|(path, _)| path.ends_with("admin.kubeconfig")), "{before:?}");
    let data = folder.path().to_str().expect("UTF-8");
    let second = ["gateway", "--data-dir", data, "--secure-port=0", "--admin-address=127.0.0.1:0"];
    let output = narthex(&second, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(&format!("is in use by process {}", gateway.process.id())));
    assert!(files() == before, "a file was written");
    let rest = gateway.stop();
    let warnings: Vec<&str> = rest.lines().filter(|line| line.contains(" WARN ") || line.contains("ERROR")).collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
}

#[test]
fn store_backup_verify_and_check_of_damaged_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let gateway = StoreGateway::start(folder.path());
    let output = narthex(&["store", "backup", "--data-dir", &path(""), &path("backup.db")], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("namespaces                          4\n"), "{}", text(&output.stdout));
    std::fs::copy(path("store.db"), path("copy.db")).unwrap();
    gateway.stop();
    for line in [&["store", "verify", &path("backup.db")][..], &["store", "verify", "--store-file", &path("store.db")]]
    {
        let output = narthex(line, &[]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains(": no damage found\nrevision "), "{}", text(&output.stdout));
    }
    assert_eq!(exit_code(&["check", "gateway", "--store-file", &path("backup.db")], &[]), 0);
    // A value of a row, which SQLite itself does not miss.
    let mut bytes = std::fs::read(path("store.db")).unwrap();
    let name = b"kube-node-lease\"";
    let places: Vec<usize> =
        bytes.windows(name.len()).enumerate().filter(|(_, part)| part == name).map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    places.into_iter().for_each(|at| bytes[at] = b'K');
    std::fs::write(path("damaged.db"), bytes).unwrap();
    for (name, words) in [("damaged.db", "the row does not match its checksum"), ("copy.db", "without its log")] {
        for line in [&["check", "gateway", "--store-file", &path(name)][..], &["store", "verify", &path(name)]] {
            let output = narthex(line, &[]);
            let errors = text(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{line:?}: {errors}");
            assert!(
                errors.contains(words) && errors.contains("see narthex help store-backup after-damage"),
                "{errors}"
            );
        }
    }
}

#[test]
fn help_prints_commands_pages_and_sections() {
    let help = |line: &[&str]| text(&narthex(line, &[]).stdout);
    assert_eq!(help(&["help", "pki", "issue"]), help(&["pki", "issue", "--help"]));
    assert!(help(&["help"]).contains("quickstart"));
    assert!(help(&["help", "troubleshooting"]).starts_with("# Troubleshooting\n"));
    let section = help(&["help", "store-backup", "after-damage"]);
    assert!(section.starts_with("## After damage\n") && !section.contains("## Upgrade"), "{section}");
    let unknown = narthex(&["help", "moon"], &[]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(text(&unknown.stderr).contains("store-backup, store-file, troubleshooting"), "{}", text(&unknown.stderr));
}

#[test]
fn status_wait_fails_when_nothing_answers() {
    let output = narthex(&["status", "--wait=10ms", "--admin-address=127.0.0.1:1"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("not ready within 10ms: cannot connect"), "{}", text(&output.stderr));
    assert_eq!(exit_code(&["status", "--wait=soon"], &[]), 2);
}

/// A process that ends with the test.
struct KilledChild(Child);

impl Drop for KilledChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The answer of an HTTP server; none until it listens.
fn http_get(port: u16, path: &str) -> Option<String> {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn envtest_programs_find_each_other() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("envtest");
    let _ = std::fs::remove_dir_all(&directory);
    let assets = directory.join("assets");
    let output = narthex(&["envtest", "assets", "--dir", assets.to_str().expect("UTF-8")], &[]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), format!("{}\n", assets.display())));
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let url = format!("http://127.0.0.1:{port}");
    let data = directory.join("data");
    let etcd = Command::new(assets.join("etcd"))
        .env_clear()
        .args([&format!("--data-dir={}", data.display()), &format!("--listen-client-urls={url}")])
        .args([
            &format!("--advertise-client-urls={url}"),
            "--listen-peer-urls=http://localhost:0",
            "--unsafe-no-fsync=true",
        ])
        .spawn();
    let mut etcd = KilledChild(etcd.expect("etcd starts"));
    let answer = (0..1_000).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        http_get(port, "/health")
    });
    let answer = answer.expect("etcd listens");
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("{\"health\":\"true\",\"reason\":\"\"}"),
        "{answer}"
    );
    // As another etcd at the same address.
    let certificates = directory.join("certificates");
    std::fs::create_dir_all(&certificates).expect("a directory");
    for file in ["apiserver.crt", "apiserver.key"] {
        std::fs::write(certificates.join(file), "no PEM").expect("a file");
    }
    let start = |more: &[&str]| {
        let certificates = format!("--cert-dir={}", certificates.display());
        let line = [&["--etcd-servers", &url, "--secure-port=0", "--bind-address=127.0.0.1", &certificates][..], more];
        let output = Command::new(assets.join("kube-apiserver")).env_clear().args(line.concat()).output();
        let output = output.expect("kube-apiserver starts");
        (output.status.code(), text(&output.stderr))
    };
    // What it does not accept is named, with the file or flag. The store would be where etcd's data is.
    let (status, errors) = start(&["--profiling"]);
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("apiserver.crt") && errors.contains("without an effect here: --profiling"), "{errors}");
    let (status, errors) = start(&["--no-such-flag"]);
    assert_eq!((status, errors.contains("unknown flag: --no-such-flag")), (Some(1), true), "{errors}");
    let ended = Command::new("kill").args(["-TERM", &etcd.0.id().to_string()]).status();
    assert!(ended.expect("kill").success());
    assert_eq!(etcd.0.wait().expect("etcd ends").code(), Some(0));
    assert!(data.is_dir());
}
