//! Forwards a request to the API server and its response to the client.

use std::cell::Cell;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, UPGRADE, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body::{Body as _, Frame, SizeHint};
use hyper_util::rt::TokioIo;

use super::responses;
use crate::egress::{ConnectionGuard, DialError};
use crate::forward::copy_bidirectional;
use crate::kubeclient::{Client, Passthrough, PassthroughError};
use crate::listen::ConnectionHandle;
use crate::message::{Body, BodyError, IncomingBody, hop_by_hop, upgrade_protocol};

const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Idle timeout of a half-closed tunnel.
const HALF_CLOSED_IDLE_TIMEOUT: Duration = Duration::from_secs(900);

/// A request to forward and its client.
pub(super) struct ProxyRequest<'a> {
    pub(super) request: Request<IncomingBody>,
    /// The path and query to request, including the path of the server's URL.
    pub(super) target: Uri,
    /// The client's address; none over a unix socket.
    pub(super) client: Option<IpAddr>,
    pub(super) connection: &'a ConnectionHandle,
}

/// Forwards the request with the credentials of `onward` and returns the response. If the credentials come from a
/// plugin and the server answers 401, they are renewed; a request without a body is then sent again.
pub(super) async fn relay(server: &Rc<Client>, onward: Passthrough, proxy_request: ProxyRequest<'_>) -> Response<Body> {
    let ProxyRequest { mut request, target, client, connection } = proxy_request;
    // client-go lets the client's impersonation headers win; with an empty name the request would act as the
    // kubeconfig's own user.
    if !onward.impersonation().is_empty()
        && let Some(name) =
            request.headers().keys().find(|name| hop_by_hop::has_normalized_prefix(name.as_str(), "impersonate-"))
    {
        tracing::warn!(header = %name, "request refused: impersonation is set by the kubeconfig or --as");
        let why = "Forbidden: Impersonate-* headers are not accepted, the kubeconfig or --as impersonates already";
        return responses::error_response(StatusCode::FORBIDDEN, why);
    }
    let protocol = match request.version() {
        Version::HTTP_11 => upgrade_protocol(request.headers()).and_then(|it| HeaderValue::from_str(it).ok()),
        _ => None,
    };
    let is_own_authorization =
        rewrite_headers(request.headers_mut(), onward.authorization(), onward.impersonation(), client);
    *request.uri_mut() = target;
    let replaceable = is_own_authorization && onward.has_temporary_credentials();
    match protocol {
        Some(protocol) => upgrade(server, onward, request, protocol, replaceable, connection).await,
        None => forward(server, onward, request, replaceable).await,
    }
}

async fn forward(
    server: &Rc<Client>,
    onward: Passthrough,
    request: Request<IncomingBody>,
    replaceable: bool,
) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = if body.is_end_stream() { Body::Empty } else { Body::stream(ProxyBody { body, lease: None }) };
    let head = ForwardedHead { method: parts.method, uri: parts.uri, headers: parts.headers };
    let again = (replaceable && matches!(body, Body::Empty)).then(|| head.clone());
    let mut sent = onward.send(head.with_body(body)).await;
    let refused = |sent: &Result<(Response<IncomingBody>, ConnectionGuard), PassthroughError>| {
        sent.as_ref().is_ok_and(|(response, _)| response.status() == StatusCode::UNAUTHORIZED)
    };
    if replaceable && refused(&sent) {
        match again {
            Some(again) => {
                if let Some(onward) = server.passthrough_with_new_credentials(&onward).await {
                    sent = onward.send(again.with_credentials(&onward).with_body(Body::Empty)).await;
                }
            }
            // Renewed in the background for the next request.
            None => {
                let server = server.clone();
                tokio::task::spawn_local(
                    async move { server.passthrough_with_new_credentials(&onward).await.is_some() },
                );
            }
        }
    }
    match sent {
        Ok((response, lease)) => relay_response(response, lease),
        Err(undelivered) => undelivered_response("", &undelivered),
    }
}

async fn upgrade(
    server: &Client,
    onward: Passthrough,
    mut request: Request<IncomingBody>,
    protocol: HeaderValue,
    replaceable: bool,
    connection: &ConnectionHandle,
) -> Response<Body> {
    let client = hyper::upgrade::on(&mut request);
    let (mut parts, _) = request.into_parts();
    parts.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    parts.headers.insert(UPGRADE, protocol);
    // An upgrade request has no body; bytes after the header belong to the tunnel.
    parts.headers.remove(CONTENT_LENGTH);
    let head = ForwardedHead { method: parts.method, uri: parts.uri, headers: parts.headers };
    let again = replaceable.then(|| head.clone());
    let mut sent = onward.send_on_new_connection(head.with_body(Body::Empty)).await;
    if let (Ok((response, _)), Some(again)) = (&sent, again)
        && response.status() == StatusCode::UNAUTHORIZED
        && let Some(onward) = server.passthrough_with_new_credentials(&onward).await
    {
        sent = onward.send_on_new_connection(again.with_credentials(&onward).with_body(Body::Empty)).await;
    }
    let (response, line) = match sent {
        Ok(answered) => answered,
        Err(undelivered) => return undelivered_response("error dialing backend: ", &undelivered),
    };
    let status = response.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        if status.as_u16() < 400 {
            let why = format!("invalid upgrade response: status code {}", status.as_u16());
            return responses::error_response(StatusCode::INTERNAL_SERVER_ERROR, &why);
        }
        let mut answer = relay_response(response, ConnectionGuard::dedicated(line));
        // Bytes that the client sent after its request were meant for the tunnel; they must not be parsed as a request.
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return answer;
    }
    let switched = response.headers().get(UPGRADE).cloned();
    let (mut head, _) = response.into_parts();
    let Some(server) = line.into_upgraded() else {
        return responses::error_response(StatusCode::INTERNAL_SERVER_ERROR, "invalid upgrade response: it has a body");
    };
    hop_by_hop::strip_response(&mut head.headers, |_| false);
    head.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    if let Some(switched) = switched {
        head.headers.insert(UPGRADE, switched);
    }
    let tunnel = connection.upgrade();
    tokio::task::spawn_local(async move {
        let Ok(client) = client.await else { return };
        let counts = Cell::default();
        tokio::select! {
            _ = copy_bidirectional(TokioIo::new(client), server, HALF_CLOSED_IDLE_TIMEOUT, &counts) => {}
            () = tunnel.close_requested() => {}
        }
    });
    let mut answer = Response::new(Body::Empty);
    *answer.status_mut() = head.status;
    *answer.headers_mut() = head.headers;
    answer
}

/// A request without its body.
#[derive(Clone)]
struct ForwardedHead {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
}

impl ForwardedHead {
    fn with_body(self, body: Body) -> Box<Request<Body>> {
        let mut request = Box::new(Request::new(body));
        *request.method_mut() = self.method;
        *request.uri_mut() = self.uri;
        *request.headers_mut() = self.headers;
        request
    }

    /// Replaces the credentials by those of `onward`.
    fn with_credentials(mut self, onward: &Passthrough) -> ForwardedHead {
        match onward.authorization() {
            Some(ours) => drop(self.headers.insert(AUTHORIZATION, ours.clone())),
            None => drop(self.headers.remove(AUTHORIZATION)),
        }
        self
    }
}

/// Rewrites the request headers for the server. Returns whether the credentials are the kubeconfig's.
fn rewrite_headers(
    headers: &mut HeaderMap,
    own_authorization: Option<&HeaderValue>,
    impersonation: &[(HeaderName, HeaderValue)],
    client: Option<IpAddr>,
) -> bool {
    // Removes other spellings of X-Forwarded-For: servers behind WSGI or CGI treat `_` as `-`.
    let mimics = |name: &str| hop_by_hop::is_normalized_name(name, FORWARDED_FOR.as_str()) && FORWARDED_FOR != name;
    hop_by_hop::strip_request(headers, mimics);
    headers.remove(HOST);
    // Already answered by the listener.
    headers.remove(EXPECT);
    // The client's own credentials take precedence, as with client-go.
    let own = headers.get(AUTHORIZATION).is_some_and(|value| !value.is_empty());
    if let Some(authorization) = own_authorization.filter(|_| !own) {
        headers.insert(AUTHORIZATION, authorization.clone());
    }
    // So does the client's own impersonation.
    if !headers.contains_key(IMPERSONATE_USER) {
        for (name, value) in impersonation {
            headers.append(name, value.clone());
        }
    }
    headers
        .entry(USER_AGENT)
        .or_insert_with(|| HeaderValue::from_static(concat!("narthex/", env!("CARGO_PKG_VERSION"))));
    if let Some(client) = client {
        let mut addresses = Vec::new();
        for value in headers.get_all(FORWARDED_FOR) {
            addresses.extend_from_slice(value.as_bytes());
            addresses.extend_from_slice(b", ");
        }
        addresses.extend_from_slice(client.to_canonical().to_string().as_bytes());
        if let Ok(forwarded_for) = HeaderValue::from_bytes(&addresses) {
            headers.insert(FORWARDED_FOR, forwarded_for);
        }
    }
    !own
}

fn relay_response(response: Response<IncomingBody>, lease: ConnectionGuard) -> Response<Body> {
    let (mut head, mut from) = response.into_parts();
    hop_by_hop::strip_response(&mut head.headers, |_| false);
    if head.status == StatusCode::NO_CONTENT {
        head.headers.remove(CONTENT_LENGTH);
    }
    if matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) && !from.is_end_stream() {
        from = from.without_body(|| tracing::warn!("the API server sent a body with a status that has none"));
    }
    let mut answer = Response::new(Body::stream(ProxyBody { body: from, lease: Some(lease) }));
    *answer.status_mut() = head.status;
    *answer.headers_mut() = head.headers;
    answer
}

/// The error response if the server could not be reached, as text for a person.
fn undelivered_response(before: &str, undelivered: &PassthroughError) -> Response<Body> {
    let why = match undelivered {
        PassthroughError::Unreachable(error) => dial_error_message(error),
        PassthroughError::Broken(why) => why.clone(),
    };
    responses::error_response(StatusCode::INTERNAL_SERVER_ERROR, &format!("{before}{why}"))
}

/// The dial error in Go's words, for scripts that match them.
fn dial_error_message(error: &DialError) -> String {
    match (error.reason, error.cause.rsplit_once(": ")) {
        ("ConnectionRefused", Some((address, _))) => format!("dial tcp {address}: connect: connection refused"),
        _ => error.cause.clone(),
    }
}

/// The forwarded body of a request or a response; a response's body holds its connection.
struct ProxyBody {
    body: IncomingBody,
    lease: Option<ConnectionGuard>,
}

impl http_body::Body for ProxyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
        {
            hop_by_hop::strip_trailers(trailers);
        }
        // hyper does not poll again after the last frame: the end must be detected here.
        let whole = match &polled {
            Poll::Ready(Some(Ok(_))) => self.body.is_end_stream(),
            Poll::Ready(None) => true,
            _ => false,
        };
        if whole && let Some(lease) = &mut self.lease {
            lease.finish();
        }
        // The original error is dropped: hyper would forward its reset reason to the client.
        polled.map_err(|_| "the body is incomplete".into())
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrite_request_headers() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "localhost:8001"),
            ("connection", "keep-alive, x-mine"),
            ("x-mine", "1"),
            ("proxy-authorization", "Basic eA=="),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-for", "5.6.7.8"),
            ("te", "trailers"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let ours = HeaderValue::from_static("Bearer ours");
        let mut own = headers.clone();
        rewrite_headers(&mut headers, Some(&ours), &[], Some("127.0.0.1".parse().unwrap()));
        assert_eq!(headers["x-forwarded-for"], "1.2.3.4, 5.6.7.8, 127.0.0.1");
        assert_eq!((&headers["authorization"], &headers["te"]), (&ours, &HeaderValue::from_static("trailers")));
        assert!(headers["user-agent"].to_str().unwrap().starts_with("narthex/"));
        assert_eq!(headers.len(), 4, "{headers:?}");
        own.insert(AUTHORIZATION, HeaderValue::from_static("Bearer own"));
        own.insert(USER_AGENT, HeaderValue::from_static("curl"));
        rewrite_headers(&mut own, Some(&ours), &[], None);
        assert_eq!(
            (&own["authorization"], &own["user-agent"]),
            (&"Bearer own".parse().unwrap(), &"curl".parse().unwrap())
        );
        assert_eq!(own.get_all("x-forwarded-for").iter().count(), 2);
    }
}
