//! Which endpoint takes the next request: of two by chance the one with fewer under way.
//!
//! The best of two spreads requests nearly as evenly as the best of all, and an endpoint that answers everything at
//! once, because it is broken, does not draw all of them. Preferred ones first; what is new gets its share little by
//! little; what has failed others gets single requests, to find out. If nobody is left, whoever can be reached.

use std::rc::Rc;

use super::backend::{Backend, Member};
use crate::availability::Share;
use crate::egress::Endpoint;

/// How often it is drawn before all are looked at.
const DRAWS: usize = 6;

/// A member that was drawn.
enum Drawn {
    Fit,
    /// It is to be tried with this request.
    Trial,
    No,
}

impl Backend {
    /// The endpoint for the next request, which failed at the members `failed` and had better not go to the `doubtful`
    /// ones; `safe` says that it can be sent again, should it fail.
    pub(super) fn pick(&self, failed: &[usize], doubtful: &[usize], safe: bool) -> Option<(usize, &Rc<Endpoint>)> {
        if let [only] = self.members() {
            return (failed.is_empty() && only.is_usable()).then_some((0, &only.endpoint));
        }
        let index = if doubtful.is_empty() {
            self.pick_without(|index| failed.contains(&index), safe)
        } else {
            self.pick_without(|index| failed.contains(&index) || doubtful.contains(&index), false)
                .or_else(|| self.pick_without(|index| failed.contains(&index), false))
        }?;
        Some((index, &self.member(index).endpoint))
    }

    fn pick_without(&self, not: impl Fn(usize) -> bool, safe: bool) -> Option<usize> {
        let (preferred, all) = (self.preferred(), self.members().len());
        let tiers = [(0, preferred), (preferred, all)];
        let mut found = tiers.iter().find_map(|(from, to)| self.best_of_two(*from, *to, &not, safe));
        // Better one that is said to fail than nobody.
        found = found.or_else(|| tiers.iter().find_map(|(from, to)| self.least(*from, *to, &not)));
        found
    }

    fn best_of_two(&self, from: usize, to: usize, not: impl Fn(usize) -> bool, safe: bool) -> Option<usize> {
        let mut first = None;
        let mut second = |index: usize| -> Option<usize> {
            if first == Some(index) || not(index) {
                return None;
            }
            match drawn(self.member(index), safe) {
                Drawn::No => None,
                Drawn::Trial => Some(index),
                Drawn::Fit => match first {
                    None => {
                        first = Some(index);
                        None
                    }
                    Some(other) if self.pending(other) <= self.pending(index) => Some(other),
                    Some(_) => Some(index),
                },
            }
        };
        if to - from > 2 {
            for _ in 0..DRAWS {
                if let Some(found) = second(fastrand::usize(from..to)) {
                    return Some(found);
                }
            }
        }
        // Few are left, or few there are: all of them, beginning anywhere.
        let count = to - from;
        let start = if count > 1 { fastrand::usize(..count) } else { 0 };
        for step in 0..count {
            if let Some(found) = second(from + (start + step) % count) {
                return Some(found);
            }
        }
        first
    }

    fn least(&self, from: usize, to: usize, not: impl Fn(usize) -> bool) -> Option<usize> {
        (from..to)
            .filter(|index| !not(*index) && self.member(*index).is_usable())
            .min_by_key(|index| self.pending(*index))
    }

    fn pending(&self, index: usize) -> usize {
        self.member(index).endpoint.pending()
    }
}

fn drawn(member: &Member, safe: bool) -> Drawn {
    if !member.is_usable() {
        return Drawn::No;
    }
    if member.standing.is_plain() {
        return Drawn::Fit;
    }
    match member.standing.share(safe) {
        Share::Full => Drawn::Fit,
        Share::Part(part) if fastrand::f64() < part => Drawn::Fit,
        Share::Part(_) | Share::Nothing => Drawn::No,
        Share::Trial => Drawn::Trial,
    }
}
