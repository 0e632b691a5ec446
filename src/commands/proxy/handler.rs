//! Handles a request: route to the API or the static files, filter, forward.

use std::convert::Infallible;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::header::HOST;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use percent_encoding::percent_decode_str;
use tower::service_fn;

use super::filter::check;
use super::paths::{PathRoute, Prefixes};
use super::relay::{ProxyRequest, relay};
use super::responses::{self, LoggedCause};
use super::static_files;
use crate::config::proxy::RequestFilter;
use crate::kubeclient::Client;
use crate::listen::{ConnectionHandle, RequestService, ResponseFuture};
use crate::message::{Accept, Body, ErrorFormat, IncomingBody, MalformedRequest, respond};
use crate::observe::access::{ProxyAccessLog, ProxyRecord};

/// State shared by all requests.
pub(super) struct ProxyContext {
    pub(super) prefixes: Prefixes,
    /// The directory of static files.
    pub(super) files: Option<PathBuf>,
    pub(super) filter: Option<RequestFilter>,
    pub(super) append_server_path: bool,
    pub(super) keep_alive: Duration,
    pub(super) client: Rc<Client>,
    pub(super) access_log: ProxyAccessLog,
}

/// A client connection.
pub(super) struct ProxyConnection {
    pub(super) context: Rc<ProxyContext>,
    /// The client's address; none over a unix socket.
    pub(super) remote: Option<IpAddr>,
    pub(super) handle: ConnectionHandle,
}

impl ProxyConnection {
    /// The service of this connection's requests.
    pub(super) fn into_service(self) -> impl RequestService {
        let connection = Rc::new(self);
        service_fn(move |request| -> ResponseFuture { Box::pin(connection.clone().handle(request)) })
    }

    async fn handle(self: Rc<Self>, request: Request<IncomingBody>) -> Result<Response<Body>, Infallible> {
        let (began, method, uri) = (Instant::now(), request.method().clone(), request.uri().clone());
        let mut answer = self.respond(request).await;
        let cause = answer.extensions_mut().remove::<LoggedCause>();
        self.context.access_log.record(&ProxyRecord {
            client: self.remote,
            method: &method,
            uri: &uri,
            status: answer.status().as_u16(),
            cause: cause.as_ref().map_or("", |LoggedCause(why)| why),
            duration: began.elapsed(),
        });
        Ok(answer)
    }

    async fn respond(&self, request: Request<IncomingBody>) -> Response<Body> {
        let context = &*self.context;
        if let Some(malformed) = request.extensions().get::<MalformedRequest>() {
            let refusal = malformed.refusal();
            let accept = Accept::from_headers(request.headers());
            let mut response = respond(&refusal, &accept, ErrorFormat::Status);
            response.extensions_mut().insert(LoggedCause(refusal.status().message.clone()));
            return response;
        }
        let host = match request_host(&request) {
            Ok(host) => host,
            Err(refusal) => return *refusal,
        };
        let path = request.uri().path();
        // `*`, or empty with CONNECT.
        if !path.starts_with('/') || *request.method() == Method::CONNECT {
            return if path == "*" { responses::bad_request("") } else { responses::not_found() };
        }
        if !is_well_escaped(path) {
            return responses::bad_request("");
        }
        let query = request.uri().query();
        let filtered = |path: &str| {
            let decoded: Vec<u8> = percent_decode_str(path).collect();
            let check = |patterns| check(patterns, request.method(), &decoded, &host, request.headers());
            context.filter.as_ref().map_or(Ok(()), check)
        };
        match context.prefixes.route(path) {
            PathRoute::Redirect(path) => responses::redirect(request.method(), &path, query),
            PathRoute::NotFound => responses::not_found(),
            PathRoute::Files(below) => match (&context.files, filtered(path)) {
                (_, Err(denial)) => responses::forbidden(&denial),
                (Some(folder), Ok(())) => {
                    static_files::serve(folder, request.method(), below, query, request.headers()).await
                }
                (None, Ok(())) => responses::not_found(),
            },
            PathRoute::Api(path) => {
                if let Err(denial) = filtered(&path) {
                    return responses::forbidden(&denial);
                }
                let onward = match context.client.passthrough().await {
                    Ok(onward) => onward,
                    Err(denied) => {
                        return responses::error_response(StatusCode::INTERNAL_SERVER_ERROR, &denied.to_string());
                    }
                };
                let before = if context.append_server_path { onward.prefix() } else { "" };
                let Some(target) = target_uri(before, &path, query) else { return responses::bad_request("") };
                let proxy_request = ProxyRequest { request, target, client: self.remote, connection: &self.handle };
                relay(&context.client, onward, proxy_request).await
            }
        }
    }
}

/// The requested host with port. As in net/http, the request line takes precedence over the header.
fn request_host(request: &Request<IncomingBody>) -> Result<String, Box<Response<Body>>> {
    if let Some(authority) = request.uri().authority() {
        return Ok(authority.to_string());
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let first = hosts.next();
    match (first, hosts.next()) {
        (_, Some(_)) => Err(Box::new(responses::bad_request(""))),
        (None, None) if request.version() >= Version::HTTP_11 => {
            Err(Box::new(responses::bad_request("missing required Host header")))
        }
        (None, None) => Ok(String::new()),
        (Some(host), None) => match host.to_str() {
            Ok(host) => Ok(host.to_owned()),
            Err(_) => Err(Box::new(responses::bad_request("malformed Host header"))),
        },
    }
}

fn is_well_escaped(path: &str) -> bool {
    path.split('%').skip(1).all(|rest| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit()))
}

/// The request target for the server, with the client's escaping.
fn target_uri(before: &str, path: &str, query: Option<&str>) -> Option<Uri> {
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{before}{path}{query}").parse().ok()
}
