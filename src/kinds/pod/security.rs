//! Security contexts of Pods and containers (`validatePodSpecSecurityContext`, `ValidateSecurityContext`), and what depends on
//! the operating system.

use std::cell::LazyCell;
use std::collections::HashSet;

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::check_dns1123_subdomain;
use serde_json::Value;

use super::paths::{check_choice, check_descending_path, check_supported, is_true, visit_containers};
use crate::kinds::internal_json::internal_value;
use crate::kinds::validation::{invalid_for, items, text};

const MAX_ID: i64 = i32::MAX as i64;
const MAX_SYSCTL_BYTES: usize = 253;
const MAX_PROFILE_BYTES: usize = 4095;
const MAX_WINDOWS_DOMAIN: usize = 256;
const MAX_WINDOWS_USER: usize = 104;
const MAX_CREDENTIAL_KIB: usize = 64;
const PROFILE_TYPES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];
/// Namespaces of the kernel's settings: whole names, and prefixes.
const IPC_SYSCTLS: [&str; 8] = [
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.sem",
];

/// Errors of the security context of a Pod.
pub(super) fn check_pod_security(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let context = &spec["securityContext"];
    if context.is_null() {
        return;
    }
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        check_id(&context[field], &path.child(field), errors);
    }
    let groups = path.child("supplementalGroups");
    for (index, group) in items(context, "supplementalGroups").iter().enumerate() {
        check_id(group, &groups.index(index), errors);
    }
    if is_true(&spec["shareProcessNamespace"]) && is_true(&spec["hostPID"]) {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(path.child("shareProcessNamespace"), true, why));
    }
    check_sysctls(spec, &path.child("sysctls"), errors);
    if let Some(policy) = context["fsGroupChangePolicy"].as_str() {
        check_supported(policy, &["Always", "OnRootMismatch"], &path.child("fsGroupChangePolicy"), errors);
    }
    check_seccomp(&context["seccompProfile"], &path.child("seccompProfile"), errors);
    check_windows_options(&context["windowsOptions"], &path.child("windowsOptions"), errors);
    check_app_armor(&context["appArmorProfile"], &path.child("appArmorProfile"), errors);
    if let Some(policy) = context["supplementalGroupsPolicy"].as_str() {
        check_supported(policy, &["Merge", "Strict"], &path.child("supplementalGroupsPolicy"), errors);
    }
    if let Some(policy) = context["seLinuxChangePolicy"].as_str() {
        check_supported(policy, &["MountOption", "Recursive"], &path.child("seLinuxChangePolicy"), errors);
    }
}

/// Errors of the security context of a container.
pub(super) fn check_container_security(
    context: &Value,
    uses_host_users: bool,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    if context.is_null() {
        return;
    }
    for field in ["runAsUser", "runAsGroup"] {
        check_id(&context[field], &path.child(field), errors);
    }
    if let Some(mount) = context["procMount"].as_str() {
        check_supported(mount, &["Default", "Unmasked"], &path.child("procMount"), errors);
        if uses_host_users && mount == "Unmasked" {
            let why = "`hostUsers` must be false to use `Unmasked`";
            errors.push(FieldError::invalid(path.child("procMount"), mount, why));
        }
    }
    check_seccomp(&context["seccompProfile"], &path.child("seccompProfile"), errors);
    if context["allowPrivilegeEscalation"] == Value::Bool(false) {
        let capabilities = items(&context["capabilities"], "add");
        let value = LazyCell::new(|| internal_value("core.SecurityContext", context));
        let shown = || (*value).clone();
        if is_true(&context["privileged"]) {
            let why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::invalid(path, shown(), why));
        }
        for _ in capabilities.iter().filter(|name| **name == "CAP_SYS_ADMIN") {
            let why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(FieldError::invalid(path, shown(), why));
        }
    }
    check_windows_options(&context["windowsOptions"], &path.child("windowsOptions"), errors);
    check_app_armor(&context["appArmorProfile"], &path.child("appArmorProfile"), errors);
}

/// Errors of the number of a user or group.
fn check_id(id: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if let Some(id) = id.as_i64().filter(|id| !(0..=MAX_ID).contains(id)) {
        errors.push(FieldError::invalid(path, id, "must be between 0 and 2147483647, inclusive"));
    }
}

fn check_sysctls(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let mut seen = HashSet::new();
    for (index, sysctl) in items(&spec["securityContext"], "sysctls").iter().enumerate() {
        let path = path.index(index);
        let (name, path) = (text(sysctl, "name"), path.child("name"));
        if name.is_empty() {
            errors.push(FieldError::required(path, ""));
        } else if !is_sysctl_name(name) {
            let why = "must have at most 253 characters and match regex \
                       ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            errors.push(FieldError::invalid(path, name, why));
        } else if seen.contains(name) {
            errors.push(FieldError::duplicate(path, name));
        }
        let dotted = dotted_sysctl(name);
        let is_net = dotted.starts_with("net.");
        let is_ipc = IPC_SYSCTLS.contains(&dotted.as_str()) || dotted.starts_with("fs.mqueue.");
        if is_true(&spec["hostNetwork"]) && is_net {
            errors.push(FieldError::invalid(path, name, "may not be specified when 'hostNetwork' is true"));
        } else if is_true(&spec["hostIPC"]) && is_ipc {
            errors.push(FieldError::invalid(path, name, "may not be specified when 'hostIPC' is true"));
        }
        seen.insert(name);
    }
}

fn is_sysctl_name(name: &str) -> bool {
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    let is_segment = |segment: &str| {
        is_end(segment.bytes().next()) && is_end(segment.bytes().next_back()) && segment.bytes().all(is_inner)
    };
    name.len() <= MAX_SYSCTL_BYTES && name.split(['.', '/']).all(is_segment)
}

/// The name of a setting with dots between its parts (`NormalizeName`).
fn dotted_sysctl(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(first) if name[first..].starts_with('/') => {
            let swap = |letter: char| match letter {
                '.' => '/',
                '/' => '.',
                other => other,
            };
            name.chars().map(swap).collect()
        }
        _ => name.to_owned(),
    }
}

fn check_seccomp(profile: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if profile.is_null() {
        return;
    }
    let (kind, target, target_path) =
        (text(profile, "type"), profile["localhostProfile"].as_str(), path.child("localhostProfile"));
    match kind {
        "" => errors.push(FieldError::required(path.child("type"), "type is required when seccompProfile is set")),
        kind => check_supported(kind, &PROFILE_TYPES, &path.child("type"), errors),
    }
    match (kind, target) {
        ("Localhost", None) => {
            errors.push(FieldError::required(target_path, "must be set when seccomp type is Localhost"));
        }
        ("Localhost", Some(target)) => check_descending_path(target, &target_path, errors),
        (_, Some(_)) => {
            let shown = internal_value("core.SeccompProfile", profile);
            errors.push(FieldError::invalid(target_path, shown, "can only be set when seccomp type is Localhost"));
        }
        (_, None) => {}
    }
}

fn check_app_armor(profile: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if profile.is_null() {
        return;
    }
    let (target, target_path) = (profile["localhostProfile"].as_str(), path.child("localhostProfile"));
    match text(profile, "type") {
        "Localhost" => {
            let trimmed = target.map(str::trim);
            if target.is_some_and(|target| trimmed != Some(target)) {
                let why = "must not be padded with whitespace";
                errors.push(FieldError::invalid(target_path, target.unwrap_or_default(), why));
            } else if trimmed.unwrap_or_default().is_empty() {
                errors.push(FieldError::required(target_path, "must be set when AppArmor type is Localhost"));
            }
            if target.is_some_and(|target| target.len() > MAX_PROFILE_BYTES) {
                errors.push(FieldError::too_long(target_path, MAX_PROFILE_BYTES));
            }
        }
        "RuntimeDefault" | "Unconfined" => {
            if let Some(target) = target {
                let why = "can only be set when AppArmor type is Localhost";
                errors.push(FieldError::invalid(target_path, target, why));
            }
        }
        "" => errors.push(FieldError::required(path.child("type"), "type is required when appArmorProfile is set")),
        kind => check_choice(kind, &PROFILE_TYPES, &path.child("type"), errors),
    }
}

fn check_windows_options(options: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if let Some(name) = options["gmsaCredentialSpecName"].as_str() {
        errors.extend(invalid_for(path.child("gmsaCredentialSpecName"), name, check_dns1123_subdomain(name)));
    }
    if let Some(credential) = options["gmsaCredentialSpec"].as_str() {
        let path = path.child("gmsaCredentialSpec");
        if credential.is_empty() {
            errors.push(FieldError::invalid(path, credential, "gmsaCredentialSpec cannot be an empty string"));
        } else if credential.len() > MAX_CREDENTIAL_KIB << 10 {
            let why = format!("gmsaCredentialSpec size must be under {MAX_CREDENTIAL_KIB} KiB");
            errors.push(FieldError::invalid(path, credential, why));
        }
    }
    if let Some(name) = options["runAsUserName"].as_str() {
        let sentences = windows_user_sentences(name);
        errors.extend(invalid_for(path.child("runAsUserName"), name, sentences));
    }
}

/// Sentences for the name of a user of Windows, with or without its domain.
fn windows_user_sentences(name: &str) -> Vec<String> {
    let one = |why: &str| vec![format!("runAsUserName{why}")];
    if name.is_empty() {
        return one(" cannot be an empty string");
    }
    if name.bytes().any(|byte| byte.is_ascii_control()) {
        return one(" cannot contain control characters");
    }
    let (domain, user) = name.split_once('\\').map_or((None, name), |(domain, user)| (Some(domain), user));
    if user.contains('\\') {
        return one(" cannot contain more than one backslash");
    }
    let mut sentences = Vec::new();
    let mut add = |why: String| sentences.push(format!("runAsUserName's {why}"));
    if let Some(domain) = domain {
        if domain.len() >= MAX_WINDOWS_DOMAIN {
            add(format!("Domain length must be under {MAX_WINDOWS_DOMAIN} characters"));
        }
        if !is_net_bios_name(domain) && !is_windows_domain(domain) {
            add("Domain doesn't match the NetBios nor the DNS format".to_owned());
        }
    }
    if user.is_empty() {
        add("User cannot be empty".to_owned());
    } else if user.len() > MAX_WINDOWS_USER {
        add(format!("User length must not be longer than {MAX_WINDOWS_USER} characters"));
    }
    if !user.is_empty() && user.chars().all(|letter| letter == '.' || letter == ' ') {
        add("User cannot contain only periods or spaces".to_owned());
    }
    if user.contains(|letter: char| "\"/\\:;|=,+*?<>@[]".contains(letter)) {
        add("User cannot contain the following characters: \"/\\:;|=,+*?<>@[]".to_owned());
    }
    sentences
}

fn is_net_bios_name(domain: &str) -> bool {
    let is_allowed = |letter: char| !"\\/:*?\"<>|".contains(letter);
    (1..=15).contains(&domain.chars().count()) && !domain.starts_with('.') && domain.chars().all(is_allowed)
}

fn is_windows_domain(domain: &str) -> bool {
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    domain.split('.').all(|label| {
        label.len() <= 63
            && is_end(label.bytes().next())
            && is_end(label.bytes().next_back())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    })
}

/// Errors of containers that are processes of a Windows host (`validateWindowsHostProcessPod`).
pub(super) fn check_host_processes(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let of = |context: &Value| context["windowsOptions"]["hostProcess"].as_bool();
    let of_pod = of(&spec["securityContext"]);
    let (mut count, mut host_count) = (0, 0);
    visit_containers(spec, path, |container, path| {
        let own = of(&container["securityContext"]);
        count += 1;
        host_count += usize::from(own.or(of_pod) == Some(true));
        if let (Some(of_pod), Some(own)) = (of_pod, own)
            && of_pod != own
        {
            let path = path.child("securityContext");
            let path = path.child("windowsOptions");
            let why = format!("pod hostProcess value must be identical if both are specified, was {of_pod}");
            errors.push(FieldError::invalid(path.child("hostProcess"), own, why));
        }
    });
    if host_count == 0 {
        return;
    }
    if host_count != count {
        let why = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(FieldError::invalid(path, "", why));
    }
    if !is_true(&spec["hostNetwork"]) {
        let why = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(FieldError::invalid(path.child("hostNetwork"), false, why));
    }
}

/// Errors of a Pod with users of its own (`validateHostUsers`).
pub(super) fn check_host_users(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if spec["hostUsers"] != Value::Bool(false) {
        return;
    }
    let why = "when `hostUsers` is false";
    for (field, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if is_true(&spec[field]) {
            errors.push(FieldError::forbidden(path.child(shown), why));
        }
    }
    visit_containers(spec, path, |container, path| {
        if !items(container, "volumeDevices").is_empty() {
            errors.push(FieldError::forbidden(path.child("volumeDevices"), why));
        }
    });
}

/// Errors of the operating system, and of what it does not have (`validateOS`, `validateLinux`, `validateWindows`).
pub(super) fn check_operating_system(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    if spec["os"].is_null() {
        return;
    }
    let os_path = path.child("os");
    match text(&spec["os"], "name") {
        "" => errors.push(FieldError::required(os_path.child("name"), "")),
        "linux" => check_linux(spec, path, errors),
        "windows" => check_windows(spec, path, errors),
        other => check_supported(other, &["linux", "windows"], &os_path, errors),
    }
}

fn check_linux(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let mut check = |context: &Value, path: &FieldPath<'_>| {
        if !context["windowsOptions"].is_null() {
            let why = "windows options cannot be set for a linux pod";
            errors.push(FieldError::forbidden(path.child("windowsOptions"), why));
        }
    };
    check(&spec["securityContext"], &path.child("securityContext"));
    visit_containers(spec, path, |container, path| {
        check(&container["securityContext"], &path.child("securityContext"));
    });
}

fn check_windows(spec: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    /// Fields of the specification or, unless named otherwise, of its security context.
    const POD_FIELDS: [(&str, bool); 15] = [
        ("appArmorProfile", true),
        ("seLinuxOptions", true),
        ("hostUsers", false),
        ("hostPID", false),
        ("hostIPC", false),
        ("seccompProfile", true),
        ("fsGroup", true),
        ("fsGroupChangePolicy", true),
        ("sysctls", true),
        ("shareProcessNamespace", false),
        ("runAsUser", true),
        ("runAsGroup", true),
        ("supplementalGroups", true),
        ("supplementalGroupsPolicy", true),
        ("seLinuxChangePolicy", true),
    ];
    const CONTAINER_FIELDS: [&str; 10] = [
        "appArmorProfile",
        "seLinuxOptions",
        "seccompProfile",
        "capabilities",
        "readOnlyRootFilesystem",
        "privileged",
        "allowPrivilegeEscalation",
        "procMount",
        "runAsUser",
        "runAsGroup",
    ];
    let why = "cannot be set for a windows pod";
    let context = &spec["securityContext"];
    let context_path = path.child("securityContext");
    for (field, is_in_context) in POD_FIELDS {
        let (value, path) = if is_in_context { (&context[field], &context_path) } else { (&spec[field], path) };
        let is_unset = value.is_null() || matches!(field, "hostPID" | "hostIPC") && !is_true(value);
        if !is_unset && !context.is_null() {
            errors.push(FieldError::forbidden(path.child(field), why));
        }
    }
    visit_containers(spec, path, |container, path| {
        let path = path.child("securityContext");
        for field in CONTAINER_FIELDS.iter().filter(|field| !container["securityContext"][**field].is_null()) {
            errors.push(FieldError::forbidden(path.child(field), why));
        }
    });
}
