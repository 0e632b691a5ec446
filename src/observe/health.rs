//! Health checks: `/livez`, `/readyz` and `/healthz`, byte for byte as k8s.io/apiserver responds
//! (pkg/server/healthz/healthz.go), so that probes and scripts written for it work.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use percent_encoding::percent_decode_str;

use kubeapi::GoQuoted;

/// Maximum number of another server's checks that are listed.
const MAX_OTHERS: usize = 1000;

/// One named health check.
#[derive(Clone)]
pub struct HealthCheck {
    name: &'static str,
    run: Arc<dyn Fn() -> Result<Option<Cow<'static, str>>, String> + Send + Sync>,
}

/// The health checks of one path.
#[derive(Clone)]
pub struct HealthChecks {
    name: &'static str,
    checks: Arc<[HealthCheck]>,
}

/// The checks that a request is for.
#[derive(Clone, Copy)]
pub enum RequestedChecks<'c> {
    /// All checks of a path.
    All(&'c HealthChecks),
    /// The check of a path of its own, such as `/readyz/ping`.
    One(&'c HealthCheck),
}

impl HealthCheck {
    /// Creates a check that runs on every request. Its error is shown without authentication to requests for this check
    /// alone: it must contain no internal address and no library error.
    pub fn new(name: &'static str, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> HealthCheck {
        HealthCheck::with_note(name, move || check().map(|()| None))
    }

    /// Creates a check that may pass with a note. With a note it is listed as excluded; the note is shown without
    /// authentication.
    pub fn with_note(
        name: &'static str,
        check: impl Fn() -> Result<Option<Cow<'static, str>>, String> + Send + Sync + 'static,
    ) -> HealthCheck {
        HealthCheck { name, run: Arc::new(check) }
    }

    /// The check `ping`, which always passes.
    pub fn ping() -> HealthCheck {
        HealthCheck::new("ping", || Ok(()))
    }
}

impl HealthChecks {
    /// Creates the checks of the path `name` (without its slash): `livez`, `readyz` or `healthz`. They are listed in
    /// the order given, and logged by name when they fail.
    pub fn new(name: &'static str, checks: impl IntoIterator<Item = HealthCheck>) -> HealthChecks {
        HealthChecks { name, checks: checks.into_iter().collect() }
    }

    /// The path without its slash: `livez`, `readyz` or `healthz`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The checks that `path` requests; `None` for other paths.
    pub fn find(&self, path: &str) -> Option<RequestedChecks<'_>> {
        let rest = path.strip_prefix('/')?.strip_prefix(self.name)?;
        match rest.strip_prefix('/') {
            None if rest.is_empty() => Some(RequestedChecks::All(self)),
            Some("") => Some(RequestedChecks::All(self)),
            Some(name) => self.checks.iter().find(|check| check.name == name).map(RequestedChecks::One),
            None => None,
        }
    }

    /// Responds to a GET or HEAD of `path` with `query` (without its question mark); `None` for other paths.
    pub fn respond(&self, path: &str, query: Option<&str>) -> Option<Response<Bytes>> {
        Some(self.find(path)?.respond(query, ""))
    }

    /// The failing checks, as `name: reason`; for the status page.
    pub fn failing_checks(&self) -> Vec<String> {
        let failed = self.checks.iter().filter_map(|check| {
            let error = (check.run)().err()?;
            Some(format!("{}: {error}", check.name))
        });
        failed.collect()
    }

    fn respond_all(&self, query: &str, others: &str) -> Response<Bytes> {
        let excluded: BTreeSet<String> = query_values(query, "exclude").collect();
        let mut unknown: BTreeSet<&str> = excluded.iter().map(String::as_str).collect();
        let mut lines = String::new();
        let mut failed = Vec::new();
        for HealthCheck { name, run: judge } in self.checks.iter() {
            if excluded.contains(*name) {
                unknown.remove(name);
                lines.push_str(&format!("[+]{name} excluded: ok\n"));
                continue;
            }
            match judge() {
                Ok(None) => lines.push_str(&format!("[+]{name} ok\n")),
                // As kube-apiserver lists a check that does not affect the result.
                Ok(Some(note)) => lines.push_str(&format!("[+]{name} excluded: {note}\n")),
                Err(error) => {
                    // Unauthenticated clients may read this: the reason is only logged, and shown at the check's path.
                    lines.push_str(&format!("[-]{name} failed: reason withheld\n"));
                    failed.push(format!("{name}: {error}"));
                }
            }
        }
        let checks = others.lines().filter(|line| line.starts_with("[+]") || line.starts_with("[-]"));
        for line in checks.take(MAX_OTHERS) {
            if let Some(name) = line[3..].split(' ').next() {
                unknown.remove(name);
            }
            // A line that both servers have is listed once.
            if !lines.lines().any(|own_line| own_line == line) {
                lines.push_str(line);
                lines.push('\n');
            }
        }
        if !unknown.is_empty() {
            let names: Vec<String> = unknown.iter().map(|name| GoQuoted(name).to_string()).collect();
            lines.push_str(&format!(
                "warn: some health checks cannot be excluded: no matches for {}\n",
                names.join(",")
            ));
        }
        let name = self.name;
        if !failed.is_empty() {
            tracing::debug!(checks = failed.join("; "), "{name} check failed");
            return text_response(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{name} check failed\n"));
        }
        let verbose = query_values(query, "verbose").next().is_some();
        text_response(StatusCode::OK, if verbose { format!("{lines}{name} check passed\n") } else { "ok".to_owned() })
    }
}

impl RequestedChecks<'_> {
    /// Responds to a GET or HEAD with `query` (without its question mark). A listing is followed by the checks of another
    /// server in `others`, which do not affect the result.
    pub fn respond(&self, query: Option<&str>, others: &str) -> Response<Bytes> {
        match self {
            RequestedChecks::All(checks) => checks.respond_all(query.unwrap_or(""), others),
            RequestedChecks::One(check) => match (check.run)() {
                Ok(_) => text_response(StatusCode::OK, "ok".to_owned()),
                Err(error) => {
                    text_response(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {error}\n"))
                }
            },
        }
    }

    /// Whether a GET with `query` lists the checks.
    pub fn are_listed(&self, query: Option<&str>) -> bool {
        matches!(self, RequestedChecks::All(_)) && query_values(query.unwrap_or(""), "verbose").next().is_some()
    }
}

fn text_response(status: StatusCode, body: String) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

/// The form-decoded values of parameter `name`; pairs that cannot be decoded are skipped, as in Go.
fn query_values<'q>(query: &'q str, name: &'q str) -> impl Iterator<Item = String> + 'q {
    query.split('&').filter(|pair| !pair.contains(';')).filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (!pair.is_empty() && form_decode(key)? == name).then(|| form_decode(value))?
    })
}

fn form_decode(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    percent_decode_str(&text).decode_utf8().ok().map(|text| text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health(well: bool) -> HealthChecks {
        let bad = HealthCheck::new("bad", move || if well { Ok(()) } else { Err("why".to_owned()) });
        HealthChecks::new("readyz", [HealthCheck::ping(), bad])
    }

    #[track_caller]
    fn assert_answer(health: &HealthChecks, path: &str, query: &str, status: u16, body: &str) {
        let answer = health.respond(path, Some(query)).unwrap();
        assert_eq!((answer.status().as_u16(), std::str::from_utf8(answer.body()).unwrap()), (status, body));
        assert_eq!(answer.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
        assert_eq!(answer.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
    }

    #[test]
    fn health_responses_match_upstream_byte_for_byte() {
        assert_answer(&health(true), "/readyz", "", 200, "ok");
        assert_answer(&health(true), "/readyz", "verbose", 200, "[+]ping ok\n[+]bad ok\nreadyz check passed\n");
        assert_answer(&health(true), "/readyz", "verbose=false", 200, "[+]ping ok\n[+]bad ok\nreadyz check passed\n");
        assert_answer(
            &health(false),
            "/readyz",
            "",
            500,
            "[+]ping ok\n[-]bad failed: reason withheld\nreadyz check failed\n",
        );
        assert_answer(&health(false), "/readyz", "exclude=bad", 200, "ok");
        assert_answer(
            &health(false),
            "/readyz",
            "exclude=bad&verbose=1",
            200,
            "[+]ping ok\n[+]bad excluded: ok\nreadyz check passed\n",
        );
        assert_answer(&health(false), "/readyz/ping", "", 200, "ok");
        assert_answer(&health(false), "/readyz/bad", "", 500, "internal server error: why\n");
    }

    #[test]
    fn health_unknown_exclusion_is_warned_about() {
        assert_answer(
            &health(true),
            "/readyz",
            "exclude=y&exclude=x%22&verbose&exclude=y",
            200,
            "[+]ping ok\n[+]bad ok\nwarn: some health checks cannot be excluded: no matches for \"x\\\"\",\"y\"\n\
             readyz check passed\n",
        );
    }

    #[test]
    fn health_checks_of_another_server_are_listed_only() {
        let theirs = "[+]ping ok\n[-]etcd failed: reason withheld\n[+]bad excluded: ok\nwarn: x\nreadyz check failed\n";
        let answer = |health: HealthChecks, query| {
            let answer = health.find("/readyz").unwrap().respond(Some(query), theirs);
            (answer.status().as_u16(), String::from_utf8(answer.body().to_vec()).unwrap())
        };
        let fine = "[+]ping ok\n[+]bad ok\n[-]etcd failed: reason withheld\n[+]bad excluded: ok\nreadyz check passed\n";
        assert_eq!(answer(health(true), "verbose&exclude=etcd"), (200, fine.to_owned()));
        assert_eq!(answer(health(true), ""), (200, "ok".to_owned()));
        let failed = "[+]ping ok\n[-]bad failed: reason withheld\n[-]etcd failed: reason withheld\n\
                      [+]bad excluded: ok\nreadyz check failed\n";
        assert_eq!(answer(health(false), "verbose"), (500, failed.to_owned()));
    }

    #[test]
    fn health_lists_all_checks_when_verbose() {
        let lists =
            |path: &str, query: Option<&str>| health(true).find(path).is_some_and(|checks| checks.are_listed(query));
        assert!(lists("/readyz", Some("verbose")) && lists("/readyz/", Some("a=b&verbose=1")));
        assert!(
            !lists("/readyz", None) && !lists("/readyz", Some("verbos")) && !lists("/readyz/ping", Some("verbose"))
        );
        assert!(!lists("/livez", Some("verbose")));
    }

    #[test]
    fn health_other_paths_are_not_answered() {
        for path in ["/readyzz", "/livez", "/readyz/none", "/", "readyz"] {
            assert!(health(true).respond(path, None).is_none(), "{path}");
        }
    }

    #[test]
    fn health_failing_checks_carry_reasons() {
        assert_eq!(health(false).failing_checks(), ["bad: why"]);
    }
}
