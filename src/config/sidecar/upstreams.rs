//! `--upstream` and related flags: the servers behind the sidecar, each with its path prefix.

use std::time::Duration;

use kubeapi::duration;

use crate::config::parser::FlagParser;
use crate::message::{AllowedHeaders, hop_by_hop};
use crate::registry::{LongRunning, UpstreamSettings, UpstreamUrl};

const UPSTREAM: &str = "upstream";
const TIMEOUT: &str = "upstream-timeout";
const LONG_RUNNING: &str = "upstream-long-running";
const ALLOWED: &str = "allow-request-headers";

/// Reads the upstreams; none is an error.
pub(super) fn upstreams(parser: &mut FlagParser<'_>, request_timeout: Duration) -> Vec<UpstreamSettings> {
    let h2c = parser.switch("upstream-force-h2c");
    let authorities = parser.path("upstream-ca-file");
    let identity = parser.key_pair_files("upstream-client-cert-file", "upstream-client-key-file");
    let timeouts = upstream_timeouts(parser);
    let long_running = LongRunning::parse(&parser.list(LONG_RUNNING).join(",")).unwrap_or_else(|message| {
        parser.add_problem(LONG_RUNNING, message);
        LongRunning::default()
    });
    let allowed = parser.list(ALLOWED);
    let allowed = AllowedHeaders::parse(allowed.iter().map(String::as_str), hop_by_hop::is_proxy_identity_header);
    let allowed_request_headers = allowed.unwrap_or_else(|message| {
        parser.add_problem(ALLOWED, message);
        AllowedHeaders::default()
    });
    let entries = parser.list(UPSTREAM);
    if entries.is_empty() {
        parser.add_problem(UPSTREAM, "required: the server to protect, such as http://127.0.0.1:8080");
    }
    let mut upstreams: Vec<UpstreamSettings> = Vec::new();
    for text in entries {
        let (path, url) = match split_path(&text) {
            Ok(split) => split,
            Err(message) => {
                parser.add_problem(UPSTREAM, format_args!("{text:?}: {message}"));
                continue;
            }
        };
        let url = match UpstreamUrl::parse(url, h2c && !url.starts_with("https://")) {
            Ok(url) => url,
            Err(message) => {
                parser.add_problem(UPSTREAM, message);
                continue;
            }
        };
        if upstreams.iter().any(|other| other.path == path) {
            parser.add_problem(UPSTREAM, format_args!("{path} has more than one upstream"));
        }
        let timeout = |path: &str| timeouts.iter().find(|(of, _)| of == path).map(|(_, timeout)| *timeout);
        upstreams.push(UpstreamSettings {
            timeout: timeout(&path).or_else(|| timeout("")).unwrap_or(request_timeout),
            path,
            url,
            authorities: authorities.clone(),
            identity: identity.clone(),
            keeps_host: false,
            allowed_request_headers: allowed_request_headers.clone(),
            long_running: long_running.clone(),
        });
    }
    for (path, _) in timeouts {
        if !path.is_empty() && upstreams.iter().all(|upstream| upstream.path != path) {
            parser.add_problem(TIMEOUT, format_args!("no --upstream has the path {path}"));
        }
    }
    upstreams
}

/// Reads the timeouts by path; the empty path is the default of the others.
fn upstream_timeouts(parser: &mut FlagParser<'_>) -> Vec<(String, Duration)> {
    let mut timeouts = Vec::new();
    for text in parser.list(TIMEOUT) {
        let read = match text.starts_with('/') {
            true => split_path(&text),
            false => Ok((String::new(), text.as_str())),
        };
        match read.map(|(path, limit)| (path, duration::parse(limit))) {
            Ok((path, Ok(limit))) => timeouts.push((path, limit)),
            Ok((_, Err(_))) => {
                parser.add_problem(
                    TIMEOUT,
                    format_args!("{text:?}: use a duration such as 90s, 1m30s or 0s for no limit"),
                );
            }
            Err(message) => parser.add_problem(TIMEOUT, format_args!("{text:?}: {message}")),
        }
    }
    timeouts
}

/// Splits `PATH=REST` and removes the path's trailing slash; the path is `/` if there is none.
fn split_path(text: &str) -> Result<(String, &str), &'static str> {
    if !text.starts_with('/') {
        return Ok(("/".to_owned(), text));
    }
    let (path, rest) = text.split_once('=').ok_or("a path must be followed by = and a URL")?;
    let trimmed = path.trim_end_matches('/');
    let clean = |segment: &str| !matches!(segment, "" | "." | "..");
    if !trimmed.is_empty() && !trimmed[1..].split('/').all(clean) {
        return Err("the path must not have empty segments, . or ..");
    }
    if path.contains(['%', '?', '#', '*']) {
        return Err("the path is compared literally: use no %, ?, # or *");
    }
    Ok((if trimmed.is_empty() { "/".to_owned() } else { trimmed.to_owned() }, rest))
}
