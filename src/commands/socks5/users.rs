//! SOCKS5 users: a file of lines `user:password`, watched on disk.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;

use super::protocol::UserPassword;
use crate::process::{Problem, Problems, WatchedFileContent, read_text_file};

/// Users and their passwords.
///
/// Stored as HMAC-SHA256 under a random key of this process: neither lookup times nor a core dump reveal them. No
/// `Debug`, on purpose.
pub(super) struct Users {
    key: hmac::Key,
    digests: Vec<hmac::Tag>,
}

/// Length limit of a user name or password: SOCKS5 encodes it in one byte.
const MAX_FIELD_BYTES: usize = 255;
/// Size limit of the file.
const MAX_FILE_BYTES: u64 = 1 << 20;

impl Users {
    /// Parses the lines of the file `location`. Empty lines are ignored.
    fn parse(text: &str, location: &str) -> Result<Users, Problems> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| Problem::new(location, "the system's random number generator failed"))?;
        let mut users = Users { key, digests: Vec::new() };
        let (mut problems, mut seen) = (Problems::default(), BTreeSet::new());
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
            let mut wrong = |why: &str| problems.0.push(Problem::new(format!("{location}:{}", number + 1), why));
            match line.split_once(':') {
                None => wrong("must be user:password"),
                Some(("", _)) => wrong("must be user:password; the user is missing"),
                Some((user, password)) if user.len() > MAX_FIELD_BYTES || password.len() > MAX_FIELD_BYTES => {
                    wrong("a user or password of SOCKS5 has at most 255 bytes");
                }
                Some((user, _)) if !seen.insert(user) => wrong("duplicate user"),
                Some((user, password)) => {
                    let digest = users.digest(user.as_bytes(), password.as_bytes());
                    users.digests.push(digest);
                }
            }
        }
        if seen.is_empty() && problems.0.is_empty() {
            problems.0.push(Problem::new(location, "has no line user:password: no client could connect"));
        }
        problems.into_result(users)
    }

    /// Whether user and password match an entry. All entries are compared, each in constant time.
    pub(super) fn verify(&self, login: &UserPassword<'_>) -> bool {
        let digest = self.digest(login.user, login.password);
        let same = |tag: &hmac::Tag| u8::from(verify_slices_are_equal(tag.as_ref(), digest.as_ref()).is_ok());
        self.digests.iter().map(same).fold(0, |found, same| found | same) == 1
    }

    fn digest(&self, user: &[u8], password: &[u8]) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&self.key);
        // The length separates user and password.
        context.update(&user.len().to_be_bytes());
        context.update(user);
        context.update(password);
        context.sign()
    }
}

impl WatchedFileContent for Users {
    const UNUSABLE: &'static str = "changed credentials file is invalid; the last good users stay in use";

    fn read(path: &Path) -> Result<Users, Problems> {
        let text = read_text_file(path, MAX_FILE_BYTES)?;
        let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o004 != 0 {
            tracing::warn!(file = %path.display(), "credentials file is world-readable; chmod 0600 it");
        }
        Users::parse(&text, &path.display().to_string())
    }

    fn log_reload(&self, path: &Path) {
        tracing::info!(file = %path.display(), users = self.digests.len(), "credentials file reloaded");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_verify_user_and_password() {
        let users = Users::parse("jane:s3:cr t\n\nbob:\nal ice:p@ss\r\n", "c").unwrap();
        let know = |user: &[u8], password: &[u8]| users.verify(&UserPassword { user, password });
        assert!(know(b"jane", b"s3:cr t") && know(b"bob", b"") && know(b"al ice", b"p@ss"));
        for (user, password) in
            [("jane", "s3:cr"), ("jane:s3", "cr t"), ("janes3", ":cr t"), ("", ""), ("bob", "x"), ("Jane", "s3:cr t")]
        {
            assert!(!know(user.as_bytes(), password.as_bytes()), "{user} {password}");
        }
    }

    #[test]
    fn users_file_errors_name_line_without_secret() {
        let long = "x".repeat(256);
        let text = format!("secret\n:secret\na:b\na:c\n{long}:y\ny:{long}\n");
        let problems = Users::parse(&text, "c").err().unwrap().to_string();
        let expected = [
            "c:1: must be user:password",
            "c:2: must be user:password; the user is missing",
            "c:4: duplicate user",
            "c:5: a user or password of SOCKS5 has at most 255 bytes",
            "c:6: a user or password of SOCKS5 has at most 255 bytes",
        ];
        assert_eq!(problems.lines().collect::<Vec<_>>(), expected);
        assert!(Users::parse("\n", "c").err().unwrap().to_string().contains("no client could connect"));
    }
}
