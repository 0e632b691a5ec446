//! Why an agent has no stream to a server: one line, with what to do.

use std::fmt::Display;
use std::io;
use std::path::Path;

use crate::tls::{ConnectionFailure, PairFiles, describe_error};

/// What the port of a server has to be.
const WRONG_PORT: &str = "--proxy-server-port is the port that the server has for agents (--agent-port)";

/// Why there is no stream to a server: one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerConnectError {
    text: String,
    refused: Option<RefusedCredential>,
}

/// What a server did not accept of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RefusedCredential {
    Certificate,
    Token,
}

impl Display for ServerConnectError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

/// Adds what to do to a text that says what is wrong.
fn with_advice(text: &str, advice: &str) -> ServerConnectError {
    ServerConnectError::new(if advice.is_empty() { text.to_owned() } else { format!("{text}; {advice}") })
}

impl ServerConnectError {
    /// An error without advice.
    pub(super) fn new(text: String) -> ServerConnectError {
        ServerConnectError { text, refused: None }
    }

    /// The sentence.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// The name of a server is not known.
    pub(super) fn unresolved(host: &str, error: &io::Error) -> ServerConnectError {
        with_advice(
            &format!("cannot resolve {host:?}: {error}"),
            "check --proxy-server-host and the DNS of this machine",
        )
    }

    /// No TCP connection.
    pub(super) fn unreachable(error: &io::Error) -> ServerConnectError {
        let advice = match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                "nothing listens there: check --proxy-server-host, --proxy-server-port and that the server runs"
            }
            _ => "check --proxy-server-host, --proxy-server-port and the firewalls on the way",
        };
        with_advice(&format!("cannot connect: {error}"), advice)
    }

    /// The TLS handshake failed.
    pub(super) fn tls(error: &io::Error) -> ServerConnectError {
        // The text is that of the last failure of this thread: first of all.
        let text = describe_error(error);
        let advice = match ConnectionFailure::from_io(error) {
            ConnectionFailure::UnknownIssuer => {
                "--ca-cert has to contain the authority that signed the server's certificate"
            }
            ConnectionFailure::CertificateExpired | ConnectionFailure::CertificateNotYetValid => {
                "renew the server's certificate (--cluster-cert), or check the clock of this machine"
            }
            ConnectionFailure::NameMismatch | ConnectionFailure::MissingSan => {
                "connect by a name of the certificate (--proxy-server-host), or add this one to the server's certificate (--cluster-cert)"
            }
            ConnectionFailure::WrongUsage | ConnectionFailure::BadCertificate => {
                "replace the server's certificate (--cluster-cert)"
            }
            ConnectionFailure::NotTls | ConnectionFailure::ConnectionClosed => WRONG_PORT,
            ConnectionFailure::NoCommonProtocol => {
                "it has no HTTP/2, or no TLS version in common: --proxy-server-port is the port that the server has for agents (--agent-port)"
            }
            _ => "",
        };
        with_advice(&text, advice)
    }

    /// The connection failed after the TLS handshake of this side: with TLS 1.3 the server refuses a certificate then.
    pub(super) fn http2(what: &str, error: &h2::Error) -> ServerConnectError {
        let text = error.to_string();
        let alert = text.split_once("fatal alert: ").map(|(_, alert)| alert);
        let advice = match alert {
            Some(alert) if alert.starts_with("CertificateRequired") => {
                "the server requires a client certificate: set --agent-cert and --agent-key"
            }
            Some(alert) if alert.starts_with("CertificateExpired") => {
                // The alert is the same for both.
                "the client certificate has expired or is not yet valid: renew --agent-cert, or check the clocks of both machines"
            }
            Some(alert) if alert.contains("Certificate") || alert.contains("UnknownCA") => {
                "the server refuses the client certificate: its --cluster-ca-cert has to contain the authority that signed --agent-cert"
            }
            Some(_) => "",
            None if error.get_io().is_some() => "see the log of the server",
            None => WRONG_PORT,
        };
        let refused = alert.map(|_| RefusedCredential::Certificate);
        ServerConnectError { refused, ..with_advice(&format!("{what}: {text}"), advice) }
    }

    /// The server answers, but not as a Konnectivity server does.
    pub(super) fn not_konnectivity(text: &str) -> ServerConnectError {
        with_advice(text, &format!("this is no Konnectivity server, or not its port for agents: {WRONG_PORT}"))
    }

    /// The server refuses the agent with a gRPC status.
    pub(super) fn refused(code: &str, message: &str) -> ServerConnectError {
        const UNIMPLEMENTED: &str = "12";
        let text = format!("the server refuses the agent with gRPC status {code}: {message}");
        let lower = message.to_ascii_lowercase();
        if code == UNIMPLEMENTED {
            return ServerConnectError::not_konnectivity(&text);
        }
        // The texts are those of the reference's server.
        let is_token = lower.contains("token");
        let advice = if lower.contains("context was not found") {
            "the server requires a token: set --service-account-token-path"
        } else if is_token {
            "the token has to be of the server's --agent-namespace, --agent-service-account and --authentication-audience, and valid"
        } else {
            ""
        };
        let refused = (is_token || !advice.is_empty()).then_some(RefusedCredential::Token);
        ServerConnectError { refused, ..with_advice(&text, advice) }
    }

    /// Names the file of the agent that the server may have refused.
    pub(super) fn with_files(self, pair: Option<&PairFiles>, token_file: Option<&Path>) -> ServerConnectError {
        let file = match self.refused {
            Some(RefusedCredential::Certificate) => {
                pair.map(|pair| format!("--agent-cert is {}", pair.certificate.display()))
            }
            Some(RefusedCredential::Token) => {
                token_file.map(|path| format!("--service-account-token-path is {}", path.display()))
            }
            None => None,
        };
        match file {
            Some(file) => ServerConnectError { text: format!("{} ({file})", self.text), ..self },
            None => self,
        }
    }
}
