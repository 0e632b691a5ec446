//! Chains, and the verdicts of Go's crypto/x509, which `tests/interop/certificates` wrote.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::{ServerName, UnixTime};
use serde::Deserialize;

use super::*;
use crate::tls::{Authority, CertificateSpec};

/// 2027-01-01, as in `main.go`.
const NOW: u64 = 1_798_761_600;

#[derive(Deserialize)]
struct ChainCase {
    name: String,
    leaf: String,
    #[serde(default)]
    intermediates: Vec<String>,
    roots: Vec<String>,
    usage: String,
    #[serde(default)]
    host: String,
    /// Go's error; empty if it accepts the chain.
    #[serde(default)]
    error: String,
}

impl ChainCase {
    fn verify(&self) -> Result<(), PathError> {
        let parse = |text: &String| PathCertificate::parse(&STANDARD.decode(text).unwrap());
        let leaf = parse(&self.leaf).map_err(|why| PathError::of_leaf(PathFault::Malformed(why)))?;
        let all = |list: &[String]| list.iter().filter_map(|text| parse(text).ok()).collect::<Vec<_>>();
        let role = if self.usage == "client" { PeerRole::Client } else { PeerRole::Server };
        let now = UnixTime::since_unix_epoch(Duration::from_secs(NOW));
        build_path(&leaf, &all(&self.intermediates), &all(&self.roots), now, role)?;
        if self.host.is_empty() {
            return Ok(());
        }
        // A name that rustls does not take is never verified.
        let name = ServerName::try_from(self.host.as_str());
        name.map_or(Ok(()), |name| leaf.check_host_name(&name))
    }
}

/// Where this is stricter than Go.
const STRICTER: &[&str] = &[
    "root with an RSA key of 1024 bits",
    // Policy mappings are not followed.
    "intermediate requires a policy after 0, mapped",
    "intermediate requires a policy after 1, mapped",
];

#[test]
fn path_verdicts_are_those_of_go() {
    let cases: Vec<ChainCase> = serde_json::from_str(include_str!("chains.json")).unwrap();
    let (mut wrong, mut accepted) = (Vec::new(), 0);
    for case in &cases {
        let verdict = case.verify();
        accepted += usize::from(verdict.is_ok());
        let expected = case.error.is_empty() && !STRICTER.contains(&&*case.name);
        if verdict.is_ok() != expected {
            wrong.push(format!("{}: {verdict:?}, Go: {:?}", case.name, case.error));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    assert!(accepted > 80 && cases.len() - accepted > 80, "{accepted} of {}", cases.len());
}

#[test]
fn path_faults_name_the_certificate_to_blame() {
    let cases: Vec<ChainCase> = serde_json::from_str(include_str!("chains.json")).unwrap();
    let above = |name: &str| Some(format!("CN={name}"));
    for (name, fault, authority) in [
        ("one below a root of path length 0", PathFault::PathTooLong { limit: 0 }, above("root")),
        ("one below an intermediate of path length 0", PathFault::PathTooLong { limit: 0 }, above("intermediate")),
        ("root with key usage cRLSign", PathFault::MayNotSignCertificates, above("root")),
        ("intermediate with key usage digitalSignature", PathFault::MayNotSignCertificates, above("intermediate")),
        ("root that is no authority", PathFault::NotAuthority, above("root")),
        ("signed by a leaf as intermediate", PathFault::NotAuthority, above("jane")),
        ("root with usage server", PathFault::WrongUsage, above("root")),
        ("leaf with usage server", PathFault::WrongUsage, None),
        ("leaf with an unknown critical extension", PathFault::UnknownCriticalExtension("1.2.3.4".into()), None),
        ("root of the same name with another key", PathFault::WrongSignature, None),
        ("unknown root", PathFault::UnknownIssuer, None),
        ("intermediate requires a policy after 0, leaf has none", PathFault::NoCommonPolicy, None),
        ("root with an RSA key of 1024 bits", PathFault::UnsupportedSignature, None),
    ] {
        let case = cases.iter().find(|case| case.name == name).unwrap();
        assert_eq!(case.verify(), Err(PathError { fault, authority }), "{name}");
    }
}

#[test]
fn path_search_is_bounded() {
    let parse = |der: &[u8]| PathCertificate::parse(der).unwrap();
    let same_name: Vec<_> = (0..120).map(|_| parse(Authority::generate("clients").certificate())).collect();
    let issued =
        Authority::generate("clients").issue(&CertificateSpec::client("jane", &[]), SystemTime::now()).unwrap();
    let leaf = parse(&issued.der().unwrap());
    let verify = |roots: &[PathCertificate], intermediates: &[PathCertificate]| {
        build_path(&leaf, intermediates, roots, UnixTime::now(), PeerRole::Client).map(|_| ()).unwrap_err().fault
    };
    assert_eq!(verify(&same_name, &[]), PathFault::TooManySignatures);
    assert_eq!(verify(&[], &same_name), PathFault::TooManySignatures);
    assert_eq!(verify(&same_name[..50], &same_name[50..100]), PathFault::WrongSignature);
}
