//! The effective user of a request: the authenticated or the impersonated one.

use std::sync::Arc;

use crate::authenticate::Authenticated;
use crate::kubeapi::User;

/// The effective user of a request: the authenticated user, or one that it may impersonate. Only [`Actor::oneself`] and
/// [`Impersonator`](super::Impersonator) create one.
#[derive(Clone, Debug)]
pub struct Actor<'w> {
    who: &'w Authenticated,
    impersonated: Option<Impersonated>,
}

/// An impersonated user; audit's `impersonatedUser`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonated {
    /// The user, with its implied groups and without filtered ones.
    pub user: Arc<User>,
    /// The verb that allowed it, such as `impersonate:user-info`: audit's
    /// `authenticationMetadata.impersonationConstraint`. None for the unconstrained `impersonate`.
    pub constraint: Option<&'static str>,
}

impl<'w> Actor<'w> {
    /// Returns the authenticated user; none if the request has `Impersonate-*` headers.
    pub fn oneself(who: &'w Authenticated) -> Option<Actor<'w>> {
        (!who.impersonates()).then(|| Actor::as_themselves(who))
    }

    pub(super) fn as_themselves(who: &'w Authenticated) -> Actor<'w> {
        Actor { who, impersonated: None }
    }

    pub(super) fn impersonating(who: &'w Authenticated, impersonated: Impersonated) -> Actor<'w> {
        Actor { who, impersonated: Some(impersonated) }
    }

    /// The effective user: authorized here, and sent to backends.
    pub fn user(&self) -> &Arc<User> {
        self.impersonated.as_ref().map_or(self.who.user(), |impersonated| &impersonated.user)
    }

    /// The authenticated user.
    pub fn authenticated(&self) -> &'w Authenticated {
        self.who
    }

    /// The impersonated user, if any.
    pub fn impersonated(&self) -> Option<&Impersonated> {
        self.impersonated.as_ref()
    }
}
