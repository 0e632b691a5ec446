//! Cache of a plugin's credentials. Concurrent callers share one request (single flight).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, Shared};
use tokio::time::Instant;

use super::{CredentialError, CredentialPlugin, PluginCredentials};
use crate::egress::Dialer;

/// Time for which a failure is cached, so that immediate retries do not start a program each time.
const FAILURE_TTL: Duration = Duration::from_secs(1);
/// Minimum interval between replacements of refused credentials: new ones may be refused as well.
const MIN_REPLACE_INTERVAL: Duration = Duration::from_secs(10);

/// Credential cache of one plugin, for one thread.
pub(in crate::kubeclient) struct CredentialCache {
    plugin: CredentialPlugin,
    dialer: Dialer,
    cached: RefCell<Option<Rc<PluginCredentials>>>,
    pending: RefCell<Option<PendingCredentials>>,
    last_failure: RefCell<Option<(Instant, CredentialError)>>,
    replaced_at: Cell<Option<Instant>>,
}

type PendingCredentials = Shared<LocalBoxFuture<'static, Result<Rc<PluginCredentials>, CredentialError>>>;

impl CredentialCache {
    pub(in crate::kubeclient) fn new(plugin: CredentialPlugin, dialer: Dialer) -> Rc<CredentialCache> {
        Rc::new(CredentialCache {
            plugin,
            dialer,
            cached: RefCell::default(),
            pending: RefCell::default(),
            last_failure: RefCell::default(),
            replaced_at: Cell::default(),
        })
    }

    /// Whether this is the cache of `plugin`.
    pub(in crate::kubeclient) fn is_for(&self, plugin: Option<&CredentialPlugin>) -> bool {
        plugin == Some(&self.plugin)
    }

    /// Cached credentials, if they need no renewal.
    pub(in crate::kubeclient) fn valid_credentials(&self) -> Option<Rc<PluginCredentials>> {
        self.cached.borrow().clone().filter(|granted| !granted.needs_renewal(SystemTime::now()))
    }

    /// Valid credentials, cached or requested from the plugin. The request continues if the caller is canceled.
    pub(in crate::kubeclient) async fn get(self: &Rc<Self>) -> Result<Rc<PluginCredentials>, CredentialError> {
        if let Some(granted) = self.valid_credentials() {
            return Ok(granted);
        }
        let failed = self.last_failure.borrow().clone();
        if let Some((_, denied)) = failed.filter(|(at, _)| at.elapsed() < FAILURE_TTL) {
            return Err(denied);
        }
        let request = self.pending.borrow_mut().get_or_insert_with(|| self.start_request()).clone();
        request.await
    }

    /// Credentials other than `refused`, for which the server answered 401. `None` if the plugin has no others now.
    pub(in crate::kubeclient) async fn replace_refused(
        self: &Rc<Self>,
        refused: &Rc<PluginCredentials>,
    ) -> Option<Rc<PluginCredentials>> {
        let is_refused = self.cached.borrow().as_ref().is_some_and(|held| Rc::ptr_eq(held, refused));
        if is_refused {
            if self.replaced_at.get().is_some_and(|at| at.elapsed() < MIN_REPLACE_INTERVAL) {
                return None;
            }
            self.replaced_at.set(Some(Instant::now()));
            self.cached.take();
        }
        let granted = self.get().await.ok()?;
        let same = granted.authorization == refused.authorization && granted.identity == refused.identity;
        (!same).then_some(granted)
    }

    fn start_request(self: &Rc<Self>) -> PendingCredentials {
        let login = self.clone();
        let task = tokio::task::spawn_local(async move {
            let answer = login.plugin.request_credentials(&login.dialer).await.map(Rc::new);
            login.pending.take();
            match &answer {
                Ok(granted) => {
                    let until = granted.expires_at.and_then(|until| jiff::Timestamp::try_from(until).ok());
                    tracing::info!(until = until.map(tracing::field::display), "credential plugin issued credentials");
                    login.last_failure.take();
                    *login.cached.borrow_mut() = Some(granted.clone());
                }
                Err(denied) => {
                    tracing::error!(why = %denied, "no credentials for the API server");
                    *login.last_failure.borrow_mut() = Some((Instant::now(), denied.clone()));
                }
            }
            answer
        });
        let ended = || Err(CredentialError("getting credentials: the process is shutting down".to_owned()));
        async move { task.await.unwrap_or_else(|_| ended()) }.boxed_local().shared()
    }
}
