//! Why a request got no response from its backend, and the Status for it: cause, message, and whether to retry.

use std::fmt::Write as _;

use kubeapi::{RequestInfo, RetryAfter, Status};

use crate::egress::{DialError, DialPhase, NoResponse, ProxyFault};
use crate::message::{Blame, Refusal};
use crate::registry::DisplayName;

/// Reason of an unresponsive endpoint.
const NO_ANSWER_REASON: &str = "NoAnswer";

/// Why a request got no response.
#[derive(Debug)]
pub(super) enum ForwardError {
    /// No usable endpoint.
    NoEndpoint,
    /// No endpoint processed the request: any request can be retried.
    Unreachable(DialError),
    /// The response is not valid HTTP; the request may have been processed.
    InvalidResponse(String),
    /// The request was sent and got no response; it may have been processed.
    Broken(String),
    /// As [`ForwardError::Broken`], and the endpoint is unresponsive.
    NoResponse(NoResponse),
}

/// The refusal for `failure` of APIService `name`. `safe` says that the request may be repeated even if it was
/// processed: no other request gets `retryAfterSeconds` after that, which callers of client-go's `SuggestsClientDelay`
/// take as permission to repeat it.
///
/// Contains the APIService's name and a reason, but no addresses and no library error texts.
pub(super) fn refusal_for(failure: &ForwardError, name: &str, info: &RequestInfo<'_>, safe: bool) -> Refusal {
    let name = DisplayName(name);
    let (reason, what, cause) = match failure {
        ForwardError::NoEndpoint => ("NoEndpoints", describe_reason("NoEndpoints", &name), String::new()),
        ForwardError::Unreachable(error) => (error.reason, describe_reason(error.reason, &name), error.cause.clone()),
        ForwardError::InvalidResponse(cause) => ("InvalidAnswer", "its response is not valid HTTP", cause.clone()),
        ForwardError::Broken(cause) => (
            "ConnectionBroken",
            "the connection broke before it answered; the request may have been carried out",
            cause.clone(),
        ),
        ForwardError::NoResponse(error) => {
            (NO_ANSWER_REASON, describe_reason(NO_ANSWER_REASON, &name), error.to_string())
        }
    };
    if let ForwardError::InvalidResponse(cause) = failure {
        let message = format!("the backend's response is not valid HTTP ({name}: InvalidAnswer)");
        let status =
            with_request_details(Status::bad_gateway(message), info).with_cause("InvalidAnswer", format!("{name}"));
        let status = if safe { status.with_retry_after(RetryAfter::TransientFault) } else { status };
        return Refusal::new(Blame::Backend, status).with_cause(cause);
    }
    if let ForwardError::Unreachable(error) = failure
        && let DialPhase::Proxy(fault) = error.phase
    {
        return proxy_refusal(fault, &error.cause, name.0, info);
    }
    let again = safe || !matches!(failure, ForwardError::Broken(_) | ForwardError::NoResponse(_));
    let (mut message, mut what) = (format!("{name}: {reason}"), what.to_owned());
    if let ForwardError::NoResponse(NoResponse { waited, .. }) = failure {
        what = format!("its endpoint did not answer within {:.1}s", waited.as_secs_f64());
        let _ = write!(message, ", {what}");
        if !safe {
            what += "; the request may have been carried out";
        }
    }
    let status =
        Status::service_unavailable(format!("the server is currently unable to handle the request ({message})"));
    let status = with_request_details(status, info).with_cause(reason, format!("{name}: {what}"));
    Refusal::new(Blame::Backend, if again { status.with_retry_after(RetryAfter::TransientFault) } else { status })
        .with_cause(cause)
}

/// The refusal for a fault of the egress proxy. The request was not processed, so it can be retried; that is suggested
/// where the fault may pass by itself.
fn proxy_refusal(fault: ProxyFault, cause: &str, name: &str, info: &RequestInfo<'_>) -> Refusal {
    let name = DisplayName(name);
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
    let status = with_request_details(status, info).with_cause(reason, format!("{name}: {}", fault.message()));
    Refusal::new(Blame::Backend, if again { status.with_retry_after(RetryAfter::TransientFault) } else { status })
        .with_cause(cause)
}

/// The refusal for a request timeout before the response head; `failure` is why no endpoint is usable, if so.
pub(super) fn timeout_refusal(name: &str, info: &RequestInfo<'_>, safe: bool, failure: Option<DialError>) -> Refusal {
    let name = DisplayName(name);
    let mut message = "request did not complete within the allotted timeout".to_owned();
    if let Some(DialError { reason, .. }) = &failure {
        let _ = write!(message, " ({name}: {reason}, {})", describe_reason(reason, &name));
    }
    let status = with_request_details(Status::timeout(message), info);
    let status = status.with_cause("RequestTimeout", format!("{name} did not answer in time"));
    let refusal =
        Refusal::new(Blame::Backend, if safe { status.with_retry_after(RetryAfter::TransientFault) } else { status });
    match failure {
        Some(error) => refusal.with_cause(error.cause),
        None => refusal,
    }
}

/// The refusal for a backend response that is not passed on.
pub(super) fn bad_gateway_refusal(name: &str, info: &RequestInfo<'_>, reason: &str, message: &str) -> Refusal {
    let name = DisplayName(name);
    let status = with_request_details(Status::bad_gateway(message), info).with_cause(reason, format!("{name}"));
    Refusal::new(Blame::Backend, status)
}

/// Adds the requested resource to the details of a [`Status`].
pub(super) fn with_request_details(status: Status, info: &RequestInfo<'_>) -> Status {
    status.with_resource(info.api_group, info.resource, &info.name)
}

/// Description of a reason, for users.
fn describe_reason(reason: &str, name: &DisplayName<'_>) -> &'static str {
    match reason {
        "NameNotResolved" => "its host name cannot be resolved",
        "ConnectionRefused" => "nothing listens at its endpoint",
        NO_ANSWER_REASON | "ConnectTimeout" | "Timeout" => "its endpoint does not answer",
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
        "NoCommonProtocol" => "it has no protocol in common with the gateway",
        "NotTLS" => "its endpoint answered without TLS; is this a port for plain HTTP?",
        "StreamRefused" => "it refused the request without processing it",
        "TooManyStreams" => "its connections have no free streams",
        "TooManyConnections" => "its connection limit is reached",
        "NoEndpoints" => "it has no endpoint that answers",
        "ConnectionClosed" => "it closed the connection",
        _ => "no connection to its endpoint can be opened",
    }
}
