//! `narthex kubeconfig`: kubeconfigs for users of an embedded API server, by kubeadm's command and flags
//! (`cmd/kubeadm/app/cmd/kubeconfig.go`).

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use jiff::SignedDuration;
use serde_json::Value;

use super::{print, report_problems};
use crate::config::default_data_dir;
use crate::process::{Problem, read_text_file};
use crate::tls::{CertificateKind, CertificateSpec, CertificateStore, kubeconfig_text};

/// The maximum size of a kubeconfig.
const MAX_KUBECONFIG_BYTES: u64 = 1 << 20;

/// The subcommands of `narthex kubeconfig`.
#[derive(Clone, Debug, Subcommand)]
pub enum KubeconfigTask {
    /// Print a kubeconfig for one more user, with a certificate of the gateway's own authority, or a token
    User(UserOptions),
}

/// Options of `kubeconfig user`.
#[derive(Clone, Debug, Args)]
pub struct UserOptions {
    /// Data directory of the gateway, with admin.kubeconfig (default $XDG_STATE_HOME/narthex, else ~/.local/state/narthex)
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Name of the user
    #[arg(long, value_name = "NAME")]
    pub client_name: String,
    /// Group of the user (repeatable)
    #[arg(long = "org", value_name = "GROUP")]
    pub organizations: Vec<String>,
    /// Token to use instead of a certificate
    #[arg(long, value_name = "STRING", conflicts_with_all = ["organizations", "validity_period"])]
    pub token: Option<String>,
    /// Validity of the certificate, in whole days
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = parse_days)]
    pub validity_period: u32,
    /// URL of the gateway for the user (default: that of admin.kubeconfig)
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
}

/// Runs a subcommand.
pub(super) fn run(task: &KubeconfigTask) -> ExitCode {
    let KubeconfigTask::User(options) = task;
    match user_kubeconfig(options, SystemTime::now()) {
        Ok(text) => print(text.as_bytes()),
        Err(problem) => report_problems("kubeconfig user", &problem.into()),
    }
}

/// Reads a duration such as `720h` as a number of days.
fn parse_days(text: &str) -> Result<u32, String> {
    const DAY: i64 = 24 * 60 * 60;
    let duration: SignedDuration = text.parse().map_err(|_| format!("{text:?} is not a duration such as 720h"))?;
    let seconds = duration.as_secs();
    match u32::try_from(seconds / DAY) {
        Ok(days @ 1..=36_500) if duration == SignedDuration::from_secs(i64::from(days) * DAY) => Ok(days),
        _ => Err("must be whole days, from 24h to 876000h".to_owned()),
    }
}

/// The kubeconfig of a new user. Nothing is written.
fn user_kubeconfig(options: &UserOptions, now: SystemTime) -> Result<String, Problem> {
    let name = options.client_name.as_str();
    if name.is_empty() {
        return Err(Problem::new("--client-name", "must not be empty"));
    }
    let data_dir = options.data_dir.clone().or_else(|| default_data_dir(&crate::config::environment));
    let data_dir = data_dir
        .ok_or_else(|| Problem::new("--data-dir", "required, because neither XDG_STATE_HOME nor HOME is set"))?;
    let (own_server, authority) = read_cluster(&data_dir.join("admin.kubeconfig"))?;
    let server = options.server.as_ref().unwrap_or(&own_server);
    let quoted = |text: &str| Value::from(text).to_string();
    let credentials = match &options.token {
        Some(token) => format!("    token: {}\n", quoted(token)),
        None => {
            let groups: Vec<&str> = options.organizations.iter().map(String::as_str).collect();
            let spec = CertificateSpec { days: options.validity_period, ..CertificateSpec::client(name, &groups) };
            let store = CertificateStore::new(data_dir.join("pki"));
            let issued = store.load_authority(CertificateKind::Client)?.issue(&spec, now)?;
            let (certificate, key) = (STANDARD.encode(&issued.certificate), STANDARD.encode(&issued.key));
            format!("    client-certificate-data: {certificate}\n    client-key-data: {key}\n")
        }
    };
    Ok(kubeconfig_text(server, &authority, name, &credentials))
}

/// Server and authority, as base64, of the kubeconfig that the gateway wrote.
fn read_cluster(path: &std::path::Path) -> Result<(String, String), Problem> {
    let text = read_text_file(path, MAX_KUBECONFIG_BYTES).map_err(|problem| {
        let advice = "narthex gateway writes it when it makes its own certificates: name its --data-dir";
        Problem::new(path.display(), format_args!("{}; {advice}", problem.message))
    })?;
    let wrong = || Problem::new(path.display(), "has no cluster with server and certificate-authority-data");
    let config: Value = serde_saphyr::from_str(&text).map_err(|_| wrong())?;
    let cluster = &config["clusters"][0]["cluster"];
    let text = |field: &str| cluster[field].as_str().map(str::to_owned).ok_or_else(wrong);
    Ok((text("server")?, text("certificate-authority-data")?))
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject as _;

    use super::*;
    use crate::commands::pki::{InitOptions, init};
    use crate::tls::{CertificateInfo, KeyType};

    fn data_dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let options = InitOptions {
            dir: dir.path().join("pki"),
            names: vec!["gw.example.com".to_owned()],
            key_type: KeyType::default(),
        };
        init(&options, SystemTime::now()).unwrap();
        std::fs::rename(dir.path().join("pki/admin.kubeconfig"), dir.path().join("admin.kubeconfig")).unwrap();
        dir
    }

    fn options(dir: &tempfile::TempDir) -> UserOptions {
        UserOptions {
            data_dir: Some(dir.path().to_owned()),
            client_name: "jane: \"x\"".to_owned(),
            organizations: vec!["devs".to_owned(), "ops".to_owned()],
            token: None,
            validity_period: 30,
            server: None,
        }
    }

    #[test]
    fn kubeconfig_has_a_certificate_of_the_own_authority() {
        let dir = data_dir();
        let text = user_kubeconfig(&options(&dir), SystemTime::now()).unwrap();
        let config: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://gw.example.com:6443");
        assert_eq!(
            (&config["users"][0]["name"], &config["contexts"][0]["context"]["user"]),
            (&"jane: \"x\"".into(), &"jane: \"x\"".into())
        );
        let pem = STANDARD.decode(config["users"][0]["user"]["client-certificate-data"].as_str().unwrap()).unwrap();
        let der = CertificateDer::from_pem_slice(&pem).unwrap();
        let info = CertificateInfo::parse(&der).unwrap();
        assert!(info.subject.contains("O=devs") && info.subject.contains("O=ops"), "{}", info.subject);
        let with_token =
            UserOptions { token: Some("t".to_owned()), server: Some("https://other".to_owned()), ..options(&dir) };
        let config: Value = serde_saphyr::from_str(&user_kubeconfig(&with_token, SystemTime::now()).unwrap()).unwrap();
        assert_eq!(config["users"][0]["user"], serde_json::json!({"token": "t"}));
        assert_eq!(config["clusters"][0]["cluster"]["server"], "https://other");
    }

    #[test]
    fn kubeconfig_without_data_directory_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let problem = user_kubeconfig(&options(&dir), SystemTime::now()).unwrap_err().to_string();
        assert!(problem.contains("admin.kubeconfig") && problem.contains("--data-dir"), "{problem}");
    }

    #[test]
    fn validity_is_of_whole_days() {
        assert_eq!((parse_days("8760h"), parse_days("24h")), (Ok(365), Ok(1)));
        for wrong in ["1h", "0h", "25h", "-24h", "year"] {
            assert!(parse_days(wrong).is_err(), "{wrong}");
        }
    }
}
