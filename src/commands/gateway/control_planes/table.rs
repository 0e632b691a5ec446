//! Which control plane gets a request: by host name, or by path prefix.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;

use super::prefix_tree::{AmbiguousSegment, PrefixTree};
use crate::availability::AvailabilityMap;
use crate::commands::gateway::state::GatewayState;
use crate::config::control_planes::ControlPlaneSelector;
use crate::process::FileErrors;
use crate::process::{Drainer, Published};
use crate::registry::Registry;

/// All control planes. A lookup costs the same for any number of them.
#[derive(Default)]
pub(in crate::commands::gateway) struct ControlPlaneTable {
    by_host: HashMap<Box<str>, Arc<ControlPlane>>,
    by_prefix: PrefixTree<Arc<ControlPlane>>,
    /// In the order of the file.
    all: Vec<Arc<ControlPlane>>,
}

/// One control plane.
pub(in crate::commands::gateway) struct ControlPlane {
    pub(in crate::commands::gateway) name: Arc<str>,
    pub(in crate::commands::gateway) selector: ControlPlaneSelector,
    /// Written by the thread of the control planes.
    pub(in crate::commands::gateway) state: ArcSwap<ControlPlaneState>,
}

/// Whether a control plane serves requests.
pub(in crate::commands::gateway) enum ControlPlaneState {
    /// It is being started.
    Starting,
    Serving(Arc<ControlPlaneInstance>),
    /// It could not be started, for these reasons.
    Failed(String),
}

/// A running control plane.
pub(in crate::commands::gateway) struct ControlPlaneInstance {
    /// The name of the control plane.
    pub(in crate::commands::gateway) name: Arc<str>,
    pub(in crate::commands::gateway) parts: ControlPlaneParts,
    pub(super) drainer: Drainer,
}

/// What a running control plane consists of.
pub(in crate::commands::gateway) struct ControlPlaneParts {
    pub(in crate::commands::gateway) shared: Arc<GatewayState>,
    pub(in crate::commands::gateway) registry: Published<Registry>,
    pub(in crate::commands::gateway) availability: AvailabilityMap,
    pub(in crate::commands::gateway) file_errors: FileErrors,
}

/// Why no control plane may get a request.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::commands::gateway) enum SelectionError {
    /// The server name of the connection selects another control plane than the host of the request.
    Misdirected,
    /// The path may mean the prefix of another control plane to another server.
    AmbiguousPath,
}

impl ControlPlaneTable {
    /// A table of these control planes; no two of them have a host or a path prefix in common.
    pub(super) fn new(all: Vec<Arc<ControlPlane>>) -> ControlPlaneTable {
        let mut table = ControlPlaneTable::default();
        for control_plane in &all {
            match &control_plane.selector {
                ControlPlaneSelector::Hosts(hosts) => {
                    let hosts = hosts.iter().map(|host| (host.as_str().into(), control_plane.clone()));
                    table.by_host.extend(hosts);
                }
                ControlPlaneSelector::PathPrefix(prefix) => table.by_prefix.insert(prefix, control_plane.clone()),
            }
        }
        ControlPlaneTable { all, ..table }
    }

    /// All control planes.
    pub(in crate::commands::gateway) fn all(&self) -> &[Arc<ControlPlane>] {
        &self.all
    }

    /// The control plane of a server name in a TLS handshake, or of a host without port.
    pub(in crate::commands::gateway) fn by_host(&self, host: &str) -> Option<&Arc<ControlPlane>> {
        let host = host.trim_end_matches('.');
        let host: Cow<'_, str> = match host.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => host.to_ascii_lowercase().into(),
            false => host.into(),
        };
        self.by_host.get(&*host)
    }

    /// The control plane of a request for `host` and `path`, on a connection to `server_name`, and the length of the
    /// path prefix to remove. None if the gateway itself serves the request.
    ///
    /// # Errors
    /// See [`SelectionError`].
    pub(in crate::commands::gateway) fn select(
        &self,
        server_name: Option<&str>,
        host: Option<&str>,
        path: &str,
    ) -> Result<Option<(&Arc<ControlPlane>, usize)>, SelectionError> {
        if !self.by_host.is_empty() {
            let connected = server_name.and_then(|name| self.by_host(name));
            let requested = host.and_then(|host| self.by_host(without_port(host)));
            match (connected, requested) {
                (None, None) => {}
                (Some(connected), Some(requested)) if Arc::ptr_eq(connected, requested) => {
                    return Ok(Some((requested, 0)));
                }
                _ => return Err(SelectionError::Misdirected),
            }
        }
        self.by_prefix.find(path).map_err(|AmbiguousSegment| SelectionError::AmbiguousPath)
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control_plane(name: &str, selector: ControlPlaneSelector) -> Arc<ControlPlane> {
        let state = ArcSwap::from_pointee(ControlPlaneState::Starting);
        Arc::new(ControlPlane { name: name.into(), selector, state })
    }

    #[test]
    fn control_plane_by_host_only_on_its_own_connection() {
        let hosts = |hosts: &[&str]| ControlPlaneSelector::Hosts(hosts.iter().map(|&host| host.to_owned()).collect());
        let table = ControlPlaneTable::new(vec![
            control_plane("a", hosts(&["a.example", "also-a.example"])),
            control_plane("b", hosts(&["b.example"])),
            control_plane("c", ControlPlaneSelector::PathPrefix("/clusters/c".to_owned())),
        ]);
        let misdirected = Err(SelectionError::Misdirected);
        for (server_name, host, path, expected) in [
            (Some("a.example"), Some("a.example"), "/api", Ok(Some("a"))),
            (Some("A.Example."), Some("a.example:6443"), "/api", Ok(Some("a"))),
            (Some("a.example"), Some("also-a.example"), "/api", Ok(Some("a"))),
            (Some("a.example"), Some("a.example"), "/clusters/c/api", Ok(Some("a"))),
            (Some("a.example"), Some("b.example"), "/api", misdirected),
            (Some("b.example"), Some("a.example:6443"), "/api", Err(SelectionError::Misdirected)),
            (Some("a.example"), Some("other.example"), "/api", Err(SelectionError::Misdirected)),
            (Some("a.example"), Some("127.0.0.1:6443"), "/clusters/c/api", Err(SelectionError::Misdirected)),
            (Some("a.example"), None, "/api", Err(SelectionError::Misdirected)),
            (None, Some("a.example"), "/api", Err(SelectionError::Misdirected)),
            (Some("other.example"), Some("a.example"), "/api", Err(SelectionError::Misdirected)),
            (Some("other.example"), Some("a.example."), "/api", Err(SelectionError::Misdirected)),
            (None, Some("127.0.0.1:6443"), "/clusters/c/api", Ok(Some("c"))),
            (Some("one.example"), Some("other.example"), "/clusters/c", Ok(Some("c"))),
            (None, Some("127.0.0.1:6443"), "/api", Ok(None)),
            (None, Some("[::1]:6443"), "/clusters/%63/api", Err(SelectionError::AmbiguousPath)),
        ] {
            let selected = table.select(server_name, host, path).map(|found| found.map(|(found, _)| &*found.name));
            assert_eq!(selected, expected, "{server_name:?} {host:?} {path}");
        }
    }
}
