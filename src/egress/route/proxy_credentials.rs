//! User name and password for a proxy. `Debug` does not show them.

use std::fmt;

use base64::Engine as _;
use http::HeaderValue;
use percent_encoding::percent_decode_str;

/// User name and password for a proxy.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ProxyCredentials {
    user: String,
    password: String,
}

impl ProxyCredentials {
    /// Credentials from a plain user name and password.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> ProxyCredentials {
        ProxyCredentials { user: user.into(), password: password.into() }
    }

    /// Parses the content of a credentials file: one line, `user:password`. The password may contain colons, be empty,
    /// and begin or end with spaces.
    ///
    /// # Errors
    /// Says what is wrong with the text; the message contains nothing of it.
    pub fn from_file_text(text: &str) -> Result<ProxyCredentials, &'static str> {
        let line = text.strip_suffix('\n').map_or(text, |line| line.strip_suffix('\r').unwrap_or(line));
        if line.contains(['\n', '\r', '\0']) {
            return Err("must be one line, user:password");
        }
        match line.split_once(':') {
            None => Err("must be user:password"),
            Some(("", _)) => Err("must be user:password; the user is missing"),
            Some((user, password)) => Ok(ProxyCredentials::new(user, password)),
        }
    }

    /// Parses the user info before the `@` of a URL. Without a colon the password is empty.
    ///
    /// # Errors
    /// The decoded text is not UTF-8, or an escape is malformed.
    pub(in crate::egress) fn from_user_info(text: &str) -> Result<ProxyCredentials, &'static str> {
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        let decode = |part: &str| {
            let escapes = part.split('%').skip(1);
            let sound = |escape: &str| escape.len() >= 2 && escape.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
            if !escapes.into_iter().all(sound) {
                return Err("the user or password has a malformed escape; write a percent sign as %25");
            }
            let decoded = percent_decode_str(part).decode_utf8().map_err(|_| "the user or password is not UTF-8")?;
            Ok(decoded.into_owned())
        };
        Ok(ProxyCredentials::new(decode(user)?, decode(password)?))
    }

    /// The user name.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The password. For the proxy only: never log it.
    pub fn password(&self) -> &str {
        &self.password
    }

    /// The value of the header `Proxy-Authorization` (RFC 7617), marked as sensitive.
    pub fn basic_auth_header(&self) -> HeaderValue {
        let pair = format!("{}:{}", self.user, self.password);
        let text = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair));
        // Every Base64 text is a valid header value.
        let mut value = HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("Basic"));
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for ProxyCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_credentials_file_holds_one_line() {
        let read = |text| ProxyCredentials::from_file_text(text).map(|it| (it.user, it.password));
        let pair = |user: &str, password: &str| Ok((user.to_owned(), password.to_owned()));
        assert_eq!(read("jane:s3:cr t \n"), pair("jane", "s3:cr t "));
        assert_eq!(read("jane:x\r\n"), pair("jane", "x"));
        assert_eq!(read("jane:"), pair("jane", ""));
        for wrong in ["", "\n", "jane", ":x", "jane:x\n\n", "a:b\nc:d", "a:\0"] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn proxy_credentials_in_url_are_percent_decoded() {
        let read = |text| ProxyCredentials::from_user_info(text).map(|it| (it.user, it.password));
        assert_eq!(read("al%20ice:p%40ss:x"), Ok(("al ice".to_owned(), "p@ss:x".to_owned())));
        assert_eq!(read("alice"), Ok(("alice".to_owned(), String::new())));
        for wrong in ["a%", "a%2", "a%zz:b", "a:%ff", "a:%+1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn proxy_credentials_are_sent_as_basic_and_hidden_from_debug() {
        let credentials = ProxyCredentials::new("Aladdin", "open sesame");
        let value = credentials.basic_auth_header();
        assert_eq!(value.to_str().unwrap(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert!(value.is_sensitive());
        assert_eq!(format!("{credentials:?}"), "Credentials(..)");
    }
}
