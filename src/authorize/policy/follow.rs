//! A policy file that changes while the process lives.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Policy;
use crate::process::{Drain, Follower, Phase, Problems, Publisher};

/// A policy file that was right when it was opened.
pub struct PolicyFile {
    path: PathBuf,
    follower: Follower,
}

/// Called with what is wrong with the file, once for each new mistake, and with no problems when all is well
/// again.
pub type OnFailure = Box<dyn Fn(&Problems) + Send>;

impl PolicyFile {
    /// Reads the file, as [`Policy::load`] does.
    pub fn open(path: &Path) -> Result<(PolicyFile, Policy), Problems> {
        // Before the first reading, so that no change falls between.
        let follower = Follower::new([path]);
        let policy = Policy::load(path)?;
        Ok((PolicyFile { path: path.to_owned(), follower }, policy))
    }

    /// Follows the file until the process ends, and publishes what became of it. While it cannot be read, or
    /// holds a mistake, the last good policy stays.
    pub async fn follow(mut self, publisher: Publisher<Policy>, on_failure: OnFailure, mut drain: Drain) {
        let mut told: Option<Problems> = None;
        loop {
            tokio::select! {
                () = self.follower.changed() => {}
                () = drain.reached(Phase::Ending) => return,
            }
            match Policy::load(&self.path) {
                Ok(policy) => {
                    policy.tell();
                    publisher.publish(Arc::new(policy));
                    if told.take().is_some() {
                        on_failure(&Problems::default());
                    }
                }
                Err(problems) if told.as_ref() != Some(&problems) => {
                    tracing::error!(%problems, "the policy file changed and is not usable; the last good policy stays");
                    on_failure(&problems);
                    told = Some(problems);
                }
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::process::Published;

    fn policy(user: &str) -> String {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: a}}\n\
             roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: r}}\n\
             subjects: [{{kind: User, name: {user}}}]\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: r}}\n\
             rules: [{{verbs: [get], nonResourceURLs: ['*']}}]\n"
        )
    }

    #[tokio::test]
    async fn a_mistake_keeps_the_last_good_policy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.yaml");
        fs::write(&path, policy("jane")).unwrap();
        let (file, policy_of_jane) = PolicyFile::open(&path).unwrap();
        let (publisher, mut published) = Published::new(policy_of_jane);
        let (drainer, drain) = Drain::new();
        let (told, mut hear) = tokio::sync::mpsc::unbounded_channel();
        let on_failure: OnFailure = Box::new(move |problems| {
            let _ = told.send(problems.0.len());
        });
        let following = tokio::spawn(file.follow(publisher, on_failure, drain));
        fs::write(&path, policy("bob")).unwrap();
        published.changed().await;
        assert!(published.get().users.contains_key("bob") && !published.get().users.contains_key("jane"));
        fs::write(&path, policy("eve").replace("[get]", "[]")).unwrap();
        assert_eq!(hear.recv().await, Some(1));
        assert!(published.get().users.contains_key("bob"));
        fs::write(&path, policy("eve")).unwrap();
        published.changed().await;
        assert_eq!(hear.recv().await, Some(0));
        assert!(published.get().users.contains_key("eve"));
        drainer.advance(Phase::Ending);
        following.await.unwrap();
    }
}
