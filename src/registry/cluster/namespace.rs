//! What is known of one namespace, and when that is enough to say where an APIService leads that has its Service there.

use std::sync::Arc;

use super::collection::Collection;
use crate::registry::endpoints::EndpointSlice;
use crate::registry::service::Service;

/// The Services and EndpointSlices of one namespace.
#[derive(Default)]
pub(super) struct Namespace {
    pub(super) services: Collection<Arc<Service>>,
    pub(super) slices: Collection<Arc<EndpointSlice>>,
    /// Whether nobody waits for its lists any more.
    given_up: bool,
}

/// Which of the two.
#[derive(Clone, Copy)]
pub(super) enum Part {
    Services,
    Slices,
}

impl Namespace {
    /// Whether it was said at least once what there is.
    pub(super) fn is_known(&self) -> bool {
        self.services.is_whole && self.slices.is_whole
    }

    /// Whether nobody has to wait for it: it is known, or there is nothing to be waited for.
    pub(super) fn is_settled(&self) -> bool {
        self.is_known() || self.given_up
    }

    /// What cannot be listed, and why, if that is so and it never could be.
    pub(super) fn trouble(&self) -> Option<(&'static str, &str)> {
        let services = ("services", &self.services.trouble);
        let slices = ("endpointslices", &self.slices.trouble);
        [services, slices].into_iter().find_map(|(what, trouble)| Some((what, trouble.as_deref()?)))
    }

    /// The same, if APIServices are not waited for because of it.
    pub(super) fn given_up(&self) -> Option<(&'static str, &str)> {
        self.trouble().filter(|_| self.given_up)
    }

    /// A list of one part failed. It is nothing to wait for if it was `refused`. True if that changes anything.
    pub(super) fn fails(&mut self, part: Part, why: &str, refused: bool) -> bool {
        let changed = match part {
            Part::Services => self.services.fails(why),
            Part::Slices => self.slices.fails(why),
        };
        changed | self.give_up(refused)
    }

    /// It was waited for, maybe for so long that nobody waits any more. True if that changes anything.
    pub(super) fn is_late(&mut self, give_up: bool) -> bool {
        const SILENT: &str = "the kube-apiserver has not listed them yet";
        // Of what is in trouble it is known why.
        let silent = !self.is_known() && self.trouble().is_none();
        let changed = silent && (self.services.fails(SILENT) | self.slices.fails(SILENT));
        changed | self.give_up(give_up)
    }

    fn give_up(&mut self, now: bool) -> bool {
        let changed = now && !self.is_settled();
        self.given_up |= changed;
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_one_part_outlasts_a_list_of_the_other() {
        let mut one = Namespace::default();
        assert!(one.fails(Part::Slices, "403", true) && one.is_settled() && !one.is_known());
        assert!(!one.fails(Part::Slices, "403", true), "the same again");
        one.services.end();
        assert_eq!(one.trouble(), Some(("endpointslices", "403")));
        one.slices.end();
        assert!(one.is_known() && one.trouble().is_none());
        assert!(!one.fails(Part::Services, "500", false), "what was said last is used");
        assert!(!one.is_late(true));
    }

    #[test]
    fn a_failure_is_waited_for_and_silence_is_a_failure() {
        let mut one = Namespace::default();
        assert!(one.fails(Part::Services, "500", false) && !one.is_settled());
        assert!(!one.is_late(false), "there is a better reason already");
        assert_eq!((one.trouble(), one.given_up()), (Some(("services", "500")), None));
        assert!(one.is_late(true) && one.is_settled());
        assert_eq!(one.given_up(), Some(("services", "500")));

        let mut silent = Namespace::default();
        assert!(silent.is_late(false) && !silent.is_settled());
        assert_eq!(silent.trouble().unwrap().0, "services");
    }
}
