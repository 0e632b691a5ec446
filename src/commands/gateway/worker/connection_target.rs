//! The control plane of each request of a connection.
//!
//! A connection has a [`ClientConnection`] for each control plane that it was used for, so that nothing that was verified
//! or cached for one is used for another: the client's certificate is verified with the CAs of the control plane of the
//! request, however many requests for others came before on the same connection.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{Request, Uri};
use kubeapi::Status;

use super::control_planes::GatewayWorkers;
use super::requested_host::requested_host;
use super::{ClientConnection, ControlPlaneWorkers};
use crate::commands::gateway::control_planes::{ControlPlaneInstance, ControlPlaneState, SelectionError};
use crate::listen::AcceptedConnection;
use crate::message::{Blame, IncomingBody, Refusal};
use crate::process::ShutdownPhase;

/// Which gateway gets the requests of a connection.
#[derive(Clone)]
pub(in crate::commands::gateway) enum ConnectionTarget {
    /// The one of the process.
    Gateway(Rc<ClientConnection>),
    /// That of the control plane that host or path select.
    ControlPlanes(Rc<ControlPlaneConnections>),
}

/// A connection to several control planes.
pub(in crate::commands::gateway) struct ControlPlaneConnections {
    workers: Rc<GatewayWorkers>,
    accepted: AcceptedConnection,
    gateway: OnceCell<Rc<ClientConnection>>,
    /// Those of control planes, the last one used first.
    by_control_plane: RefCell<Vec<Rc<ClientConnection>>>,
}

impl ConnectionTarget {
    pub(in crate::commands::gateway) fn new(
        workers: &Rc<GatewayWorkers>,
        accepted: AcceptedConnection,
    ) -> ConnectionTarget {
        match workers.control_planes() {
            None => ConnectionTarget::Gateway(ClientConnection::new(workers.gateway.clone(), accepted)),
            Some(_) => ConnectionTarget::ControlPlanes(Rc::new(ControlPlaneConnections {
                workers: workers.clone(),
                accepted,
                gateway: OnceCell::new(),
                by_control_plane: RefCell::default(),
            })),
        }
    }

    /// The connection for `request`, from which the path prefix of its control plane is removed; and the refusal of a
    /// request that none may get.
    pub(in crate::commands::gateway) fn select(
        &self,
        request: &mut Request<IncomingBody>,
    ) -> (Rc<ClientConnection>, Option<Refusal>) {
        match self {
            ConnectionTarget::Gateway(connection) => (connection.clone(), None),
            ConnectionTarget::ControlPlanes(connections) => match connections.select(request) {
                Ok(Some(connection)) => (connection, None),
                Ok(None) => (connections.gateway().clone(), None),
                Err(refusal) => (connections.gateway().clone(), Some(refusal)),
            },
        }
    }
}

impl ControlPlaneConnections {
    fn gateway(&self) -> &Rc<ClientConnection> {
        self.gateway.get_or_init(|| ClientConnection::new(self.workers.gateway.clone(), self.accepted.clone()))
    }

    /// None if the gateway itself gets the request.
    fn select(&self, request: &mut Request<IncomingBody>) -> Result<Option<Rc<ClientConnection>>, Refusal> {
        let Some(workers) = self.workers.control_planes() else { return Ok(None) };
        let client_error = |status: Status| Refusal::new(Blame::Client, status);
        let table = workers.table.load();
        let host = requested_host(request).map_err(client_error)?;
        let server_name = self.accepted.server_name.as_deref();
        let selected = table.select(server_name, host, request.uri().path()).map_err(|error| match error {
            SelectionError::Misdirected => client_error(Status::misdirected_request(
                "the connection is for another server than the requested host; use a connection of its own",
            ))
            .with_cause("the TLS server name and the host belong to different control planes"),
            SelectionError::AmbiguousPath => client_error(Status::bad_request(
                "the path prefix of a control plane must be written without empty or dot segments and percent-encoding",
            )),
        })?;
        let Some((control_plane, prefix_length)) = selected else { return Ok(None) };
        let unavailable = |message: String| Refusal::new(Blame::Gateway, Status::service_unavailable(message));
        match &**control_plane.state.load() {
            ControlPlaneState::Serving(instance) => {
                remove_path_prefix(request.uri_mut(), prefix_length).map_err(client_error)?;
                Ok(Some(self.connection(workers, instance)))
            }
            ControlPlaneState::Starting => {
                Err(unavailable(format!("control plane {:?} is starting, please try again later", control_plane.name)))
            }
            ControlPlaneState::Failed(problems) => Err(unavailable(format!(
                "control plane {:?} cannot be started; the reason is in the gateway's log",
                control_plane.name
            ))
            .with_cause(problems)),
        }
    }

    fn connection(&self, workers: &ControlPlaneWorkers, instance: &ControlPlaneInstance) -> Rc<ClientConnection> {
        let is_its = |of: &Rc<ClientConnection>| Arc::ptr_eq(&of.worker.shared, &instance.parts.shared);
        let mut connections = self.by_control_plane.borrow_mut();
        match connections.iter().position(is_its) {
            Some(0) => {}
            Some(position) => connections.swap(0, position),
            None => {
                // Those of ended control planes stay until their requests end.
                connections
                    .retain(|of| of.worker.shared.drain.phase() == ShutdownPhase::Serving || Rc::strong_count(of) > 1);
                let worker = workers.worker(&self.workers.gateway, instance);
                connections.insert(0, ClientConnection::new(worker, self.accepted.clone()));
            }
        }
        connections[0].clone()
    }
}

/// Removes the first `length` bytes of the path.
fn remove_path_prefix(uri: &mut Uri, length: usize) -> Result<(), Status> {
    if length == 0 {
        return Ok(());
    }
    let invalid = || Status::bad_request("the request's path is malformed");
    let whole = uri.path_and_query().map_or("/", PathAndQuery::as_str);
    let rest = whole.get(length..).ok_or_else(invalid)?;
    let rest = match rest.starts_with('/') {
        true => PathAndQuery::try_from(rest),
        false => PathAndQuery::try_from(format!("/{rest}")),
    };
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(rest.map_err(|_| invalid())?);
    *uri = Uri::from_parts(parts).map_err(|_| invalid())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_plane_path_prefix_removed_once() {
        for (uri, length, expected) in [
            ("/a/api/v1?watch=1", 2, "/api/v1?watch=1"),
            ("/a", 2, "/"),
            ("/a?x=/a", 2, "/?x=/a"),
            ("/a/", 2, "/"),
            ("/a/a/b", 2, "/a/b"),
            ("/a//b", 2, "//b"),
            ("/a/%2e%2e/b", 2, "/%2e%2e/b"),
            ("https://host:6443/a/api", 2, "https://host:6443/api"),
            ("/api", 0, "/api"),
        ] {
            let mut parsed: Uri = uri.parse().unwrap();
            remove_path_prefix(&mut parsed, length).unwrap();
            assert_eq!(parsed.to_string(), expected, "{uri}");
        }
    }
}
