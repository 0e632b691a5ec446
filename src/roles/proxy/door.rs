//! Handles a request: route to the API or the static files, filter, forward.

use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use http::header::HOST;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use percent_encoding::percent_decode_str;

use super::answer::{self, Cause};
use super::files;
use super::filter::check;
use super::paths::{Led, Prefixes};
use super::relay::{Asked, relay};
use crate::config::proxy::Patterns;
use crate::kubeclient::Client;
use crate::listen::{Answering, Closer, Handler};
use crate::message::{Body, Received};
use crate::observe::access::{ProxyAccessLog, ProxyRecord};

/// State shared by all requests.
pub(super) struct Door {
    pub(super) prefixes: Prefixes,
    /// The directory of static files.
    pub(super) files: Option<PathBuf>,
    pub(super) filter: Option<Patterns>,
    pub(super) append_server_path: bool,
    pub(super) keep_alive: Duration,
    pub(super) client: Rc<Client>,
    pub(super) access_log: ProxyAccessLog,
}

/// A client connection.
pub(super) struct Connection {
    pub(super) door: Rc<Door>,
    /// The client's address; none over a unix socket.
    pub(super) remote: Option<IpAddr>,
    pub(super) closer: Closer,
}

impl Handler for Connection {
    fn handle(self: Rc<Self>, request: Request<Received>) -> Answering {
        Box::pin(async move {
            let (began, method, uri) = (Instant::now(), request.method().clone(), request.uri().clone());
            let mut answer = self.answer(request).await;
            let cause = answer.extensions_mut().remove::<Cause>();
            self.door.access_log.record(&ProxyRecord {
                client: self.remote,
                method: &method,
                uri: &uri,
                status: answer.status().as_u16(),
                cause: cause.as_ref().map_or("", |Cause(why)| why),
                took: began.elapsed(),
            });
            answer
        })
    }
}

impl Connection {
    async fn answer(&self, request: Request<Received>) -> Response<Body> {
        let door = &*self.door;
        let host = match host(&request) {
            Ok(host) => host,
            Err(refusal) => return *refusal,
        };
        let path = request.uri().path();
        // `*`, or empty with CONNECT.
        if !path.starts_with('/') || *request.method() == Method::CONNECT {
            return if path == "*" { answer::bad_request("") } else { answer::not_found() };
        }
        if !is_well_escaped(path) {
            return answer::bad_request("");
        }
        let query = request.uri().query();
        let filtered = |path: &str| {
            let decoded: Vec<u8> = percent_decode_str(path).collect();
            let check = |patterns| check(patterns, request.method(), &decoded, &host, request.headers());
            door.filter.as_ref().map_or(Ok(()), check)
        };
        match door.prefixes.lead(path) {
            Led::Elsewhere(path) => answer::moved(request.method(), &path, query),
            Led::Nowhere => answer::not_found(),
            Led::Files(below) => match (&door.files, filtered(path)) {
                (_, Err(denial)) => answer::forbidden(&denial),
                (Some(folder), Ok(())) => files::serve(folder, request.method(), below, query, request.headers()).await,
                (None, Ok(())) => answer::not_found(),
            },
            Led::Api(path) => {
                if let Err(denial) = filtered(&path) {
                    return answer::forbidden(&denial);
                }
                let onward = match door.client.onward().await {
                    Ok(onward) => onward,
                    Err(denied) => return answer::error(StatusCode::INTERNAL_SERVER_ERROR, &denied.to_string()),
                };
                let before = if door.append_server_path { onward.prefix() } else { "" };
                let Some(target) = target(before, &path, query) else { return answer::bad_request("") };
                let asked = Asked { request, target, client: self.remote, connection: &self.closer };
                relay(&door.client, onward, asked).await
            }
        }
    }
}

/// The requested host with port. As in net/http, the request line takes precedence over the header.
fn host(request: &Request<Received>) -> Result<String, Box<Response<Body>>> {
    if let Some(authority) = request.uri().authority() {
        return Ok(authority.to_string());
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let first = hosts.next();
    match (first, hosts.next()) {
        (_, Some(_)) => Err(Box::new(answer::bad_request(""))),
        (None, None) if request.version() >= Version::HTTP_11 => {
            Err(Box::new(answer::bad_request("missing required Host header")))
        }
        (None, None) => Ok(String::new()),
        (Some(host), None) => match host.to_str() {
            Ok(host) => Ok(host.to_owned()),
            Err(_) => Err(Box::new(answer::bad_request("malformed Host header"))),
        },
    }
}

fn is_well_escaped(path: &str) -> bool {
    path.split('%').skip(1).all(|rest| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit()))
}

/// The request target for the server, with the client's escaping.
fn target(before: &str, path: &str, query: Option<&str>) -> Option<Uri> {
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{before}{path}{query}").parse().ok()
}
