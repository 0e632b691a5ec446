//! Tasks of the control thread, and files that are followed by one: while a file has errors, its last good value is in
//! use.

use std::pin::Pin;

use crate::authenticate::service_accounts::{KeySet, KeySourceWatcher};
use crate::commands::gateway::etcd_connections::{EtcdTls, EtcdTlsFiles};
use crate::egress::{Dialer, EgressConfigFile, EgressRoutes};
use crate::process::{Drain, FileErrors, OnFailure, Published, Publisher, WatchedFile, WatchedFileContent};
use crate::registry::{ApiService, Delegate, SidecarUpstreams, UpstreamFiles};

/// Tasks to run on the control thread.
#[derive(Default)]
pub(in crate::commands::gateway) struct ControlTasks {
    tasks: Vec<ControlTask>,
    file_errors: FileErrors,
}

struct ControlTask {
    name: &'static str,
    start: Box<dyn FnOnce(TaskContext) -> TaskFuture + Send>,
}

type TaskFuture = Pin<Box<dyn Future<Output = ()>>>;

/// What a task gets on its thread. It ends when the process does.
pub(in crate::commands::gateway) struct TaskContext {
    pub(in crate::commands::gateway) dialer: Dialer,
    pub(in crate::commands::gateway) drain: Drain,
}

/// Files with a value that is reloaded when they change. Those of flags with several files are followed together.
pub(in crate::commands::gateway) trait FollowedFile: Send + 'static {
    type Value: Send + Sync + 'static;

    /// Publishes each new valid value until the process ends.
    fn follow(
        self,
        publisher: Publisher<Self::Value>,
        on_failure: OnFailure,
        drain: Drain,
    ) -> impl Future<Output = ()> + 'static;
}

impl ControlTasks {
    /// Adds a task. `start` runs on the control thread.
    pub(in crate::commands::gateway) fn add<F: Future<Output = ()> + 'static>(
        &mut self,
        name: &'static str,
        start: impl FnOnce(TaskContext) -> F + Send + 'static,
    ) {
        self.tasks.push(ControlTask { name, start: Box::new(|context| Box::pin(start(context))) });
    }

    /// Publishes the value of a file, and its later values from a task. `name` names the task and the file's errors.
    pub(in crate::commands::gateway) fn follow<F: FollowedFile>(
        &mut self,
        name: &'static str,
        (file, value): (F, F::Value),
    ) -> Published<F::Value> {
        let (publisher, published) = Published::new(value);
        let on_failure = self.file_errors.reporter(name);
        self.add(name, move |context| file.follow(publisher, on_failure, context.drain));
        published
    }

    /// The current errors of the followed files.
    pub(in crate::commands::gateway) fn file_errors(&self) -> &FileErrors {
        &self.file_errors
    }

    /// Starts all tasks on this thread.
    pub(super) fn spawn(self, dialer: &Dialer, drain: &Drain) {
        for ControlTask { name, start } in self.tasks {
            let task = start(TaskContext { dialer: dialer.clone(), drain: drain.clone() });
            tokio::task::spawn_local(async move {
                task.await;
                tracing::debug!(task = name, "task of the control thread ended");
            });
        }
    }
}

impl<T: WatchedFileContent + Send + Sync + 'static> FollowedFile for WatchedFile<T> {
    type Value = T;

    async fn follow(self, publisher: Publisher<T>, on_failure: OnFailure, drain: Drain) {
        self.publish_changes(publisher, on_failure, drain).await;
    }
}

/// Implements [`FollowedFile`] by the type's own method `follow`.
macro_rules! followed {
    ($($file:ty => $value:ty),*) => {
        $(impl FollowedFile for $file {
            type Value = $value;

            async fn follow(self, publisher: Publisher<$value>, on_failure: OnFailure, drain: Drain) {
                <$file>::follow(self, publisher, on_failure, drain).await;
            }
        })*
    };
}

followed!(Delegate => ApiService, UpstreamFiles => SidecarUpstreams, EgressConfigFile => EgressRoutes, EtcdTlsFiles => EtcdTls, KeySourceWatcher => KeySet);
