//! `narthex quickstart`: gateway, sidecar and example API in one process on this machine.
//!
//! The example API is a plain HTTP server on a unix socket. A sidecar in front of it makes it an extension API server:
//! mutual TLS, trusting only the front proxy. The gateway is in front of the sidecar, and is an API server itself for a
//! custom resource.

pub mod example;
mod sample_resource;

use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::cli::{self, Command};
use super::gateway::{self, StartOptions};
use crate::config::{GatewayConfig, QuickstartConfig, sidecar};
use crate::observe::log;
use crate::process::{Drain, Problem, Problems, replace_file};
use crate::registry::MAX_SOCKET_PATH_BYTES;
use crate::tls::{self, CertificateKind, CertificateStore, GeneratedCertificates, ManagedCertificate};
use example::ExampleApi;
use sample_resource::create_sample_objects;

/// Namespace and name of the example's Service, also in its certificate.
const SERVICE: (&str, &str) = ("example", "example-api");
/// Timeout until the gateway serves the example's discovery, which usually takes milliseconds.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the quickstart. Exit status: 0 after Ctrl-C, 1 after a failed start.
pub(super) fn run(config: &QuickstartConfig) -> ExitCode {
    // Standard output has the instructions; the log shows warnings and errors only.
    let mut settings = config.log.clone();
    if settings.filter.is_none() && settings.level == "info" {
        settings.level = "warn".to_owned();
    }
    let level = match log::install(&settings) {
        Ok(level) => level,
        Err(problem) => return super::report_problems("quickstart", &problem.into()),
    };
    match start(config, level) {
        Ok(both) => both.gateway.run_until_interrupt(),
        Err(problems) => super::report_problems("quickstart", &problems),
    }
}

/// The running gateway and sidecar.
struct QuickstartHandle {
    gateway: gateway::GatewayHandle,
    /// Serves until the process ends.
    _sidecar: gateway::GatewayHandle,
}

fn start(config: &QuickstartConfig, level: log::LogLevel) -> Result<QuickstartHandle, Problems> {
    let data = std::path::absolute(&config.data_dir).map_err(|error| Problem::new(config.data_dir.display(), error))?;
    let (namespace, name) = SERVICE;
    let certificate = || ManagedCertificate::backend("example", &[format!("{name}.{namespace}.svc")]);
    let made = GeneratedCertificates::new(data.join("pki"), vec![ManagedCertificate::front_proxy(), certificate()]);
    let fresh = !made.ensure(SystemTime::now())?.is_empty();
    let store = made.store();

    let (listener, socket) = bind_example_socket(&data)?;
    serve_example(listener)?;
    let sidecar_config = sidecar_config(&data, &socket, store)?;
    let files = gateway::GatewayFiles::read(&sidecar_config)?;
    let sidecar = gateway::start(&sidecar_config, files, StartOptions::default(), level.clone())?;

    let registry = data.join("registry");
    let authority = store.authority_files(CertificateKind::Backend).certificate;
    write_registry(&registry, &authority, sidecar.address())?;

    let gateway_config = gateway_config(config, &data, &registry)?;
    let files = gateway::GatewayFiles::read(&gateway_config)?;
    let running = gateway::start(&gateway_config, files, StartOptions { certificates: vec![certificate()] }, level)?;
    // The printed commands must work at once.
    for (version, resource) in [("v1", "greetings"), ("v1alpha1", "doors")] {
        running.wait_until_served(("example.narthex.dev", version, resource), STARTUP_TIMEOUT);
    }
    create_sample_objects(&data.join("admin.kubeconfig"), STARTUP_TIMEOUT)?;
    print_instructions(&running, &data, fresh);
    Ok(QuickstartHandle { gateway: running, _sidecar: sidecar })
}

/// Binds the example's socket in a directory of mode 0700: the example trusts the identity headers of any client.
fn bind_example_socket(data: &Path) -> Result<(UnixListener, PathBuf), Problem> {
    let directory = data.join("run");
    let socket = directory.join("example.sock");
    let open = || {
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        // Remove the socket of an earlier process.
        match std::fs::remove_file(&socket) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        UnixListener::bind(&socket)
    };
    let listener = open().map_err(|error| {
        let too_long = socket.as_os_str().len() > MAX_SOCKET_PATH_BYTES;
        let advice = if too_long { ": choose a shorter --data-dir" } else { "" };
        Problem::new(socket.display(), format!("{error}{advice}"))
    })?;
    Ok((listener, socket))
}

/// The configuration of the sidecar in front of the example; its only client is the gateway, as front proxy.
fn sidecar_config(data: &Path, socket: &Path, store: &CertificateStore) -> Result<GatewayConfig, Problems> {
    let serving = store.files("example");
    let line = [
        "narthex".to_owned(),
        "sidecar".to_owned(),
        format!("--data-dir={}", data.display()),
        format!("--upstream=unix:{}", socket.display()),
        "--secure-listen-address=127.0.0.1:0".to_owned(),
        format!("--tls-cert-file={}", serving.certificate.display()),
        format!("--tls-private-key-file={}", serving.key.display()),
        format!(
            "--requestheader-client-ca-file={}",
            store.authority_files(CertificateKind::RequestHeader).certificate.display()
        ),
        format!("--requestheader-allowed-names={}", tls::FRONT_PROXY),
        "--authorization-mode=AlwaysAllow".to_owned(),
        "--admin-address=".to_owned(),
    ];
    parse_config(&line)
}

/// The configuration of the gateway, with the registry directory and a store of its own.
fn gateway_config(config: &QuickstartConfig, data: &Path, registry: &Path) -> Result<GatewayConfig, Problems> {
    let admin = config.admin_address.map(|address| address.to_string()).unwrap_or_default();
    let line = [
        "narthex".to_owned(),
        "gateway".to_owned(),
        format!("--data-dir={}", data.display()),
        format!("--registry-dir={}", registry.display()),
        "--embedded-api".to_owned(),
        // Not that of a gateway with the same data directory.
        format!("--store-file={}", data.join("quickstart.db").display()),
        format!("--secure-port={}", config.secure_port),
        format!("--admin-address={admin}"),
    ];
    parse_config(&line)
}

/// Parses a command line of the gateway or the sidecar, so that all defaults are the command's.
fn parse_config(line: &[String]) -> Result<GatewayConfig, Problems> {
    let wrong = |message: String| Problems::from(Problem::new("quickstart", message));
    let (config, mistakes) = match cli::parse(line).map_err(|error| wrong(error.to_string()))? {
        Command::Gateway(arguments) => arguments.read(&|_| None),
        Command::Sidecar(arguments) => arguments.read(sidecar::ProgramName::Narthex, &|_| None),
        _ => return Err(wrong("neither the gateway's flags nor the sidecar's".into())),
    };
    if mistakes.problems.0.is_empty() { Ok(config) } else { Err(mistakes.problems) }
}

/// Runs the example on its own thread; it ends with the process.
fn serve_example(listener: UnixListener) -> Result<(), Problem> {
    let wrong = |error: std::io::Error| Problem::new("the example API", error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(wrong)?;
    let serve = move || {
        // Held, so that the example never drains: Ctrl-C ends it at once.
        let (_drainer, drain) = Drain::new();
        if let Err(error) = runtime.block_on(example::serve(listener, ExampleApi::new(), drain)) {
            tracing::error!(%error, "the example API ended");
        }
    };
    std::thread::Builder::new().name("example".to_owned()).spawn(serve).map(|_| ()).map_err(wrong)
}

/// Writes the registry: two APIServices, their Service, and an EndpointSlice with the sidecar's address.
fn write_registry(directory: &Path, authority: &Path, address: SocketAddr) -> Result<(), Problem> {
    let (namespace, name) = SERVICE;
    let bundle = std::fs::read(authority).map_err(|error| Problem::new(authority.display(), error))?;
    let bundle = STANDARD.encode(bundle);
    let mut text = "# Rewritten by every start of narthex quickstart.\n".to_owned();
    for (version, priority) in [("v1", 15), ("v1alpha1", 5)] {
        text += &format!(
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata:\n  name: {version}.example.narthex.dev\n\
             spec:\n  group: example.narthex.dev\n  version: {version}\n  groupPriorityMinimum: 1000\n  \
             versionPriority: {priority}\n  service: {{namespace: {namespace}, name: {name}, port: 443}}\n  \
             caBundle: {bundle}\n---\n"
        );
    }
    text += &format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{namespace: {namespace}, name: {name}}}\n\
         spec:\n  ports: [{{name: https, port: 443}}]\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata:\n  namespace: {namespace}\n  name: {name}-1\n  labels: {{kubernetes.io/service-name: {name}}}\n\
         addressType: IPv4\nports: [{{name: https, port: {}}}]\nendpoints: [{{addresses: [\"{}\"]}}]\n",
        address.port(),
        address.ip()
    );
    let file = directory.join("example.yaml");
    std::fs::create_dir_all(directory).map_err(|error| Problem::new(directory.display(), error))?;
    replace_file(&file, text, 0o644)
}

/// Prints what was done and commands to try.
fn print_instructions(running: &gateway::GatewayHandle, data: &Path, fresh: bool) {
    let quoted = |path: PathBuf| shell_quote(&path.display().to_string());
    let kubeconfig = quoted(data.join("admin.kubeconfig"));
    let pki = |name: &str| quoted(data.join("pki").join(name));
    let made = if fresh { "Created" } else { "Found" };
    let mut text = format!(
        "{made} authorities, certificates and a kubeconfig in {}\n\
         The gateway listens on https://{}, in front of a sidecar and a small example API on a unix socket.\n\
         It has the CustomResourceDefinition bells.samples.narthex.dev itself.\n\nTry:\n",
        data.display(),
        running.address()
    );
    for what in [
        "get greetings",
        "get doors -o wide",
        "explain greetings.spec",
        "get bells",
        "get bells --field-selector spec.tone=c",
        "get bells.v1alpha1.samples.narthex.dev",
    ] {
        text += &format!("  kubectl --kubeconfig {kubeconfig} {what}\n");
    }
    text += &format!(
        "  curl --cacert {} --cert {} --key {} https://{}/apis/example.narthex.dev/v1/namespaces/default/greetings\n",
        pki("serving-ca.crt"),
        pki("admin.crt"),
        pki("admin.key"),
        running.address()
    );
    if let Some(admin) = running.admin_address() {
        text += &format!("\nStatus page: http://{admin}/\n");
    }
    text += "Ctrl-C ends it.\n";
    super::print(text.as_bytes());
}

/// Quotes a word for a POSIX shell, if necessary.
fn shell_quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_quote_special_characters() {
        assert_eq!(shell_quote("/home/jane/.local/state/narthex"), "/home/jane/.local/state/narthex");
        assert_eq!(shell_quote("/tmp/two words/it's"), r"'/tmp/two words/it'\''s'");
    }

    #[test]
    fn quickstart_registry_resolves_to_sidecar() {
        let folder = tempfile::tempdir().unwrap();
        let (_, issued) = tls::Authority::new("backend", SystemTime::now()).unwrap();
        let authority = folder.path().join("ca.crt");
        std::fs::write(&authority, issued.certificate).unwrap();
        let directory = folder.path().join("registry");
        write_registry(&directory, &authority, "127.0.0.1:4711".parse().unwrap()).unwrap();
        let settings = crate::registry::Settings { dir: directory, ..Default::default() };
        let registry = crate::registry::load_directory(&settings).unwrap();
        let all = registry.sorted_api_services();
        let names: Vec<_> = all.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["v1.example.narthex.dev", "v1alpha1.example.narthex.dev"]);
        let resolved = crate::registry::resolve(&all[0], &registry, Default::default(), &Default::default()).unwrap();
        assert_eq!(resolved.server_name, "example-api.example.svc");
        assert_eq!(resolved.endpoints[0].to_string(), "127.0.0.1:4711");
    }
}
