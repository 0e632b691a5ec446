//! For whom a request is judged, routed and sent on.

use std::sync::Arc;

use crate::authenticate::Authenticated;
use crate::kubeapi::User;

/// Somebody known, as themselves or as somebody else they may be. Only [`Actor::oneself`] and
/// [`Impersonator`](super::Impersonator) make one.
#[derive(Clone, Debug)]
pub struct Actor<'w> {
    who: &'w Authenticated,
    impersonated: Option<Impersonated>,
}

/// Somebody else, as whom a request may act. Audit calls it `impersonatedUser`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonated {
    /// Who: with the groups that belong to them, without those that nobody brings in.
    pub user: Arc<User>,
    /// What allowed it, `impersonate:user-info` for example: audit's `authenticationMetadata.impersonationConstraint`.
    /// None for a right to `impersonate` alone.
    pub constraint: Option<&'static str>,
}

impl<'w> Actor<'w> {
    /// Whoever was authenticated, as themselves; none if the request says something else.
    pub fn oneself(who: &'w Authenticated) -> Option<Actor<'w>> {
        (!who.impersonates()).then(|| Actor::as_themselves(who))
    }

    pub(super) fn as_themselves(who: &'w Authenticated) -> Actor<'w> {
        Actor { who, impersonated: None }
    }

    pub(super) fn impersonating(who: &'w Authenticated, impersonated: Impersonated) -> Actor<'w> {
        Actor { who, impersonated: Some(impersonated) }
    }

    /// Who is judged, and whom backends see.
    pub fn user(&self) -> &Arc<User> {
        self.impersonated.as_ref().map_or(self.who.user(), |impersonated| &impersonated.user)
    }

    /// Who asked.
    pub fn authenticated(&self) -> &'w Authenticated {
        self.who
    }

    /// Whom they act as, if not as themselves.
    pub fn impersonated(&self) -> Option<&Impersonated> {
        self.impersonated.as_ref()
    }
}
