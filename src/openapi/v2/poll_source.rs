//! Polls one source for its OpenAPI v2 document: limits, validators, disk cache.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use kubeapi::compare_by_priority;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::spawn_blocking;

use super::merge_task::{MergeSource, MergeSources, SourceContent, is_delegate, path_prefix};
use super::source_document::SourceDocument;
use crate::discovery::{
    ApiServiceClaim, CacheSection, ClaimMap, ContentMap, Fetch, FetchError, FetchLimits, PollOutcome, PollSource,
    fetch_within,
};

/// Timeout of one fetch. Kubernetes allows a minute; a client that waits so long is better served without this part.
const FETCH_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum document of the delegate. That of a kube-apiserver has 2 MiB, and some 40 KiB more for each
/// CustomResourceDefinition.
const MAX_DOCUMENT: usize = 64 << 20;
/// Maximum document of a backend, which may describe more than it is registered for.
pub(super) const MAX_BACKEND_DOCUMENT: usize = 16 << 20;
/// Maximum part of one APIService in the merged document.
const MAX_PART: usize = 8 << 20;
/// Maximum of all documents together.
const MAX_TOTAL: usize = 128 << 20;

/// Documents restored from the disk cache, by name of the APIService.
pub(super) type RestoredParts = Rc<RefCell<BTreeMap<String, Arc<SourceDocument>>>>;

pub(super) struct OpenApiV2PollSource<F> {
    pub(super) fetch: F,
    pub(super) sources: watch::Sender<Option<Arc<MergeSources>>>,
    pub(super) cache: CacheSection,
    pub(super) restored: RestoredParts,
    /// Limits parsing to one document at a time, as each may take much memory.
    pub(super) reading: Semaphore,
}

/// Validators of a backend's last good response.
#[derive(Clone, Default)]
pub(super) struct DocumentValidators {
    etag: Option<String>,
    /// SHA-256 of the body: not every server sends entity tags.
    digest: Option<Vec<u8>>,
}

pub(super) struct DocumentResponse {
    /// Results by name of the APIService.
    updates: Vec<(String, Result<DocumentUpdate, FetchError>)>,
    memory: DocumentValidators,
}

#[derive(Clone)]
enum DocumentUpdate {
    /// The document was not modified.
    Unchanged,
    /// There is no document.
    Absent,
    Document(Arc<SourceDocument>),
}

impl DocumentResponse {
    fn same_for_all(
        claims: &[ApiServiceClaim],
        update: &Result<DocumentUpdate, FetchError>,
        memory: DocumentValidators,
    ) -> DocumentResponse {
        DocumentResponse { updates: claims.iter().map(|claim| (claim.name.clone(), update.clone())).collect(), memory }
    }
}

impl<F: Fetch + 'static> PollSource for OpenApiV2PollSource<F> {
    type Validators = DocumentValidators;
    type Document = SourceContent;
    type Response = DocumentResponse;

    async fn poll(&self, claims: &[ApiServiceClaim], memory: DocumentValidators) -> DocumentResponse {
        let before = memory.clone();
        let response = self.fetch(claims, memory).await;
        response.unwrap_or_else(|error| DocumentResponse::same_for_all(claims, &Err(error), before))
    }

    fn apply(
        &self,
        response: DocumentResponse,
        claims: &[ApiServiceClaim],
        memory: &mut DocumentValidators,
        contents: &mut ContentMap<SourceContent>,
    ) -> PollOutcome {
        let mut outcome = PollOutcome { succeeded: true, changed: false };
        *memory = response.memory;
        for (name, update) in response.updates {
            let Some(claim) = claims.iter().find(|claim| claim.name == name) else { continue };
            let update = update.and_then(|document| match &document {
                DocumentUpdate::Document(part) if part.size() + other_documents_size(contents, &name) > MAX_TOTAL => {
                    let limit = MAX_TOTAL >> 20;
                    Err(FetchError::new(format!("left out: all documents together are larger than {limit} MiB")))
                }
                _ => Ok(document),
            });
            let content = contents.entry(name.clone()).or_default();
            outcome.changed |= !content.was_polled;
            content.was_polled = true;
            let (mut problem, mut seen_by_probe) = (String::new(), false);
            let is_fetched = update.is_ok();
            let part = match update {
                Ok(DocumentUpdate::Unchanged) => content.part.clone(),
                Ok(DocumentUpdate::Absent) => None,
                Ok(DocumentUpdate::Document(part)) => Some(part),
                Err(error) => {
                    outcome.succeeded = false;
                    (problem, seen_by_probe) = (error.text, error.seen_by_probe);
                    content.part.clone()
                }
            };
            // A failure of the probe, too, is logged with the condition; one of the delegate by its discovery.
            if content.problem.is_empty() && !problem.is_empty() && !seen_by_probe {
                let suffix = if content.part.is_some() { "; last good answer served" } else { "" };
                tracing::warn!(apiservice = name, problem, "OpenAPI v2 of the backend failed{suffix}");
            }
            if part != content.part || (is_fetched && !content.is_cached) {
                content.is_cached = true;
                match part.clone() {
                    Some(part) => self.cache.store(claim, move || Some(part.to_json(&part.head).into_bytes())),
                    None => self.cache.remove(&name),
                }
            }
            outcome.changed |= part != content.part || problem != content.problem;
            content.part = part;
            content.problem = problem;
        }
        outcome
    }

    fn restore(&self, claim: &ApiServiceClaim) -> Option<oneshot::Receiver<SourceContent>> {
        let part = self.restored.borrow_mut().remove(&claim.name)?;
        let (gives, comes) = oneshot::channel();
        // The content is available at once; the receiver exists.
        let _ = gives.send(SourceContent { part: Some(part), is_cached: true, ..SourceContent::default() });
        Some(comes)
    }

    fn backend_changed(&self, _: &str, content: &mut SourceContent) {
        content.is_cached = false;
    }

    fn publish(&self, claims: &ClaimMap, contents: &ContentMap<SourceContent>, _: &BTreeSet<String>) {
        let sorted_claims: Vec<ApiServiceClaim> = claims.values().cloned().collect();
        let sorted_claims = &*sorted_claims;
        let content = |one: &ApiServiceClaim| contents.get(&one.name).cloned().unwrap_or_default();
        let mut sources: Vec<MergeSource> =
            sorted_claims.iter().map(|one| MergeSource { claim: one.clone(), content: content(one) }).collect();
        let mut priorities: BTreeMap<&str, i32> = BTreeMap::new();
        for one in sorted_claims {
            let priority = priorities.entry(&one.group).or_insert(one.group_priority_minimum);
            *priority = one.group_priority_minimum.max(*priority);
        }
        // As in discovery. Kubernetes means to compare the priorities of versions, too, but compares one with itself.
        sources.sort_by(|MergeSource { claim: a, .. }, MergeSource { claim: b, .. }| {
            let rank =
                |one: &ApiServiceClaim| (!is_delegate(one), Reverse(priorities.get(one.group.as_str()).copied()));
            rank(a)
                .cmp(&rank(b))
                .then_with(|| a.group.cmp(&b.group))
                .then_with(|| compare_by_priority((a.version_priority, &a.version), (b.version_priority, &b.version)))
        });
        let sources = Some(Arc::new(MergeSources(sources)));
        self.sources.send_if_modified(|current| {
            let is_current = current.is_some();
            if is_current {
                *current = sources;
            }
            is_current
        });
    }
}

impl<F: Fetch> OpenApiV2PollSource<F> {
    async fn fetch(
        &self,
        claims: &[ApiServiceClaim],
        memory: DocumentValidators,
    ) -> Result<DocumentResponse, FetchError> {
        let Some(first) = claims.first() else {
            return Ok(DocumentResponse::same_for_all(claims, &Ok(DocumentUpdate::Absent), memory));
        };
        let bounds = FetchLimits {
            time: FETCH_TIMEOUT,
            size: if is_delegate(first) { MAX_DOCUMENT } else { MAX_BACKEND_DOCUMENT },
        };
        let etag = memory.etag.as_deref();
        let fetched = fetch_within(bounds, &self.fetch, &first.name, "/openapi/v2", "application/json", etag).await?;
        match fetched.status {
            200 => {}
            304 if etag.is_some() => {
                return Ok(DocumentResponse::same_for_all(claims, &Ok(DocumentUpdate::Unchanged), memory));
            }
            404 => {
                return Ok(DocumentResponse::same_for_all(
                    claims,
                    &Ok(DocumentUpdate::Absent),
                    DocumentValidators::default(),
                ));
            }
            status => return Err(FetchError::new(format!("GET /openapi/v2 is answered with {status}"))),
        }
        let claims = claims.to_vec();
        let _turn = self.reading.acquire().await;
        let read = spawn_blocking(move || {
            let digest = Some(digest::digest(&digest::SHA256, &fetched.body).as_ref().to_vec());
            let etag = fetched.etag.filter(|etag| etag.len() <= 256);
            if digest == memory.digest {
                return DocumentResponse::same_for_all(
                    &claims,
                    &Ok(DocumentUpdate::Unchanged),
                    DocumentValidators { etag, digest },
                );
            }
            let part =
                |claim: &ApiServiceClaim| (claim.name.clone(), read(&fetched.body, path_prefix(claim).as_deref()));
            let updates: Vec<_> = claims.iter().map(part).collect();
            // An invalid document is parsed again next time, so that its error is reported again.
            let good = updates.iter().all(|(_, said)| said.is_ok());
            DocumentResponse {
                updates,
                memory: if good { DocumentValidators { etag, digest } } else { DocumentValidators::default() },
            }
        });
        read.await.map_err(|error| FetchError::new(format!("its OpenAPI v2 document could not be read: {error}")))
    }
}

/// Total size of the documents of all other APIServices.
fn other_documents_size(contents: &ContentMap<SourceContent>, name: &str) -> usize {
    let others = contents.iter().filter(|(other, _)| *other != name);
    others.filter_map(|(_, content)| content.part.as_ref()).map(|part| part.size()).sum()
}

fn read(body: &[u8], prefix: Option<&str>) -> Result<DocumentUpdate, FetchError> {
    let part = SourceDocument::parse(body, prefix)?;
    if prefix.is_some() && part.size() > MAX_PART {
        return Err(FetchError::new(format!("its OpenAPI v2 is larger than {} MiB", MAX_PART >> 20)));
    }
    Ok(DocumentUpdate::Document(Arc::new(part)))
}
