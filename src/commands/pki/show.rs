//! `narthex pki show`: describes the certificates and keys in files.

use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::{PemObject, SectionKind};

use crate::process::{Problem, Problems};
use crate::tls::{CertificateInfo, format_date, provider};

/// Options of `pki show`.
#[derive(Clone, Debug, Args)]
pub struct ShowOptions {
    /// Certificates, bundles, keys or kubeconfigs
    #[arg(value_name = "FILE", required = true)]
    pub files: Vec<PathBuf>,
}

/// Describes each file. A problem with one file does not hide the others.
pub fn show(options: &ShowOptions, now: SystemTime) -> (String, Problems) {
    let mut text = String::new();
    let mut problems = Problems::default();
    for file in &options.files {
        match std::fs::read(file) {
            Ok(content) => {
                let _ = writeln!(text, "{}", file.display());
                match describe(&content, now) {
                    Ok((description, secret)) => {
                        text.push_str(&description);
                        if secret && is_world_readable(file) {
                            text.push_str("  this file is world-readable; fix with chmod 600\n");
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

/// Describes the content; the flag says whether it holds a private key.
fn describe(content: &[u8], now: SystemTime) -> Result<(String, bool), String> {
    let kubeconfig = parse_kubeconfig(content);
    let parts: Vec<(String, Vec<u8>)> = match &kubeconfig {
        Some(config) => embedded_pem(config),
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
                    let facts = CertificateInfo::parse(&der).map_err(|why| format!("certificate {found}: {why}"))?;
                    text.push_str(&describe_certificate(&facts, &der, now));
                }
                kind => {
                    secret |= PrivateKeyDer::from_pem(kind, der.clone()).is_some();
                    let _ = writeln!(text, "  {}", describe_other(kind, der));
                }
            }
        }
    }
    if found == 0 && kubeconfig.is_none() {
        return Err("holds neither a certificate nor a key in PEM format".to_owned());
    }
    Ok((text, secret))
}

fn describe_certificate(facts: &CertificateInfo, der: &[u8], now: SystemTime) -> String {
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
        describe_validity(facts, now),
        facts.serial
    )
}

fn describe_other(kind: SectionKind, der: Vec<u8>) -> String {
    let form = match kind {
        SectionKind::RsaPrivateKey => "PKCS#1",
        SectionKind::EcPrivateKey => "SEC1",
        _ => "PKCS#8",
    };
    match (PrivateKeyDer::from_pem(kind, der), kind) {
        (Some(key), _) => match provider().key_provider.load_private_key(key) {
            Ok(key) => format!("private key, {:?} ({form})", key.algorithm()),
            Err(_) => format!("private key of an unsupported type ({form})"),
        },
        (None, SectionKind::PublicKey) => "public key".to_owned(),
        (None, SectionKind::Crl) => "certificate revocation list".to_owned(),
        (None, SectionKind::Csr) => "certificate signing request".to_owned(),
        _ => "unknown PEM section".to_owned(),
    }
}

fn parse_kubeconfig(content: &[u8]) -> Option<serde_json::Value> {
    let text = std::str::from_utf8(content).ok().filter(|text| text.contains("clusters"))?;
    let parsed: serde_json::Value = serde_saphyr::from_str(text).ok()?;
    (parsed.get("kind")? == "Config").then_some(parsed)
}

/// The PEM documents embedded in a kubeconfig, each with a title.
fn embedded_pem(config: &serde_json::Value) -> Vec<(String, Vec<u8>)> {
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

fn is_world_readable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|data| data.permissions().mode() & 0o004 != 0)
}

/// Describes the validity, for example `expires in 11 months, on 2027-10-21T12:00:00Z`.
pub(super) fn describe_validity(facts: &CertificateInfo, now: SystemTime) -> String {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (begin, end) = (facts.not_before.as_secs(), facts.not_after.as_secs());
    if now < begin {
        format!(
            "begins in {}, on {}; expires on {}",
            format_duration(begin - now),
            format_date(facts.not_before),
            format_date(facts.not_after)
        )
    } else if now > end {
        format!("EXPIRED {} ago, on {}", format_duration(now - end), format_date(facts.not_after))
    } else {
        format!("expires in {}, on {}", format_duration(end - now), format_date(facts.not_after))
    }
}

/// Formats seconds in the largest unit of which there are at least two.
fn format_duration(seconds: u64) -> String {
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
    use crate::tls::Authority;

    #[test]
    fn pki_show_continues_after_bad_file() {
        let dir = tempfile::tempdir().unwrap();
        let (good, bad) = (dir.path().join("good.crt"), dir.path().join("bad.crt"));
        fs::write(&good, Authority::generate("a").pem()).unwrap();
        fs::write(&bad, "hello").unwrap();
        let (text, problems) =
            show(&ShowOptions { files: vec![bad, dir.path().join("missing.crt"), good] }, SystemTime::now());
        assert!(text.contains("authority CN=a"), "{text}");
        assert_eq!(problems.0.len(), 2, "{problems}");
    }

    #[test]
    fn pki_show_formats_durations() {
        const DAY: u64 = 24 * 60 * 60;
        for (seconds, expected) in [
            (59, "59 seconds"),
            (7200, "2 hours"),
            (30 * DAY, "30 days"),
            (365 * DAY, "11 months"),
            (800 * DAY, "2 years"),
        ] {
            assert_eq!(format_duration(seconds), expected);
        }
        let now = SystemTime::now();
        let old = Authority::new("a", now - std::time::Duration::from_secs(3700 * DAY)).unwrap().0;
        assert!(
            describe_validity(old.info(), now).starts_with("EXPIRED 50 days ago, on 20"),
            "{}",
            describe_validity(old.info(), now)
        );
    }
}
