//! Discovery: which groups, versions and resources stand behind us, told as Kubernetes clients ask for it.
//!
//! Every backend is asked by a task of its own ([`Discovery`]), what it says is judged ([`parse`]) before it
//! is believed, [`merge`] puts all of it in order, [`Documents`] holds the finished bytes, and [`answer`]
//! serves them. A backend that is slow, dead or lying costs nobody else anything: its last good content stays,
//! marked `Stale` (KEP-3352, with the resources that kube-aggregator drops).

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
