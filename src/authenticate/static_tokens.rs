//! `--token-auth-file`: static tokens from a CSV file, reloaded when the file changes.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use kubeapi::User;

use super::{AUTHENTICATED, groups, header_safe};
use crate::process::csv;
use crate::process::{Problem, Problems, WatchedFile, WatchedFileContent};

/// Static tokens and their users.
///
/// Tokens are stored as HMAC-SHA256 under a random key of this process: neither the time of a lookup nor a core dump
/// reveals them. No `Debug`, on purpose.
pub struct StaticTokens {
    key: hmac::Key,
    users: HashMap<[u8; 32], Arc<User>>,
}

impl StaticTokens {
    /// Reads a token file, and reports all errors at once.
    pub fn load(path: &Path) -> Result<StaticTokens, Problems> {
        let text = fs::read(path).map_err(|error| Problem::new(path.display(), format!("cannot be read: {error}")))?;
        let text = String::from_utf8(text).map_err(|_| Problem::new(path.display(), "is not UTF-8"))?;
        let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o004 != 0 {
            tracing::warn!(file = %path.display(), "token file is world-readable; chmod 0600 it");
        }
        StaticTokens::parse(&text, &path.display().to_string())
    }

    /// Parses lines of `token,user,uid[,"group1,group2"]`; `location` is the file name in problems.
    ///
    /// As in Kubernetes, a record without a token is skipped, and of two records with the same token the later counts.
    /// Both cases log a warning.
    pub fn parse(text: &str, location: &str) -> Result<StaticTokens, Problems> {
        let mut problems = Problems::default();
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(|_| {
            Problem::new(location, "the random number generator of the system failed; tokens are protected with it")
        });
        let Some(key) = problems.collect(key) else { return Err(problems) };
        let mut tokens = StaticTokens { key, users: HashMap::new() };
        for record in csv::records(text) {
            let result = record
                .map_err(|(line, why)| line_problem(location, line, why))
                .and_then(|(line, fields)| tokens.add(location, line, fields));
            problems.collect(result);
        }
        problems.into_result(tokens)
    }

    /// Returns the user of `token`.
    pub fn user(&self, token: &str) -> Option<&Arc<User>> {
        self.users.get(&self.digest(token))
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.users.len()
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    fn digest(&self, token: &str) -> [u8; 32] {
        let mut digest = [0; 32];
        digest.copy_from_slice(hmac::sign(&self.key, token.as_bytes()).as_ref());
        digest
    }

    fn add(&mut self, location: &str, line: usize, fields: Vec<String>) -> Result<(), Problem> {
        let found = fields.len();
        let mut fields = fields.into_iter();
        let (Some(token), Some(name), Some(uid)) = (fields.next(), fields.next(), fields.next()) else {
            let message = format!("must have at least 3 columns (token, user name, user uid), found {found}");
            return Err(line_problem(location, line, &message));
        };
        if token.is_empty() {
            tracing::warn!(file = location, line, "token file record without a token is ignored");
            return Ok(());
        }
        let groups = fields.next().unwrap_or_default();
        let mut groups: Vec<String> = groups.split(',').filter(|group| !group.is_empty()).map(str::to_owned).collect();
        groups::add_group(&mut groups, AUTHENTICATED);
        let user = User { name, uid, groups, extra: Default::default() };
        header_safe::check_header_safe(&user).map_err(|why| line_problem(location, line, &why))?;
        if self.users.insert(self.digest(&token), Arc::new(user)).is_some() {
            tracing::warn!(file = location, line, "duplicate token; this record replaces the earlier one");
        }
        Ok(())
    }
}

fn line_problem(location: &str, line: usize, message: &str) -> Problem {
    Problem::new(format!("{location}:{line}"), message)
}

/// A token file that is reloaded when it changes.
pub type TokenFile = WatchedFile<StaticTokens>;

impl WatchedFileContent for StaticTokens {
    const UNUSABLE: &'static str = "token file changed and is invalid; the last good tokens stay in use";

    fn read(path: &Path) -> Result<StaticTokens, Problems> {
        StaticTokens::load(path)
    }

    fn log_reload(&self, path: &Path) {
        tracing::info!(file = %path.display(), tokens = self.len(), "token file reloaded");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::process::{Drain, OnFailure, Published, ShutdownPhase};

    #[test]
    fn token_file_parsed_like_upstream() {
        let text = "secret1,jane,uid-1,\"devs,ops\"\nsecret2,bob,\n\n,nobody,0\nsecret1,jane2,uid-2,a,ignored\n";
        let tokens = StaticTokens::parse(text, "tokens.csv").unwrap();
        assert_eq!(tokens.len(), 2);
        let bob = tokens.user("secret2").unwrap();
        assert_eq!((&*bob.name, &*bob.uid, &bob.groups[..]), ("bob", "", &["system:authenticated".to_owned()][..]));
        let jane = tokens.user("secret1").unwrap();
        assert_eq!((&*jane.name, &*jane.uid), ("jane2", "uid-2"));
        assert_eq!(jane.groups, ["a", "system:authenticated"]);
        for wrong in ["", "secret", "secret1 ", "SECRET1", "nobody"] {
            assert!(tokens.user(wrong).is_none());
        }
    }

    #[test]
    fn token_file_errors_have_lines_but_no_tokens() {
        let text = "hush1,jane\nhush2,bob,1\nhush3,,2\nhush4\"x,y,z\nhush5,a\tb,3\n";
        let problems = StaticTokens::parse(text, "/etc/tokens.csv").err().unwrap();
        let told = problems.to_string();
        assert_eq!(
            told.lines().map(|line| line.split(": ").next().unwrap()).collect::<Vec<_>>(),
            ["/etc/tokens.csv:1", "/etc/tokens.csv:3", "/etc/tokens.csv:4", "/etc/tokens.csv:5"]
        );
        assert!(told.contains("at least 3 columns (token, user name, user uid), found 2"));
        assert!(told.contains("the user has no name"));
        assert!(!told.contains("hush"));
    }

    #[tokio::test]
    async fn token_file_reloaded_and_invalid_file_keeps_last_good() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens.csv");
        fs::write(&path, "one,jane,1\n").unwrap();
        let (file, tokens) = TokenFile::open(&path).map_err(|it| it.to_string()).unwrap();
        let (publisher, mut published) = Published::new(tokens);
        let (drainer, drain) = Drain::new();
        let (told, mut hear) = tokio::sync::mpsc::unbounded_channel();
        let told = Mutex::new(told);
        let on_failure: OnFailure = Box::new(move |problems| {
            let _ = told.lock().unwrap().send(problems.0.len());
        });
        let following = tokio::spawn(file.publish_changes(publisher, on_failure, drain));
        fs::write(&path, "two,bob,2\n").unwrap();
        published.changed().await;
        assert!(published.get().user("one").is_none());
        assert_eq!(published.get().user("two").unwrap().name, "bob");
        fs::write(&path, "three\n").unwrap();
        assert_eq!(hear.recv().await, Some(1));
        assert!(published.get().user("two").is_some());
        fs::write(&path, "three,eve,3\n").unwrap();
        published.changed().await;
        assert_eq!(hear.recv().await, Some(0));
        assert!(published.get().user("three").is_some());
        drainer.advance(ShutdownPhase::Ending);
        following.await.unwrap();
    }
}
