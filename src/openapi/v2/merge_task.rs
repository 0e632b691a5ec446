//! The task that merges the last documents of all sources whenever one of them changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use super::local_parts::{BuildLocalV2, LocalParts};
use super::merge::DocumentMerger;
use super::serve::MergedDocument;
use super::source_document::{GroupVersionKind, SourceDocument};
use crate::discovery::{ApiServiceClaim, ServedBy, with_last_good};
use crate::process::Publisher;

/// Maximum time the first merged document waits for slow sources.
const FIRST_WAIT: Duration = Duration::from_secs(3);
/// Minimum interval between two merges.
const MERGE_INTERVAL: Duration = Duration::from_secs(1);

/// Kinds in every group and version (`metav1.AddToGroupVersion`), and those of discovery and errors.
const COMMON_KINDS: [&str; 12] = [
    "APIGroup",
    "APIGroupList",
    "APIResourceList",
    "APIVersions",
    "CreateOptions",
    "DeleteOptions",
    "GetOptions",
    "ListOptions",
    "PatchOptions",
    "Status",
    "UpdateOptions",
    "WatchEvent",
];

/// The last documents of all sources, in the order in which they are merged.
#[derive(Default)]
pub(super) struct MergeSources(pub(super) Vec<MergeSource>);

pub(super) struct MergeSource {
    pub(super) claim: ApiServiceClaim,
    pub(super) content: SourceContent,
}

/// Content of one APIService.
#[derive(Clone, Default)]
pub(super) struct SourceContent {
    pub(super) part: Option<Arc<SourceDocument>>,
    pub(super) was_polled: bool,
    pub(super) problem: String,
    /// Whether the document is in the disk cache as that of this backend.
    pub(super) is_cached: bool,
}

/// Merges whenever a source changed.
pub(super) async fn merge_on_change(
    mut changes: watch::Receiver<Option<Arc<MergeSources>>>,
    publisher: Publisher<Option<Arc<MergedDocument>>>,
    local: Option<BuildLocalV2>,
) {
    let mut parts = LocalParts::default();
    while changes.changed().await.is_ok() {
        let first_until = Instant::now() + FIRST_WAIT;
        let sources = loop {
            let sources = changes.borrow_and_update().clone();
            let complete = sources.as_ref().is_none_or(|all| all.0.iter().all(|source| source.content.was_polled));
            if complete || publisher.reader().load().is_some() {
                break sources;
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = sleep_until(first_until) => break sources,
            }
        };
        let Some(sources) = sources else {
            publisher.publish(Arc::new(None));
            parts = LocalParts::default();
            continue;
        };
        let (local, mut own) = (local.clone(), std::mem::take(&mut parts));
        let build = move || {
            let local = local.map(|build| own.update(&build));
            (sources.build(local.as_ref()), own)
        };
        match spawn_blocking(build).await {
            Ok((built, own)) => {
                parts = own;
                publisher.publish(Arc::new(Some(Arc::new(built))));
            }
            Err(error) => tracing::error!(%error, "OpenAPI documents could not be merged; this is a bug in narthex"),
        }
        sleep(MERGE_INTERVAL).await;
    }
}

impl MergeSources {
    fn build(&self, local: Option<&SourceDocument>) -> MergedDocument {
        let claims: BTreeSet<(&str, &str)> = self.0.iter().map(|source| source.claim.group_and_version()).collect();
        let claimed: BTreeSet<String> = self.0.iter().filter_map(|source| path_prefix(&source.claim)).collect();
        let mut problems: BTreeMap<String, String> = BTreeMap::new();
        let mut merged = DocumentMerger::default();
        if let Some(local) = local {
            let part = local.retain_paths(|path| !is_below(&claimed, path));
            merged.set_head(&part);
            merged.add(&part, |_| true);
        }
        for MergeSource { claim: known, content } in &self.0 {
            if !content.problem.is_empty() {
                problems.insert(known.name.clone(), with_last_good(&content.problem, content.part.is_some()));
            }
            let Some(part) = &content.part else { continue };
            if is_delegate(known) {
                let part = part.retain_paths(|path| !is_below(&claimed, path));
                merged.set_head(&part);
                merged.add(&part, |_| true);
            } else {
                let own = known.group_and_version();
                merged.add(part, |kind: &GroupVersionKind| {
                    let of = (kind.group.as_str(), kind.version.as_str());
                    of == own || COMMON_KINDS.contains(&&*kind.kind) || !claims.contains(&of)
                });
            }
        }
        MergedDocument::new(merged.to_json(), problems)
    }
}

pub(super) fn is_delegate(claim: &ApiServiceClaim) -> bool {
    claim.served_by == ServedBy::DelegateItself
}

/// Path prefix of a group and version; `None` for the delegate, which has all other paths.
pub(super) fn path_prefix(claim: &ApiServiceClaim) -> Option<String> {
    (!is_delegate(claim)).then(|| format!("{}/", claim.path()))
}

/// Whether `path` begins with one of `prefixes`. These have three or four segments and end with a slash.
fn is_below(prefixes: &BTreeSet<String>, path: &str) -> bool {
    let ends = path.match_indices('/').skip(2).take(2).map(|(at, _)| &path[..=at]);
    ends.into_iter().any(|prefix| prefixes.contains(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openapi_v2_paths_belong_to_claims() {
        let claimed = BTreeSet::from(["/apis/a.io/v1/".to_owned(), "/api/v1/".to_owned()]);
        for (path, expected) in [
            ("/apis/a.io/v1/", true),
            ("/apis/a.io/v1/things/{name}", true),
            ("/apis/a.io/v1", false),
            ("/apis/a.io/v1beta1/things", false),
            ("/apis/a.io/", false),
            ("/api/v1/pods", true),
            ("/api/v2/pods", false),
            ("/version/", false),
            ("", false),
        ] {
            assert_eq!(is_below(&claimed, path), expected, "{path}");
        }
    }
}
