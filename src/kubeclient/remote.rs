//! Work for a client that belongs to another thread.

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use tokio::sync::mpsc;

use super::Client;

type Job = Box<dyn FnOnce(Rc<Client>) -> LocalBoxFuture<'static, ()> + Send>;

/// A client's far end: hands it work from any thread.
#[derive(Clone)]
pub struct Remote(mpsc::UnboundedSender<Job>);

/// The work that comes, on the client's own thread.
pub struct Jobs(mpsc::UnboundedReceiver<Job>);

impl Remote {
    /// Both ends.
    pub fn new() -> (Remote, Jobs) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Remote(sender), Jobs(receiver))
    }

    /// Has `job` done; it goes on whatever becomes of who asked for it. When the client is gone, the job is
    /// dropped undone.
    pub fn run<F: Future<Output = ()> + 'static>(&self, job: impl FnOnce(Rc<Client>) -> F + Send + 'static) {
        let _ = self.0.send(Box::new(move |client| Box::pin(job(client))));
    }
}

impl Jobs {
    /// Does what comes, all at once, until nobody can ask any more. Needs a `LocalSet`.
    pub async fn serve(mut self, client: Rc<Client>) {
        while let Some(job) = self.0.recv().await {
            tokio::task::spawn_local(job(client.clone()));
        }
    }
}
