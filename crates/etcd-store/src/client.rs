//! Calls of etcd: fail-over between members, time limits, and what an error means.

use std::cell::Cell;
use std::error::Error as _;
use std::fmt;
use std::io;
use std::time::Duration;

use futures_util::stream;
use http::Uri;
use http::uri::PathAndQuery;
use tokio::sync::{Mutex, mpsc};
use tokio::time::{Instant, timeout};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::connection::{Connection, Dial};
use crate::messages::{
    CompactionRequest, CompactionResponse, LeaseGrantRequest, LeaseGrantResponse, RangeRequest, RangeResponse,
    StatusRequest, StatusResponse, TxnRequest, TxnResponse, WatchRequest, WatchResponse,
};

/// Time of one attempt. A member that cannot reach the leader answers after about seven seconds.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(8);

/// Time of a call that is tried at several members.
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Pauses between two attempts.
const CALL_BACKOFF: Duration = Duration::from_millis(50);
const MAX_CALL_BACKOFF: Duration = Duration::from_secs(1);

/// How long no member is dialed after none could be reached.
const DIAL_BACKOFF: Duration = Duration::from_millis(500);

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum EtcdCallError {
    /// No member took the request: nothing was done.
    Unreachable(String),
    /// etcd refused the request: nothing was done.
    Refused(Status),
    /// The request was sent, and what became of it is unknown.
    Unknown(String),
}

impl fmt::Display for EtcdCallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EtcdCallError::Unreachable(reason) | EtcdCallError::Unknown(reason) => f.write_str(reason),
            EtcdCallError::Refused(status) => f.write_str(status.message()),
        }
    }
}

impl EtcdCallError {
    /// Whether the range that was read is older than the last compaction.
    pub(crate) fn is_compacted(&self) -> bool {
        self.is_refusal(Code::OutOfRange, "required revision has been compacted")
    }

    /// Whether the revision that was asked for has not happened yet.
    pub(crate) fn is_future(&self) -> bool {
        self.is_refusal(Code::OutOfRange, "required revision is a future revision")
    }

    /// Whether the request exceeds `--max-request-bytes` of etcd.
    pub(crate) fn is_too_large(&self) -> bool {
        self.is_refusal(Code::InvalidArgument, "request is too large")
    }

    /// Whether the lease of a key has ended.
    pub(crate) fn is_unknown_lease(&self) -> bool {
        self.is_refusal(Code::NotFound, "requested lease not found")
    }

    /// Whether the quota of etcd is used up (`--quota-backend-bytes`).
    fn is_full(&self) -> bool {
        self.is_refusal(Code::ResourceExhausted, "database space exceeded")
    }

    fn is_refusal(&self, code: Code, text: &str) -> bool {
        matches!(self, EtcdCallError::Refused(status) if status.code() == code && status.message().contains(text))
    }

    /// Whether another member may answer: this one is none, is damaged, or knows us not.
    fn is_of_member(&self) -> bool {
        let codes = [
            Code::FailedPrecondition,
            Code::Unimplemented,
            Code::DataLoss,
            Code::Unauthenticated,
            Code::PermissionDenied,
        ];
        match self {
            EtcdCallError::Refused(status) => codes.contains(&status.code()),
            EtcdCallError::Unreachable(_) | EtcdCallError::Unknown(_) => true,
        }
    }
}

/// The error of a call for the caller of the store.
impl From<EtcdCallError> for store::Error {
    fn from(error: EtcdCallError) -> store::Error {
        match error {
            error if error.is_full() => store::Error::Full,
            EtcdCallError::Unknown(_) => store::Error::Closed,
            error => store::Error::Unavailable(format!("etcd: {error}").into()),
        }
    }
}

/// A client of a cluster of etcd.
pub(crate) struct Client {
    dial: Box<dyn Dial>,
    endpoints: Vec<Uri>,
    endpoint_index: Cell<usize>,
    connection: Mutex<HeldConnection>,
}

/// The connection that calls use.
#[derive(Default)]
struct HeldConnection {
    connection: Option<Connection>,
    /// Connections that were opened.
    opened: u64,
    /// When no member could be reached, and why.
    failure: Option<(Instant, String)>,
}

impl Client {
    /// A client of the members at these addresses, of which there is at least one.
    pub(crate) fn new(dial: Box<dyn Dial>, endpoints: Vec<Uri>) -> Client {
        Client { dial, endpoints, endpoint_index: Cell::new(0), connection: Mutex::default() }
    }

    /// Reads keys.
    pub(crate) async fn range(&self, request: &RangeRequest) -> Result<RangeResponse, EtcdCallError> {
        self.call_idempotent("/etcdserverpb.KV/Range", request).await
    }

    /// Discards the history.
    pub(crate) async fn compact(&self, request: &CompactionRequest) -> Result<CompactionResponse, EtcdCallError> {
        self.call_idempotent("/etcdserverpb.KV/Compact", request).await
    }

    /// The state of the member that is connected.
    pub(crate) async fn status(&self) -> Result<StatusResponse, EtcdCallError> {
        self.call_idempotent("/etcdserverpb.Maintenance/Status", &StatusRequest {}).await
    }

    /// Makes a lease. Safe to repeat: an unused lease expires.
    pub(crate) async fn grant(&self, request: &LeaseGrantRequest) -> Result<LeaseGrantResponse, EtcdCallError> {
        self.call_idempotent("/etcdserverpb.Lease/LeaseGrant", request).await
    }

    /// Runs a transaction once.
    pub(crate) async fn transact(&self, request: &TxnRequest) -> Result<TxnResponse, EtcdCallError> {
        let connection = self.connection().await.map_err(|error| EtcdCallError::Unreachable(error.to_string()))?;
        self.call(&connection, "/etcdserverpb.KV/Txn", request.clone()).await
    }

    /// Makes a call that may happen twice, at one member after the other until one answers.
    async fn call_idempotent<Req, Resp>(&self, path: &'static str, request: &Req) -> Result<Resp, EtcdCallError>
    where
        Req: prost::Message + Clone + 'static,
        Resp: prost::Message + Default + 'static,
    {
        let mut backoff = CALL_BACKOFF;
        let mut attempts = 0;
        let all = async {
            loop {
                let error = match self.connection().await {
                    Ok(connection) => match self.call(&connection, path, request.clone()).await {
                        Err(error) if error.is_of_member() => error,
                        response => return response,
                    },
                    Err(error) => EtcdCallError::Unreachable(error.to_string()),
                };
                attempts += 1;
                if attempts > 2 * self.endpoints.len() {
                    return Err(EtcdCallError::Unreachable(error.to_string()));
                }
                tokio::time::sleep(backoff).await;
                backoff = (2 * backoff).min(MAX_CALL_BACKOFF);
            }
        };
        let timed_out = |_| Err(EtcdCallError::Unreachable(NO_RESPONSE.to_owned()));
        timeout(CALL_TIMEOUT, all).await.unwrap_or_else(timed_out)
    }

    /// Makes a call once. After an error that another member may not have, the next call uses that.
    async fn call<Req, Resp>(
        &self,
        connection: &Connection,
        path: &'static str,
        request: Req,
    ) -> Result<Resp, EtcdCallError>
    where
        Req: prost::Message + 'static,
        Resp: prost::Message + Default + 'static,
    {
        let mut grpc = connection.grpc();
        let call = async {
            grpc.ready().await.map_err(|error| EtcdCallError::Unreachable(error.to_string()))?;
            let codec = ProstCodec::<Req, Resp>::default();
            let response = grpc.unary(tonic::Request::new(request), PathAndQuery::from_static(path), codec).await;
            response.map(tonic::Response::into_inner).map_err(call_error)
        };
        let timed_out = |_| Err(EtcdCallError::Unknown(NO_RESPONSE.to_owned()));
        let response = timeout(ATTEMPT_TIMEOUT, call).await.unwrap_or_else(timed_out);
        if response.as_ref().is_err_and(EtcdCallError::is_of_member) {
            self.fail_over_from(connection).await;
        }
        response
    }

    /// Opens a stream of watches on a member that has a leader, until the sender of its requests is dropped.
    pub(crate) async fn watch(
        &self,
        requests: mpsc::UnboundedReceiver<WatchRequest>,
    ) -> Result<(Connection, Streaming<WatchResponse>), EtcdCallError> {
        let connection = self.connection().await.map_err(|error| EtcdCallError::Unreachable(error.to_string()))?;
        let mut grpc = connection.grpc();
        let open = async {
            grpc.ready().await.map_err(|error| EtcdCallError::Unreachable(error.to_string()))?;
            let requests = stream::unfold(requests, async |mut requests| Some((requests.recv().await?, requests)));
            let mut request = tonic::Request::new(requests);
            request.metadata_mut().insert("hasleader", tonic::metadata::MetadataValue::from_static("true"));
            let codec = ProstCodec::<WatchRequest, WatchResponse>::default();
            let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
            grpc.streaming(request, path, codec).await.map(tonic::Response::into_inner).map_err(call_error)
        };
        let timed_out = |_| Err(EtcdCallError::Unreachable(NO_RESPONSE.to_owned()));
        let response = timeout(ATTEMPT_TIMEOUT, open).await.unwrap_or_else(timed_out);
        if response.is_err() {
            self.fail_over_from(&connection).await;
        }
        response.map(|streaming| (connection, streaming))
    }

    /// The open connection, or a new one to the first member that can be reached.
    async fn connection(&self) -> io::Result<Connection> {
        let mut held = self.connection.lock().await;
        if let Some(connection) = held.connection.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(connection.clone());
        }
        held.connection = None;
        if let Some((at, reason)) = &held.failure
            && at.elapsed() < DIAL_BACKOFF
        {
            return Err(io::Error::other(reason.clone()));
        }
        let mut failures = Vec::new();
        for _ in &self.endpoints {
            let endpoint = &self.endpoints[self.endpoint_index.get() % self.endpoints.len()];
            match Connection::open(&*self.dial, endpoint, held.opened).await {
                Ok(connection) => {
                    held.opened += 1;
                    held.failure = None;
                    held.connection = Some(connection.clone());
                    return Ok(connection);
                }
                Err(error) => {
                    self.use_next_endpoint();
                    failures.push(format!("{endpoint}: {error}"));
                }
            }
        }
        let reason = failures.join("; ");
        held.failure = Some((Instant::now(), reason.clone()));
        Err(io::Error::other(reason))
    }

    /// Uses another member from now on, unless another call has replaced this connection already.
    pub(crate) async fn fail_over_from(&self, connection: &Connection) {
        let mut held = self.connection.lock().await;
        if held.connection.as_ref().is_some_and(|current| current.number == connection.number) {
            self.use_next_endpoint();
            held.connection = None;
        }
    }

    fn use_next_endpoint(&self) {
        self.endpoint_index.set((self.endpoint_index.get() + 1) % self.endpoints.len());
    }
}

const NO_RESPONSE: &str = "no response in time";

/// What the status of a call says of its request.
fn call_error(status: Status) -> EtcdCallError {
    // HTTP/2 never sent it.
    let is_unsent = status.source().and_then(|source| source.downcast_ref::<hyper::Error>());
    if is_unsent.is_some_and(hyper::Error::is_canceled) {
        return EtcdCallError::Unreachable(status.message().to_owned());
    }
    let refusals = [
        Code::InvalidArgument,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::DataLoss,
        Code::Unauthenticated,
    ];
    if refusals.contains(&status.code()) {
        EtcdCallError::Refused(status)
    } else {
        EtcdCallError::Unknown(status.message().to_owned())
    }
}
