//! Client of one API server, for one thread.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use tokio::time::{Instant, timeout, timeout_at};

use super::plugin::{CredentialCache, PluginCredentials};
use super::{ApiResponse, CallError, CallPolicy, CredentialError, Kubeconfig, KubeconfigSource, Passthrough};
use crate::egress::{
    Address, CONTROL_PLANE, Dialer, Endpoint, EndpointKey, EndpointResponse, Pool, SendError, TransportSecurity,
};
use crate::message::{Body, BodyError, DocumentError, read_document};
use crate::process::{FileWatcher, ReloadReporter};

/// Timeout of DNS, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of a response body.
const MAX_RESPONSE_BYTES: usize = 4 << 20;
/// Interval of closing idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Client of an API server with its own connection pool, configured by the current kubeconfig.
pub struct Client {
    pool: Pool,
    dialer: Dialer,
    source: KubeconfigSource,
    current: RefCell<ActiveKubeconfig>,
}

/// The kubeconfig in use.
struct ActiveKubeconfig {
    /// The kubeconfig as read.
    loaded: Rc<Kubeconfig>,
    /// The kubeconfig with the credentials of its plugin.
    kubeconfig: Rc<Kubeconfig>,
    credential_cache: Option<Rc<CredentialCache>>,
    credentials: Option<Rc<PluginCredentials>>,
    endpoint: Rc<Endpoint>,
}

impl Client {
    /// A client of the API server in `kubeconfig`, which was read from `source`. Needs a `LocalSet`.
    pub fn new(source: impl Into<KubeconfigSource>, kubeconfig: Kubeconfig, dialer: Dialer) -> Rc<Client> {
        let pool = Pool::new(dialer.clone());
        let current = RefCell::new(ActiveKubeconfig::new(&pool, &dialer, Rc::new(kubeconfig), None));
        Rc::new(Client { pool, dialer, source: source.into(), current })
    }

    /// Calls the API server with the timeouts and retries of `patience`. Returns the complete response of any status.
    /// `tried` gets the result and duration of each attempt.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        patience: CallPolicy,
        mut tried: impl FnMut(&Result<ApiResponse, CallError>, Duration),
    ) -> Result<ApiResponse, CallError> {
        let deadline = Instant::now() + patience.total_timeout;
        let mut number = 0;
        loop {
            let began = Instant::now();
            let until = deadline.min(began + patience.attempt_timeout);
            let attempt = self.attempt(method.clone(), path, body.clone());
            let result = timeout_at(until, attempt).await.unwrap_or(Err(CallError::TimedOut(until - began)));
            tried(&result, began.elapsed());
            let again = match &result {
                Ok(answer) => answer.is_retryable(),
                Err(error) => error.is_retryable(),
            };
            number += 1;
            let pause = patience.backoff_before(number);
            if !again || number >= patience.max_attempts || Instant::now() + pause >= deadline {
                return result;
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// The current server as `host:port`.
    pub fn server(&self) -> String {
        self.current.borrow().kubeconfig.server().to_string()
    }

    /// Sends a GET with a streaming response, such as a watch. The response head must arrive within `wait`.
    ///
    /// # Errors
    /// [`CallError`] if there is no response head.
    pub async fn open(&self, path: &str, wait: Duration) -> Result<EndpointResponse, CallError> {
        let sent = timeout(wait, self.send(Method::GET, path, None)).await;
        sent.unwrap_or(Err(CallError::TimedOut(wait)))
    }

    /// The current server and credentials, for requests of clients. Waits for the kubeconfig's credential plugin if
    /// needed.
    ///
    /// # Errors
    /// The plugin failed.
    pub async fn passthrough(&self) -> Result<Passthrough, CredentialError> {
        loop {
            let login = self.current.borrow().credential_cache.clone();
            let granted = match &login {
                Some(login) => Some(login.get().await?),
                None => None,
            };
            let mut current = self.current.borrow_mut();
            // The kubeconfig may have been reloaded meanwhile.
            if current.credential_cache.as_ref().map(Rc::as_ptr) != login.as_ref().map(Rc::as_ptr) {
                continue;
            }
            if let Some(granted) = granted {
                current.apply_credentials(&self.pool, &self.dialer, granted)?;
            }
            let (kubeconfig, endpoint) = (current.kubeconfig.clone(), current.endpoint.clone());
            return Ok(Passthrough { kubeconfig, endpoint, credentials: current.credentials.clone() });
        }
    }

    /// [`Client::passthrough`] with new credentials, after a 401 for those of `refused`. `None` if there are no
    /// others.
    pub async fn passthrough_with_new_credentials(&self, refused: &Passthrough) -> Option<Passthrough> {
        let (login, granted) = (self.current.borrow().credential_cache.clone()?, refused.credentials.as_ref()?);
        login.replace_refused(granted).await?;
        self.passthrough().await.ok()
    }

    /// Watches the kubeconfig and the files it refers to until the process ends: renewed certificates, rotated tokens,
    /// another server. While it is invalid, the last valid one stays in use.
    pub async fn follow(self: Rc<Self>) {
        self.follow_with(|_| {}).await;
    }

    /// [`Client::follow`]; `on_load` gets each kubeconfig that comes into use.
    pub async fn follow_with(self: Rc<Self>, mut on_load: impl FnMut(&Kubeconfig)) {
        const UNUSABLE: &str = "the kubeconfig changed and is invalid; the last good one stays in use";
        let mut reporter = ReloadReporter::new(UNUSABLE, Box::new(|_| {}));
        let mut round = tokio::time::interval(SWEEP_INTERVAL);
        let mut routes = self.dialer.routes().clone();
        let mut files = self.files();
        let mut follower = FileWatcher::new(files.clone());
        loop {
            // Read first: a file may have changed before the watch began.
            let was_failing = reporter.is_failing();
            if let Some(kubeconfig) = reporter.report(self.source.load()) {
                if was_failing {
                    tracing::info!(source = %self.source, "the kubeconfig is valid again");
                }
                on_load(&kubeconfig);
                self.activate(Rc::new(kubeconfig));
                let now = self.files();
                if now != files {
                    files = now;
                    follower = FileWatcher::new(files.clone());
                    continue;
                }
            }
            loop {
                tokio::select! {
                    () = follower.changed() => break,
                    () = routes.changed() => {
                        let read = self.current.borrow().loaded.clone();
                        self.activate(read);
                    }
                    _ = round.tick() => self.pool.sweep(),
                }
            }
        }
    }

    /// Uses `kubeconfig` and the current egress route for calls from now on.
    fn activate(&self, kubeconfig: Rc<Kubeconfig>) {
        let mut current = self.current.borrow_mut();
        *current = ActiveKubeconfig::new(&self.pool, &self.dialer, kubeconfig, current.credential_cache.take());
    }

    fn files(&self) -> Vec<PathBuf> {
        self.current.borrow().loaded.files.clone()
    }

    async fn attempt(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<ApiResponse, CallError> {
        let EndpointResponse { response, guard: mut lease, .. } = self.send(method, path, body).await?;
        let (head, body) = response.into_parts();
        let body = read_body(&head.headers, body).await?;
        lease.finish();
        Ok(to_response(&head, body))
    }

    async fn send(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<EndpointResponse, CallError> {
        let (kubeconfig, endpoint) = {
            let current = self.current.borrow();
            (current.kubeconfig.clone(), current.endpoint.clone())
        };
        let uri = request_uri(&kubeconfig, path)?;
        endpoint.send(build_request(&kubeconfig, method, &uri, body)).await.map_err(|error| match error {
            SendError::NotSent { error, .. } => CallError::Unreachable(error.cause),
            SendError::Refused(error) => CallError::Broken(error.cause),
            SendError::InvalidResponse(error) => CallError::InvalidResponse(error.to_string()),
            SendError::Broken(error) | SendError::StaleConnection(error) => CallError::Broken(error.to_string()),
        })
    }
}

fn request_uri(kubeconfig: &Kubeconfig, path: &str) -> Result<Uri, CallError> {
    // A webhook posts to the URL of its kubeconfig itself: `path` is empty or only a query.
    let slash = if kubeconfig.prefix.is_empty() && !path.starts_with('/') { "/" } else { "" };
    let uri = format!("{}{slash}{path}", kubeconfig.prefix);
    uri.parse().map_err(|error| CallError::InvalidResponse(format!("{uri} is not a valid path: {error}")))
}

fn build_request(kubeconfig: &Kubeconfig, method: Method, uri: &Uri, body: Option<Bytes>) -> Box<Request<Body>> {
    let has_body = body.is_some();
    let mut request = Box::new(Request::new(body.map_or(Body::Empty, Body::Full)));
    *request.method_mut() = method;
    *request.uri_mut() = uri.clone();
    let headers = request.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("narthex/", env!("CARGO_PKG_VERSION"))));
    if has_body {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    if let Some(authorization) = &kubeconfig.authorization {
        headers.insert(AUTHORIZATION, authorization.clone());
    }
    for (name, value) in &kubeconfig.impersonation {
        headers.append(name, value.clone());
    }
    request
}

/// Reads a body completely.
async fn read_body<B>(headers: &HeaderMap, body: B) -> Result<Bytes, CallError>
where
    B: http_body::Body<Error: Into<BodyError>>,
{
    read_document(headers, body, MAX_RESPONSE_BYTES).await.map_err(|error| match error {
        DocumentError::TooLong(most) => CallError::InvalidResponse(format!("longer than {most} bytes")),
        DocumentError::Encoding(why) => CallError::InvalidResponse(why),
        DocumentError::Broken(error) => CallError::Broken(error.to_string()),
    })
}

fn to_response(head: &http::response::Parts, body: Bytes) -> ApiResponse {
    ApiResponse { status: head.status.as_u16(), body, has_retry_after: head.headers.contains_key(RETRY_AFTER) }
}

impl ActiveKubeconfig {
    /// The kubeconfig as read. Reuses `login` if it belongs to the same plugin. [`ActiveKubeconfig::apply_credentials`] adds its credentials.
    fn new(pool: &Pool, dialer: &Dialer, read: Rc<Kubeconfig>, login: Option<Rc<CredentialCache>>) -> ActiveKubeconfig {
        let plugin = read.plugin.as_ref();
        let login = login.filter(|login| login.is_for(plugin));
        let login = login.or_else(|| Some(CredentialCache::new(plugin?.clone(), dialer.clone())));
        let endpoint = ActiveKubeconfig::endpoint_for(pool, dialer, &read);
        ActiveKubeconfig {
            kubeconfig: read.clone(),
            loaded: read,
            credential_cache: login,
            credentials: None,
            endpoint,
        }
    }

    /// Applies credentials of the plugin.
    fn apply_credentials(
        &mut self,
        pool: &Pool,
        dialer: &Dialer,
        granted: Rc<PluginCredentials>,
    ) -> Result<(), CredentialError> {
        if self.credentials.as_ref().is_some_and(|used| Rc::ptr_eq(used, &granted)) {
            return Ok(());
        }
        let with = self
            .loaded
            .with_credentials(&granted)
            .map_err(|problem| CredentialError(format!("getting credentials: {problem}")))?;
        self.kubeconfig = Rc::new(with);
        self.endpoint = ActiveKubeconfig::endpoint_for(pool, dialer, &self.kubeconfig);
        self.credentials = Some(granted);
        Ok(())
    }

    /// The endpoint of the server, by the kubeconfig's `proxy-url`, else by the control plane egress selection.
    fn endpoint_for(pool: &Pool, dialer: &Dialer, kubeconfig: &Kubeconfig) -> Rc<Endpoint> {
        let plain = matches!(kubeconfig.wire, TransportSecurity::Plaintext(_));
        let route = kubeconfig.proxy.clone().unwrap_or_else(|| dialer.route(CONTROL_PLANE, plain));
        pool.endpoint(&EndpointKey {
            address: Address::Tcp(kubeconfig.destination.clone()),
            security: kubeconfig.wire.clone(),
            connect_timeout: CONNECT_TIMEOUT,
            egress_route: route,
            preserve_host: false,
        })
    }
}
