//! How a request ended, for the access log and the audit.

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The response was sent completely.
    Complete,
    /// The client disconnected before that; also the default of a record that is dropped.
    ClientGone,
    /// The backend's response was truncated, and therefore the client's.
    BackendBroke,
    /// The request timed out.
    Timeout,
    /// A watch or tunnel was ended by the shutdown.
    Drained,
    /// The client did not read the response while it held memory that other requests needed.
    SlowClient,
    /// Aborted by this process: the client's certificate is not trusted any more, or the shutdown timed out.
    Cut,
}

impl EndReason {
    pub(in crate::observe) fn as_str(self) -> &'static str {
        match self {
            EndReason::Complete => "complete",
            EndReason::ClientGone => "client-gone",
            EndReason::BackendBroke => "backend-broke",
            EndReason::Timeout => "timeout",
            EndReason::Drained => "drained",
            EndReason::SlowClient => "slow-client",
            EndReason::Cut => "cut",
        }
    }
}
