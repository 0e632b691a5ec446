//! Many transfers in each pairing: no bytes are missing where this project's side sends them.

use std::collections::BTreeMap;

use futures_util::StreamExt as _;

use super::pairs::{MODES, connections_are_gone};
use super::run_local;
use super::transfer::{Transfer, TransferKind, TransferOutcome, TransferTarget};
use crate::environment::{Konnectivity, KonnectivityPair, TestEnvironment};

/// Number of transfers in each pairing.
const COUNT_VARIABLE: &str = "NARTHEX_TEST_TRANSFERS";
const DEFAULT_COUNT: usize = 40;
const SEED_VARIABLE: &str = "NARTHEX_TEST_SEED";
const PARALLEL: usize = 8;
/// Transfers between two looks at the clock of a test.
const ROUND: usize = 50;

/// Counts of outcomes by kind.
#[derive(Default)]
struct TransferCounts(BTreeMap<String, [usize; 4]>);

impl TransferCounts {
    fn add(&mut self, kind: TransferKind, outcome: TransferOutcome) {
        self.0.entry(format!("{kind:?}")).or_default()[outcome as usize] += 1;
    }

    fn get(&self, kind: TransferKind, outcome: TransferOutcome) -> usize {
        self.0.get(&format!("{kind:?}")).map_or(0, |counts| counts[outcome as usize])
    }

    fn sum(&self, outcome: TransferOutcome) -> usize {
        self.0.values().map(|counts| counts[outcome as usize]).sum()
    }
}

pub(super) fn run(environment: &TestEnvironment, pair: KonnectivityPair) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    let count = number(COUNT_VARIABLE).map_or(DEFAULT_COUNT, |count| count as usize);
    let seed = number(SEED_VARIABLE).unwrap_or_else(|| fastrand::u64(..1 << 32));
    println!("{SEED_VARIABLE}={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for mode in MODES {
        let name = format!("konnectivity-transfers-{}-{}-{mode:?}", pair.has_own_server, pair.has_own_agent);
        let konnectivity = Konnectivity::with_pair(&environment.scratch(&name), mode, pair);
        let target = TransferTarget::start();
        let mut counts = TransferCounts::default();
        let transfers: Vec<Transfer> =
            (0..count.div_ceil(MODES.len())).map(|_| Transfer::random(&mut random)).collect();
        for round in transfers.chunks(ROUND) {
            run_local(async {
                let all = futures_util::stream::iter(round)
                    .map(async |transfer| (transfer, transfer.run(&konnectivity, &target).await));
                let mut all = std::pin::pin!(all.buffer_unordered(PARALLEL));
                while let Some((transfer, outcome)) = all.next().await {
                    let outcome = outcome.unwrap_or_else(|error| panic!("dial of {transfer:?}: {error}"));
                    if outcome != TransferOutcome::Complete {
                        println!("  {outcome:?}: {transfer:?}");
                    }
                    counts.add(transfer.kind, outcome);
                }
            });
        }
        for (kind, [complete, truncated, failed, corrupt]) in &counts.0 {
            println!(
                "  {mode:?} {kind}: {complete} complete, {truncated} truncated, {failed} failed, {corrupt} corrupt"
            );
        }
        assert_eq!(counts.sum(TransferOutcome::Corrupt), 0);
        for kind in [TransferKind::Upload, TransferKind::Download, TransferKind::Both] {
            // The agent is the last to send an upload (B4). A download is sent by both.
            let must_arrive = match kind {
                TransferKind::Upload => pair.has_own_agent,
                _ => pair.has_own_agent || pair.has_own_server,
            };
            let missing = counts.get(kind, TransferOutcome::Truncated) + counts.get(kind, TransferOutcome::Failed);
            assert!(missing == 0 || !must_arrive, "{mode:?}: {missing} transfers of kind {kind:?} are incomplete");
        }
        if pair.has_own_server && pair.has_own_agent {
            run_local(connections_are_gone(&konnectivity));
        }
    }
}
