//! What a client says of a list or a watch besides what it selects (`metav1.ListOptions`), for objects whose old
//! states are not kept.

use std::time::Duration;

use super::{Query, Status};

/// How a client wants to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchOptions {
    /// Begin with the objects there are (`resourceVersion` empty or 0, or `sendInitialEvents`).
    pub initial: bool,
    /// Say where the initial objects end (`sendInitialEvents`).
    pub mark_initial: bool,
    /// What the client knows already.
    pub since: u64,
    /// Say now and then how far we are.
    pub bookmarks: bool,
    /// End after this.
    pub lasts: Duration,
}

impl WatchOptions {
    /// Reads them; `current` is the latest version handed out.
    ///
    /// # Errors
    /// 400 for what makes no sense, and what [`resource_version`] says.
    pub fn parse(query: &Query<'_>, current: u64) -> Result<WatchOptions, Status> {
        let yes = |key: &str| query.get(key).is_some_and(|value| value == "true" || value == "1");
        let since = resource_version(query, current)?;
        let initial = query.get("sendInitialEvents").map(|_| yes("sendInitialEvents"));
        if initial.is_some() && query.get("resourceVersionMatch").is_none_or(|how| how != "NotOlderThan") {
            return Err(Status::bad_request("sendInitialEvents requires resourceVersionMatch=NotOlderThan"));
        }
        let seconds: u64 = query
            .get("timeoutSeconds")
            .map(|text| text.parse().map_err(|_| Status::bad_request(format!("timeoutSeconds {text:?} is no number"))))
            .transpose()?
            .unwrap_or(0);
        // Spread as upstream spreads its own, so that clients that came together do not come back together.
        let lasts = if seconds == 0 { 1800.0 * (1.0 + fastrand::f64()) } else { seconds.min(86_400) as f64 };
        Ok(WatchOptions {
            initial: initial.unwrap_or(since == 0),
            mark_initial: initial == Some(true) && yes("allowWatchBookmarks"),
            since: if since == 0 { current } else { since },
            bookmarks: yes("allowWatchBookmarks"),
            lasts: Duration::from_secs_f64(lasts),
        })
    }
}

/// The `resourceVersion` asked for; 0 for none or any. One that was never handed out is told to try again,
/// an exact one that is not the latest is gone: we keep no old states.
///
/// # Errors
/// 400 for what is no version, 410 and 504 as said.
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
