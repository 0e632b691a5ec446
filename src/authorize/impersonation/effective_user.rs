//! The effective user of a request: the authenticated or the impersonated one.

use std::sync::Arc;

use kubeapi::User;

use crate::authenticate::AuthenticatedUser;

/// The effective user of a request: the authenticated user, or one that it may impersonate. Only
/// [`EffectiveUser::from_authenticated`] and [`Impersonator`](super::Impersonator) create one.
#[derive(Clone, Debug)]
pub struct EffectiveUser<'w> {
    authenticated: &'w AuthenticatedUser,
    impersonated: Option<ImpersonatedUser>,
}

/// An impersonated user; audit's `impersonatedUser`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImpersonatedUser {
    /// The user, with its implied groups and without filtered ones.
    pub user: Arc<User>,
    /// The verb that allowed it, such as `impersonate:user-info`: audit's
    /// `authenticationMetadata.impersonationConstraint`. None for the unconstrained `impersonate`.
    pub constraint: Option<&'static str>,
}

impl<'w> EffectiveUser<'w> {
    /// Returns the authenticated user; none if the request has `Impersonate-*` headers.
    pub fn from_authenticated(requester: &'w AuthenticatedUser) -> Option<EffectiveUser<'w>> {
        (!requester.impersonates()).then(|| EffectiveUser::without_impersonation(requester))
    }

    pub(super) fn without_impersonation(requester: &'w AuthenticatedUser) -> EffectiveUser<'w> {
        EffectiveUser { authenticated: requester, impersonated: None }
    }

    pub(super) fn impersonating(requester: &'w AuthenticatedUser, impersonated: ImpersonatedUser) -> EffectiveUser<'w> {
        EffectiveUser { authenticated: requester, impersonated: Some(impersonated) }
    }

    /// The effective user: authorized here, and sent to backends.
    pub fn user(&self) -> &Arc<User> {
        self.impersonated.as_ref().map_or(self.authenticated.user(), |impersonated| &impersonated.user)
    }

    /// The authenticated user.
    pub fn authenticated(&self) -> &'w AuthenticatedUser {
        self.authenticated
    }

    /// The impersonated user, if any.
    pub fn impersonated(&self) -> Option<&ImpersonatedUser> {
        self.impersonated.as_ref()
    }
}
