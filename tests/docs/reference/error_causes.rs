//! The reasons that a refusal, or the condition of an APIService, can carry.
//!
//! The texts are here; the names are collected from the sources, so that none is without a text.

use std::collections::{BTreeMap, BTreeSet};

use narthex::egress::ProxyFault;

use super::{code, escaped, table};
use crate::source::SourceFile;

/// Where the constructors of `Status` are.
const STATUS_FILES: [&str; 2] = ["crates/kubeapi/src/forbidden.rs", "crates/kubeapi/src/status.rs"];

/// Where reasons are made.
const PLACES: [&str; 10] = [
    "crates/konnectivity-client/src/failure.rs",
    "src/authorize/access_spec.rs",
    "src/availability/",
    "src/commands/gateway/",
    "src/egress/",
    "src/forward/",
    STATUS_FILES[0],
    STATUS_FILES[1],
    "src/registry/resolve.rs",
    "src/route/",
];

/// Words of the same form in these places that are no reasons of a refusal or a condition.
const OTHER_WORDS: [&str; 5] = ["APIService", "DoesNotExist", "HTTPConnect", "NotIn", "TLSConfiguration"];

/// Reasons of the condition `Available`; `False` is answered with 503.
const CONDITIONS: [(&str, &str, &str); 12] = [
    ("Passed", "True", "the backend answers its probes"),
    ("Local", "True", "the APIService has no backend of its own: the kube-apiserver serves it"),
    ("NotProbed", "Unknown", "the backend has not been probed yet; requests are sent"),
    ("ServiceNotFound", "False", "the Service that the APIService names is not present"),
    ("ServicePortError", "False", "the Service does not have the port that the APIService names"),
    ("ServiceAccessError", "False", "the Service cannot be read, or may not be used (`--allow-external-name=false`)"),
    ("EndpointsNotFound", "False", "there is no EndpointSlice for the Service, or none with that port"),
    ("MissingEndpoints", "False", "no EndpointSlice of the Service has a ready address"),
    ("EgressSelectionNotFound", "False", "the annotation `narthex.dev/egress` names a selection that does not exist"),
    ("FailedDiscoveryCheck", "False", "the probe failed; the message says why"),
    ("Delegate", "True", "in the status only: the kube-apiserver behind the gateway answers"),
    (
        "DiscoveryFailed",
        "False",
        "in the status only: discovery of the kube-apiserver behind the gateway cannot be fetched",
    ),
];

/// Reasons of requests that were not sent: 503 unless a timeout came first.
const CONNECTIONS: [(&str, &str); 27] = [
    ("NoEndpoints", "no endpoint is usable"),
    ("NameNotResolved", "the host name cannot be resolved"),
    ("ConnectionRefused", "nothing listens at the endpoint"),
    ("ConnectTimeout", "no connection within `narthex.dev/connect-timeout`"),
    ("Timeout", "the operating system gave up"),
    ("NetworkUnreachable", "there is no route to the endpoint's network"),
    ("Unreachable", "the endpoint's machine cannot be reached"),
    ("ConnectionFailed", "the connection failed for another reason"),
    ("ConnectionClosed", "the endpoint closed the connection"),
    ("NotTLS", "the endpoint does not speak TLS on this port"),
    ("HandshakeFailed", "the TLS handshake failed for another reason"),
    ("NoCommonProtocol", "no TLS version, cipher suite or protocol in common"),
    ("CertificateExpired", "the serving certificate has expired"),
    ("CertificateNotYetValid", "the serving certificate is not valid yet; a clock may be wrong"),
    ("UnknownIssuer", "the serving certificate is not signed by an authority that is trusted for it"),
    ("NameMismatch", "the serving certificate is for another name"),
    ("MissingSAN", "the serving certificate has no subject alternative name"),
    ("WrongUsage", "the certificate is not for server authentication"),
    ("BadCertificate", "the serving certificate is malformed or not supported"),
    ("ClientCertificateRefused", "the backend does not accept the gateway's client certificate"),
    ("ProtocolError", "the peer broke the rules of HTTP/2 before the connection could be used"),
    ("StreamRefused", "the backend refused the request without processing it"),
    ("TooManyStreams", "the connections have no free streams"),
    ("TooManyConnections", "the connection limit is reached"),
    ("ShuttingDown", "the gateway is shutting down"),
    ("BrokenAnswer", "in the status of an endpoint: its response broke off"),
    ("ServerError", "in the status of an endpoint: it answered 500, 502, 503 or 504"),
];

/// Reasons of other refusals, with the code.
const REQUESTS: [(&str, u16, &str); 11] = [
    ("NoAnswer", 503, "the endpoint did not answer in time; the request may have been carried out"),
    ("ConnectionBroken", 503, "the connection broke before the response; the request may have been carried out"),
    ("CircuitOpen", 503, "recent requests got no response; after a while one request is sent as a test"),
    ("Recovering", 503, "the backend has just recovered, and gets requests gradually"),
    ("RequestTimeout", 504, "no response within the request timeout"),
    ("InvalidAnswer", 502, "the response is not valid HTTP"),
    ("RedirectRejected", 502, "the backend answered with a redirect (`--aggregator-reject-forwarding-redirect`)"),
    ("UpgradeRefused", 502, "the backend answered an upgrade with a success that is no upgrade"),
    ("NoAPIService", 404, "no APIService claims the group and version"),
    ("FieldValueInvalid", 422, "a field of a review is invalid; `field` names it"),
    (
        "ResourceVersionTooLarge",
        504,
        "a watch of the gateway's own APIServices asks for a version that does not exist yet",
    ),
];

/// Code, source, message and cause of each 403 and 404. `…` stands for what differs.
const DENIALS: [(u16, &str, &str, &str); 27] = [
    (
        403,
        "src/authorize/authorizer.rs",
        "User … cannot …",
        "no authorizer allows the action, or one denies it; its reason is at the end",
    ),
    (
        403,
        "src/authorize/impersonation/check.rs",
        "User … cannot …: an authorizer failed",
        "a permission to impersonate could not be checked",
    ),
    (
        403,
        "src/authorize/impersonation/mod.rs",
        "User … cannot impersonate: no authorization mode of this gateway can authorize …",
        "no [authorization mode](../how-to/impersonation.md) evaluates the caller",
    ),
    (
        403,
        "src/commands/gateway/request/not_found.rs",
        "no APIService claims v1, so no server here could allow it",
        "a Namespace is read and no server has the core group; kubectl then names the missing object",
    ),
    (
        403,
        "src/forward/upgrade.rs",
        "does not allow an upgrade to this protocol",
        "the protocol is not in the annotation `narthex.dev/upgrade-protocols`",
    ),
    (
        403,
        "src/forward/error_response.rs",
        "cannot be reached through its egress proxy: …",
        "the [egress proxy](#egress-proxies) does not allow the destination",
    ),
    (
        403,
        "src/rest/create.rs",
        "create not allowed while custom resource definition is terminating",
        "the CustomResourceDefinition is being deleted",
    ),
    (
        403,
        "src/rest/namespace.rs",
        "unable to create new content in namespace … because it is being terminated",
        "the namespace is marked for deletion",
    ),
    (
        403,
        "src/commands/gateway/request/watch_socket.rs",
        "a watch over WebSocket needs a header Origin with a URL, as browsers send it",
        "the Origin of the WebSocket handshake is missing or no URL",
    ),
    (403, "src/rest/namespace.rs", "this namespace may not be deleted", "it is a system namespace"),
    (
        404,
        "src/commands/gateway/request/not_found.rs",
        "no APIService claims …",
        "no APIService has the group and version",
    ),
    (404, "src/commands/gateway/request/not_found.rs", NOT_SERVED, "no server owns the path"),
    (
        404,
        "src/commands/gateway/request/not_found.rs",
        "404 page not found",
        "embedded API server: the group is not served, or has no such resource; the access log has the cause",
    ),
    (
        404,
        "src/commands/gateway/request_policy.rs",
        NOT_SERVED,
        "sidecar: the path is below that of no `--upstream`; log: `no upstream owns the path`",
    ),
    (
        404,
        "src/commands/gateway/request/access.rs",
        NOT_SERVED,
        "sidecar: the path is not allowed; log: `not among --allow-paths`",
    ),
    (404, "src/openapi/serve.rs", NOT_SERVED, "there is no OpenAPI document of that group and version"),
    (404, "src/rest/target.rs", NOT_SERVED, "the gateway serves no such resource or subresource"),
    (404, "src/rest/target.rs", "… not found", "the gateway has no such object"),
    (404, "src/rest/namespace.rs", "… not found", "the namespace of a new object does not exist"),
    (404, "src/rest/dispatch.rs", NOT_SERVED, "a Binding is created, and Pods are turned off"),
    (404, "src/rest/component_status.rs", "… not found", "there is no such component"),
    (
        403,
        "src/rest/escalation.rs",
        "is attempting to grant RBAC permissions not currently held",
        "the user does not have all rules of the role, and may not `escalate` it or `bind` it",
    ),
    (404, "src/rest/escalation.rs", "… not found", "the role that a new binding refers to does not exist"),
    (404, "src/rest/proxy.rs", "… not found", "the object that is to be connected to does not exist"),
    (
        404,
        "src/commands/gateway/request/local.rs",
        NOT_SERVED,
        "the issuer of service account tokens (`--service-account-issuer`) is no https URL",
    ),
    (
        404,
        "src/commands/gateway/request/reviews.rs",
        NOT_SERVED,
        "the path names a review, such as `…/tokenreviews/a`: they are not stored",
    ),
    (
        404,
        "src/rest/token_request.rs",
        "… not found",
        "the object of a TokenRequest's `spec.boundObjectRef` does not exist",
    ),
];

/// The text of a 404 for a path.
const NOT_SERVED: &str = "the server could not find the requested resource";

/// Reasons within a Konnectivity tunnel; clients see the proxy's reason, the log has these.
const TUNNELS: [(&str, &str); 7] = [
    ("NoTunnelAgent", "the Konnectivity server has no agent"),
    ("TunnelAgentExhausted", "the agent has no descriptors or memory left"),
    ("TunnelClosed", "the connection to the server, or the server's to its agent, ended"),
    ("TunnelCloseTimeout", "the remote end did not confirm the close in time"),
    ("TunnelProtocolError", "the server sent a packet that has no place here"),
    ("TunnelReaderTooSlow", "the gateway closed the tunnel: its slow reader held up all others"),
    ("TunnelRejected", "the server refused the tunnel"),
];

/// In the order of the page.
const PROXY_FAULTS: [ProxyFault; 18] = [
    ProxyFault::Unreachable,
    ProxyFault::Untrusted,
    ProxyFault::Credentials,
    ProxyFault::InvalidResponse,
    ProxyFault::Redirected,
    ProxyFault::Forbidden,
    ProxyFault::Unsupported,
    ProxyFault::NoAgent,
    ProxyFault::Failed,
    ProxyFault::NetworkUnreachable,
    ProxyFault::HostUnreachable,
    ProxyFault::ConnectionRefused,
    ProxyFault::TtlExpired,
    ProxyFault::NameNotResolved,
    ProxyFault::NoNameServer,
    ProxyFault::InvalidName,
    ProxyFault::ServerSpokeFirst,
    ProxyFault::TimedOut,
];

pub(super) fn regions(sources: &[SourceFile]) -> BTreeMap<String, String> {
    let statuses = statuses(sources);
    check_completeness(sources, &statuses);
    let conditions = CONDITIONS.map(|(reason, status, text)| vec![code(reason), code(status), text.to_owned()]);
    let connections = CONNECTIONS.map(|(reason, text)| vec![code(reason), text.to_owned()]);
    let requests = REQUESTS.map(|(reason, status, text)| vec![code(reason), status.to_string(), text.to_owned()]);
    let tunnels = TUNNELS.map(|(reason, text)| vec![code(reason), text.to_owned()]);
    let mut proxies: Vec<Vec<String>> = PROXY_FAULTS
        .iter()
        .map(|fault| vec![code(fault.reason()), fault.status().to_string(), escaped(fault.message())])
        .collect();
    // Two faults may be one to clients.
    proxies.dedup();
    let statuses = statuses.into_iter().map(|one| {
        let message = if one.message.is_empty() { String::new() } else { code(&one.message) };
        vec![one.code, code(&one.reason), escaped(&one.meaning), message]
    });
    check_denials(sources);
    let denials = DENIALS.map(|(status, _, message, text)| vec![status.to_string(), code(message), text.to_owned()]);
    [
        ("reasons of a Status", table(&["Code", "Reason", "Meaning", "Message"], statuses)),
        ("causes of 403 and 404", table(&["Code", "Message contains", "Cause"], denials)),
        ("reasons of conditions", table(&["Reason", "Available", "Meaning"], conditions)),
        ("causes before a request is sent", table(&["Cause", "Meaning"], connections)),
        ("causes of other refusals", table(&["Cause", "Code", "Meaning"], requests)),
        ("causes of egress proxies", table(&["Cause", "Code", "Message"], proxies)),
        ("reasons of tunnels", table(&["Reason", "Meaning"], tunnels)),
    ]
    .map(|(name, text)| (name.to_owned(), text))
    .into()
}

/// A constructor of `Status`.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StatusConstructor {
    code: String,
    reason: String,
    /// From the doc comment.
    meaning: String,
    /// The constant parts of its text; empty if the caller writes all of it.
    message: String,
}

fn statuses(sources: &[SourceFile]) -> Vec<StatusConstructor> {
    let files = sources.iter().filter(|file| STATUS_FILES.contains(&file.path.as_str()));
    let mut found = Vec::new();
    for (file, call) in files.flat_map(|file| file.calls("Status::new").into_iter().map(move |call| (file, call))) {
        let arguments = file.arguments(call);
        let code = file.text[arguments[0].0..arguments[0].1].trim().to_owned();
        if code == "200" {
            continue; // A success.
        }
        let Some(reason) = arguments.get(1).and_then(|second| file.literal(*second)) else { continue };
        let before = &file.text[..call.0];
        let comment: Vec<&str> = before[..before.rfind("pub fn ").unwrap()]
            .lines()
            .rev()
            .map(str::trim)
            .skip_while(|line| line.is_empty())
            .take_while(|line| line.starts_with("///"))
            .map(|line| line.trim_start_matches("///").trim())
            .collect();
        let comment = comment.into_iter().rev().collect::<Vec<_>>().join(" ");
        let first = comment.split(". ").next().unwrap_or_default().trim_end_matches('.');
        let meaning =
            first.split_once(": ").map_or("", |(_, text)| text.split(", with ").next().unwrap_or(text)).to_owned();
        assert!(!meaning.is_empty(), "the constructor of {code} {} has no comment", reason.value);
        let text = arguments.get(2).and_then(|&(start, end)| {
            file.literals.iter().find(|literal| (start..end).contains(&literal.start)).map(|literal| &literal.value)
        });
        let message = text.map(|text| with_ellipses(text)).unwrap_or_default();
        found.push(StatusConstructor { code, reason: reason.value.clone(), meaning, message });
    }
    assert!(found.len() > 15, "{found:?}");
    found.sort();
    found
}

/// The text of `format!` with an ellipsis for what is inserted.
fn with_ellipses(format: &str) -> String {
    let mut text = String::new();
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('{') {
        text = text + before + "…";
        rest = after.split_once('}').map_or("", |(_, after)| after);
    }
    (text + rest).replace("……", "…").replace("… …", "…")
}

/// Checks that each message of [`DENIALS`] is in its source, and that no source refuses with a 403 or 404 without one.
fn check_denials(sources: &[SourceFile]) {
    let source = |path: &str| sources.iter().find(|file| file.path == path);
    let status = STATUS_FILES.map(|path| source(path).unwrap());
    for (_, path, message, _) in DENIALS {
        let file = source(path).unwrap_or_else(|| panic!("no {path}"));
        let literals = || file.literals.iter().chain(status.iter().flat_map(|file| &file.literals));
        for part in message.split('…').map(|part| part.trim_matches([' ', ':'])).filter(|part| !part.is_empty()) {
            assert!(literals().any(|literal| literal.value.contains(part)), "{path} has no text {part:?}");
        }
    }
    let refuses = |file: &&SourceFile| {
        ["forbidden(", "forbidden_to(", "not_found", "object_not_found(", "new(403", "new(404"]
            .iter()
            .any(|call| file.code.contains(&format!("Status::{call}")))
    };
    let is_status = |file: &&SourceFile| STATUS_FILES.contains(&file.path.as_str());
    for file in sources.iter().filter(refuses).filter(|file| !is_status(file)) {
        assert!(DENIALS.iter().any(|(_, path, ..)| *path == file.path), "DENIALS has no cause of {}", file.path);
    }
}

fn check_completeness(sources: &[SourceFile], statuses: &[StatusConstructor]) {
    let places = |file: &&SourceFile| PLACES.iter().any(|place| file.path.starts_with(place));
    let mut named = BTreeMap::new();
    for file in
        sources.iter().filter(places).chain(sources.iter().filter(|f| f.path == "src/tls/connection_failure.rs"))
    {
        let debug: Vec<_> = file.calls("debug_struct");
        for literal in file.literals.iter().filter(|literal| is_reason(&literal.value)) {
            if !debug.iter().any(|(start, end)| (*start..*end).contains(&literal.start)) {
                named.insert(literal.value.as_str(), file.path.as_str());
            }
        }
    }
    let mut described: BTreeSet<&str> = OTHER_WORDS.into_iter().collect();
    described.extend(CONDITIONS.iter().map(|(reason, ..)| *reason));
    described.extend(CONNECTIONS.iter().map(|(reason, ..)| *reason));
    described.extend(REQUESTS.iter().map(|(reason, ..)| *reason));
    described.extend(TUNNELS.iter().map(|(reason, ..)| *reason));
    described.extend(PROXY_FAULTS.iter().map(|fault| fault.reason()));
    described.extend(statuses.iter().map(|one| one.reason.as_str()).filter(|reason| is_reason(reason)));
    let without: Vec<_> = named.iter().filter(|(reason, _)| !described.contains(*reason)).collect();
    let gone: Vec<_> = described.iter().filter(|reason| !named.contains_key(*reason)).collect();
    assert!(
        without.is_empty() && gone.is_empty(),
        "tests/docs/reference/error_causes.rs\n  without a text: {without:?}\n  with a text, and in no source: {gone:?}"
    );
}

/// `ServiceNotFound`, and the few reasons of one word.
fn is_reason(text: &str) -> bool {
    let capitals = text.bytes().filter(u8::is_ascii_uppercase).count();
    let words = ["Timeout", "Unreachable", "Recovering", "Passed", "Local", "Delegate"];
    words.contains(&text)
        || text.bytes().all(|byte| byte.is_ascii_alphabetic())
            && text.starts_with(|letter: char| letter.is_ascii_uppercase())
            && (2..text.len()).contains(&capitals)
}
