//! `narthex pki`: creates certificate authorities and certificates, and describes certificate files.

mod show;

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};

use self::show::describe_validity;
use crate::authenticate::service_accounts::rotate_keys;
use crate::process::{Problem, Problems};
use crate::tls::{
    CERTIFICATE_DAYS, CertificateInfo, CertificateKind, CertificateSpec, CertificateStore, FRONT_PROXY, KeyType,
    ManagedCertificate, PairFiles, serving_names, write_kubeconfig,
};

pub use self::show::{ShowOptions, show};

/// The subcommands of `narthex pki`.
#[derive(Clone, Debug, Subcommand)]
pub enum PkiCommand {
    /// Create a set of certificate authorities and certificates
    Init(InitOptions),
    /// Issue one more certificate
    Issue(IssueOptions),
    /// Describe the certificates and keys in files, with expiry
    Show(ShowOptions),
    /// Replace a key of a gateway that runs or not
    #[command(subcommand)]
    Rotate(RotateCommand),
}

/// The keys that `pki rotate` replaces.
#[derive(Clone, Debug, Subcommand)]
pub enum RotateCommand {
    /// The key that signs service account tokens: a new one signs in an hour, the one before verifies until its last token is over
    ServiceAccount(RotateOptions),
}

/// Options of `pki rotate service-account`.
#[derive(Clone, Debug, Args)]
pub struct RotateOptions {
    /// Data directory of the gateway
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// How long the keys before verify after the new one begins to sign: as long as any token lives, 1h at least
    #[arg(long, value_name = "DURATION", default_value = "8760h", value_parser = kubeapi::duration::parse)]
    pub max_token_expiration: Duration,
}

/// Options of `pki init`.
#[derive(Clone, Debug, Args)]
pub struct InitOptions {
    /// Directory for the files; created if missing
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// DNS name or IP address of the gateway, in addition to localhost and this machine's name (repeatable)
    #[arg(long = "san", value_name = "NAME")]
    pub names: Vec<String>,
    /// Type of the keys; RSA is for clients that read no other
    #[arg(long, value_enum, default_value_t, value_name = "TYPE")]
    pub key_type: KeyType,
}

/// Options of `pki issue`.
#[derive(Clone, Debug, Args)]
pub struct IssueOptions {
    /// Directory created by "pki init"
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Issuing authority: serving, client, requestheader or backend
    #[arg(long = "ca", value_name = "CA")]
    pub authority: CertificateKind,
    /// File name without suffix
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// DNS name or IP address of a server certificate (repeatable)
    #[arg(long = "san", value_name = "NAME")]
    pub names: Vec<String>,
    /// User name of a client certificate; default: NAME
    #[arg(long, value_name = "U")]
    pub user: Option<String>,
    /// Group of a client certificate (repeatable)
    #[arg(long = "group", value_name = "G")]
    pub groups: Vec<String>,
    /// Days until the certificate expires
    #[arg(long, value_name = "N", default_value_t = CERTIFICATE_DAYS, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
    /// Type of the key
    #[arg(long, value_enum, default_value_t, value_name = "TYPE")]
    pub key_type: KeyType,
}

/// Runs a subcommand. Returns the text for standard output, and the problems; any problem means exit status 1.
pub fn run(command: &PkiCommand) -> (String, Problems) {
    let now = SystemTime::now();
    let result = match command {
        PkiCommand::Init(options) => init(options, now),
        PkiCommand::Issue(options) => issue(options, now).map_err(Problems::from),
        PkiCommand::Show(options) => return show(options, now),
        PkiCommand::Rotate(RotateCommand::ServiceAccount(options)) => rotate(options, now).map_err(Problems::from),
    };
    match result {
        Ok(text) => (text, Problems::default()),
        Err(problems) => (String::new(), problems),
    }
}

/// Creates all authorities, the certificates of the gateway, an administrator and the front proxy, and a kubeconfig.
/// Writes nothing if any of the files exists.
pub fn init(options: &InitOptions, now: SystemTime) -> Result<String, Problems> {
    let store = CertificateStore::new(&options.dir).with_key_type(options.key_type);
    let mut names = serving_names(None);
    names.extend(options.names.iter().filter(|name| !serving_names(None).contains(name)).cloned());
    let certificates =
        [ManagedCertificate::serving(&names), ManagedCertificate::admin(), ManagedCertificate::front_proxy()];
    let kubeconfig = options.dir.join("admin.kubeconfig");
    refuse_to_overwrite(&store, &certificates, &kubeconfig)?;
    store.create_directory()?;
    let mut authorities = Vec::new();
    for kind in CertificateKind::ALL {
        authorities.push((kind, store.create_authority(kind, now)?));
    }
    for it in &certificates {
        for (_, authority) in authorities.iter().filter(|(kind, _)| *kind == it.kind) {
            let request = it.request.clone().with_key_type(options.key_type);
            store.write_new_pair(&it.name, &authority.issue(&request, now)?)?;
        }
    }
    let host = options.names.first().map_or("127.0.0.1", String::as_str);
    let host = if host.contains(':') { format!("[{}]", host.trim_matches(['[', ']'])) } else { host.to_owned() };
    let server = format!("https://{host}:6443");
    write_kubeconfig(&kubeconfig, &server, &store)?;
    Ok(init_message(&options.dir, &names, &server))
}

fn refuse_to_overwrite(
    store: &CertificateStore,
    certificates: &[ManagedCertificate],
    kubeconfig: &Path,
) -> Result<(), Problems> {
    let pairs = CertificateKind::ALL.iter().map(|kind| store.authority_files(*kind));
    let pairs = pairs.chain(certificates.iter().map(|it| store.files(&it.name)));
    let files = pairs.flat_map(|PairFiles { certificate, key }| [certificate, key]).chain([kubeconfig.to_owned()]);
    let there = files.filter(|file| file.symlink_metadata().is_ok()).map(|file| crate::tls::already_exists(&file));
    Problems(there.collect()).into_result(())
}

fn init_message(dir: &Path, names: &[String], server: &str) -> String {
    let d = dir.display();
    format!(
        "Created in {d}; keys are readable only by you:\n\
         \x20 serving-ca, serving              the gateway to its clients, as {}\n\
         \x20 client-ca, admin                 clients to the gateway; admin is in system:masters\n\
         \x20 requestheader-ca, front-proxy    the gateway to backends, as {FRONT_PROXY}\n\
         \x20 backend-ca                       backends to the gateway; issue a backend's certificate with\n\
         \x20                                  narthex pki issue --dir {d} --ca backend --name NAME --san SERVICE.NAMESPACE.svc\n\
         \x20 admin.kubeconfig                 for {server}\n\
         \n\
         Start the gateway with them:\n\
         \x20 narthex gateway \\\n\
         \x20   --tls-cert-file {d}/serving.crt --tls-private-key-file {d}/serving.key \\\n\
         \x20   --client-ca-file {d}/client-ca.crt \\\n\
         \x20   --requestheader-client-ca-file {d}/requestheader-ca.crt --requestheader-allowed-names {FRONT_PROXY} \\\n\
         \x20   --proxy-client-cert-file {d}/front-proxy.crt --proxy-client-key-file {d}/front-proxy.key\n\
         \n\
         A backend trusts requestheader-ca.crt and the name {FRONT_PROXY}; an APIService's caBundle is backend-ca.crt.\n",
        names.join(", ")
    )
}

/// Least value of `--max-token-expiration`: the least lifetime that `--service-account-max-token-expiration` allows.
const MIN_TOKEN_EXPIRATION: Duration = Duration::from_secs(3600);

/// Replaces the key that signs service account tokens.
///
/// # Errors
/// There is no key file, or it cannot be written; a new key waits already.
pub fn rotate(options: &RotateOptions, now: SystemTime) -> Result<String, Problem> {
    if options.max_token_expiration < MIN_TOKEN_EXPIRATION {
        return Err(Problem::new(
            "--max-token-expiration",
            "is less than an hour: tokens that were issued would end early",
        ));
    }
    let rotation = rotate_keys(&options.data_dir, options.max_token_expiration, now)?;
    let time = |time: SystemTime| jiff::Timestamp::try_from(time).map_or(String::new(), |time| format!("{time:.0}"));
    Ok(format!(
        "{}\n  {} is published now and signs from {} on\n  the keys before it verify until {}\n",
        rotation.file.display(),
        rotation.key_id,
        time(rotation.signs_from),
        time(rotation.previous_verify_until),
    ))
}

/// Issues one certificate.
pub fn issue(options: &IssueOptions, now: SystemTime) -> Result<String, Problem> {
    let kind = options.authority;
    let wrong = |field: &str, message: String| Err(Problem::new(field, message));
    let name = options.name.as_str();
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        return wrong("--name", format!("{name:?} cannot be the name of a file in the directory"));
    }
    let is_server = kind.purpose() == crate::tls::CertificateUsage::Serving;
    if is_server && options.names.is_empty() {
        return wrong(
            "--san",
            format!("a certificate of the {kind} authority needs the names it is for: --san {name}.default.svc"),
        );
    }
    if is_server && (options.user.is_some() || !options.groups.is_empty()) {
        return wrong(
            "--user, --group",
            format!(
                "only client certificates have a user and groups; the {kind} authority issues serving certificates"
            ),
        );
    }
    if kind == CertificateKind::RequestHeader && !options.groups.is_empty() {
        return wrong("--group", "a front proxy has no groups; it is identified by its name only".to_owned());
    }
    if !is_server && !options.names.is_empty() {
        return wrong("--san", format!("is for servers; the {kind} authority issues to clients, which --user names"));
    }
    let request = if is_server {
        CertificateSpec { days: options.days, ..CertificateSpec::serving(&options.names) }
    } else {
        let groups: Vec<_> = options.groups.iter().map(String::as_str).collect();
        CertificateSpec {
            days: options.days,
            ..CertificateSpec::client(options.user.as_deref().unwrap_or(name), &groups)
        }
    };
    let store = CertificateStore::new(&options.dir);
    let issued = store.load_authority(kind)?.issue(&request.with_key_type(options.key_type), now)?;
    let files = store.write_new_pair(name, &issued)?;
    let facts = CertificateInfo::parse(&issued.der()?).map_err(|why| Problem::new(files.location(), why))?;
    Ok(format!(
        "{}\n{}\n  {}, {}\n",
        files.certificate.display(),
        files.key.display(),
        facts.subject,
        describe_validity(&facts, now)
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::tls::KeyPair;

    fn init_in_temp_dir() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        init(
            &InitOptions { dir: pki.clone(), names: vec!["gw.example.com".to_owned()], key_type: KeyType::default() },
            SystemTime::now(),
        )
        .unwrap();
        (dir, pki)
    }

    fn options(dir: &Path, authority: CertificateKind, name: &str) -> IssueOptions {
        IssueOptions {
            dir: dir.to_owned(),
            authority,
            name: name.to_owned(),
            names: Vec::new(),
            user: None,
            groups: Vec::new(),
            days: 30,
            key_type: KeyType::default(),
        }
    }

    fn show_files(files: &[PathBuf]) -> (String, Problems) {
        show(&ShowOptions { files: files.to_vec() }, SystemTime::now())
    }

    #[test]
    fn pki_init_creates_all_files_and_never_overwrites() {
        let (_dir, pki) = init_in_temp_dir();
        for name in ["serving-ca", "client-ca", "requestheader-ca", "backend-ca", "serving", "admin", "front-proxy"] {
            let files = PairFiles::new(pki.join(format!("{name}.crt")), pki.join(format!("{name}.key")));
            assert!(KeyPair::load(&files).is_ok(), "{name}");
            assert_eq!(fs::metadata(&files.key).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let config = fs::read_to_string(pki.join("admin.kubeconfig")).unwrap();
        assert!(config.contains("https://gw.example.com:6443"));
        let before = fs::read(pki.join("client-ca.key")).unwrap();
        fs::remove_file(pki.join("serving-ca.crt")).unwrap();
        let again = InitOptions { dir: pki.clone(), names: vec![], key_type: KeyType::default() };
        let problems = init(&again, SystemTime::now()).unwrap_err();
        assert_eq!(problems.0.len(), 14, "every file that is there is named: {problems}");
        assert!(!pki.join("serving-ca.crt").exists());
        assert_eq!(fs::read(pki.join("client-ca.key")).unwrap(), before);
    }

    #[test]
    fn pki_issue_creates_pair_and_rejects_conflicting_flags() {
        let (_dir, pki) = init_in_temp_dir();
        let mut jane = options(&pki, CertificateKind::Client, "jane");
        jane.groups = vec!["dev".to_owned(), "ops".to_owned()];
        let text = issue(&jane, SystemTime::now()).unwrap();
        assert!(
            text.contains("jane.crt") && text.contains("jane.key") && text.contains("expires in 30 days"),
            "{text}"
        );
        assert!(issue(&jane, SystemTime::now()).unwrap_err().message.contains("not overwritten"));
        let with = |kind, change: fn(&mut IssueOptions)| {
            let mut it = options(&pki, kind, "x");
            change(&mut it);
            issue(&it, SystemTime::now()).unwrap_err().to_string()
        };
        assert!(with(CertificateKind::Backend, |_| ()).contains("--san x.default.svc"));
        assert!(with(CertificateKind::Serving, |it| it.user = Some("u".into())).contains("--san"));
        assert!(with(CertificateKind::Client, |it| it.names = vec!["n".into()]).contains("is for servers"));
        assert!(with(CertificateKind::RequestHeader, |it| it.groups = vec!["g".into()]).contains("no groups"));
        assert!(with(CertificateKind::Client, |it| it.name = "../x".into()).contains("--name"));
        assert!(
            with(CertificateKind::Client, |it| it.dir = "/nowhere".into()).contains("narthex pki init --dir /nowhere")
        );
    }

    #[test]
    fn pki_show_describes_files_without_private_key() {
        let (_dir, pki) = init_in_temp_dir();
        let (text, problems) =
            show_files(&[pki.join("serving.crt"), pki.join("serving.key"), pki.join("client-ca.crt")]);
        assert!(problems.0.is_empty(), "{problems}");
        for expected in [
            "issued by  CN=narthex-serving-ca",
            "gw.example.com",
            "digital signature, server authentication",
            "expires in 11 months, on 20",
            "expires in 9 years, on 20",
            "authority CN=narthex-client-ca\n    issued by  itself",
            "private key, ECDSA (SEC1)",
            "key        ECDSA P-256",
        ] {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
        let key = fs::read_to_string(pki.join("serving.key")).unwrap();
        assert!(!text.contains(key.lines().nth(1).unwrap()));
        let (text, _) = show_files(&[pki.join("admin.kubeconfig")]);
        assert!(text.contains("authority of cluster narthex:") && text.contains("O=system:masters"), "{text}");
    }
}
