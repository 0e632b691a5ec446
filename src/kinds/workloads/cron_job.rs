//! CronJobs.

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use serde_json::Value;

use super::cron_schedule::{check_schedule, check_time_zone};
use super::job::{check_job_spec, spec_warnings};
use super::{SPEC, container_cells, has_changed_spec, name_warning};
use crate::kinds::cells::{CellPrinter, items_at, text_at};
use crate::kinds::field_rules::format_label_selector;
use crate::kinds::internal_json::external_value;
use crate::kinds::pod::{PodSpecOptions, check_not_negative};
use crate::kinds::validation::{METADATA, ValidationInput, invalid_for, text};
use crate::kinds::{GenerationRule, KindRules, WrittenObject};

pub(super) static RULES: KindRules = KindRules {
    generation: GenerationRule::SPEC,
    validate: |input| match input.subresource {
        "status" => input.metadata_update_errors(),
        _ => validate_cron_job(input),
    },
    warnings: cron_job_warnings,
    cells: print_cron_job,
    ..KindRules::of("batch", "cronjobs")
};

/// Longest name: that of a Job has a dash and a time more.
const MAX_NAME_BYTES: usize = 52;

fn validate_cron_job(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = match input.old {
        None => input.metadata_errors(),
        Some(_) => input.metadata_update_errors(),
    };
    let (spec, old) = (input.field("spec"), input.old.map(|_| input.old_field("spec")));
    let schedule_path = SPEC.child("schedule");
    match text(spec, "schedule") {
        "" => errors.push(FieldError::required(schedule_path, "")),
        schedule => check_schedule_format(spec, schedule, (old, &schedule_path), &mut errors),
    }
    check_not_negative(spec, "startingDeadlineSeconds", &SPEC, &mut errors);
    if let Some(zone) = spec["timeZone"].as_str().filter(|zone| old.is_none_or(|old| old["timeZone"] != *zone)) {
        errors.extend(invalid_for(SPEC.child("timeZone"), zone, check_time_zone(zone)));
    }
    let (policy, path) = (text(spec, "concurrencyPolicy"), SPEC.child("concurrencyPolicy"));
    match policy {
        "Allow" | "Forbid" | "Replace" => {}
        "" => errors.push(FieldError::required(path, "")),
        other => errors.push(FieldError::not_supported(path, other, &["Allow", "Forbid", "Replace"])),
    }
    let template = SPEC.child("jobTemplate");
    let (job, job_path) = (&spec["jobTemplate"]["spec"], template.child("spec"));
    let options = PodSpecOptions::of_template(old.map(|old| &old["jobTemplate"]["spec"]["template"]));
    check_job_spec(job, &options, &job_path, &mut errors);
    if !job["selector"].is_null() {
        let why = "`selector` will be auto-generated";
        errors.push(FieldError::invalid(job_path.child("selector"), external_value(&job["selector"]), why));
    }
    if job["manualSelector"] == Value::Bool(true) {
        let supported = ["nil", "false"];
        errors.push(FieldError::not_supported(job_path.child("manualSelector"), true, &supported));
    }
    check_not_negative(spec, "successfulJobsHistoryLimit", &SPEC, &mut errors);
    check_not_negative(spec, "failedJobsHistoryLimit", &SPEC, &mut errors);
    let name = input.metadata().name();
    if input.old.is_none() && name.len() > MAX_NAME_BYTES {
        errors.push(FieldError::invalid(METADATA.child("name"), name, "must be no more than 52 characters"));
    }
    errors
}

fn check_schedule_format(
    spec: &Value,
    schedule: &str,
    (old, path): (Option<&Value>, &FieldPath<'_>),
    errors: &mut FieldErrors,
) {
    if let Err(why) = check_schedule(schedule) {
        errors.push(FieldError::invalid(path, schedule, why));
    }
    if !schedule.contains("TZ") {
        return;
    }
    let allows_zone = old.is_some_and(|old| text(old, "schedule").contains("TZ"));
    let why = match allows_zone {
        true if spec["timeZone"].is_null() => return,
        true => "cannot use both timeZone field and TZ or CRON_TZ in schedule",
        false => "cannot use TZ or CRON_TZ in schedule, use timeZone field instead",
    };
    errors.push(FieldError::invalid(path, schedule, why));
}

fn cron_job_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    if !written.subresource.is_empty() {
        return Vec::new();
    }
    let template = SPEC.child("jobTemplate");
    let spec = written.field("spec");
    let mut warnings: Vec<String> = Vec::new();
    if written.old.is_none() {
        warnings.extend(name_warning(written));
    }
    if has_changed_spec(written) {
        warnings.extend(spec_warnings(&spec["jobTemplate"]["spec"], &template.child("spec")));
    }
    if written.old.is_some() && text(spec, "schedule").contains("TZ") {
        let why = "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see \
                   https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details";
        warnings.push(why.to_owned());
    }
    warnings
}

fn print_cron_job(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    let [names, images] = container_cells(printer, "/spec/jobTemplate/spec/template/spec/containers");
    let none = || "<none>".to_owned();
    let suspend = match object.pointer("/spec/suspend").and_then(Value::as_bool) {
        None => "<unset>",
        Some(true) => "True",
        Some(false) => "False",
    };
    let selector = object.pointer("/spec/jobTemplate/spec/selector").unwrap_or(&Value::Null);
    vec![
        printer.name(),
        text_at(object, "/spec/schedule").into(),
        object.pointer("/spec/timeZone").and_then(Value::as_str).map_or_else(none, str::to_owned).into(),
        suspend.into(),
        items_at(object, "/status/active").len().into(),
        printer.since("/status/lastScheduleTime").unwrap_or_else(none).into(),
        printer.age(),
        names,
        images,
        format_label_selector(selector).into(),
    ]
}
