//! Client of one API server, for one thread.

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt, Limited};
use tokio::time::{Instant, timeout, timeout_at};

use super::plugin::{Granted, Login};
use super::{Answer, CallError, Denied, Kubeconfig, Onward, Patience, Source};
use crate::egress::{Address, CONTROL_PLANE, Dialler, Endpoint, Pool, SendError, Sent, Upstream, Wire};
use crate::message::{Body, BodyError};
use crate::process::{Follower, Problems};

/// Timeout of DNS, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum bytes of a response body.
const LONGEST_ANSWER: usize = 4 << 20;
/// Maximum number of pooled connections that may turn out closed before a call is sent.
const STALE: usize = 5;
/// Interval of closing idle connections.
const ROUND: Duration = Duration::from_secs(1);

/// Client of an API server with its own connection pool, configured by the current kubeconfig.
pub struct Client {
    pool: Pool,
    dialler: Dialler,
    source: Source,
    current: RefCell<Current>,
}

/// The kubeconfig in use.
struct Current {
    /// The kubeconfig as read.
    read: Rc<Kubeconfig>,
    /// The kubeconfig with the credentials of its plugin.
    kubeconfig: Rc<Kubeconfig>,
    login: Option<Rc<Login>>,
    granted: Option<Rc<Granted>>,
    endpoint: Rc<Endpoint>,
}

impl Client {
    /// A client of the API server in `kubeconfig`, which was read from `source`. Needs a `LocalSet`.
    pub fn new(source: impl Into<Source>, kubeconfig: Kubeconfig, dialler: Dialler) -> Rc<Client> {
        let pool = Pool::new(dialler.clone());
        let current = RefCell::new(Current::new(&pool, &dialler, Rc::new(kubeconfig), None));
        Rc::new(Client { pool, dialler, source: source.into(), current })
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
        patience: Patience,
        mut tried: impl FnMut(&Result<Answer, CallError>, Duration),
    ) -> Result<Answer, CallError> {
        let over = Instant::now() + patience.whole;
        let mut number = 0;
        loop {
            let began = Instant::now();
            let until = over.min(began + patience.attempt);
            let attempt = self.attempt(method.clone(), path, body.clone());
            let result = timeout_at(until, attempt).await.unwrap_or(Err(CallError::TimedOut(until - began)));
            tried(&result, began.elapsed());
            let again = match &result {
                Ok(answer) => answer.is_worth_another(),
                Err(error) => error.is_worth_another(),
            };
            number += 1;
            let pause = patience.pause_before(number);
            if !again || number >= patience.attempts || Instant::now() + pause >= over {
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
    pub async fn open(&self, path: &str, wait: Duration) -> Result<Sent, CallError> {
        let sent = timeout(wait, self.send(Method::GET, path, None)).await;
        sent.unwrap_or(Err(CallError::TimedOut(wait)))
    }

    /// The current server and credentials, for requests of clients. Waits for the kubeconfig's credential plugin if
    /// needed.
    ///
    /// # Errors
    /// The plugin failed.
    pub async fn onward(&self) -> Result<Onward, Denied> {
        loop {
            let login = self.current.borrow().login.clone();
            let granted = match &login {
                Some(login) => Some(login.granted().await?),
                None => None,
            };
            let mut current = self.current.borrow_mut();
            // The kubeconfig may have been reloaded meanwhile.
            if current.login.as_ref().map(Rc::as_ptr) != login.as_ref().map(Rc::as_ptr) {
                continue;
            }
            if let Some(granted) = granted {
                current.take(&self.pool, &self.dialler, granted)?;
            }
            let (kubeconfig, endpoint) = (current.kubeconfig.clone(), current.endpoint.clone());
            return Ok(Onward { kubeconfig, endpoint, granted: current.granted.clone() });
        }
    }

    /// [`Client::onward`] with new credentials, after a 401 for those of `refused`. `None` if there are no
    /// others.
    pub async fn onward_instead_of(&self, refused: &Onward) -> Option<Onward> {
        let (login, granted) = (self.current.borrow().login.clone()?, refused.granted.as_ref()?);
        login.instead_of(granted).await?;
        self.onward().await.ok()
    }

    /// Watches the kubeconfig and the files it refers to until the process ends: renewed certificates, rotated tokens,
    /// another server. While it is invalid, the last valid one stays in use.
    pub async fn follow(self: Rc<Self>) {
        let mut told: Option<Problems> = None;
        let mut round = tokio::time::interval(ROUND);
        let mut ways = self.dialler.ways().clone();
        let mut files = self.files();
        let mut follower = Follower::new(files.clone());
        loop {
            // Read first: a file may have changed before the watch began.
            match self.source.load() {
                Ok(kubeconfig) => {
                    if told.take().is_some() {
                        tracing::info!(source = %self.source, "the kubeconfig is valid again");
                    }
                    self.use_now(Rc::new(kubeconfig));
                    let now = self.files();
                    if now != files {
                        files = now;
                        follower = Follower::new(files.clone());
                        continue;
                    }
                }
                Err(problems) if told.as_ref() != Some(&problems) => {
                    problems.log("the kubeconfig changed and is not usable; the last good one stays");
                    told = Some(problems);
                }
                Err(_) => {}
            }
            loop {
                tokio::select! {
                    () = follower.changed() => break,
                    () = ways.changed() => {
                        let read = self.current.borrow().read.clone();
                        self.use_now(read);
                    }
                    _ = round.tick() => self.pool.sweep(),
                }
            }
        }
    }

    /// Uses `kubeconfig` and the current egress route for calls from now on.
    fn use_now(&self, kubeconfig: Rc<Kubeconfig>) {
        let mut current = self.current.borrow_mut();
        *current = Current::new(&self.pool, &self.dialler, kubeconfig, current.login.take());
    }

    fn files(&self) -> Vec<PathBuf> {
        self.current.borrow().read.files.clone()
    }

    async fn attempt(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Answer, CallError> {
        let Sent { response, mut lease, .. } = self.send(method, path, body).await?;
        let (head, body) = response.into_parts();
        let body = whole(body).await?;
        lease.finished();
        Ok(answer(&head, body))
    }

    async fn send(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Sent, CallError> {
        let (kubeconfig, endpoint) = {
            let current = self.current.borrow();
            (current.kubeconfig.clone(), current.endpoint.clone())
        };
        let uri = uri(&kubeconfig, path)?;
        let mut stale = 0;
        loop {
            match endpoint.send(request(&kubeconfig, method.clone(), &uri, body.clone())).await {
                Ok(sent) => return Ok(sent),
                // A pooled connection turned out to be closed, which is no failure of the server.
                Err(SendError::NotSent { error, .. }) if error.reason == "ConnectionClosed" && stale < STALE => {
                    stale += 1
                }
                Err(SendError::NotSent { error, .. }) => return Err(CallError::Unreachable(error.cause)),
                Err(SendError::Refused(error)) => return Err(CallError::Broken(error.cause)),
                Err(SendError::Nonsense(error)) => return Err(CallError::Nonsense(error.to_string())),
                Err(SendError::Broken(error) | SendError::Unheard(error)) => {
                    return Err(CallError::Broken(error.to_string()));
                }
            }
        }
    }
}

fn uri(kubeconfig: &Kubeconfig, path: &str) -> Result<Uri, CallError> {
    // A webhook posts to the URL of its kubeconfig itself: `path` is empty or only a query.
    let slash = if kubeconfig.prefix.is_empty() && !path.starts_with('/') { "/" } else { "" };
    let uri = format!("{}{slash}{path}", kubeconfig.prefix);
    uri.parse().map_err(|error| CallError::Nonsense(format!("{uri} is not a valid path: {error}")))
}

fn request(kubeconfig: &Kubeconfig, method: Method, uri: &Uri, body: Option<Bytes>) -> Box<Request<Body>> {
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
async fn whole<B>(body: B) -> Result<Bytes, CallError>
where
    B: http_body::Body<Error: Into<BodyError>>,
{
    let read = Limited::new(body, LONGEST_ANSWER).collect().await.map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            CallError::Nonsense(format!("longer than {LONGEST_ANSWER} bytes"))
        } else {
            CallError::Broken(error.to_string())
        }
    })?;
    Ok(read.to_bytes())
}

fn answer(head: &http::response::Parts, body: Bytes) -> Answer {
    Answer { status: head.status.as_u16(), body, asks_for_another: head.headers.contains_key(RETRY_AFTER) }
}

impl Current {
    /// The kubeconfig as read. Reuses `login` if it belongs to the same plugin. [`Current::take`] adds its credentials.
    fn new(pool: &Pool, dialler: &Dialler, read: Rc<Kubeconfig>, login: Option<Rc<Login>>) -> Current {
        let plugin = read.plugin.as_ref();
        let login = login.filter(|login| login.is_of(plugin));
        let login = login.or_else(|| Some(Login::new(plugin?.clone(), dialler.clone())));
        let endpoint = Current::there(pool, dialler, &read);
        Current { kubeconfig: read.clone(), read, login, granted: None, endpoint }
    }

    /// Applies credentials of the plugin.
    fn take(&mut self, pool: &Pool, dialler: &Dialler, granted: Rc<Granted>) -> Result<(), Denied> {
        if self.granted.as_ref().is_some_and(|used| Rc::ptr_eq(used, &granted)) {
            return Ok(());
        }
        let with = self.read.with(&granted).map_err(|problem| Denied(format!("getting credentials: {problem}")))?;
        self.kubeconfig = Rc::new(with);
        self.endpoint = Current::there(pool, dialler, &self.kubeconfig);
        self.granted = Some(granted);
        Ok(())
    }

    /// The endpoint of the server, by the kubeconfig's `proxy-url`, else by the control plane egress selection.
    fn there(pool: &Pool, dialler: &Dialler, kubeconfig: &Kubeconfig) -> Rc<Endpoint> {
        let plain = matches!(kubeconfig.wire, Wire::Plain(_));
        let way = kubeconfig.proxy.clone().unwrap_or_else(|| dialler.way(CONTROL_PLANE, plain));
        pool.endpoint(&Upstream {
            address: Address::Tcp(kubeconfig.destination.clone()),
            wire: kubeconfig.wire.clone(),
            connect_timeout: CONNECT_TIMEOUT,
            way,
            keeps_host: false,
        })
    }
}
