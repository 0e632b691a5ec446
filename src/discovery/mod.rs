//! Discovery: the groups, versions and resources of all backends, merged for Kubernetes clients.
//!
//! Each backend is polled by a task of its own ([`Discovery`]). Its response is validated ([`parse`]), merged
//! ([`merge`]) and published as finished bytes ([`Documents`]), which [`answer`] serves. A slow, dead or misbehaving
//! backend affects no other: its last good content stays, marked `Stale` (KEP-3352, with the resources that
//! kube-aggregator drops).

mod aggregation;
mod document;
mod documents;
mod fetch;
mod keeper;
mod kept;
mod known;
mod media;
mod merge;
mod own;
mod parse;
mod protobuf;
mod rounds;
mod serve;
mod waiting;

pub use aggregation::Discovery;
pub use document::{Kind, Resource, Scope, Subresource};
pub use documents::{Documents, Moment, Source};
pub use fetch::{Fetch, FetchError, Fetched, MAX_BODY, TIMEOUT};
pub use keeper::Change;
pub use kept::Kept;
pub use known::{By, Known};
pub use own::Own;
pub use serve::answer;

pub(crate) use documents::{Document, with_last_good};
pub(crate) use fetch::{Bounds, bounded, within};
pub(crate) use keeper::{All, Contents, Keeper, Outcome, Subject};
pub(crate) use kept::Shelf;
pub(crate) use media::{accepted, matches_etag};
pub(crate) use serve::{Reply, not_acceptable, not_allowed};
