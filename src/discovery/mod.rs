//! Discovery: the groups, versions and resources of all backends, merged for Kubernetes clients.
//!
//! Each backend is polled by a task of its own ([`DiscoveryAggregator`]). Its response is validated ([`parse`]), merged
//! ([`merge`]) and published as finished bytes ([`DiscoverySnapshot`]), which [`DiscoveryDocument`] serves. A slow, dead or
//! misbehaving backend affects no other: its last good content stays, marked `Stale` (KEP-3352, with the resources that
//! kube-aggregator drops).

mod aggregation;
mod claim;
mod disk_cache;
mod encoded_document;
mod local_groups;
mod media;
mod merge;
mod model;
mod parse;
mod polling;
mod protobuf;
mod serve;
mod snapshot;

pub use aggregation::DiscoveryAggregator;
pub use claim::{ApiServiceClaim, ServedBy};
pub use disk_cache::DiskCache;
pub use local_groups::LocalGroups;
pub use model::{DiscoveryResource, ResourceKind, Scope, Subresource};
pub use polling::fetch::{Fetch, FetchError, FetchedResponse, MAX_BODY, TIMEOUT};
pub use polling::poller::ClaimChange;
pub use serve::DiscoveryDocument;
pub use snapshot::{DiscoverySnapshot, LastFetched, SourceStatus};

pub(crate) use disk_cache::CacheSection;
pub(crate) use encoded_document::EncodedDocument;
pub(crate) use media::{accepted, matches_etag};
pub(crate) use polling::fetch::{FetchLimits, fetch_bounded, fetch_within};
pub(crate) use polling::poller::{ClaimMap, ContentMap, PollOutcome, PollSource, Poller};
pub(crate) use serve::{DocumentReply, not_acceptable, not_allowed};
#[cfg(test)]
pub(crate) use snapshot::tests::documents as sample_documents;
pub(crate) use snapshot::with_last_good;
