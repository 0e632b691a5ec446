//! `narthex pki`: makes authorities and certificates, and says in words what such files hold.

use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Subcommand};
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{PrivateKeyDer, UnixTime};

use crate::process::{Problem, Problems};
use crate::tls::{
    CERTIFICATE_DAYS, FRONT_PROXY, Facts, Kind, PairFiles, Request, Store, Wanted, provider, serving_names,
    write_kubeconfig,
};

/// The subcommands of `narthex pki`.
#[derive(Clone, Debug, Subcommand)]
pub enum Pki {
    /// Make a set of authorities and certificates
    Init(InitOptions),
    /// Issue one more certificate
    Issue(IssueOptions),
    /// Print what files hold and when it expires
    Show(ShowOptions),
}

/// What `pki init` takes.
#[derive(Clone, Debug, Args)]
pub struct InitOptions {
    /// Directory for the files; made if it is missing
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// DNS name or IP address of the gateway, beside localhost and this machine's name (repeatable)
    #[arg(long = "san", value_name = "NAME")]
    pub names: Vec<String>,
}

/// What `pki issue` takes.
#[derive(Clone, Debug, Args)]
pub struct IssueOptions {
    /// Directory that "pki init" made
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Authority that issues: serving, client, requestheader or backend
    #[arg(long = "ca", value_name = "CA")]
    pub authority: Kind,
    /// Name of the files, without suffix
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// DNS name or IP address of a server (repeatable)
    #[arg(long = "san", value_name = "NAME")]
    pub names: Vec<String>,
    /// User name of a client; default: NAME
    #[arg(long, value_name = "U")]
    pub user: Option<String>,
    /// Group of a client (repeatable)
    #[arg(long = "group", value_name = "G")]
    pub groups: Vec<String>,
    /// Days until it expires
    #[arg(long, value_name = "N", default_value_t = CERTIFICATE_DAYS, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
}

/// What `pki show` takes.
#[derive(Clone, Debug, Args)]
pub struct ShowOptions {
    /// Certificates, bundles, keys or kubeconfigs
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// Runs a subcommand: what to print on standard output, and what went wrong. Exit with 1 if anything did.
pub fn run(command: &Pki) -> (String, Problems) {
    let now = SystemTime::now();
    let result = match command {
        Pki::Init(options) => init(options, now),
        Pki::Issue(options) => issue(options, now).map_err(Problems::from),
        Pki::Show(options) => return show(options, now),
    };
    match result {
        Ok(text) => (text, Problems::default()),
        Err(problems) => (String::new(), problems),
    }
}

/// Makes all authorities, the gateway's serving certificate, an administrator's and the front proxy's, and a
/// kubeconfig. Writes nothing if any of the files exists.
pub fn init(options: &InitOptions, now: SystemTime) -> Result<String, Problems> {
    let store = Store::new(&options.dir);
    let mut names = serving_names(None);
    names.extend(options.names.iter().filter(|name| !serving_names(None).contains(name)).cloned());
    let wanted = [Wanted::serving(&names), Wanted::admin(), Wanted::front_proxy()];
    let kubeconfig = options.dir.join("admin.kubeconfig");
    refuse_to_overwrite(&store, &wanted, &kubeconfig)?;
    store.create_directory()?;
    let mut authorities = Vec::new();
    for kind in Kind::ALL {
        authorities.push((kind, store.create_authority(kind, now)?));
    }
    for it in &wanted {
        for (_, authority) in authorities.iter().filter(|(kind, _)| *kind == it.kind) {
            store.write_new(&it.name, &authority.issue(&it.request, now)?)?;
        }
    }
    let host = options.names.first().map_or("127.0.0.1", String::as_str);
    let host = if host.contains(':') { format!("[{}]", host.trim_matches(['[', ']'])) } else { host.to_owned() };
    let server = format!("https://{host}:6443");
    write_kubeconfig(&kubeconfig, &server, &store)?;
    Ok(told_of_init(&options.dir, &names, &server))
}

fn refuse_to_overwrite(store: &Store, wanted: &[Wanted], kubeconfig: &Path) -> Result<(), Problems> {
    let pairs = Kind::ALL.iter().map(|kind| store.authority_files(*kind));
    let pairs = pairs.chain(wanted.iter().map(|it| store.files(&it.name)));
    let files = pairs.flat_map(|PairFiles { certificate, key }| [certificate, key]).chain([kubeconfig.to_owned()]);
    let there = files.filter(|file| file.symlink_metadata().is_ok()).map(|file| crate::tls::exists(&file));
    Problems(there.collect()).or(())
}

fn told_of_init(dir: &Path, names: &[String], server: &str) -> String {
    let d = dir.display();
    format!(
        "Made in {d}, keys readable by you alone:\n\
         \x20 serving-ca, serving              the gateway to its clients, as {}\n\
         \x20 client-ca, admin                 clients to the gateway; admin is in system:masters\n\
         \x20 requestheader-ca, front-proxy    the gateway to backends, as {FRONT_PROXY}\n\
         \x20 backend-ca                       backends to the gateway; issue theirs with\n\
         \x20                                  narthex pki issue --dir {d} --ca backend --name NAME --san SERVICE.NAMESPACE.svc\n\
         \x20 admin.kubeconfig                 for {server}\n\
         \n\
         The gateway takes them so:\n\
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

/// Issues one certificate.
pub fn issue(options: &IssueOptions, now: SystemTime) -> Result<String, Problem> {
    let kind = options.authority;
    let wrong = |field: &str, message: String| Err(Problem::new(field, message));
    let name = options.name.as_str();
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']) {
        return wrong("--name", format!("{name:?} cannot be the name of a file in the directory"));
    }
    let is_server = kind.purpose() == crate::tls::Purpose::Serving;
    if is_server && options.names.is_empty() {
        return wrong(
            "--san",
            format!("a certificate of the {kind} authority needs the names it is for: --san {name}.default.svc"),
        );
    }
    if is_server && (options.user.is_some() || !options.groups.is_empty()) {
        return wrong("--user, --group", format!("are for clients; the {kind} authority issues to servers"));
    }
    if kind == Kind::RequestHeader && !options.groups.is_empty() {
        return wrong("--group", "a front proxy has no groups; it is known by its name alone".to_owned());
    }
    if !is_server && !options.names.is_empty() {
        return wrong("--san", format!("is for servers; the {kind} authority issues to clients, which --user names"));
    }
    let request = if is_server {
        Request { days: options.days, ..Request::serving(&options.names) }
    } else {
        let groups: Vec<_> = options.groups.iter().map(String::as_str).collect();
        Request { days: options.days, ..Request::client(options.user.as_deref().unwrap_or(name), &groups) }
    };
    let store = Store::new(&options.dir);
    let issued = store.authority(kind)?.issue(&request, now)?;
    let files = store.write_new(name, &issued)?;
    let facts = Facts::of(&issued.der()?).map_err(|why| Problem::new(files.place(), why))?;
    Ok(format!(
        "{}\n{}\n  {}, {}\n",
        files.certificate.display(),
        files.key.display(),
        facts.subject,
        life(&facts, now)
    ))
}

/// Says what each file holds. What can be said is said, also when another file has a problem.
pub fn show(options: &ShowOptions, now: SystemTime) -> (String, Problems) {
    let mut text = String::new();
    let mut problems = Problems::default();
    for file in &options.files {
        match std::fs::read(file) {
            Ok(content) => {
                let _ = writeln!(text, "{}", file.display());
                match tell(&content, now) {
                    Ok((told, secret)) => {
                        text.push_str(&told);
                        if secret && others_can_read(file) {
                            text.push_str("  everybody on this machine can read this file; chmod 600 would mend it\n");
                        }
                    }
                    Err(message) => problems.0.push(Problem::new(file.display(), message)),
                }
            }
            Err(error) => problems.0.push(Problem::new(file.display(), format!("cannot be read: {error}"))),
        }
    }
    (text, problems)
}

/// The content in words, and whether it is secret.
fn tell(content: &[u8], now: SystemTime) -> Result<(String, bool), String> {
    let kubeconfig = parse_kubeconfig(content);
    let parts: Vec<(String, Vec<u8>)> = match &kubeconfig {
        Some(config) => embedded(config),
        None => vec![(String::new(), content.to_vec())],
    };
    let mut text = String::new();
    let mut secret = false;
    let mut found = 0;
    for (title, pem) in parts {
        if !title.is_empty() {
            let _ = writeln!(text, "  {title}");
        }
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(&pem) {
            let (kind, der) = section.map_err(|error| format!("not proper PEM: {error}"))?;
            found += 1;
            match kind {
                SectionKind::Certificate => {
                    let facts = Facts::of(&der).map_err(|why| format!("certificate {found}: {why}"))?;
                    text.push_str(&tell_certificate(&facts, &der, now));
                }
                kind => {
                    secret |= PrivateKeyDer::from_pem(kind, der.clone()).is_some();
                    let _ = writeln!(text, "  {}", tell_other(kind, der));
                }
            }
        }
    }
    if found == 0 && kubeconfig.is_none() {
        return Err("holds neither a certificate nor a key in PEM form".to_owned());
    }
    Ok((text, secret))
}

fn tell_certificate(facts: &Facts, der: &[u8], now: SystemTime) -> String {
    let list = |items: &[String]| if items.is_empty() { "none".to_owned() } else { items.join(", ") };
    let kind = if facts.is_authority { "authority" } else { "certificate" };
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, der);
    let print: String = digest.as_ref().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    });
    let issuer = if facts.issuer == facts.subject { "itself" } else { &facts.issuer };
    format!(
        "  {kind} {}\n    issued by  {issuer}\n    names      {}\n    use        {}\n    key        {}\n    life       {}\n    \
         serial     {}\n    sha256     {print}\n",
        facts.subject,
        list(&facts.names),
        list(&facts.usages),
        facts.key,
        life(facts, now),
        facts.serial
    )
}

fn tell_other(kind: SectionKind, der: Vec<u8>) -> String {
    let form = match kind {
        SectionKind::RsaPrivateKey => "PKCS#1",
        SectionKind::EcPrivateKey => "SEC1",
        _ => "PKCS#8",
    };
    match (PrivateKeyDer::from_pem(kind, der), kind) {
        (Some(key), _) => match provider().key_provider.load_private_key(key) {
            Ok(key) => format!("private key, {:?} ({form})", key.algorithm()),
            Err(_) => format!("private key of a kind that is not supported ({form})"),
        },
        (None, SectionKind::PublicKey) => "public key".to_owned(),
        (None, SectionKind::Crl) => "revocation list".to_owned(),
        (None, SectionKind::Csr) => "request for a certificate".to_owned(),
        _ => "something else in PEM form".to_owned(),
    }
}

fn parse_kubeconfig(content: &[u8]) -> Option<serde_json::Value> {
    let text = std::str::from_utf8(content).ok().filter(|text| text.contains("clusters"))?;
    let parsed: serde_json::Value = serde_saphyr::from_str(text).ok()?;
    (parsed.get("kind")? == "Config").then_some(parsed)
}

/// The PEM documents embedded in a kubeconfig, each with a title.
fn embedded(config: &serde_json::Value) -> Vec<(String, Vec<u8>)> {
    let mut parts = Vec::new();
    for (list, inner, field, what) in [
        ("clusters", "cluster", "certificate-authority-data", "authority of cluster"),
        ("users", "user", "client-certificate-data", "certificate of user"),
        ("users", "user", "client-key-data", "key of user"),
    ] {
        for entry in config[list].as_array().into_iter().flatten() {
            let data = entry[inner][field].as_str().and_then(|data| STANDARD.decode(data).ok());
            let name = entry["name"].as_str().unwrap_or_default().escape_debug();
            parts.extend(data.map(|pem| (format!("{what} {name}:"), pem)));
        }
    }
    parts
}

fn others_can_read(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|data| data.permissions().mode() & 0o004 != 0)
}

/// `expires in 11 months, on 2027-10-21 12:00 UTC`.
fn life(facts: &Facts, now: SystemTime) -> String {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (begin, end) = (facts.not_before.as_secs(), facts.not_after.as_secs());
    if now < begin {
        format!("begins in {}, on {}; expires on {}", span(begin - now), date(facts.not_before), date(facts.not_after))
    } else if now > end {
        format!("EXPIRED {} ago, on {}", span(now - end), date(facts.not_after))
    } else {
        format!("expires in {}, on {}", span(end - now), date(facts.not_after))
    }
}

fn date(time: UnixTime) -> String {
    crate::tls::date(time)
}

/// Seconds in the largest unit of which there are at least two.
fn span(seconds: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    // The mean of the Gregorian calendar: 365.2425 days.
    const YEAR: u64 = 31_556_952;
    const UNITS: [(u64, &str); 5] =
        [(YEAR, "years"), (YEAR / 12, "months"), (DAY, "days"), (HOUR, "hours"), (MINUTE, "minutes")];
    for (unit, name) in UNITS {
        if seconds >= 2 * unit {
            return format!("{} {name}", seconds / unit);
        }
    }
    format!("{seconds} seconds")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::tls::{Authority, KeyPair};

    fn made() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let pki = dir.path().join("pki");
        init(&InitOptions { dir: pki.clone(), names: vec!["gw.example.com".to_owned()] }, SystemTime::now()).unwrap();
        (dir, pki)
    }

    fn options(dir: &Path, authority: Kind, name: &str) -> IssueOptions {
        IssueOptions {
            dir: dir.to_owned(),
            authority,
            name: name.to_owned(),
            names: Vec::new(),
            user: None,
            groups: Vec::new(),
            days: 30,
        }
    }

    fn shown(files: &[PathBuf]) -> (String, Problems) {
        show(&ShowOptions { files: files.to_vec() }, SystemTime::now())
    }

    #[test]
    fn init_makes_a_whole_set_once() {
        let (_dir, pki) = made();
        for name in ["serving-ca", "client-ca", "requestheader-ca", "backend-ca", "serving", "admin", "front-proxy"] {
            let files = PairFiles::new(pki.join(format!("{name}.crt")), pki.join(format!("{name}.key")));
            assert!(KeyPair::load(&files).is_ok(), "{name}");
            assert_eq!(fs::metadata(&files.key).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let config = fs::read_to_string(pki.join("admin.kubeconfig")).unwrap();
        assert!(config.contains("https://gw.example.com:6443"));
        let before = fs::read(pki.join("client-ca.key")).unwrap();
        fs::remove_file(pki.join("serving-ca.crt")).unwrap();
        let again = InitOptions { dir: pki.clone(), names: vec![] };
        let problems = init(&again, SystemTime::now()).unwrap_err();
        assert_eq!(problems.0.len(), 14, "every file that is there is named: {problems}");
        assert!(!pki.join("serving-ca.crt").exists());
        assert_eq!(fs::read(pki.join("client-ca.key")).unwrap(), before);
    }

    #[test]
    fn issue_makes_one_more_and_explains_what_does_not_go_together() {
        let (_dir, pki) = made();
        let mut jane = options(&pki, Kind::Client, "jane");
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
        assert!(with(Kind::Backend, |_| ()).contains("--san x.default.svc"));
        assert!(with(Kind::Serving, |it| it.user = Some("u".into())).contains("--san"));
        assert!(with(Kind::Client, |it| it.names = vec!["n".into()]).contains("is for servers"));
        assert!(with(Kind::RequestHeader, |it| it.groups = vec!["g".into()]).contains("no groups"));
        assert!(with(Kind::Client, |it| it.name = "../x".into()).contains("--name"));
        assert!(with(Kind::Client, |it| it.dir = "/nowhere".into()).contains("narthex pki init --dir /nowhere"));
    }

    #[test]
    fn show_tells_everything_but_the_key() {
        let (_dir, pki) = made();
        let (text, problems) = shown(&[pki.join("serving.crt"), pki.join("serving.key"), pki.join("client-ca.crt")]);
        assert!(problems.0.is_empty(), "{problems}");
        for expected in [
            "issued by  CN=narthex-serving-ca",
            "gw.example.com",
            "digital signature, server authentication",
            "expires in 11 months, on 20",
            "expires in 9 years, on 20",
            "authority CN=narthex-client-ca\n    issued by  itself",
            "private key, ECDSA (PKCS#8)",
            "key        ECDSA P-256",
        ] {
            assert!(text.contains(expected), "{expected}:\n{text}");
        }
        let key = fs::read_to_string(pki.join("serving.key")).unwrap();
        assert!(!text.contains(key.lines().nth(1).unwrap()));
        let (text, _) = shown(&[pki.join("admin.kubeconfig")]);
        assert!(text.contains("authority of cluster narthex:") && text.contains("O=system:masters"), "{text}");
    }

    #[test]
    fn show_goes_on_after_a_file_with_a_problem() {
        let dir = tempfile::tempdir().unwrap();
        let (good, bad) = (dir.path().join("good.crt"), dir.path().join("bad.crt"));
        fs::write(&good, Authority::made("a").pem()).unwrap();
        fs::write(&bad, "hello").unwrap();
        let (text, problems) = shown(&[bad, dir.path().join("missing.crt"), good]);
        assert!(text.contains("authority CN=a"), "{text}");
        assert_eq!(problems.0.len(), 2, "{problems}");
    }

    #[test]
    fn dates_are_told_in_words() {
        const DAY: u64 = 24 * 60 * 60;
        for (seconds, expected) in [
            (59, "59 seconds"),
            (7200, "2 hours"),
            (30 * DAY, "30 days"),
            (365 * DAY, "11 months"),
            (800 * DAY, "2 years"),
        ] {
            assert_eq!(span(seconds), expected);
        }
        let now = SystemTime::now();
        let old = Authority::new("a", now - std::time::Duration::from_secs(3700 * DAY)).unwrap().0;
        assert!(life(old.facts(), now).starts_with("EXPIRED 50 days ago, on 20"), "{}", life(old.facts(), now));
    }
}
