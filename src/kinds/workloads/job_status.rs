//! Status of Jobs, as controllers write it (`validateJobStatus`, `ValidateJobStatusUpdate`), and their cells.

use std::collections::HashSet;

use jiff::Timestamp;
use kubeapi::field_error::{BadValue, FieldError, FieldErrors};
use kubeapi::human_duration::age_of;
use serde_json::Value;

use super::job_policies::{count_indexes, invalid_unshown, parse_interval};
use super::{STATUS, check_counts, container_cells};
use crate::kinds::cells::{CellPrinter, integer, text_at};
use crate::kinds::field_rules::{format_label_selector, is_same};
use crate::kinds::internal_json::internal_value;
use crate::kinds::validation::{ValidationInput, items, text};

/// Whether a condition of a status is true.
pub(super) fn has_condition(status: &Value, name: &str) -> bool {
    let is_met = |condition: &Value| text(condition, "type") == name && text(condition, "status") == "True";
    items(status, "conditions").iter().any(is_met)
}

/// A new status beside the old one.
struct StatusChange<'s> {
    spec: &'s Value,
    new: &'s Value,
    old: &'s Value,
}

pub(super) fn validate_status(input: &ValidationInput<'_>) -> FieldErrors {
    let change = StatusChange { spec: input.field("spec"), new: input.field("status"), old: input.old_field("status") };
    let mut errors = input.metadata_update_errors();
    check_counts(change.new, &["active", "succeeded", "failed", "ready", "terminating"], &mut errors);
    change.check_uncounted(&mut errors);
    change.check_end(&mut errors);
    change.check_indexes(&mut errors);
    change.check_numbers(&mut errors);
    change.check_transitions(&mut errors);
    errors
}

impl StatusChange<'_> {
    fn is(&self, condition: &str) -> bool {
        has_condition(self.new, condition)
    }

    fn was(&self, condition: &str) -> bool {
        has_condition(self.old, condition)
    }

    fn changes(&self, condition: &str) -> bool {
        self.is(condition) != self.was(condition)
    }

    fn changes_field(&self, field: &str) -> bool {
        !is_same(&self.new[field], &self.old[field])
    }

    fn is_finished(&self) -> bool {
        self.is("Complete") || self.is("Failed")
    }

    fn changes_end(&self) -> bool {
        self.is_finished() != (self.was("Complete") || self.was("Failed"))
    }

    fn check_uncounted(&self, errors: &mut FieldErrors) {
        let path = STATUS.child("uncountedTerminatedPods");
        let mut seen = HashSet::new();
        for field in ["succeeded", "failed"] {
            let path = path.child(field);
            for (index, uid) in items(&self.new["uncountedTerminatedPods"], field).iter().enumerate() {
                let uid = uid.as_str().unwrap_or_default();
                if uid.is_empty() {
                    errors.push(FieldError::invalid(path.index(index), uid, "must not be empty"));
                } else if !seen.insert(uid) {
                    errors.push(FieldError::duplicate(path.index(index), uid));
                }
            }
        }
    }

    /// Errors of conditions and times of a Job that has ended or not.
    fn check_end(&self, errors: &mut FieldErrors) {
        let conditions = STATUS.child("conditions");
        let (completion, completion_path) = (&self.new["completionTime"], STATUS.child("completionTime"));
        let (start, start_path) = (&self.new["startTime"], STATUS.child("startTime"));
        let is_complete = self.is("Complete");
        let mut check = |is_examined: bool, is_wrong: bool, error: &dyn Fn() -> FieldError| {
            if is_examined && is_wrong {
                errors.push(error());
            }
        };
        let has_changed_end = self.changes("Complete") || self.changes_field("completionTime");
        check(self.changes("Complete") || self.changes("Failed"), is_complete && self.is("Failed"), &|| {
            invalid_unshown(conditions, "cannot set Complete=True and Failed=true conditions")
        });
        let is_examined = self.changes("Complete") || self.changes("FailureTarget");
        check(is_examined, is_complete && self.is("FailureTarget"), &|| {
            invalid_unshown(conditions, "cannot set Complete=True and FailureTarget=true conditions")
        });
        check(has_changed_end, !completion.is_null() && !is_complete, &|| {
            let why = "cannot set completionTime when there is no Complete=True condition";
            FieldError::invalid(completion_path, BadValue::from(completion), why)
        });
        check(has_changed_end, completion.is_null() && is_complete, &|| {
            FieldError::required(completion_path, "completionTime is required for Complete jobs")
        });
        let is_before = matches!((completion.as_str(), start.as_str()), (Some(end), Some(start)) if end < start);
        check(self.changes_field("startTime") || self.changes_field("completionTime"), is_before, &|| {
            let why = "must be equal to or after `startTime`";
            FieldError::invalid(completion_path, BadValue::from(completion), why)
        });
        let is_examined = self.changes("Failed") || self.changes_field("failedIndexes");
        check(is_examined, self.is("Failed") && !self.is("FailureTarget"), &|| {
            let why = "cannot set Failed=True condition without the FailureTarget=true condition";
            invalid_unshown(conditions, why)
        });
        let is_examined = self.changes("Complete") || self.changes("SuccessCriteriaMet");
        check(is_examined, is_complete && !self.is("SuccessCriteriaMet"), &|| {
            let why = "cannot set Complete=True condition without the SuccessCriteriaMet=true condition";
            invalid_unshown(conditions, why)
        });
        let active = integer(self.new, "active");
        check(self.changes_end() || integer(self.old, "active") != active, active > 0 && self.is_finished(), &|| {
            FieldError::invalid(STATUS.child("active"), active, "active>0 is invalid for finished job")
        });
        let is_idle = self.spec["suspend"] == true && self.spec["completions"] == 0;
        let is_examined = (self.changes_end() || self.changes_field("startTime")) && !is_idle;
        check(is_examined, start.is_null() && self.is_finished(), &|| {
            FieldError::required(start_path, "startTime is required for finished job")
        });
        let uncounted = &self.new["uncountedTerminatedPods"];
        let has_uncounted = ["failed", "succeeded"].iter().any(|field| !items(uncounted, field).is_empty());
        let is_examined = self.changes_end() || self.changes_field("uncountedTerminatedPods");
        check(is_examined, has_uncounted && self.is_finished(), &|| {
            let shown = internal_value("batch.UncountedTerminatedPods", uncounted);
            FieldError::invalid(STATUS.child("uncountedTerminatedPods"), shown, "must be empty for finished job")
        });
    }

    /// Errors of the indexes of Pods that have succeeded or failed.
    fn check_indexes(&self, errors: &mut FieldErrors) {
        let completions = self.spec["completions"].as_i64();
        let (done, failed) = (text(self.new, "completedIndexes"), self.new["failedIndexes"].as_str());
        let (done_path, failed_path) = (STATUS.child("completedIndexes"), STATUS.child("failedIndexes"));
        let has_changed_done = text(self.old, "completedIndexes") != done;
        let has_changed_failed = self.new["failedIndexes"] != self.old["failedIndexes"];
        let has_limit = !self.spec["backoffLimitPerIndex"].is_null();
        if let (true, Some(completions)) = (has_changed_done, completions)
            && let Err(why) = count_indexes(done, completions)
        {
            let why = format!("error parsing completedIndexes: {why}");
            errors.push(FieldError::invalid(done_path, done, why));
        }
        if let (true, true, Some(completions), Some(failed)) = (has_changed_failed, has_limit, completions, failed)
            && let Err(why) = count_indexes(failed, completions)
        {
            let why = format!("error parsing failedIndexes: {why}");
            errors.push(FieldError::invalid(failed_path, failed, why));
        }
        if has_changed_done && !done.is_empty() && text(self.spec, "completionMode") != "Indexed" {
            let why = "cannot set non-empty completedIndexes when non-indexed completion mode";
            errors.push(FieldError::invalid(done_path, done, why));
        }
        if let (true, false, Some(failed)) = (has_changed_failed, has_limit, failed) {
            let why = "cannot set non-null failedIndexes when backoffLimitPerIndex is null";
            errors.push(FieldError::invalid(failed_path, failed, why));
        }
        if let (true, Some(completions), Some(failed)) = (has_changed_done || has_changed_failed, completions, failed)
            && let Some(index) = overlap(done, failed, completions)
        {
            let why = format!("failedIndexes and completedIndexes overlap at index: {index}");
            errors.push(FieldError::invalid(failed_path, failed, why));
        }
    }

    fn check_numbers(&self, errors: &mut FieldErrors) {
        let terminating = integer(self.new, "terminating");
        let is_examined = self.changes_end() || self.new["terminating"] != self.old["terminating"];
        if is_examined && terminating > 0 && self.is_finished() {
            let why = "terminating>0 is invalid for finished job";
            errors.push(FieldError::invalid(STATUS.child("terminating"), terminating, why));
        }
        let (ready, active) = (integer(self.new, "ready"), integer(self.new, "active"));
        let is_examined = self.new["ready"] != self.old["ready"] || active != integer(self.old, "active");
        if is_examined && !self.new["ready"].is_null() && ready > active {
            let why = "cannot set more ready pods than active";
            errors.push(FieldError::invalid(STATUS.child("ready"), ready, why));
        }
        if !self.spec["successPolicy"].is_null() && !self.is("SuccessCriteriaMet") && self.is("Complete") {
            let why = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True";
            errors.push(invalid_unshown(STATUS.child("conditions"), why));
        }
    }

    /// Errors of what may not go back.
    fn check_transitions(&self, errors: &mut FieldErrors) {
        let conditions = STATUS.child("conditions");
        for condition in ["Failed", "Complete", "FailureTarget"] {
            if self.was(condition) && !self.is(condition) {
                let why = format!("cannot disable the terminal {condition}=True condition");
                errors.push(invalid_unshown(conditions, why));
            }
        }
        let is_scalable =
            text(self.spec, "completionMode") == "Indexed" && self.spec["completions"] == self.spec["parallelism"];
        for (field, is_examined) in [("failed", true), ("succeeded", !is_scalable)] {
            let (new, old) = (integer(self.new, field), integer(self.old, field));
            if is_examined && new < old {
                let why = format!("cannot decrease the {field} counter");
                errors.push(FieldError::invalid(STATUS.child(field), new, why));
            }
        }
        let (new, old) = (&self.new["completionTime"], &self.old["completionTime"]);
        if !new.is_null() && !old.is_null() && new != old {
            let path = STATUS.child("completionTime");
            errors.push(FieldError::invalid(path, BadValue::from(new), "field is immutable"));
        }
        let (new, old) = (&self.new["startTime"], &self.old["startTime"]);
        let is_false =
            |condition: &Value| text(condition, "type") == "Suspended" && text(condition, "status") == "False";
        let is_resumed = self.was("Suspended") && items(self.new, "conditions").iter().any(is_false);
        if !old.is_null() && new != old && !is_resumed && self.spec["suspend"] != true {
            let why = "field is immutable for unsuspended job once set";
            errors.push(FieldError::invalid(STATUS.child("startTime"), BadValue::from(new), why));
        }
        if self.was("SuccessCriteriaMet") && !self.is("SuccessCriteriaMet") {
            errors.push(invalid_unshown(conditions, "cannot disable the SuccessCriteriaMet=True condition"));
        }
        if self.was("Complete") && !self.was("SuccessCriteriaMet") && self.is("SuccessCriteriaMet") {
            let why = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions";
            errors.push(invalid_unshown(conditions, why));
        }
    }
}

/// The first index in both lists of intervals (`validateFailedIndexesNotOverlapCompleted`).
fn overlap(completed: &str, failed: &str, completions: i64) -> Option<i64> {
    if completed.is_empty() || failed.is_empty() {
        return None;
    }
    let intervals = |text: &str| -> Vec<(i64, i64)> {
        text.split(',').filter_map(|interval| parse_interval(interval, completions).ok()).collect()
    };
    let (completed, failed) = (intervals(completed), intervals(failed));
    let (mut completed, mut failed) = (completed.iter().peekable(), failed.iter().peekable());
    while let (Some(done), Some(lost)) = (completed.peek(), failed.peek()) {
        if done.0 <= lost.1 && lost.0 <= done.1 {
            return Some(done.0.max(lost.0));
        }
        if done.0 <= lost.0 {
            completed.next()
        } else {
            failed.next()
        };
    }
    None
}

pub(super) fn print_job(printer: &CellPrinter<'_>) -> Vec<Value> {
    let (spec, status) = (&printer.object["spec"], &printer.object["status"]);
    let [names, images] = container_cells(printer, "/spec/template/spec/containers");
    let (succeeded, parallelism) = (integer(status, "succeeded"), integer(spec, "parallelism"));
    let completions = match spec["completions"].as_i64() {
        Some(completions) => format!("{succeeded}/{completions}"),
        None if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
        None => format!("{succeeded}/1"),
    };
    let conditions = ["Complete", "Failed", "Terminating", "Suspended", "FailureTarget", "SuccessCriteriaMet"];
    let is_deleted = !text_at(printer.object, "/metadata/deletionTimestamp").is_empty();
    let state = conditions.into_iter().find(|condition| match *condition {
        "Terminating" => is_deleted,
        condition => has_condition(status, condition),
    });
    vec![
        printer.name(),
        state.unwrap_or("Running").into(),
        completions.into(),
        duration(printer, status).into(),
        printer.age(),
        names,
        images,
        format_label_selector(&spec["selector"]).into(),
    ]
}

/// How long a Job has run.
fn duration(printer: &CellPrinter<'_>, status: &Value) -> String {
    let start = text(status, "startTime");
    if start.is_empty() {
        return String::new();
    }
    let end = text(status, "completionTime").parse::<Timestamp>().map_or(printer.now, Into::into);
    age_of(start, end).unwrap_or_default()
}
