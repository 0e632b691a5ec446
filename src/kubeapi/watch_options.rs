//! Options of a list or watch besides selectors (`metav1.ListOptions`), for servers that keep no old object versions.

use std::time::Duration;

use super::{Query, Status};

/// Options of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchOptions {
    /// Whether to begin with the existing objects (`resourceVersion` empty or 0, or `sendInitialEvents`).
    pub sends_initial_events: bool,
    /// Whether to mark the end of the initial objects with a bookmark (`sendInitialEvents`).
    pub marks_initial_end: bool,
    /// Resource version after which events are sent.
    pub since_version: u64,
    /// Whether to send bookmarks.
    pub sends_bookmarks: bool,
    /// Duration of the watch.
    pub timeout: Duration,
}

impl WatchOptions {
    /// Parses the options of a query. `current` is the latest resource version of the server.
    ///
    /// # Errors
    /// 400 for invalid options, and the errors of [`resource_version`].
    pub fn parse(query: &Query<'_>, current: u64) -> Result<WatchOptions, Status> {
        let yes = |key: &str| query.get(key).is_some_and(|value| value == "true" || value == "1");
        let since = resource_version(query, current)?;
        let initial = query.get("sendInitialEvents").map(|_| yes("sendInitialEvents"));
        if initial.is_some() && query.get("resourceVersionMatch").is_none_or(|how| how != "NotOlderThan") {
            return Err(Status::bad_request("sendInitialEvents requires resourceVersionMatch=NotOlderThan"));
        }
        let seconds: u64 = query
            .get("timeoutSeconds")
            .map(|text| {
                text.parse().map_err(|_| Status::bad_request(format!("timeoutSeconds {text:?} is not a number")))
            })
            .transpose()?
            .unwrap_or(0);
        // Random, as in Kubernetes, so that clients that connected together do not reconnect together.
        let lasts = if seconds == 0 { 1800.0 * (1.0 + fastrand::f64()) } else { seconds.min(86_400) as f64 };
        Ok(WatchOptions {
            sends_initial_events: initial.unwrap_or(since == 0),
            marks_initial_end: initial == Some(true) && yes("allowWatchBookmarks"),
            since_version: if since == 0 { current } else { since },
            sends_bookmarks: yes("allowWatchBookmarks"),
            timeout: Duration::from_secs_f64(lasts),
        })
    }
}

/// The requested `resourceVersion`; 0 for none or any.
///
/// # Errors
/// 400 for an invalid version, 504 with a retry delay for one that is newer than `current`, 410 for an exact match of
/// an older one: no old versions are kept.
pub fn resource_version(query: &Query<'_>, current: u64) -> Result<u64, Status> {
    let text = query.get("resourceVersion").unwrap_or_default();
    if text.is_empty() {
        return Ok(0);
    }
    let version: u64 = text
        .parse()
        .map_err(|_| Status::bad_request(format!("resourceVersion: Invalid value: {text:?}: must be a number")))?;
    if version > current {
        return Err(Status::resource_version_too_large(version, current));
    }
    let exact = query.get("resourceVersionMatch").is_some_and(|how| how == "Exact");
    if exact && version != current {
        return Err(Status::expired(format!("the resource version {version} is no longer available")));
    }
    Ok(version)
}
