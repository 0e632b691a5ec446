//! A policy file that changes while the process lives.

use std::path::PathBuf;
use std::sync::Arc;

use super::Policy;
use crate::process::{Drain, Follower, Phase, Problems, Publisher};

/// Follows the file until the process ends, and publishes what became of it. While it cannot be read, or
/// holds a mistake, the last good policy stays.
///
/// `on_failure` is called with what is wrong, once for each new mistake, and with no problems when all is well
/// again.
pub async fn follow(
    path: PathBuf,
    publisher: Publisher<Policy>,
    on_failure: Box<dyn Fn(&Problems) + Send>,
    mut drain: Drain,
) {
    let mut follower = Follower::new([path.clone()]);
    let mut told: Option<Problems> = None;
    loop {
        // At once, too: the file may have changed between the load at start and the line above.
        match Policy::load(&path) {
            Ok(policy) => {
                tracing::info!(file = %path.display(), bindings = policy.bindings(), "authorization policy read");
                for warning in policy.warnings() {
                    tracing::warn!(%warning, "authorization policy");
                }
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
        tokio::select! {
            () = follower.changed() => {}
            () = drain.reached(Phase::Ending) => return,
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
        let (publisher, mut published) = Published::new(Policy::load(&path).unwrap());
        let (drainer, drain) = Drain::new();
        let (told, mut hear) = tokio::sync::mpsc::unbounded_channel();
        let on_failure = Box::new(move |problems: &Problems| {
            let _ = told.send(problems.0.len());
        });
        let following = tokio::spawn(follow(path.clone(), publisher, on_failure, drain));
        published.changed().await;
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
