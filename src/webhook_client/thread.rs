//! The thread that sends the calls: it resolves webhooks, keeps their connections, and reads their responses.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request};
use kubeapi::GoQuoted;
use tokio::sync::Semaphore;
use tokio::task::spawn_local;

use super::destination::{WebhookDestination, WebhookPlace, refusal};
use super::error_response::error_response_text;
use super::{CallLimits, WebhookCall, WebhookCalls};
use crate::egress::{
    Address, BackendTls, CLUSTER, Destination, Dialer, Endpoint, EndpointKey, EndpointResponse, Host, Pool, SendError,
    TransportSecurity,
};
use crate::message::{Body, DocumentError, read_document};
use crate::registry::{ResolveError, ServiceReference, StoredServices};
use crate::resources::webhook_config::WebhookClientConfig;
use crate::tls::Bundle;
use crate::tls::client::ClientSettings;

/// Limit for name lookup, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls of one webhook at a time; the others wait within their time limit.
const MAX_CONCURRENT_CALLS: usize = 64;
/// Addresses of a webhook that a call tries at most.
const MAX_ADDRESSES: usize = 3;
/// Interval of closing idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// How long the connections of a webhook that is not called are kept.
const IDLE_TIME: Duration = Duration::from_secs(90);

/// Sends the calls of webhooks from one thread.
pub struct WebhookThread {
    dialer: Dialer,
    pool: Pool,
    services: StoredServices,
    /// Address on which this server listens.
    own: SocketAddr,
    webhooks: RefCell<HashMap<Arc<WebhookClientConfig>, Rc<KnownWebhook>>>,
}

/// A webhook that was called lately.
struct KnownWebhook {
    destination: WebhookDestination,
    tls: Arc<BackendTls>,
    slots: Semaphore,
    /// Those that were used, which keeps their connections.
    endpoints: RefCell<Vec<Rc<Endpoint>>>,
    last_use: Cell<Instant>,
}

/// Why a call failed.
enum FailedCall {
    /// Text of an error of the connection, which upstream prefixes with the URL.
    Transport(String),
    /// Text of an error response.
    Response(String),
}

impl WebhookThread {
    /// Creates the state of the thread. `own` is the address on which this server listens, to which no call is sent.
    pub fn new(dialer: Dialer, services: StoredServices, own: SocketAddr) -> WebhookThread {
        let pool = Pool::new(dialer.clone());
        WebhookThread { dialer, pool, services, own, webhooks: RefCell::default() }
    }

    /// Sends the calls until there are no more clients.
    pub async fn run(self, calls: WebhookCalls) {
        let (thread, mut calls) = (Rc::new(self), calls.0);
        let mut interval = tokio::time::interval(SWEEP_INTERVAL);
        loop {
            tokio::select! {
                _ = interval.tick() => thread.sweep(),
                call = calls.recv() => match call {
                    Some(call) => drop(spawn_local(thread.clone().answer(call))),
                    None => return,
                },
            }
        }
    }

    /// Drops webhooks that are not called any more, and closes idle connections.
    fn sweep(&self) {
        self.webhooks
            .borrow_mut()
            .retain(|_, webhook| webhook.last_use.get().elapsed() < IDLE_TIME || Rc::strong_count(webhook) > 1);
        self.pool.sweep();
    }

    async fn answer(self: Rc<Self>, call: WebhookCall) {
        let WebhookCall { config, body, limits, mut reply } = call;
        let result = tokio::select! {
            result = self.call(&config, body, limits) => result,
            () = reply.closed() => return,
        };
        let _ = reply.send(result);
    }

    async fn call(&self, config: &Arc<WebhookClientConfig>, body: Bytes, limits: CallLimits) -> Result<Bytes, String> {
        let webhook = self.webhook(config)?;
        let CallLimits { timeout, response_bytes } = limits;
        let seconds = timeout.as_secs();
        let posted = |why: &str| format!("Post {}: {why}", GoQuoted(&webhook.destination.url(seconds)));
        let exchange = async {
            let _slot = webhook.slots.acquire().await.map_err(|error| FailedCall::Transport(error.to_string()))?;
            self.exchange(&webhook, &webhook.destination.path_and_query(seconds), body, response_bytes).await
        };
        match tokio::time::timeout(timeout, exchange).await {
            Ok(Ok(body)) => Ok(body),
            Ok(Err(FailedCall::Response(text))) => Err(text),
            Ok(Err(FailedCall::Transport(why))) => Err(posted(&why)),
            Err(_) => Err(posted("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")),
        }
    }

    /// The webhook of a configuration.
    fn webhook(&self, config: &Arc<WebhookClientConfig>) -> Result<Rc<KnownWebhook>, String> {
        if let Some(webhook) = self.webhooks.borrow().get(config) {
            webhook.last_use.set(Instant::now());
            return Ok(webhook.clone());
        }
        let destination = WebhookDestination::read(config)?;
        let pem = config.ca_bundle_pem().map_err(|error| format!("caBundle is no base64: {error}"))?;
        // As upstream, a bundle of white space counts as none.
        let pem = pem.filter(|pem| !pem.trim_ascii().is_empty());
        let bundle =
            pem.map(|pem| Bundle::from_partial_pem(&pem, "caBundle")).transpose().map_err(|why| why.to_string())?;
        let settings =
            ClientSettings { ca_bundle: bundle, insecure_skip_verify: false, identity: None, alpn: Vec::new() };
        let tls = BackendTls::new(&destination.server_name, settings).map_err(|problem| problem.to_string())?;
        let webhook = Rc::new(KnownWebhook {
            destination,
            tls: Arc::new(tls),
            slots: Semaphore::new(MAX_CONCURRENT_CALLS),
            endpoints: RefCell::default(),
            last_use: Cell::new(Instant::now()),
        });
        self.webhooks.borrow_mut().insert(config.clone(), webhook.clone());
        Ok(webhook)
    }

    /// Sends the request to the first address that takes it, and reads the response.
    async fn exchange(
        &self,
        webhook: &KnownWebhook,
        path: &str,
        body: Bytes,
        max_response: usize,
    ) -> Result<Bytes, FailedCall> {
        let mut last = "the webhook has no address".to_owned();
        for address in self.addresses(webhook).await.map_err(FailedCall::Transport)?.into_iter().take(MAX_ADDRESSES) {
            let endpoint = self.endpoint(webhook, address);
            match send(&endpoint, webhook, path, body.clone()).await? {
                Ok(sent) => return read_response(sent, max_response).await,
                Err(why) => last = why,
            }
        }
        Err(FailedCall::Transport(last))
    }

    fn endpoint(&self, webhook: &KnownWebhook, address: Destination) -> Rc<Endpoint> {
        let endpoint = self.pool.endpoint(&EndpointKey {
            address: Address::Tcp(address),
            security: TransportSecurity::Tls(webhook.tls.clone()),
            connect_timeout: CONNECT_TIMEOUT,
            egress_route: self.dialer.route(CLUSTER, false),
            preserve_host: true,
        });
        let mut endpoints = webhook.endpoints.borrow_mut();
        if !endpoints.iter().any(|known| Rc::ptr_eq(known, &endpoint)) {
            // Pods come and go: the oldest address makes room.
            if endpoints.len() >= MAX_CONCURRENT_CALLS {
                endpoints.remove(0);
            }
            endpoints.push(endpoint.clone());
        }
        endpoint
    }

    /// The addresses of a webhook in the order to try them. Names are looked up here, so that no other address is dialed
    /// than one that was checked; a proxy gets the name.
    async fn addresses(&self, webhook: &KnownWebhook) -> Result<Vec<Destination>, String> {
        let mut destinations = match &webhook.destination.place {
            WebhookPlace::Url(destination) => vec![destination.clone()],
            WebhookPlace::Service(reference) => {
                let resolved = self.services.resolve(reference).await;
                let (mut all, preferred) = resolved.map_err(|error| service_error_text(reference, &error))?;
                fastrand::shuffle(&mut all[..preferred]);
                all
            }
        };
        destinations.truncate(MAX_ADDRESSES);
        let route = self.dialer.route(CLUSTER, false);
        let mut addresses = Vec::new();
        for destination in destinations {
            let port = destination.port;
            let direct = self.dialer.direct_addresses(&route, &destination).await;
            let looked_up = match direct.map_err(|error| format!("dial tcp: lookup {destination}: {error}"))? {
                Some(looked_up) => looked_up.into_iter().map(Host::Ip).collect(),
                None => vec![destination.host],
            };
            for host in looked_up {
                let refused = match &host {
                    Host::Ip(address) => refusal(*address, port, self.own),
                    Host::Name(_) => None,
                };
                let address = Destination { host, port };
                if let Some(why) = refused {
                    return Err(format!("dial tcp {address}: {why}"));
                }
                addresses.push(address);
            }
        }
        Ok(addresses)
    }
}

/// Sends a request, and once more if the server closed its reused connection: a conversion can be repeated. The inner
/// error is that of an address that cannot be connected to.
async fn send(
    endpoint: &Rc<Endpoint>,
    webhook: &KnownWebhook,
    path: &str,
    body: Bytes,
) -> Result<Result<EndpointResponse, String>, FailedCall> {
    let mut is_repeated = false;
    loop {
        let request = build_request(webhook, path, body.clone()).map_err(FailedCall::Transport)?;
        let closed = match endpoint.send(request).await {
            Ok(sent) => return Ok(Ok(sent)),
            Err(SendError::StaleConnection(error)) => error.to_string(),
            Err(SendError::NotSent { error, .. } | SendError::Refused(error)) => {
                return Ok(Err(dial_error_text(endpoint, error.reason, error.cause)));
            }
            Err(SendError::InvalidResponse(error) | SendError::Broken(error)) => {
                return Err(FailedCall::Transport(error.to_string()));
            }
        };
        if std::mem::replace(&mut is_repeated, true) {
            return Err(FailedCall::Transport(closed));
        }
    }
}

fn build_request(webhook: &KnownWebhook, path: &str, body: Bytes) -> Result<Box<Request<Body>>, String> {
    let mut request = Box::new(Request::new(Body::Full(body)));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path.parse().map_err(|error| format!("{path:?} is no path: {error}"))?;
    let host = HeaderValue::from_str(&webhook.destination.host).map_err(|error| error.to_string())?;
    let headers = request.headers_mut();
    headers.insert(HOST, host);
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("narthex/", env!("CARGO_PKG_VERSION"))));
    Ok(request)
}

async fn read_response(sent: EndpointResponse, limit: usize) -> Result<Bytes, FailedCall> {
    let EndpointResponse { response, mut guard, .. } = sent;
    let (parts, body) = response.into_parts();
    let body = read_document(&parts.headers, body, limit).await.map_err(|error| {
        FailedCall::Transport(match error {
            DocumentError::TooLong(_) => format!("the response is larger than {limit} bytes"),
            other => other.to_string(),
        })
    })?;
    guard.finish();
    // Redirects are not followed: their code is an error.
    match parts.status.as_u16() {
        200..=206 => Ok(body),
        code => Err(FailedCall::Response(error_response_text(code, &parts.headers, &body))),
    }
}

/// The text of a failed dial; Go's for the most common causes.
fn dial_error_text(endpoint: &Endpoint, reason: &str, cause: String) -> String {
    match reason {
        "ConnectionRefused" => format!("dial tcp {}: connect: connection refused", endpoint.key().address),
        "UnknownIssuer" => {
            "tls: failed to verify certificate: x509: certificate signed by unknown authority".to_owned()
        }
        _ => cause,
    }
}

/// The text of a Service without endpoints (`ResolveEndpoint` in `k8s.io/apiserver/pkg/util/proxy`).
fn service_error_text(reference: &ServiceReference, error: &ResolveError) -> String {
    let ServiceReference { name, port, .. } = reference;
    match error.reason {
        "ServiceNotFound" => format!("service {name:?} not found"),
        "ServicePortError" => format!("no service port {port} found for service {name:?}"),
        "EndpointsNotFound" | "MissingEndpoints" => format!("no endpoints available for service {name:?}"),
        _ => error.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use store::watch_cache::{CollectionSettings, Collections, HistoryLimits};
    use store::{MemoryStore, Prefix};

    use super::*;
    use crate::egress::Resolver;
    use crate::registry::ResolveRules;

    fn thread() -> WebhookThread {
        let collections = Collections::new(Arc::new(MemoryStore::new()), HistoryLimits::default(), Arc::new(|| 0));
        let collection = |plural: &str| {
            let prefix = Prefix::of_builtin("/registry", "", plural).unwrap();
            collections.collection(&CollectionSettings { prefix, fields: Arc::default(), upgrade: None, repair: None })
        };
        let services = StoredServices {
            services: collection("services"),
            endpoint_slices: collection("endpointslices"),
            rules: ResolveRules::default(),
        };
        WebhookThread::new(Dialer::from(Resolver::System), services, "127.0.0.1:6443".parse().unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn webhook_call_ends_with_its_time_limit_while_it_waits() {
        let thread = thread();
        let url = Some("https://192.0.2.1/convert".to_owned());
        let config = Arc::new(WebhookClientConfig { url, ..WebhookClientConfig::default() });
        // As many calls as may be under way do not end.
        let webhook = thread.webhook(&config).unwrap();
        let busy = webhook.slots.acquire_many(MAX_CONCURRENT_CALLS as u32).await.unwrap();
        let began = tokio::time::Instant::now();
        let limits = CallLimits { timeout: Duration::from_secs(30), response_bytes: 0 };
        let failed = thread.call(&config, Bytes::new(), limits).await;
        let expected = "Post \"https://192.0.2.1/convert?timeout=30s\": context deadline exceeded (Client.Timeout \
                        exceeded while awaiting headers)";
        assert_eq!(failed, Err(expected.to_owned()));
        assert_eq!(began.elapsed(), Duration::from_secs(30));
        drop(busy);
        assert_eq!(webhook.slots.available_permits(), MAX_CONCURRENT_CALLS);
    }
}
