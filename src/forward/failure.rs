//! What a client is told when there is no answer: whose fault it is, and whether to try again.

use std::fmt::Write as _;

use super::exchange::Failure;
use crate::egress::{DialError, DialPhase, NoResponse, ProxyFault};
use crate::kubeapi::{RequestInfo, Status};
use crate::message::{Blame, Refusal};
use crate::registry::Called;

/// The reason of an endpoint that is connected and answers nothing.
const NO_ANSWER: &str = "NoAnswer";
/// Seconds after which a client may try again when the fault may pass at any moment.
const SOON: u32 = 1;

/// `failure` of APIService `name` as the client reads it. `safe` says that the request may be repeated
/// even if it was carried out: no other request gets `retryAfterSeconds`, which callers of client-go's
/// `SuggestsClientDelay` take for leave to repeat it.
///
/// Names the APIService and a reason; never an address, never a library's words.
pub(super) fn refuse(failure: &Failure, name: &str, info: &RequestInfo<'_>, safe: bool) -> Refusal {
    let name = Called(name);
    let (reason, what, cause) = match failure {
        Failure::NoEndpoint => ("NoEndpoints", said("NoEndpoints", &name), String::new()),
        Failure::Unreachable(error) => (error.reason, said(error.reason, &name), error.cause.clone()),
        Failure::Nonsense(cause) => ("InvalidAnswer", "its answer is not HTTP", cause.clone()),
        Failure::Broken(cause) => (
            "ConnectionBroken",
            "the connection broke before it answered; the request may have been carried out",
            cause.clone(),
        ),
        Failure::NoResponse(error) => (NO_ANSWER, said(NO_ANSWER, &name), error.to_string()),
    };
    if let Failure::Nonsense(cause) = failure {
        let message = format!("the backend's answer cannot be understood ({name}: InvalidAnswer)");
        let status = about(Status::bad_gateway(message), info).with_cause("InvalidAnswer", format!("{name}"));
        let status = if safe { status.with_retry_after(SOON) } else { status };
        return Refusal::new(Blame::Backend, status).because(cause);
    }
    if let Failure::Unreachable(error) = failure
        && let DialPhase::Proxy(fault) = error.phase
    {
        return not_connected(fault, &error.cause, name.0, info);
    }
    let again = safe || !matches!(failure, Failure::Broken(_) | Failure::NoResponse(_));
    let (mut message, mut what) = (format!("{name}: {reason}"), what.to_owned());
    if let Failure::NoResponse(NoResponse { waited, .. }) = failure {
        what = format!("its endpoint did not answer within {:.1}s", waited.as_secs_f64());
        let _ = write!(message, ", {what}");
        if !safe {
            what += "; the request may have been carried out";
        }
    }
    let status =
        Status::service_unavailable(format!("the server is currently unable to handle the request ({message})"));
    let status = about(status, info).with_cause(reason, format!("{name}: {what}"));
    Refusal::new(Blame::Backend, if again { status.with_retry_after(SOON) } else { status }).because(cause)
}

/// Who was to connect for us did not: nothing was begun, so that trying again is safe, and of use where the fault may
/// pass by itself.
fn not_connected(fault: ProxyFault, cause: &str, name: &str, info: &RequestInfo<'_>) -> Refusal {
    let name = Called(name);
    let reason = fault.reason();
    let message = format!("{name} cannot be reached through its egress proxy: {reason}");
    let status = match fault.status() {
        403 => Status::forbidden(message),
        500 => Status::internal_error(message),
        503 => Status::service_unavailable(message),
        504 => Status::timeout(message),
        _ => Status::bad_gateway(message),
    };
    let again = !matches!(fault.status(), 403 | 500);
    let status = about(status, info).with_cause(reason, format!("{name}: {}", fault.words()));
    Refusal::new(Blame::Backend, if again { status.with_retry_after(SOON) } else { status }).because(cause)
}

/// The backend's time ran out before its answer began; `failure` is why no endpoint of it can be used, if that is so.
pub(super) fn timed_out(name: &str, info: &RequestInfo<'_>, safe: bool, failure: Option<DialError>) -> Refusal {
    let name = Called(name);
    let mut message = "request did not complete within the allotted timeout".to_owned();
    if let Some(DialError { reason, .. }) = &failure {
        let _ = write!(message, " ({name}: {reason}, {})", said(reason, &name));
    }
    let status = about(Status::timeout(message), info);
    let status = status.with_cause("RequestTimeout", format!("{name} did not answer in time"));
    let refusal = Refusal::new(Blame::Backend, if safe { status.with_retry_after(SOON) } else { status });
    match failure {
        Some(error) => refusal.because(error.cause),
        None => refusal,
    }
}

/// The backend answered something that is not passed on.
pub(super) fn bad_answer(name: &str, info: &RequestInfo<'_>, reason: &str, message: &str) -> Refusal {
    let name = Called(name);
    let status = about(Status::bad_gateway(message), info).with_cause(reason, format!("{name}"));
    Refusal::new(Blame::Backend, status)
}

/// A [`Status`] with details of the resource the request is about.
pub(super) fn about(status: Status, info: &RequestInfo<'_>) -> Status {
    status.about(info.api_group, info.resource, &info.name)
}

/// A reason in words a user can read.
fn said(reason: &str, name: &Called<'_>) -> &'static str {
    match reason {
        "NameNotResolved" => "its host name cannot be resolved",
        "ConnectionRefused" => "nothing listens at its endpoint",
        NO_ANSWER | "ConnectTimeout" | "Timeout" => "its endpoint does not answer",
        "CertificateExpired" => "its serving certificate has expired",
        "CertificateNotYetValid" => "its serving certificate is not valid yet",
        "UnknownIssuer" if name.is_upstream() => {
            "its serving certificate is not signed by an authority of --upstream-ca-file, or of the system without that"
        }
        "UnknownIssuer" => "its serving certificate is not signed by an authority in the APIService's caBundle",
        "NameMismatch" => "its serving certificate is for another name",
        "MissingSAN" => "its serving certificate has no subject alternative name",
        "WrongUsage" => "its certificate is not for serving",
        "BadCertificate" => "its serving certificate cannot be used",
        "ClientCertificateRefused" if name.is_upstream() => {
            "it does not accept the certificate of --upstream-client-cert-file, or asks for one and there is none"
        }
        "ClientCertificateRefused" => "it does not accept the gateway's client certificate",
        "NoCommonProtocol" => "it speaks no protocol the gateway speaks",
        "NotTLS" => "its endpoint answered without TLS; is this a port for plain HTTP?",
        "StreamRefused" => "it refused the request before beginning it",
        "TooManyStreams" => "too many requests are open to it",
        "TooManyConnections" => "it has as many connections as it may have",
        "NoEndpoints" => "it has no endpoint that answers",
        "ConnectionClosed" => "it closed the connection",
        _ => "no connection to its endpoint can be opened",
    }
}
