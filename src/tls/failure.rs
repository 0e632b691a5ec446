//! Why a connection to a backend failed, in words of our own that may be shown to a client.

use std::cell::RefCell;
use std::error::Error as StdError;
use std::io;

use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, CertificateError, Error, ExtendedKeyPurpose, InvalidMessage};

use super::certificate::date;

/// What Go's clients call "server gave HTTP response to HTTPS client".
const WITHOUT_TLS: &str = "it answered without TLS; is this a port for plain HTTP?";

/// The kinds of failure between us and a backend, up to the end of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Failure {
    /// The backend's certificate has expired.
    CertificateExpired,
    /// The backend's certificate is not valid yet.
    CertificateNotYetValid,
    /// Nobody we trust signed the backend's certificate.
    UnknownIssuer,
    /// The backend's certificate is for other names.
    NameMismatch,
    /// The backend's certificate has no subject alternative name; a common name does not count.
    MissingSan,
    /// The backend's certificate is not for server authentication.
    WrongUsage,
    /// The backend's certificate is broken or of a kind that is not supported.
    BadCertificate,
    /// The backend refused our certificate, or wants one and got none.
    ClientCertificateRefused,
    /// Both sides have no protocol version, cipher suite or application protocol in common.
    NoCommonProtocol,
    /// What answers does not speak TLS.
    NotTls,
    /// Any other failure of the handshake.
    HandshakeFailed,
    /// Nothing listens there.
    ConnectionRefused,
    /// The connection was cut.
    ConnectionClosed,
    /// It took too long.
    Timeout,
    /// No way leads into that network.
    NetworkUnreachable,
    /// No way leads there.
    Unreachable,
    /// Any other failure.
    ConnectionFailed,
}

thread_local! {
    /// Why this thread refused a certificate last. rustls' errors have no room for it, and the alert that the peer gets
    /// is made of them.
    static REFUSED: RefCell<Option<RefusedCertificate>> = const { RefCell::new(None) };
}

struct RefusedCertificate {
    error: CertificateError,
    text: String,
    leaf: CertificateDer<'static>,
}

/// Keeps `text` and the certificate for whoever gets `error` from the handshake, which is in the same poll.
pub(super) fn explain_in_this_poll(error: &CertificateError, text: String, leaf: &CertificateDer<'_>) {
    REFUSED.set(Some(RefusedCertificate { error: error.clone(), text, leaf: leaf.clone().into_owned() }));
}

/// The certificate that was refused, if that is why the handshake ended with `error` in this poll. Ask before
/// [`describe`].
pub fn refused_certificate(error: &io::Error) -> Option<CertificateDer<'static>> {
    let Some(Error::InvalidCertificate(refused)) = rustls_error(error) else { return None };
    REFUSED.with_borrow(|last| last.as_ref().filter(|last| last.error == *refused).map(|last| last.leaf.clone()))
}

/// What an error of connecting, or of the handshake, says to the operator: a certificate that is refused with its own
/// name and dates, its issuer, and who is trusted. The text holds no time of day, so that it is the same each time.
pub fn describe(error: &io::Error) -> String {
    let refused = match rustls_error(error) {
        Some(Error::InvalidCertificate(refused)) => refused,
        // The first byte is of no TLS record.
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => return WITHOUT_TLS.to_owned(),
        _ => return error.to_string(),
    };
    match REFUSED.take() {
        Some(last) if last.error == *refused => last.text,
        _ => match refused {
            CertificateError::ExpiredContext { not_after, .. } => {
                format!("the certificate expired on {}", date(*not_after))
            }
            CertificateError::NotValidYetContext { not_before, .. } => {
                format!("the certificate is not valid before {}", date(*not_before))
            }
            _ => error.to_string(),
        },
    }
}

/// The same error without the address of rustls' manual, which stands in the text of one that ends a session without
/// close_notify and belongs into no log.
pub(crate) fn without_manual(error: io::Error) -> io::Error {
    if error.kind() != io::ErrorKind::UnexpectedEof {
        return error;
    }
    match error.to_string().split_once(": https://docs.rs/rustls/") {
        Some((text, _)) => io::Error::new(io::ErrorKind::UnexpectedEof, text),
        None => error,
    }
}

/// The error of rustls in `error`, if there is one.
pub fn rustls_error(error: &io::Error) -> Option<&Error> {
    let mut source: Option<&(dyn StdError + 'static)> = error.get_ref().map(|it| it as _);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<Error>() {
            return Some(error);
        }
        // An io::Error shows its inner error's sources, but not the inner error itself.
        source = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(inner) => Some(inner as _),
            None => error.source(),
        };
    }
    None
}

/// [`Failure::of`] as a reason, for causes and labels.
pub fn classify(error: &io::Error) -> &'static str {
    Failure::of(error).reason()
}

/// What a peer's alert says of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerAlert {
    /// It does not accept our certificate.
    CertificateRefused,
    /// It wants a certificate and got none; only servers say so.
    CertificateRequired,
    /// Both sides have no protocol version, cipher suite or application protocol in common.
    NoCommonProtocol,
    /// It ends the session, without a mistake of ours.
    SessionEnded,
    /// Anything else.
    Other,
}

impl PeerAlert {
    pub(crate) fn of(alert: AlertDescription) -> PeerAlert {
        match alert {
            AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            // What a signature says that does not fit: an authority made anew under its old name.
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied => PeerAlert::CertificateRefused,
            AlertDescription::CertificateRequired => PeerAlert::CertificateRequired,
            AlertDescription::ProtocolVersion
            | AlertDescription::InsufficientSecurity
            | AlertDescription::HandshakeFailure
            | AlertDescription::NoApplicationProtocol => PeerAlert::NoCommonProtocol,
            AlertDescription::CloseNotify | AlertDescription::UserCanceled => PeerAlert::SessionEnded,
            _ => PeerAlert::Other,
        }
    }
}

impl Failure {
    /// What an error of connecting, or of the handshake, or of the first read after it, comes down to.
    pub fn of(error: &io::Error) -> Failure {
        if let Some(error) = rustls_error(error) {
            return Failure::of_tls(error);
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Failure::ConnectionRefused,
            io::ErrorKind::TimedOut => Failure::Timeout,
            io::ErrorKind::NetworkUnreachable => Failure::NetworkUnreachable,
            io::ErrorKind::HostUnreachable | io::ErrorKind::AddrNotAvailable => Failure::Unreachable,
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof => Failure::ConnectionClosed,
            _ => Failure::ConnectionFailed,
        }
    }

    /// What an error of rustls, on our calling side, comes down to.
    pub fn of_tls(error: &Error) -> Failure {
        match error {
            Error::InvalidCertificate(error) => match error {
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => Failure::CertificateExpired,
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    Failure::CertificateNotYetValid
                }
                CertificateError::UnknownIssuer => Failure::UnknownIssuer,
                CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => {
                    Failure::MissingSan
                }
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    Failure::NameMismatch
                }
                CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                    Failure::WrongUsage
                }
                _ => Failure::BadCertificate,
            },
            Error::AlertReceived(alert) => match PeerAlert::of(*alert) {
                PeerAlert::CertificateRefused | PeerAlert::CertificateRequired => Failure::ClientCertificateRefused,
                PeerAlert::NoCommonProtocol => Failure::NoCommonProtocol,
                // A server that ends the session in the handshake has not said why.
                PeerAlert::SessionEnded | PeerAlert::Other => Failure::HandshakeFailed,
            },
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Failure::NoCommonProtocol,
            Error::InvalidMessage(_) => Failure::NotTls,
            _ => Failure::HandshakeFailed,
        }
    }

    /// One word, stable: a cause's reason, a metric's label.
    pub fn reason(self) -> &'static str {
        self.texts().0
    }

    /// A sentence without an address or a library's text.
    pub fn words(self) -> &'static str {
        self.texts().1
    }

    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Failure::CertificateExpired => ("CertificateExpired", "the backend's certificate has expired"),
            Failure::CertificateNotYetValid => {
                ("CertificateNotYetValid", "the backend's certificate is not valid yet; a clock may be wrong")
            }
            Failure::UnknownIssuer => {
                ("UnknownIssuer", "the backend's certificate is not signed by an authority that is trusted for it")
            }
            Failure::NameMismatch => ("NameMismatch", "the backend's certificate is for another name"),
            Failure::MissingSan => (
                "MissingSAN",
                "the backend's certificate has no subject alternative name, and its common name does not count",
            ),
            Failure::WrongUsage => ("WrongUsage", "the backend's certificate is not for server authentication"),
            Failure::BadCertificate => ("BadCertificate", "the backend's certificate is broken or not supported"),
            Failure::ClientCertificateRefused => {
                ("ClientCertificateRefused", "the backend does not accept the proxy's client certificate")
            }
            Failure::NoCommonProtocol => {
                ("NoCommonProtocol", "the backend supports none of the offered TLS versions, ciphers or protocols")
            }
            Failure::NotTls => ("NotTLS", "the backend does not speak TLS on this port"),
            Failure::HandshakeFailed => ("HandshakeFailed", "the TLS handshake with the backend failed"),
            Failure::ConnectionRefused => ("ConnectionRefused", "the backend refuses connections"),
            Failure::ConnectionClosed => ("ConnectionClosed", "the backend closed the connection"),
            Failure::Timeout => ("Timeout", "the backend did not answer in time"),
            Failure::NetworkUnreachable => ("NetworkUnreachable", "no route leads into the backend's network"),
            Failure::Unreachable => ("Unreachable", "the backend cannot be reached"),
            Failure::ConnectionFailed => ("ConnectionFailed", "the connection to the backend failed"),
        }
    }
}

/// webpki's error as rustls' own, so that the peer gets the alert that fits.
pub(super) fn certificate_error(error: webpki::Error) -> CertificateError {
    use webpki::Error as Web;
    match error {
        Web::CertExpired { time, not_after } => CertificateError::ExpiredContext { time, not_after },
        Web::CertNotValidYet { time, not_before } => CertificateError::NotValidYetContext { time, not_before },
        // An authority that was made anew under the same name looks like a bad signature.
        Web::UnknownIssuer | Web::CaUsedAsEndEntity | Web::InvalidSignatureForPublicKey => {
            CertificateError::UnknownIssuer
        }
        Web::CertNotValidForName(name) => {
            CertificateError::NotValidForNameContext { expected: name.expected, presented: name.presented }
        }
        Web::RequiredEkuNotFoundContext(_) => {
            CertificateError::InvalidPurposeContext { required: ExtendedKeyPurpose::ServerAuth, presented: Vec::new() }
        }
        Web::UnsupportedCriticalExtension => CertificateError::UnhandledCriticalExtension,
        Web::BadDer | Web::BadDerTime | Web::TrailingData(_) => CertificateError::BadEncoding,
        other => CertificateError::Other(rustls::OtherError(std::sync::Arc::new(other))),
    }
}
