//! The objects that a list or watch is about.

use super::object::ApiServiceObject;
use crate::kubeapi::{FieldSelector, LabelSelector, RequestInfo, Status};

/// Selects objects by labels, fields and name.
#[derive(Default)]
pub(super) struct ObjectFilter {
    labels: LabelSelector,
    fields: FieldSelector,
    /// Name in the path of a watch.
    name: Option<String>,
}

impl ObjectFilter {
    /// The filter of a list or watch request.
    ///
    /// # Errors
    /// 400 for an invalid selector, and for one by another field than the name.
    pub(super) fn from_request(info: &RequestInfo<'_>) -> Result<ObjectFilter, Status> {
        let bad = |error| Status::bad_request(format!("{error}"));
        let fields = FieldSelector::parse(&info.field_selector).map_err(bad)?;
        if let Some(term) = fields.terms.iter().find(|term| term.field != "metadata.name") {
            return Err(Status::bad_request(format!("field label not supported: {}", term.field)));
        }
        let name = (!info.name.is_empty()).then(|| info.name.as_ref().to_owned());
        Ok(ObjectFilter { labels: LabelSelector::parse(&info.label_selector).map_err(bad)?, fields, name })
    }

    #[cfg(test)]
    pub(super) fn labels(text: &str) -> Option<ObjectFilter> {
        Some(ObjectFilter { labels: LabelSelector::parse(text).ok()?, ..ObjectFilter::default() })
    }

    pub(super) fn matches(&self, object: &ApiServiceObject) -> bool {
        let api_service = &object.api_service;
        self.name.as_ref().is_none_or(|name| *name == api_service.name)
            && self.labels.matches(|key| api_service.labels.get(key).map(String::as_str))
            && self.fields.matches(|_| &api_service.name)
    }
}
