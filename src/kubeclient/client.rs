//! One API server as one thread calls it.

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

/// For name look-up, TCP and TLS together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest answer that is read.
const LONGEST_ANSWER: usize = 4 << 20;
/// How many connections may turn out closed before a call is on its way.
const STALE: usize = 5;
/// How often idle connections are looked through.
const ROUND: Duration = Duration::from_secs(1);

/// Calls an API server over connections of its own, as its kubeconfig now says.
pub struct Client {
    pool: Pool,
    dialler: Dialler,
    source: Source,
    current: RefCell<Current>,
}

/// A kubeconfig in use.
struct Current {
    /// As it was read.
    read: Rc<Kubeconfig>,
    /// With what its plugin gave.
    kubeconfig: Rc<Kubeconfig>,
    login: Option<Rc<Login>>,
    granted: Option<Rc<Granted>>,
    endpoint: Rc<Endpoint>,
}

impl Client {
    /// A client of what `kubeconfig`, which was read from `source`, names. It must run on a `LocalSet`.
    pub fn new(source: impl Into<Source>, kubeconfig: Kubeconfig, dialler: Dialler) -> Rc<Client> {
        let pool = Pool::new(dialler.clone());
        let current = RefCell::new(Current::new(&pool, &dialler, Rc::new(kubeconfig), None));
        Rc::new(Client { pool, dialler, source: source.into(), current })
    }

    /// One call, as patient as `patience` says, and the whole answer whatever its status. `tried` is told of each
    /// attempt: what came of it, and how long it took.
    ///
    /// # Errors
    /// Why the last attempt got no answer.
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

    /// Where calls go now, as `host:port`.
    pub fn server(&self) -> String {
        self.current.borrow().kubeconfig.server().to_string()
    }

    /// Opens an answer that goes on, a watch for one; its head must come within `wait`.
    ///
    /// # Errors
    /// Why there is no head.
    pub async fn open(&self, path: &str, wait: Duration) -> Result<Sent, CallError> {
        let sent = timeout(wait, self.send(Method::GET, path, None)).await;
        sent.unwrap_or(Err(CallError::TimedOut(wait)))
    }

    /// Where requests that others make are sent now, and as whom. If a plugin of the kubeconfig has to give the
    /// credentials first, this waits for it.
    ///
    /// # Errors
    /// The plugin gave none.
    pub async fn onward(&self) -> Result<Onward, Denied> {
        loop {
            let login = self.current.borrow().login.clone();
            let granted = match &login {
                Some(login) => Some(login.granted().await?),
                None => None,
            };
            let mut current = self.current.borrow_mut();
            // Another kubeconfig may have come meanwhile.
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

    /// The same with other credentials than those of `refused`, which the server did not believe; `None` if the
    /// kubeconfig has no others.
    pub async fn onward_instead_of(&self, refused: &Onward) -> Option<Onward> {
        let (login, granted) = (self.current.borrow().login.clone()?, refused.granted.as_ref()?);
        login.instead_of(granted).await?;
        self.onward().await.ok()
    }

    /// Follows the kubeconfig and every file it names until the process ends: a renewed certificate, a rotated
    /// token, another server. What is wrong keeps what was good.
    pub async fn follow(self: Rc<Self>) {
        let mut told: Option<Problems> = None;
        let mut round = tokio::time::interval(ROUND);
        let mut ways = self.dialler.ways().clone();
        let mut files = self.files();
        let mut follower = Follower::new(files.clone());
        loop {
            // At once, too: a file may have changed between its first reading and the line above.
            match self.source.load() {
                Ok(kubeconfig) => {
                    if told.take().is_some() {
                        tracing::info!(source = %self.source, "the kubeconfig is good again");
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

    /// Calls go as `kubeconfig` says from now on, and the way there is now.
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
                // A kept connection turned out to be closed; that says nothing about the server.
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
    // What is posted to the URL of a kubeconfig itself may have nothing but a query, or nothing.
    let slash = if kubeconfig.prefix.is_empty() && !path.starts_with('/') { "/" } else { "" };
    let uri = format!("{}{slash}{path}", kubeconfig.prefix);
    uri.parse().map_err(|error| CallError::Nonsense(format!("{uri} is no path: {error}")))
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

/// A body to its end.
async fn whole<B>(body: B) -> Result<Bytes, CallError>
where
    B: http_body::Body<Error: Into<BodyError>>,
{
    let read = Limited::new(body, LONGEST_ANSWER).collect().await.map_err(|error| {
        if error.is::<http_body_util::LengthLimitError>() {
            CallError::Nonsense(format!("it is longer than {LONGEST_ANSWER} bytes"))
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
    /// As it was read; what its plugin is to give comes with [`Current::take`], from `login` if it is that plugin's.
    fn new(pool: &Pool, dialler: &Dialler, read: Rc<Kubeconfig>, login: Option<Rc<Login>>) -> Current {
        let plugin = read.plugin.as_ref();
        let login = login.filter(|login| login.is_of(plugin));
        let login = login.or_else(|| Some(Login::new(plugin?.clone(), dialler.clone())));
        let endpoint = Current::there(pool, dialler, &read);
        Current { kubeconfig: read.clone(), read, login, granted: None, endpoint }
    }

    /// Uses what the plugin gave.
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

    /// The way is that which the kubeconfig names, else that of calls to control planes.
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
