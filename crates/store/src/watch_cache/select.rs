//! Selection of objects by labels and declared fields, and the event that a change is for a watch with a selection.

use std::sync::Arc;

use kubeapi::{FieldSelector, LabelSelector};

use super::Error;
use super::change_log::StoredChange;
use super::declared_field::DeclaredField;
use super::stored::Stored;

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WatchEventKind {
    /// ADDED: created, entered the selection, or exists at the start.
    Added,
    /// MODIFIED: changed within the selection.
    Modified,
    /// DELETED: deleted, or left the selection.
    Deleted,
    /// BOOKMARK: the revision up to which all events were sent.
    Bookmark,
    /// BOOKMARK with the annotation `k8s.io/initial-events-end`.
    InitialEventsEnd,
}

/// A label selector and a field selector, resolved for one resource.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    labels: LabelSelector,
    terms: Box<[ResolvedTerm]>,
}

#[derive(Clone, Debug)]
struct ResolvedTerm {
    field: SelectedField,
    is_equal: bool,
    value: Box<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SelectedField {
    Name,
    Namespace,
    Declared(usize),
}

impl Selection {
    /// Resolves the selectors of a request.
    ///
    /// # Errors
    /// [`Error::UnsupportedField`].
    pub fn new(labels: LabelSelector, fields: &FieldSelector, declared: &[DeclaredField]) -> Result<Selection, Error> {
        let terms = fields.terms.iter().map(|term| {
            let field = match &*term.field {
                "metadata.name" => SelectedField::Name,
                "metadata.namespace" => SelectedField::Namespace,
                name => {
                    let index = declared.iter().position(|field| *field.name == *name);
                    SelectedField::Declared(index.ok_or_else(|| Error::UnsupportedField(name.to_owned()))?)
                }
            };
            Ok(ResolvedTerm { field, is_equal: term.equal, value: (*term.value).into() })
        });
        Ok(Selection { labels, terms: terms.collect::<Result<_, Error>>()? })
    }

    /// Whether every object is selected.
    pub fn is_everything(&self) -> bool {
        self.labels.requirements.is_empty() && self.terms.is_empty()
    }

    /// Number of comparisons for an object.
    pub(super) fn term_count(&self) -> usize {
        self.labels.requirements.len() + self.terms.len()
    }

    /// Whether the object is selected.
    pub fn matches(&self, object: &Stored) -> bool {
        self.terms.iter().all(|term| (term.field.of(object) == &*term.value) == term.is_equal)
            && self.labels.matches(|key| object.label(key))
    }

    /// What of it does not depend on the version in which an object is read: names and namespaces. None if that is all.
    pub fn without_content(&self) -> Option<Selection> {
        let is_content = |term: &ResolvedTerm| matches!(term.field, SelectedField::Declared(_));
        let terms: Vec<_> = self.terms.iter().filter(|term| !is_content(term)).cloned().collect();
        let is_all = self.labels.requirements.is_empty() && terms.len() == self.terms.len();
        (!is_all).then(|| Selection { labels: LabelSelector::default(), terms: terms.into() })
    }

    /// The only name that is selected.
    pub(super) fn exact_name(&self) -> Option<&str> {
        self.exact(SelectedField::Name)
    }

    /// The only namespace that is selected.
    pub(super) fn exact_namespace(&self) -> Option<&str> {
        self.exact(SelectedField::Namespace)
    }

    fn exact(&self, field: SelectedField) -> Option<&str> {
        self.terms.iter().find(|term| term.is_equal && term.field == field).map(|term| &*term.value)
    }

    /// What a change is to a watch of the selection.
    pub(super) fn classify(&self, change: &StoredChange) -> Option<WatchEventKind> {
        self.classify_objects(change.old().map(Arc::as_ref), change.new_object().map(Arc::as_ref))
    }

    /// What a change is to a watch of the selection, by the object before and after: one that enters is ADDED, one that
    /// leaves is DELETED (`cacher/cache_watcher.go`, `convertToWatchEvent`).
    pub fn classify_objects(&self, old: Option<&Stored>, new: Option<&Stored>) -> Option<WatchEventKind> {
        let was_selected = old.is_some_and(|old| self.matches(old));
        let is_selected = new.is_some_and(|new| self.matches(new));
        match (was_selected, is_selected) {
            (false, true) => Some(WatchEventKind::Added),
            (true, true) => Some(WatchEventKind::Modified),
            (true, false) => Some(WatchEventKind::Deleted),
            (false, false) => None,
        }
    }
}

impl SelectedField {
    fn of(self, object: &Stored) -> &str {
        match self {
            SelectedField::Name => object.name(),
            SelectedField::Namespace => object.namespace(),
            SelectedField::Declared(place) => object.field(place),
        }
    }
}
