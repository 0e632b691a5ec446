//! Jobs for a client that belongs to another thread.

use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use tokio::sync::mpsc;

use super::Client;

type ClientJob = Box<dyn FnOnce(Rc<Client>) -> LocalBoxFuture<'static, ()> + Send>;

/// Handle to a client, usable from any thread.
#[derive(Clone)]
pub struct ClientHandle(mpsc::UnboundedSender<ClientJob>);

/// Queue of jobs, served on the client's thread.
pub struct ClientJobs(mpsc::UnboundedReceiver<ClientJob>);

impl ClientHandle {
    /// A handle and the queue that it sends to.
    pub fn new() -> (ClientHandle, ClientJobs) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (ClientHandle(sender), ClientJobs(receiver))
    }

    /// Runs `job` on the client's thread. The job continues if the caller is canceled. It is dropped if the client no
    /// longer exists.
    pub fn run<F: Future<Output = ()> + 'static>(&self, job: impl FnOnce(Rc<Client>) -> F + Send + 'static) {
        let _ = self.0.send(Box::new(move |client| Box::pin(job(client))));
    }
}

impl ClientJobs {
    /// Runs jobs concurrently until all handles are dropped. Needs a `LocalSet`.
    pub async fn serve(mut self, client: Rc<Client>) {
        while let Some(job) = self.0.recv().await {
            tokio::task::spawn_local(job(client.clone()));
        }
    }
}
