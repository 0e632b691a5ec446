//! The program `kube-apiserver`: the flags of kube-apiserver as those of a gateway with the embedded API server.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::etcd::{STORE_PATH, StoreLocation, resolve};
use super::flags::parse_flags;
use crate::commands::cli::{self, Command};
use crate::commands::envtest_assets::KUBE_APISERVER;
use crate::commands::{gateway, report_problems};
use crate::config::{CommandFlags as _, GatewayCommand, environment};
use crate::process::Problem;

/// Names of kube-apiserver's flags (1.36.3), each with `bool` if it needs no value.
const FLAGS: &str = include_str!("kube_apiserver_flags.txt");

/// Flags that envtest always passes, and that change nothing here: nothing is said of them.
const QUIET: [&str; 1] = ["allow-privileged"];

/// Environment variable with the controllers that run: as of `--controllers`, by default none, as without a
/// kube-controller-manager.
const CONTROLLERS: &str = "NARTHEX_CONTROLLERS";

/// How long the etcd of `--etcd-servers` may take until it answers, as in envtest.
const ETCD_TIMEOUT: Duration = Duration::from_secs(20);

/// Pause between two attempts.
const ETCD_PAUSE: Duration = Duration::from_millis(20);

/// Maximum size of an answer.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

pub(super) const HELP: &str = "\
narthex in place of kube-apiserver, for tests: a gateway with the embedded API server, without other programs.

Usage: kube-apiserver --etcd-servers URL [OPTIONS]

All flags of kube-apiserver 1.36 are accepted. Those that mean the same to narthex have their effect (see `narthex gateway
--help`). The log says which others were given. The store is in the data directory of narthex in place of etcd.
";

/// A command line of kube-apiserver as one of the gateway.
#[derive(Debug, Default)]
struct GatewayFlags {
    etcd_servers: Vec<String>,
    /// Words of the gateway's command line.
    words: Vec<String>,
    /// Flags without an effect.
    unused: BTreeSet<String>,
}

/// Runs the gateway. Exit status: as of `narthex gateway`.
pub(super) fn run(words: Vec<OsString>) -> ExitCode {
    match gateway_command(words) {
        Ok(Command::Gateway(arguments)) => {
            let (config, mistakes) = arguments.read(&environment);
            gateway::run(&config, mistakes, KUBE_APISERVER)
        }
        Ok(_) => ExitCode::FAILURE,
        Err(problem) => report_problems(KUBE_APISERVER, &problem.into()),
    }
}

fn gateway_command(words: Vec<OsString>) -> Result<Command, Problem> {
    let flags = GatewayFlags::read(words).map_err(|why| Problem::new("command line", why))?;
    let data_dir = find_store(&flags.etcd_servers).map_err(|why| Problem::new("--etcd-servers", why))?;
    if !flags.unused.is_empty() {
        let names: Vec<&str> = flags.unused.iter().map(String::as_str).collect();
        eprintln!("narthex: warning: flags of kube-apiserver without an effect here: --{}", names.join(", --"));
    }
    let own = [
        "narthex".to_owned(),
        "gateway".to_owned(),
        "--embedded-api".to_owned(),
        "--unsafe-no-fsync".to_owned(),
        "--allow-unenforced-rules".to_owned(),
        "--unenforced-warnings=false".to_owned(),
        // Several of these run at a time.
        "--admin-address=".to_owned(),
        format!("--controllers={}", std::env::var(CONTROLLERS).unwrap_or_default()),
        format!("--data-dir={}", data_dir.join("narthex").display()),
    ];
    cli::parse(own.into_iter().chain(flags.words)).map_err(|error| Problem::new("command line", error))
}

impl GatewayFlags {
    /// # Errors
    /// For a flag that kube-apiserver does not have, or without its value.
    fn read(words: Vec<OsString>) -> Result<GatewayFlags, String> {
        let known = |name: &str| {
            let mut lines = FLAGS.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(flag, _)| *flag == name).map(|(_, kind)| kind == "bool")
        };
        let mut read = GatewayFlags::default();
        let (mut certificate_directory, mut has_certificate, mut runtime_config) = (None, false, Vec::new());
        let (mut has_anonymous, mut has_collector) = (false, "true".to_owned());
        for (name, value) in parse_flags(words, known)? {
            match name.as_str() {
                // As in kube-apiserver, whose default is true.
                "enable-garbage-collector" => has_collector = value,
                "etcd-servers" => read.etcd_servers.extend(value.split(',').map(str::to_owned)),
                "cert-dir" => certificate_directory = Some(PathBuf::from(value)),
                "runtime-config" => runtime_config.push(value),
                "authorization-mode" => {
                    // Nodes have no identity here.
                    let modes: Vec<&str> = value.split(',').filter(|mode| *mode != "Node").collect();
                    read.words.push(format!("--authorization-mode={}", modes.join(",")));
                }
                // There is no etcd.
                name if name.starts_with("etcd-") => drop(read.unused.insert(name.to_owned())),
                name if is_gateway_flag(name) => {
                    has_certificate |= name == "tls-cert-file";
                    has_anonymous |= name == "anonymous-auth";
                    read.words.push(format!("--{name}={value}"));
                }
                name if QUIET.contains(&name) => {}
                _ => {
                    read.unused.insert(name);
                }
            }
        }
        if !runtime_config.is_empty() {
            read.words.push(format!("--runtime-config={}", runtime_config.join(",")));
        }
        read.words.push(format!("--enable-garbage-collector={has_collector}"));
        if !has_anonymous {
            read.words.push("--anonymous-auth=true".to_owned());
        }
        if let Some(directory) = certificate_directory {
            read.add_certificate(&directory, has_certificate);
        }
        Ok(read)
    }

    /// As kube-apiserver: the files of this name are used if they are there, and made if not.
    fn add_certificate(&mut self, directory: &Path, has_certificate: bool) {
        let (certificate, key) = (directory.join("apiserver.crt"), directory.join("apiserver.key"));
        if has_certificate || !certificate.exists() && !key.exists() {
            return self.words.push(format!("--cert-dir={}", directory.display()));
        }
        self.words.push(format!("--tls-cert-file={}", certificate.display()));
        self.words.push(format!("--tls-private-key-file={}", key.display()));
    }
}

/// Whether a gateway has a flag of kube-apiserver: those of the same name mean the same.
fn is_gateway_flag(name: &str) -> bool {
    GatewayCommand::FLAGS.iter().flat_map(|group| group.flags).any(|flag| flag.name == name)
}

/// Asks the first etcd that answers where the store is.
///
/// # Errors
/// None answers, or it is a real etcd.
fn find_store(servers: &[String]) -> Result<PathBuf, String> {
    let mut addresses = Vec::new();
    for server in servers {
        addresses.extend(resolve(server)?);
    }
    if addresses.is_empty() {
        return Err("is required: the URL of narthex in place of etcd".to_owned());
    }
    let until = Instant::now() + ETCD_TIMEOUT;
    loop {
        let mut failure = String::new();
        for address in &addresses {
            match ask_for_store(*address) {
                Ok(Some(location)) => return Ok(location.data_dir),
                Ok(None) => {
                    return Err(format!(
                        "{address} is not narthex in place of etcd: start this program by the name etcd, too \
                         (narthex envtest assets); objects in an etcd are not supported"
                    ));
                }
                Err(error) => failure = format!("{address}: {error}"),
            }
        }
        if Instant::now() >= until {
            return Err(format!("{failure} (for {} s)", ETCD_TIMEOUT.as_secs()));
        }
        std::thread::sleep(ETCD_PAUSE);
    }
}

/// None if another program answers.
fn ask_for_store(address: SocketAddr) -> std::io::Result<Option<StoreLocation>> {
    let timeout = Some(Duration::from_secs(2));
    // An etcd for all addresses is reached by that of the loopback interface.
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
    stream.set_read_timeout(timeout)?;
    stream.set_write_timeout(timeout)?;
    stream
        .write_all(format!("GET {STORE_PATH} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer)?;
    let body = answer.windows(4).position(|four| four == b"\r\n\r\n").map(|end| &answer[end + 4..]);
    let is_ok = answer.starts_with(b"HTTP/1.1 200 ");
    Ok(body.filter(|_| is_ok).and_then(|body| serde_json::from_slice(body).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &[&str]) -> Result<GatewayFlags, String> {
        GatewayFlags::read(line.iter().map(OsString::from).collect())
    }

    #[test]
    fn kube_apiserver_reads_what_envtest_passes() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().display();
        let line = [
            "--allow-privileged=true",
            "--authorization-mode=RBAC",
            "--bind-address=127.0.0.1",
            &format!("--cert-dir={directory}"),
            &format!("--client-ca-file={directory}/client-cert-auth-ca.crt"),
            "--disable-admission-plugins=ServiceAccount",
            "--etcd-servers=http://127.0.0.1:1",
            "--secure-port=2",
            "--service-account-issuer=https://127.0.0.1:2/",
            &format!("--service-account-key-file={directory}/sa-signer.crt"),
            &format!("--service-account-signing-key-file={directory}/sa-signer.key"),
            "--service-cluster-ip-range=10.0.0.0/24",
        ];
        let expected = [
            "--authorization-mode=RBAC".to_owned(),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--client-ca-file={directory}/client-cert-auth-ca.crt"),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--secure-port=2".to_owned(),
            "--service-account-issuer=https://127.0.0.1:2/".to_owned(),
            format!("--service-account-key-file={directory}/sa-signer.crt"),
            format!("--service-account-signing-key-file={directory}/sa-signer.key"),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            "--enable-garbage-collector=true".to_owned(),
            "--anonymous-auth=true".to_owned(),
        ];
        let flags = read(&line).unwrap();
        assert_eq!(flags.words[..11], expected);
        assert_eq!(flags.words[11..], [format!("--cert-dir={directory}")]);
        assert_eq!((flags.etcd_servers, flags.unused), (vec!["http://127.0.0.1:1".to_owned()], BTreeSet::new()));
        std::fs::write(scratch.path().join("apiserver.crt"), "").unwrap();
        let certificate = [("tls-cert-file", "crt"), ("tls-private-key-file", "key")]
            .map(|(flag, end)| format!("--{flag}={directory}/apiserver.{end}"));
        assert_eq!(read(&line).unwrap().words[11..], certificate);
    }

    #[test]
    fn kube_apiserver_flags_without_effect_are_named() {
        let line = ["--etcd-cafile", "f", "--profiling", "--feature_gates=A=true", "--anonymous-auth=false"];
        let flags =
            read(&[&line[..], &["--authorization-mode=Node,RBAC", "--runtime-config=v1/pods=true"]].concat()).unwrap();
        assert_eq!(flags.unused.into_iter().collect::<Vec<_>>(), ["etcd-cafile", "feature-gates", "profiling"]);
        let expected = [
            "--anonymous-auth=false",
            "--authorization-mode=RBAC",
            "--runtime-config=v1/pods=true",
            "--enable-garbage-collector=true",
        ];
        assert_eq!(flags.words, expected);
        assert_eq!(read(&["--etcd-server=x"]).unwrap_err(), "unknown flag: --etcd-server");
        assert!(find_store(&[]).unwrap_err().starts_with("is required"));
    }

    #[test]
    fn kube_apiserver_flags_are_those_of_the_list() {
        let known: BTreeSet<&str> =
            FLAGS.lines().filter_map(|line| line.split_once(' ')).map(|(name, _)| name).collect();
        assert_eq!(known.len(), FLAGS.lines().count());
        for name in QUIET {
            assert!(known.contains(name) && !is_gateway_flag(name), "{name}");
        }
        let same: Vec<&str> = known.into_iter().filter(|name| is_gateway_flag(name)).collect();
        assert!(same.len() > 60 && same.contains(&"tls-sni-cert-key") && same.contains(&"audit-log-path"), "{same:?}");
    }

    #[test]
    fn another_program_in_place_of_etcd_is_refused() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n404 page not found").unwrap();
        });
        let error = find_store(&[format!("http://{address}")]).unwrap_err();
        server.join().unwrap();
        assert!(error.contains("is not narthex in place of etcd"), "{error}");
    }
}
