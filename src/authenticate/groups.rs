//! Filter of user groups: `--authentication-pass-on-groups` and `--authentication-drop-groups`, as in kcp-front-proxy.

use std::sync::Arc;

use kubeapi::User;

use super::{AUTHENTICATED, UNAUTHENTICATED};

/// Filter of a user's groups, whichever authenticator names them. Applied before authorization and forwarding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupFilter {
    pass_on: Vec<GroupPattern>,
    drop: Vec<GroupPattern>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum GroupPattern {
    Exact(String),
    Prefix(String),
}

impl GroupFilter {
    /// Creates a filter that keeps the groups of `pass_on` (all if empty) except those of `drop`. A trailing `*`
    /// matches any suffix.
    pub fn new<S: AsRef<str>>(pass_on: &[S], drop: &[S]) -> GroupFilter {
        let patterns = |groups: &[S]| groups.iter().map(|group| GroupPattern::parse(group.as_ref())).collect();
        GroupFilter { pass_on: patterns(pass_on), drop: patterns(drop) }
    }

    /// Whether all groups are kept.
    pub fn is_empty(&self) -> bool {
        self.pass_on.is_empty() && self.drop.is_empty()
    }

    /// Returns the user with the remaining groups; the same allocation if none is dropped.
    pub fn filter(&self, user: Arc<User>) -> Arc<User> {
        if user.groups.iter().all(|group| self.allows(group)) {
            return user;
        }
        let mut user = Arc::unwrap_or_clone(user);
        user.groups.retain(|group| self.allows(group));
        Arc::new(user)
    }

    fn allows(&self, group: &str) -> bool {
        let among = |patterns: &[GroupPattern]| patterns.iter().any(|pattern| pattern.matches(group));
        (self.pass_on.is_empty() || among(&self.pass_on)) && !among(&self.drop)
    }
}

impl GroupPattern {
    fn parse(group: &str) -> GroupPattern {
        match group.strip_suffix('*') {
            Some(prefix) => GroupPattern::Prefix(prefix.to_owned()),
            None => GroupPattern::Exact(group.to_owned()),
        }
    }

    fn matches(&self, group: &str) -> bool {
        match self {
            GroupPattern::Exact(exactly) => exactly == group,
            GroupPattern::Prefix(prefix) => group.starts_with(prefix.as_str()),
        }
    }
}

/// Adds a group, unless the user is in `system:authenticated` or `system:unauthenticated` already.
pub(super) fn add_group(groups: &mut Vec<String>, group: &str) {
    if !groups.iter().any(|it| it == AUTHENTICATED || it == UNAUTHENTICATED) {
        groups.push(group.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(pass_on: &[&str], drop: &[&str]) -> Vec<String> {
        let groups = ["system:masters", "system:authenticated", "devs", "dev*ops", "devs"];
        let user = User { groups: groups.map(str::to_owned).into(), ..User::default() };
        GroupFilter::new(pass_on, drop).filter(Arc::new(user)).groups.clone()
    }

    #[test]
    fn group_filter_drops_groups_and_keeps_order() {
        assert_eq!(filtered(&[], &["system:masters"]), ["system:authenticated", "devs", "dev*ops", "devs"]);
        assert_eq!(filtered(&[], &["system:*"]), ["devs", "dev*ops", "devs"]);
        assert_eq!(filtered(&["devs"], &[]), ["devs", "devs"]);
        assert_eq!(filtered(&["dev*"], &["devs"]), ["dev*ops"]);
        assert_eq!(filtered(&["system:*"], &["system:masters"]), ["system:authenticated"]);
        assert_eq!(filtered(&[], &["*"]), [""; 0]);
        assert_eq!(filtered(&[], &["system:master", "ystem:masters"]).len(), 5);
    }

    #[test]
    fn group_filter_without_match_returns_same_user() {
        let user = Arc::new(User { groups: vec!["devs".to_owned()], ..User::default() });
        assert!(Arc::ptr_eq(&user, &GroupFilter::new(&[], &["system:masters"]).filter(user.clone())));
        assert!(Arc::ptr_eq(&user, &GroupFilter::default().filter(user.clone())));
    }
}
