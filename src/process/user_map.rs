//! One shared value for each user, kept as long as it is referenced.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Values by user name. A value calls [`UserMap::remove_unused`] when it is dropped.
#[derive(Debug)]
pub(super) struct UserMap<T>(Mutex<HashMap<Box<str>, Weak<T>>>);

impl<T> Default for UserMap<T> {
    fn default() -> UserMap<T> {
        UserMap(Mutex::default())
    }
}

impl<T> UserMap<T> {
    /// The value of `user`, created by `new` if there is none.
    pub(super) fn get_or_insert(&self, user: &str, new: impl FnOnce() -> T) -> Arc<T> {
        let mut values = self.0.lock();
        if let Some(value) = values.get(user).and_then(Weak::upgrade) {
            return value;
        }
        let value = Arc::new(new());
        values.insert(user.into(), Arc::downgrade(&value));
        value
    }

    /// Removes the value of `user` unless it is referenced: another thread may have created a new one in the meantime.
    pub(super) fn remove_unused(&self, user: &str) {
        let mut values = self.0.lock();
        if values.get(user).is_some_and(|value| value.strong_count() == 0) {
            values.remove(user);
        }
    }

    /// Number of users with a value.
    pub(super) fn len(&self) -> usize {
        self.0.lock().len()
    }
}
