//! Reloading of the policy file.

use std::path::Path;

use super::RbacPolicy;
use crate::process::{Problems, WatchedFile, WatchedFileContent};

/// A policy file that is reloaded when it changes.
pub type PolicyFile = WatchedFile<RbacPolicy>;

impl WatchedFileContent for RbacPolicy {
    const UNUSABLE: &'static str = "policy file changed and is invalid; the last good policy stays in use";

    fn read(path: &Path) -> Result<RbacPolicy, Problems> {
        RbacPolicy::load(path)
    }

    fn log_reload(&self, _path: &Path) {
        self.log();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::process::{Drain, OnFailure, Published, ShutdownPhase};

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
    async fn policy_file_invalid_keeps_last_good_policy() {
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
        let following = tokio::spawn(file.publish_changes(publisher, on_failure, drain));
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
        drainer.advance(ShutdownPhase::Ending);
        following.await.unwrap();
    }
}
