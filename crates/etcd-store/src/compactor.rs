//! Discards the history of the cluster every few minutes, once for all API servers on it (`storage/etcd3/compact.go`).

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use store::Revision;

use crate::LOG_TARGET;
use crate::client::{Client, EtcdCallError};
use crate::convert::{self, etcd_revision, header_revision};
use crate::feeds::Feeds;
use crate::messages::{
    CompactionRequest, Compare, Compared, PutRequest, RangeRequest, RequestOp, TxnOperation, TxnRequest, compare_target,
};

/// The key by whose version API servers agree on who compacts.
const COMPACT_REV_KEY: &str = "compact_rev_key";

/// Compacts up to the revision of the round before, if no other API server did.
pub(crate) struct Compactor {
    pub(crate) client: Rc<Client>,
    pub(crate) feeds: Arc<Feeds>,
}

impl Compactor {
    /// Compacts at this interval until the task is aborted.
    pub(crate) async fn run(self, interval: Duration) {
        let (mut version, mut revision) = (0, 0);
        loop {
            tokio::time::sleep(interval).await;
            match self.compact(version, revision).await {
                Ok(round) => (version, revision) = round,
                Err(error) => {
                    tracing::warn!(target: LOG_TARGET, %error, "etcd compaction failed; retried after the interval");
                }
            }
        }
    }

    /// One round. Returns the version of the key, and the current revision, for the next.
    async fn compact(&self, version: i64, revision: Revision) -> Result<(i64, Revision), EtcdCallError> {
        let key = convert::bytes(COMPACT_REV_KEY);
        let put = PutRequest { key: key.clone(), value: revision.to_string().into(), lease: 0 };
        let read = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let request = TxnRequest {
            compare: vec![Compare {
                target: compare_target::VERSION,
                key,
                compared: Some(Compared::Version(version)),
                ..Compare::default()
            }],
            success: vec![RequestOp { request: Some(TxnOperation::Put(put)) }],
            failure: vec![RequestOp { request: Some(TxnOperation::Range(read)) }],
        };
        let response = self.client.transact(&request).await?;
        let current = header_revision(response.header.as_ref());
        if !response.succeeded {
            let key_value = response.responses.first().and_then(|operation| operation.range.as_ref()?.kvs.first());
            return Ok((key_value.map_or(0, |kv| kv.version), current));
        }
        if revision > 0 {
            let compacted =
                self.client.compact(&CompactionRequest { revision: etcd_revision(revision), physical: false }).await;
            match compacted {
                // By somebody who does not use the key.
                Err(error) if !error.is_compacted() => return Err(error),
                _ => self.feeds.discard(revision),
            }
        }
        Ok((version + 1, current))
    }
}
