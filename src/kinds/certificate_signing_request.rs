//! CertificateSigningRequests (`pkg/registry/certificates/certificates/strategy.go`, `pkg/apis/certificates/validation`).

use std::collections::{HashMap, HashSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::human_duration::human_duration;
use kubeapi::names::{MAX_DNS_LABEL, MAX_DNS_SUBDOMAIN, NameRule, check_dns1123_label, check_dns1123_subdomain};
use kubeapi::{GoQuoted, User};
use rustls_pki_types::pem::{PemObject as _, SectionKind};
use serde_json::{Value, json};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

use super::cells::{CellPrinter, first_non_empty, items_at, text_at};
use super::field_rules::{is_same, typed_text};
use super::selectable_fields::SelectableFields;
use super::validation::{ValidationInput, items, text, texts};
use super::{KindRules, Object, ObjectUpdate};

pub(super) static RULES: KindRules = KindRules {
    name_rule: NameRule::PathSegment,
    selectable: SelectableFields::of(&["spec.signerName"]),
    prepare_new: |_, object| prepare_new(object),
    prepare_replacement,
    validate: validate_request,
    cells: print_request,
    ..KindRules::of("certificates.k8s.io", "certificatesigningrequests")
};

const LEGACY_SIGNER: &str = "kubernetes.io/legacy-unknown";
const MIN_EXPIRATION_SECONDS: i64 = 600;

const SPEC: FieldPath<'static> = FieldPath::root("spec");
const STATUS: FieldPath<'static> = FieldPath::root("status");

const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// Drops the requester, which [`set_requester`] sets, and the status.
fn prepare_new(object: &mut Object) {
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) {
        for field in ["username", "uid", "groups", "extra"] {
            spec.remove(field);
        }
    }
    object.insert("status".to_owned(), json!({}));
}

/// Sets the requester of a new CertificateSigningRequest.
pub fn set_requester(object: &mut Object, user: &User) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else { return };
    let info = user.info();
    for field in ["username", "uid", "groups", "extra"] {
        if !is_same(&info[field], &Value::Null) && info[field] != "" {
            spec.insert(field.to_owned(), info[field].clone());
        }
    }
}

/// Only `approval` changes whether the request is approved, only `status` the rest of the status, nothing the request.
fn prepare_replacement(update: &ObjectUpdate<'_>, object: &mut Object) {
    update.keep(object, "spec");
    let old_status = update.old.get("status").unwrap_or(&Value::Null);
    match update.subresource {
        "status" => {
            keep_decisions(old_status, object);
            set_condition_times(old_status, object);
        }
        "approval" => {
            set_condition_times(old_status, object);
            let conditions = object.get("status").map(|status| status["conditions"].clone()).unwrap_or_default();
            update.keep(object, "status");
            let status = object.entry("status").or_insert_with(|| json!({}));
            if let Some(status) = status.as_object_mut() {
                match is_same(&conditions, &Value::Null) {
                    true => drop(status.remove("conditions")),
                    false => drop(status.insert("conditions".to_owned(), conditions)),
                }
            }
        }
        _ => update.keep(object, "status"),
    }
}

fn conditions_mut(object: &mut Object) -> impl Iterator<Item = &mut Object> {
    let conditions = object.get_mut("status").and_then(|status| status.get_mut("conditions"));
    conditions.and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Restores the conditions that say whether the request is approved, if there are as many.
fn keep_decisions(old_status: &Value, object: &mut Object) {
    for decision in ["Approved", "Denied"] {
        let old: Vec<&Value> =
            items(old_status, "conditions").iter().filter(|condition| condition["type"] == decision).collect();
        let is_decision = |condition: &&mut Object| condition.get("type").is_some_and(|name| name == decision);
        if conditions_mut(object).filter(is_decision).count() != old.len() {
            continue;
        }
        for (condition, old) in conditions_mut(object).filter(is_decision).zip(old) {
            if let Some(old) = old.as_object() {
                *condition = old.clone();
            }
        }
    }
}

/// Sets the times of conditions that have none; that of a transition stays while the status stays.
fn set_condition_times(old_status: &Value, object: &mut Object) {
    let now = json!(Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let identity = |condition: &Object| ["type", "status"].map(|field| condition.get(field).map(Value::to_string));
    let mut old_times = HashMap::new();
    for old in items(old_status, "conditions").iter().filter_map(Value::as_object) {
        if let Some(time) = old.get("lastTransitionTime").filter(|time| !time.is_null()) {
            old_times.entry(identity(old)).or_insert(time);
        }
    }
    for condition in conditions_mut(object) {
        let is_unset = |condition: &Object, field: &str| condition.get(field).is_none_or(Value::is_null);
        if is_unset(condition, "lastUpdateTime") {
            condition.insert("lastUpdateTime".to_owned(), now.clone());
        }
        if is_unset(condition, "lastTransitionTime") {
            let time = old_times.get(&identity(condition)).map_or(&now, |time| *time).clone();
            condition.insert("lastTransitionTime".to_owned(), time);
        }
    }
}

/// Validates a request, or a write of one of its subresources.
fn validate_request(input: &ValidationInput<'_>) -> FieldErrors {
    let (spec, old_spec) = (input.field("spec"), input.old_field("spec"));
    let mut errors = input.metadata_errors();
    let request = text(spec, "request");
    if let Err(why) = check_request(&STANDARD.decode(request).unwrap_or_default()) {
        let shown = if spec["request"].is_null() { BadValue::null() } else { typed_text(request) };
        errors.push(FieldError::invalid(SPEC.child("request"), shown, why));
    }
    errors.append(usage_errors(&texts(spec, "usages"), &texts(old_spec, "usages")));
    let signer = text(spec, "signerName");
    if signer == LEGACY_SIGNER && text(old_spec, "signerName") != LEGACY_SIGNER {
        let why = "the legacy signerName is not allowed via this API version";
        errors.push(FieldError::invalid(SPEC.child("signerName"), signer, why));
    } else {
        errors.append(signer_name_errors(SPEC.child("signerName"), signer));
    }
    let expiration = spec["expirationSeconds"].as_i64();
    if let Some(seconds) = expiration.filter(|seconds| *seconds < MIN_EXPIRATION_SECONDS) {
        let why = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(FieldError::invalid(SPEC.child("expirationSeconds"), seconds, why));
    }
    let (status, old_status) = (input.field("status"), input.old_field("status"));
    errors.append(condition_errors(items(status, "conditions"), items(old_status, "conditions")));
    let (certificate, old_certificate) = (text(status, "certificate"), text(old_status, "certificate"));
    let is_kept = input.old.is_some() && certificate == old_certificate;
    if let (false, Ok(()), Err(why)) = (is_kept, check_certificate(old_certificate), check_certificate(certificate)) {
        errors.push(FieldError::invalid(STATUS.child("certificate"), "<certificate data>", why));
    }
    if input.old.is_some() {
        errors.append(change_errors(input.subresource, status, old_status));
    }
    errors.append(input.metadata_update_errors());
    errors
}

/// The DER of the request of PKCS #10 that is in PEM.
///
/// # Errors
/// Upstream's text about another section, or none.
pub fn read_certificate_request(pem: &[u8]) -> Result<Vec<u8>, String> {
    let no_request = || "PEM block type must be CERTIFICATE REQUEST".to_owned();
    let (kind, der) = <(SectionKind, Vec<u8>)>::from_pem_slice(pem).map_err(|_| no_request())?;
    if kind == SectionKind::Csr { Ok(der) } else { Err(no_request()) }
}

/// Checks that a request is one of PKCS #10 in PEM, signed by its key.
fn check_request(pem: &[u8]) -> Result<(), String> {
    let der = read_certificate_request(pem)?;
    let malformed = || "asn1: structure error: malformed certificate request".to_owned();
    X509CertificationRequest::from_der(&der).map_err(|_| malformed())?;
    let signed = SignedRequest::read(&der).ok_or_else(malformed)?;
    if signed.is_valid() { Ok(()) } else { Err("x509: signature of the certificate request is invalid".to_owned()) }
}

/// The parts of a request, in DER.
struct SignedRequest<'d> {
    /// What is signed.
    info: &'d [u8],
    key_algorithm: &'d [u8],
    key: &'d [u8],
    signature_algorithm: &'d [u8],
    signature: &'d [u8],
}

impl<'d> SignedRequest<'d> {
    fn read(der: &'d [u8]) -> Option<SignedRequest<'d>> {
        let (request, _) = read_element(der)?;
        let (info, rest) = read_element(request.content)?;
        let (signature_algorithm, rest) = read_element(rest)?;
        let (signature, _) = read_element(rest)?;
        let (_version, rest) = read_element(info.content)?;
        let (_subject, rest) = read_element(rest)?;
        let (public_key, _) = read_element(rest)?;
        let (key_algorithm, rest) = read_element(public_key.content)?;
        let (key, _) = read_element(rest)?;
        Some(SignedRequest {
            info: info.whole,
            key_algorithm: key_algorithm.content,
            // The first byte of a bit string counts unused bits.
            key: key.content.get(1..)?,
            signature_algorithm: signature_algorithm.content,
            signature: signature.content.get(1..)?,
        })
    }

    fn is_valid(&self) -> bool {
        webpki::ALL_VERIFICATION_ALGS.iter().any(|algorithm| {
            algorithm.public_key_alg_id().as_ref() == self.key_algorithm
                && algorithm.signature_alg_id().as_ref() == self.signature_algorithm
                && algorithm.verify_signature(self.key, self.info, self.signature).is_ok()
        })
    }
}

/// An element of DER.
struct DerElement<'d> {
    whole: &'d [u8],
    content: &'d [u8],
}

/// The first element, and what follows it.
fn read_element(der: &[u8]) -> Option<(DerElement<'_>, &[u8])> {
    let first = *der.get(1)?;
    let (length, start) = match first {
        0..=0x7f => (usize::from(first), 2),
        0x81..=0x84 => {
            let count = usize::from(first & 0x7f);
            let bytes = der.get(2..2 + count)?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), 2 + count)
        }
        _ => return None,
    };
    let end = start.checked_add(length)?;
    let element = DerElement { whole: der.get(..end)?, content: der.get(start..end)? };
    Some((element, der.get(end..)?))
}

fn usage_errors(usages: &[&str], old_usages: &[&str]) -> FieldErrors {
    let path = SPEC.child("usages");
    let is_unknown = |usages: &[&str]| usages.iter().any(|usage| !USAGES.contains(usage));
    let has_duplicates = |usages: &[&str]| usages.iter().collect::<HashSet<_>>().len() < usages.len();
    let mut errors = FieldErrors::new();
    if usages.is_empty() {
        errors.push(FieldError::required(path, ""));
    }
    if !is_unknown(old_usages) {
        let unknown = usages.iter().enumerate().filter(|(_, usage)| !USAGES.contains(usage));
        errors.extend(
            unknown.map(|(index, usage)| FieldError::not_supported(path.index(index), typed_text(usage), &USAGES)),
        );
    }
    if !has_duplicates(old_usages) {
        let mut seen = HashSet::new();
        let repeated = usages.iter().enumerate().filter(|(_, usage)| !seen.insert(**usage));
        errors.extend(repeated.map(|(index, usage)| FieldError::duplicate(path.index(index), typed_text(usage))));
    }
    errors
}

/// Errors of the name of a signer, a domain and a path (`ValidateSignerName`).
fn signer_name_errors(path: FieldPath<'_>, signer: &str) -> FieldErrors {
    if signer.is_empty() {
        return FieldError::required(path, "").into();
    }
    let Some((domain, name)) = signer.split_once('/').filter(|(_, name)| !name.contains('/')) else {
        let why = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        return FieldError::invalid(path, signer, why).into();
    };
    let mut errors = FieldErrors::new();
    if domain.len() > MAX_DNS_SUBDOMAIN {
        errors.push(FieldError::too_long(path, MAX_DNS_SUBDOMAIN));
    }
    let label_errors = |part: &str, check: fn(&str) -> Vec<String>| {
        let wrong = part.split('.').map(|label| (label, check(label))).find(|(_, sentences)| !sentences.is_empty());
        let (label, sentences) = wrong.unwrap_or_default();
        let text = |why: String| format!("validating label {}: {why}", GoQuoted(label));
        let errors: Vec<FieldError> =
            sentences.into_iter().map(|why| FieldError::invalid(path, part, text(why))).collect();
        errors
    };
    errors.extend(label_errors(domain, check_dns1123_label));
    if !domain.contains('.') {
        let why = "should be a domain with at least two segments separated by dots";
        errors.push(FieldError::invalid(path, domain, why));
    }
    errors.extend(label_errors(name, check_dns1123_subdomain));
    let longest = MAX_DNS_SUBDOMAIN + MAX_DNS_SUBDOMAIN + MAX_DNS_LABEL + 2;
    if signer.len() > longest {
        errors.push(FieldError::too_long(path, longest));
    }
    errors
}

fn condition_errors(conditions: &[Value], old: &[Value]) -> FieldErrors {
    let path = STATUS.child("conditions");
    let types = |conditions: &'_ [Value]| -> Vec<String> {
        conditions.iter().map(|condition| text(condition, "type").to_owned()).collect()
    };
    let old_types = types(old);
    let old_set: HashSet<&str> = old_types.iter().map(String::as_str).collect();
    let is_old = |name: &str| old_set.contains(name);
    let allows_both = is_old("Approved") && is_old("Denied");
    let allows_duplicates = old_types.iter().collect::<HashSet<_>>().len() < old_types.len();
    let mut errors = FieldErrors::new();
    let mut seen = HashSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let (name, status) = (text(condition, "type"), text(condition, "status"));
        let item = path.index(index);
        if name.is_empty() && !is_old("") {
            errors.push(FieldError::required(item.child("type"), ""));
        }
        let statuses = match name {
            "Approved" | "Denied" | "Failed" => &["True"][..],
            _ => &["False", "True", "Unknown"],
        };
        if status.is_empty() {
            errors.push(FieldError::required(item.child("status"), ""));
        } else if !statuses.contains(&status) {
            errors.push(FieldError::not_supported(item.child("status"), typed_text(status), statuses));
        }
        let other = match name {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if !allows_both && !other.is_empty() && seen.contains(other) {
            let why = "Approved and Denied conditions are mutually exclusive";
            errors.push(FieldError::invalid(path, typed_text(name), why));
        }
        if !seen.insert(name) && !allows_duplicates {
            errors.push(FieldError::duplicate(item.child("type"), typed_text(name)));
        }
    }
    errors
}

/// Checks that a certificate in base64 is empty or some blocks of PEM.
fn check_certificate(certificate: &str) -> Result<(), String> {
    let pem = STANDARD.decode(certificate).unwrap_or_default();
    if pem.is_empty() {
        return Ok(());
    }
    let mut count = 0;
    for block in <(SectionKind, Vec<u8>)>::pem_slice_iter(&pem) {
        let Ok((kind, der)) = block else { break };
        if kind != SectionKind::Certificate {
            let name = match kind {
                SectionKind::PublicKey => "PUBLIC KEY",
                SectionKind::RsaPrivateKey => "RSA PRIVATE KEY",
                SectionKind::PrivateKey => "PRIVATE KEY",
                SectionKind::EcPrivateKey => "EC PRIVATE KEY",
                SectionKind::Crl => "X509 CRL",
                SectionKind::Csr => "CERTIFICATE REQUEST",
                _ => "",
            };
            return Err(format!("only CERTIFICATE PEM blocks are allowed, found {}", GoQuoted(name)));
        }
        x509_parser::parse_x509_certificate(&der).map_err(|_| "x509: malformed certificate".to_owned())?;
        count += 1;
    }
    if count == 0 { Err("must contain at least one CERTIFICATE PEM block".to_owned()) } else { Ok(()) }
}

/// Errors of changes of the status that the subresource may not make.
fn change_errors(subresource: &str, status: &Value, old_status: &Value) -> FieldErrors {
    let path = STATUS.child("conditions");
    let of_type = |status: &'_ Value, name: &str| -> Vec<Value> {
        let conditions = items(status, "conditions").iter();
        conditions.filter(|condition| condition["type"] == name).cloned().collect()
    };
    let mut errors = FieldErrors::new();
    for name in ["Approved", "Denied", "Failed"] {
        if of_type(status, name).len() < of_type(old_status, name).len() {
            let why = format!("updates may not remove a condition of type {}", GoQuoted(name));
            errors.push(FieldError::forbidden(path, why));
        }
    }
    for name in ["Approved", "Denied"].into_iter().filter(|_| subresource != "approval") {
        let (new, old) = (of_type(status, name), of_type(old_status, name));
        let what = match new.len() {
            count if count > old.len() => "add",
            count if count == old.len() && new != old => "modify",
            _ => continue,
        };
        let why = format!("updates may not {what} a condition of type {}", GoQuoted(name));
        errors.push(FieldError::forbidden(path, why));
    }
    let (certificate, old_certificate) = (text(status, "certificate"), text(old_status, "certificate"));
    if certificate != old_certificate {
        let path = STATUS.child("certificate");
        if subresource != "status" {
            errors.push(FieldError::forbidden(path, "updates may not set certificate content"));
        } else if !old_certificate.is_empty() {
            errors.push(FieldError::forbidden(path, "updates may not modify existing certificate content"));
        }
    }
    errors
}

fn print_request(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    let has = |name: &str| items_at(object, "/status/conditions").iter().any(|condition| condition["type"] == name);
    let mut status = match (has("Denied"), has("Approved")) {
        (true, _) => "Denied".to_owned(),
        (false, true) => "Approved".to_owned(),
        (false, false) => "Pending".to_owned(),
    };
    if has("Failed") {
        status.push_str(",Failed");
    }
    if !text_at(object, "/status/certificate").is_empty() {
        status.push_str(",Issued");
    }
    let duration = object.pointer("/spec/expirationSeconds").and_then(Value::as_i64);
    vec![
        printer.name(),
        printer.age(),
        first_non_empty(text_at(object, "/spec/signerName"), "<none>").into(),
        text_at(object, "/spec/username").into(),
        duration.map_or_else(|| "<none>".to_owned(), human_duration).into(),
        status.into(),
    ]
}
