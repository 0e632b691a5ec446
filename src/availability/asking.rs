//! How one backend is asked, and where the verdicts go.

use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::board::{Asked, Board};
use super::condition::{Condition, ConditionStatus};
use super::judge::{Finding, Judge};
use super::pace::Pace;
use super::probe::{Probe, ProbeFailure, one_probe};
use super::schedule::Witness;
use crate::egress::Address;
use crate::registry::{ApiService, Resolved, Unavailable};

/// An APIService and where it leads now.
pub(super) struct Led {
    pub(super) api_service: Arc<ApiService>,
    pub(super) place: Result<Resolved, Unavailable>,
}

impl Led {
    /// Whether `other` is the same backend, asked in the same way; perhaps at other endpoints.
    pub(super) fn is_asked_like(&self, other: &Led) -> bool {
        let (Ok(place), Ok(other_place)) = (&self.place, &other.place) else { return false };
        if (&place.server_name, &place.prefix) != (&other_place.server_name, &other_place.prefix) {
            return false;
        }
        if Arc::ptr_eq(&self.api_service, &other.api_service) {
            return true;
        }
        fn trust(of: &ApiService) -> impl PartialEq {
            (&of.backend, &of.ca_bundle, of.insecure_skip_tls_verify, &of.client_certificate)
        }
        fn manner(of: &ApiService) -> impl PartialEq {
            let settings = &of.settings;
            let times = [settings.probe_interval, settings.probe_timeout, settings.connect_timeout];
            (times, settings.failure_threshold, settings.success_threshold)
        }
        let (one, other) = (&*self.api_service, &*other.api_service);
        trust(one) == trust(other) && manner(one) == manner(other)
    }
}

/// Shared between the old and the new way of asking when an APIService changes; never borrowed across an
/// await.
pub(super) type SharedJudge = Rc<std::cell::RefCell<Option<Judge>>>;

/// Where verdicts go.
pub(super) struct Judges<'r, W> {
    pub(super) board: &'r Board,
    pub(super) witness: &'r W,
}

impl<W: Witness> Judges<'_, W> {
    fn announce(&self, name: &str, before: Option<&Condition>, now: &Condition) {
        self.board.put(name, now);
        let unavailable = now.status == ConditionStatus::False;
        self.witness.unavailable(name, unavailable);
        let (reason, message, detail) = (now.reason.as_ref(), &now.message, &now.detail);
        if unavailable {
            if before.is_none_or(|before| before.status != ConditionStatus::False || before.reason != now.reason) {
                self.witness.became_unavailable(name, reason);
            }
            tracing::warn!(apiservice = name, reason, detail, "APIService is not available: {message}");
        } else if now.status == ConditionStatus::True {
            tracing::info!(apiservice = name, reason, "APIService is available");
        }
    }

    fn begin(&self, api_service: &ApiService, judge: &SharedJudge) {
        let now = SystemTime::now();
        let (failures, successes) = (api_service.settings.failure_threshold, api_service.settings.success_threshold);
        let mut judge = judge.borrow_mut();
        let before = judge.as_ref().map(|judge| judge.condition().clone());
        let judge = judge.get_or_insert_with(|| Judge::new(failures, successes, now));
        judge.begin_again(failures, successes, now);
        if before.as_ref() != Some(judge.condition()) {
            self.announce(&api_service.name, before.as_ref(), judge.condition());
        }
    }

    /// The condition's status after it.
    fn hear(&self, api_service: &ApiService, judge: &SharedJudge, finding: Finding) -> ConditionStatus {
        let mut judge = judge.borrow_mut();
        let Some(judge) = judge.as_mut() else { return ConditionStatus::Unknown };
        let before = judge.condition().clone();
        if judge.hear(finding, SystemTime::now()) {
            self.announce(&api_service.name, Some(&before), judge.condition());
        }
        judge.condition().status
    }
}

/// Asks, again and again, until it leads nowhere.
pub(super) async fn ask<W: Witness>(
    mut following: watch::Receiver<Rc<Led>>,
    judge: SharedJudge,
    judges: &Judges<'_, W>,
    probe: &impl Probe,
) {
    let first = following.borrow().clone();
    let api_service = &first.api_service;
    match &first.place {
        Ok(_) => judges.begin(api_service, &judge),
        Err(Unavailable { reason: "Local", .. }) => {
            judges.begin(api_service, &judge);
            judges.hear(api_service, &judge, Finding::Local);
        }
        Err(Unavailable { reason, message }) => {
            let now = SystemTime::now();
            let settings = &api_service.settings;
            judge
                .borrow_mut()
                .get_or_insert_with(|| Judge::new(settings.failure_threshold, settings.success_threshold, now));
            judges.hear(api_service, &judge, Finding::Nowhere { reason, message: message.clone() });
        }
    }
    let mut pace = Pace::new(api_service.settings.probe_interval);
    let mut turn = fastrand::usize(..);
    loop {
        let now = following.borrow_and_update().clone();
        let (api_service, Ok(resolved)) = (&now.api_service, &now.place) else { return };
        let availability = judges.board.of(&api_service.name);
        let (at, wanted) = (std::time::Instant::now(), availability.begin());
        let contradicted = pace.expects_failure();
        let heard = |endpoint: &Address, answered| match answered {
            // Its requests fail, and just now: that this question was answered is nothing to them yet.
            true if contradicted => {}
            answered => availability.probed(endpoint, answered),
        };
        let finding = match one_probe(api_service, resolved, turn, probe, heard).await {
            Ok(()) => Finding::Answered,
            Err(ProbeFailure { message, detail }) => Finding::Failed { message, detail },
        };
        turn = turn.wrapping_add(1);
        let answered = finding == Finding::Answered;
        let away = judges.hear(api_service, &judge, finding) == ConditionStatus::False;
        judges.board.asked(&availability, Asked { at, answered }, wanted);
        let ended = Instant::now();
        let wait = pace.after(answered, away, availability.is_doubted());
        let mut next = pin!(sleep(wait.mul_f64(0.9 + 0.2 * fastrand::f64())));
        loop {
            tokio::select! {
                () = &mut next => break,
                // Others may answer where the last ones did not.
                Ok(()) = following.changed(), if away => {
                    pace.others();
                    break;
                }
                () = availability.turns() => {
                    let wanted = availability.is_wanted().then(|| pace.wanted());
                    if let Some(soon) = pace.hear(availability.is_doubted()).into_iter().chain(wanted).min() {
                        let until = next.deadline().min(ended + soon);
                        next.as_mut().reset(until);
                    }
                }
            }
        }
    }
}
