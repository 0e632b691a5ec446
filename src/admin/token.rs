//! `--admin-token-file`: the token that the admin listener requires.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::HeaderMap;
use http::header::AUTHORIZATION;

use crate::process::{Drain, OnFailure, Problem, Problems, Published, WatchedFile, WatchedFileContent, read_text_file};

/// Minimum token length; a shorter token could be guessed.
const MIN_TOKEN_LENGTH: usize = 16;
/// Maximum size of the token file.
const MAX_FILE_SIZE: u64 = 1 << 20;

/// The admin token. Deliberately without `Debug`.
pub struct AdminToken(String);

/// The watched token file.
pub type AdminTokenFile = WatchedFile<AdminToken>;

/// The admin token with its file, for the admin listener.
pub struct AdminTokenConfig {
    pub(super) file: AdminTokenFile,
    pub(super) token: AdminToken,
    pub(super) on_failure: OnFailure,
    pub(super) drain: Drain,
}

impl AdminTokenConfig {
    /// Requires `token` until `file` changes; `on_failure` is called with the problems of the file.
    pub fn new(file: AdminTokenFile, token: AdminToken, on_failure: OnFailure, drain: Drain) -> AdminTokenConfig {
        AdminTokenConfig { file, token, on_failure, drain }
    }

    /// Starts watching the file on this thread's `LocalSet`.
    pub(super) fn publish_token(self) -> Published<AdminToken> {
        let AdminTokenConfig { file, token, on_failure, drain } = self;
        let (publisher, published) = Published::new(token);
        tokio::task::spawn_local(file.publish_changes(publisher, on_failure, drain));
        published
    }
}

impl AdminToken {
    /// Parses the content of a token file; surrounding whitespace is ignored.
    ///
    /// # Errors
    /// The token is missing, too short, or not valid in a header.
    pub fn parse(text: &str, location: &str) -> Result<AdminToken, Problem> {
        let token = text.trim();
        if token.len() < MIN_TOKEN_LENGTH {
            let message = format!(
                "has {} characters; a token of at least {MIN_TOKEN_LENGTH} is needed ('openssl rand -hex 32' makes one)",
                token.len()
            );
            return Err(Problem::new(location, message));
        }
        if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Problem::new(location, "must be one token of printable ASCII without spaces"));
        }
        Ok(AdminToken(token.to_owned()))
    }

    /// Value of `Authorization` with this token.
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Whether a request carries the token: as bearer token, or as the password of Basic authentication, which browsers
    /// support. Compared in constant time.
    pub(super) fn matches_request(&self, headers: &HeaderMap) -> bool {
        let mut lines = headers.get_all(AUTHORIZATION).iter();
        let (Some(line), None) = (lines.next(), lines.next()) else { return false };
        let Some((scheme, value)) = line.to_str().ok().and_then(|line| line.trim().split_once(' ')) else {
            return false;
        };
        let is = |given: &[u8]| verify_slices_are_equal(given, self.0.as_bytes()).is_ok();
        if scheme.eq_ignore_ascii_case("bearer") {
            return is(value.trim().as_bytes());
        }
        let decoded = scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(value.trim()).ok()).flatten();
        decoded.is_some_and(|pair| {
            let colon = pair.iter().position(|byte| *byte == b':');
            colon.is_some_and(|colon| is(&pair[colon + 1..]))
        })
    }
}

impl WatchedFileContent for AdminToken {
    const UNUSABLE: &'static str = "admin token file changed and is invalid; the last good token stays in use";

    fn read(path: &Path) -> Result<AdminToken, Problems> {
        let location = path.display().to_string();
        let text = read_text_file(path, MAX_FILE_SIZE)?;
        let mode = fs::metadata(path).map_or(0, |metadata| metadata.permissions().mode());
        if mode & 0o004 != 0 {
            tracing::warn!(file = location, "admin token file is world-readable; chmod 0600 it");
        }
        Ok(AdminToken::parse(&text, &location)?)
    }

    fn log_reload(&self, path: &Path) {
        tracing::info!(file = %path.display(), "admin token file reloaded");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_token_accepted_as_bearer_and_basic_password_only() {
        let token = AdminToken::parse(" 0123456789abcdef\n", "file").ok().unwrap();
        let has = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(AUTHORIZATION, line.parse().unwrap());
            }
            token.matches_request(&headers)
        };
        let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
        for good in ["Bearer 0123456789abcdef", "bearer  0123456789abcdef", &basic("x:0123456789abcdef")] {
            assert!(has(&[good]), "{good}");
        }
        for bad in [
            "0123456789abcdef",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Basic 0123456789abcdef",
            &basic("0123456789abcdef"),
            &basic("0123456789abcdef:"),
            &basic("a:b:0123456789abcdef"),
            "Bearer",
            "",
        ] {
            assert!(!has(&[bad]), "{bad}");
        }
        assert!(!has(&[]) && !has(&["Bearer 0123456789abcdef", "Bearer 0123456789abcdef"]));
    }

    #[test]
    fn admin_token_that_could_be_guessed_is_refused() {
        let why = |text: &str| AdminToken::parse(text, "t").err().unwrap().to_string();
        assert!(why("\n").contains("t: has 0 characters") && why("0123456789abcde\n").contains("at least 16"));
        assert!(why("0123456789abcdef 0123456789abcdef").contains("without spaces"));
        assert!(why("0123456789abcdef\u{e9}").contains("ASCII"));
    }
}
