//! Why no certification path is valid.

use rustls::pki_types::UnixTime;

/// Why a certificate cannot be used in a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tls) enum PathFault {
    /// It cannot be read.
    Malformed(String),
    /// No certificate that is trusted or presented has the name of its issuer.
    UnknownIssuer,
    /// The key of its issuer did not make its signature.
    WrongSignature,
    /// Its signature algorithm, or its issuer's key, is not supported.
    UnsupportedSignature,
    Expired {
        not_after: UnixTime,
    },
    NotYetValid {
        not_before: UnixTime,
    },
    /// An object identifier.
    UnknownCriticalExtension(String),
    /// It signed another certificate and is no authority.
    NotAuthority,
    /// Its key usage does not allow what it did: to sign another certificate.
    MayNotSignCertificates,
    /// Too many authorities are below it.
    PathTooLong {
        limit: u32,
    },
    /// Its extended key usage does not allow the peer's role.
    WrongUsage,
    /// An authority may not sign for one of the names; in words.
    NameNotPermitted(String),
    /// A certificate of the path requires a policy that not all have.
    NoCommonPolicy,
    /// So many signatures were verified that the search was given up.
    TooManySignatures,
    /// It is for other names.
    WrongName {
        expected: String,
        presented: Vec<String>,
    },
}

/// Why no path is valid, and the certificate that is to blame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::tls) struct PathError {
    pub(in crate::tls) fault: PathFault,
    /// The subject of the certificate, if it is not the peer's own one.
    pub(in crate::tls) authority: Option<String>,
}

impl PathError {
    /// A fault of the peer's own certificate.
    pub(in crate::tls) fn of_leaf(fault: PathFault) -> PathError {
        PathError { fault, authority: None }
    }

    /// How much an operator learns from it: a certificate with the right name and another key is often not meant at all.
    pub(super) fn rank(&self) -> u8 {
        match self.fault {
            PathFault::UnknownIssuer => 0,
            PathFault::WrongSignature | PathFault::UnsupportedSignature => 1,
            _ => 2,
        }
    }
}
