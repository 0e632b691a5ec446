//! Messages for rejected peer certificates: the certificate presented, and the trusted authorities.

use rustls::pki_types::CertificateDer;

use super::bundle::Bundle;
use super::certificate::{CertificateInfo, format_date};
use super::path::{PathError, PathFault, PeerRole};

impl Bundle {
    /// The log message for a rejected certificate. It contains no current time, so that repeated messages are equal.
    pub(super) fn describe_rejection(&self, role: PeerRole, leaf: &CertificateDer<'_>, error: &PathError) -> String {
        let kind = match role {
            PeerRole::Client => "client certificate",
            PeerRole::Server => "server certificate",
        };
        let facts = match CertificateInfo::parse(leaf) {
            Ok(facts) => facts,
            Err(why) => return format!("the {kind} cannot be read: {why}"),
        };
        let why = self.rejection_reason(role, &facts, error);
        let CertificateInfo { subject, serial, issuer, .. } = &facts;
        format!(
            "{kind} \"{subject}\" (serial {serial}, issued by \"{issuer}\") is not trusted by {}: {why}",
            self.0.source
        )
    }

    fn rejection_reason(&self, role: PeerRole, facts: &CertificateInfo, error: &PathError) -> String {
        let whose = match &error.authority {
            Some(subject) => format!("the authority \"{subject}\" above it"),
            None => "it".to_owned(),
        };
        match &error.fault {
            PathFault::Malformed(why) => format!("it cannot be read: {why}"),
            PathFault::UnknownIssuer => format!("no authority of the bundle signed it ({})", self.subjects_summary()),
            PathFault::WrongSignature => match &error.authority {
                Some(subject) => {
                    format!("the signature of the authority \"{subject}\" above it is not that of its issuer")
                }
                None => format!("its signature is not that of the authority it names, \"{}\"", facts.issuer),
            },
            PathFault::UnsupportedSignature => {
                format!("{whose} has an insecure or unsupported signature (SHA-1, an RSA key under 2048 bits)")
            }
            PathFault::Expired { not_after } => format!("{whose} expired on {}", format_date(*not_after)),
            PathFault::NotYetValid { not_before } => {
                format!("{whose} is not valid before {}; is a clock wrong?", format_date(*not_before))
            }
            PathFault::UnknownCriticalExtension(oid) => format!("{whose} has an unknown critical extension ({oid})"),
            PathFault::NotAuthority => {
                format!("{whose} is no certificate authority: the basic constraint CA is not set")
            }
            PathFault::MayNotSignCertificates => {
                format!("{whose} may not sign certificates: its key usage has no keyCertSign")
            }
            PathFault::PathTooLong { limit } => {
                format!("{whose} allows at most {limit} authorities below it (pathLenConstraint)")
            }
            PathFault::WrongUsage => {
                let purpose = match role {
                    PeerRole::Client => "client authentication",
                    PeerRole::Server => "server authentication",
                };
                match &error.authority {
                    Some(_) => format!("{whose} is not for {purpose} by its extended key usage"),
                    None => format!("it is not for {purpose}; it is for {}", facts.usages.join(", ")),
                }
            }
            PathFault::NameNotPermitted(why) => {
                format!("an authority above it may not sign for this name (name constraints): {why}")
            }
            PathFault::NoCommonPolicy => {
                "an authority above it requires a certificate policy that not all certificates of the path have"
                    .to_owned()
            }
            PathFault::TooManySignatures => {
                "too many certificates have the name of an authority; no path was found in 100 signature checks"
                    .to_owned()
            }
            PathFault::WrongName { presented, .. } if presented.is_empty() => {
                "it has no subject alternative name, and its common name does not count".to_owned()
            }
            PathFault::WrongName { expected, .. } => {
                format!("it is for {}, not for {expected}", facts.names.join(", "))
            }
        }
    }
}
