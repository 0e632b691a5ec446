//! Cache of a plugin's credentials. Concurrent callers share one request (single flight).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use futures_util::future::{LocalBoxFuture, Shared};
use tokio::time::Instant;

use super::{Denied, Granted, Plugin};
use crate::egress::Dialler;

/// Time for which a failure is cached, so that immediate retries do not start a program each time.
const PAUSE: Duration = Duration::from_secs(1);
/// Minimum interval between replacements of refused credentials: new ones may be refused as well.
const BETWEEN_REFUSALS: Duration = Duration::from_secs(10);

/// Credential cache of one plugin, for one thread.
pub(in crate::kubeclient) struct Login {
    plugin: Plugin,
    dialler: Dialler,
    granted: RefCell<Option<Rc<Granted>>>,
    asking: RefCell<Option<Asking>>,
    failed: RefCell<Option<(Instant, Denied)>>,
    refused: Cell<Option<Instant>>,
}

type Asking = Shared<LocalBoxFuture<'static, Result<Rc<Granted>, Denied>>>;

impl Login {
    pub(in crate::kubeclient) fn new(plugin: Plugin, dialler: Dialler) -> Rc<Login> {
        Rc::new(Login {
            plugin,
            dialler,
            granted: RefCell::default(),
            asking: RefCell::default(),
            failed: RefCell::default(),
            refused: Cell::default(),
        })
    }

    /// Whether this is the cache of `plugin`.
    pub(in crate::kubeclient) fn is_of(&self, plugin: Option<&Plugin>) -> bool {
        plugin == Some(&self.plugin)
    }

    /// Cached credentials, if they need no renewal.
    pub(in crate::kubeclient) fn held(&self) -> Option<Rc<Granted>> {
        self.granted.borrow().clone().filter(|granted| !granted.is_due(SystemTime::now()))
    }

    /// Valid credentials, cached or requested from the plugin. The request continues if the caller is canceled.
    pub(in crate::kubeclient) async fn granted(self: &Rc<Self>) -> Result<Rc<Granted>, Denied> {
        if let Some(granted) = self.held() {
            return Ok(granted);
        }
        let failed = self.failed.borrow().clone();
        if let Some((_, denied)) = failed.filter(|(at, _)| at.elapsed() < PAUSE) {
            return Err(denied);
        }
        let asking = self.asking.borrow_mut().get_or_insert_with(|| self.ask()).clone();
        asking.await
    }

    /// Credentials other than `refused`, for which the server answered 401. `None` if the plugin has no others now.
    pub(in crate::kubeclient) async fn instead_of(self: &Rc<Self>, refused: &Rc<Granted>) -> Option<Rc<Granted>> {
        let is_refused = self.granted.borrow().as_ref().is_some_and(|held| Rc::ptr_eq(held, refused));
        if is_refused {
            if self.refused.get().is_some_and(|at| at.elapsed() < BETWEEN_REFUSALS) {
                return None;
            }
            self.refused.set(Some(Instant::now()));
            self.granted.take();
        }
        let granted = self.granted().await.ok()?;
        let same = granted.authorization == refused.authorization && granted.identity == refused.identity;
        (!same).then_some(granted)
    }

    fn ask(self: &Rc<Self>) -> Asking {
        let login = self.clone();
        let task = tokio::task::spawn_local(async move {
            let answer = login.plugin.ask(&login.dialler).await.map(Rc::new);
            login.asking.take();
            match &answer {
                Ok(granted) => {
                    let until = granted.until.and_then(|until| jiff::Timestamp::try_from(until).ok());
                    tracing::info!(until = until.map(tracing::field::display), "credential plugin issued credentials");
                    login.failed.take();
                    *login.granted.borrow_mut() = Some(granted.clone());
                }
                Err(denied) => {
                    tracing::error!(why = %denied, "no credentials for the API server");
                    *login.failed.borrow_mut() = Some((Instant::now(), denied.clone()));
                }
            }
            answer
        });
        let ended = || Err(Denied("getting credentials: the process is shutting down".to_owned()));
        async move { task.await.unwrap_or_else(|_| ended()) }.boxed_local().shared()
    }
}
