//! Sends requests to one server and records the responses without what differs from run to run: uids and resource
//! versions are named after the request that saw them first, times and managedFields are left out.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use base64::Engine as _;
use regex::{Captures, Regex};
use serde_json::{Map, Value, json};

use super::request_file::RequestRow;
use crate::environment::{HttpResponse, HttpsEndpoint, Identity, eventually};

/// Headers that are compared.
const HEADERS: [&str; 8] = [
    "accept-patch",
    "allow",
    "cache-control",
    "content-encoding",
    "content-type",
    "location",
    "retry-after",
    "warning",
];

/// Requests of one server, in order.
pub(super) struct Recorder<'e> {
    endpoint: &'e HttpsEndpoint,
    identity: &'e Identity,
    /// Responses by the name of their request.
    responses: BTreeMap<String, Value>,
    /// Names of uids and resource versions.
    aliases: BTreeMap<String, String>,
    /// Title of the request whose response is read.
    title: String,
}

impl<'e> Recorder<'e> {
    pub(super) fn new(endpoint: &'e HttpsEndpoint, identity: &'e Identity) -> Recorder<'e> {
        let (responses, aliases, title) = Default::default();
        Recorder { endpoint, identity, responses, aliases, title }
    }

    /// Sends the requests; consecutive concurrent ones together. Returns `{status, headers, body}` of each.
    pub(super) fn record(&mut self, rows: &[RequestRow]) -> Vec<Value> {
        let mut recorded = Vec::new();
        for group in rows.chunk_by(|one, next| one.is_concurrent && next.is_concurrent) {
            let requests: Vec<RequestRow> = group.iter().map(|row| self.with_values(row)).collect();
            let send = |row: &RequestRow| send(self.endpoint, self.identity, row);
            let responses: Vec<HttpResponse> = std::thread::scope(|scope| {
                let sent: Vec<_> = requests.iter().map(|row| scope.spawn(move || send(row))).collect();
                sent.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            for (row, response) in requests.iter().zip(responses) {
                let body = body_value(&response);
                if !row.name.is_empty() {
                    self.responses.insert(row.name.clone(), body.clone());
                }
                self.title.clone_from(&row.title);
                recorded.push(self.normalized(&response, body));
            }
        }
        recorded
    }

    /// The request with values of earlier responses.
    fn with_values(&self, row: &RequestRow) -> RequestRow {
        let fill = |text: &str| self.fill(text, &row.title);
        RequestRow {
            path: fill(&row.path),
            headers: row.headers.iter().map(|(name, value)| (name.clone(), fill(value))).collect(),
            body: fill(&row.body),
            ..row.clone()
        }
    }

    fn fill(&self, text: &str, title: &str) -> String {
        static PLACEHOLDER: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\{\{([^{}]+)\}\}").unwrap());
        let value = |found: &Captures<'_>| {
            let words: Vec<&str> = found[1].split(' ').collect();
            if let ["repeat", text, count] = words[..] {
                return text.repeat(count.parse().unwrap());
            }
            let (name, path) = found[1].split_once('.').unwrap_or_else(|| panic!("{title}: {{{{{}}}}}", &found[1]));
            let value = self.responses.get(name).map(|body| body.pointer(&format!("/{}", path.replace('.', "/"))));
            match value.flatten() {
                Some(Value::String(text)) => text.clone(),
                Some(value) => value.to_string(),
                None => panic!("{title}: no value {:?} in {:?}", &found[1], self.responses.get(name)),
            }
        };
        PLACEHOLDER.replace_all(text, value).into_owned()
    }

    fn normalized(&mut self, response: &HttpResponse, mut body: Value) -> Value {
        self.normalize(&mut body, "");
        let headers: Map<String, Value> = HEADERS
            .iter()
            .filter_map(|name| {
                let values: Vec<&str> =
                    response.headers.get_all(*name).iter().filter_map(|value| value.to_str().ok()).collect();
                (!values.is_empty()).then(|| ((*name).to_owned(), json!(values)))
            })
            .collect();
        json!({"status": response.status.as_u16(), "headers": headers, "body": body})
    }

    fn normalize(&mut self, value: &mut Value, field: &str) {
        match value {
            Value::Object(fields) => {
                fields.remove("managedFields");
                sort_causes(fields);
                // Several controllers of kube-apiserver add them.
                if let Some(Value::Array(conditions)) = fields.get_mut("conditions") {
                    conditions.sort_by_key(|condition| condition["type"].to_string());
                }
                // kube-apiserver has them in the order of a Go map.
                for field in ["resourceRules", "nonResourceRules"] {
                    if let Some(Value::Array(rules)) = fields.get_mut(field) {
                        rules.sort_by_key(Value::to_string);
                    }
                }
                let is_object = fields.contains_key("name");
                for (key, value) in fields.iter_mut() {
                    match (key.as_str(), value.as_str()) {
                        ("resourceVersion", Some("" | "0")) => {}
                        ("resourceVersion", Some(version)) => {
                            *value = match is_object {
                                true => self.alias("version", version).into(),
                                false => "VERSION".into(),
                            }
                        }
                        (
                            "uid" | "jti" | "controller-uid" | "batch.kubernetes.io/controller-uid" | "name",
                            Some(uid),
                        ) if is_uuid(uid) => {
                            *value = self.alias("uid", uid).into();
                        }
                        ("continue", Some(token)) if !token.is_empty() => *value = "CONTINUE".into(),
                        (
                            "creationTimestamp"
                            | "deletionTimestamp"
                            | "expirationTimestamp"
                            | "lastTransitionTime"
                            | "timeAdded",
                            Some(_),
                        ) => *value = "TIME".into(),
                        ("token", Some(token)) => {
                            *value = token_claims(token);
                            self.normalize(value, key);
                        }
                        _ => self.normalize(value, key),
                    }
                }
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.normalize(value, field)),
            Value::String(text) => *text = self.normalized_text(text, field),
            _ => {}
        }
    }

    /// What stands for a value: the request whose response had it first, and its place among those of the response.
    fn alias(&mut self, what: &str, value: &str) -> String {
        let prefix = format!("{what} of {} #", self.title);
        let place = self.aliases.values().filter(|alias| alias.starts_with(&prefix)).count();
        self.aliases.entry(format!("{what} {value}")).or_insert_with(|| format!("{prefix}{place}")).clone()
    }

    fn normalized_text(&mut self, text: &str, field: &str) -> String {
        static UUID: LazyLock<Regex> =
            LazyLock::new(|| Regex::new("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").unwrap());
        static VERSION: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"((?:version|current|ResourceVersion)[a-z ]*: |in record \()\d+").unwrap());
        static AGE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^(\d+[dhm])?\d+[hms]$").unwrap());
        static TIME: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| \+0000 UTC)").unwrap());
        if field == "cells" && AGE.is_match(text) {
            return "AGE".to_owned();
        }
        if field == "cells" && TIME.find(text).is_some_and(|time| time.as_str() == text) {
            return "TIME".to_owned();
        }
        // Cells, the error of a TokenReview, what is known of a user.
        if field == "cells" || field == "error" || field.starts_with("authentication.kubernetes.io/") {
            return UUID.replace_all(text, |found: &Captures<'_>| self.alias("uid", &found[0])).into_owned();
        }
        if field != "message" {
            return text.to_owned();
        }
        static OBJECT: LazyLock<Regex> = LazyLock::new(|| {
            Regex::new(r#"(patch: Invalid value: |^Invalid value: )"(map\[|\{)(\\.|[^"\\])*""#).unwrap()
        });
        let text = OBJECT.replace_all(text, "${1}OBJECT");
        let text = UUID.replace_all(&text, |found: &Captures<'_>| self.alias("uid", &found[0]));
        let text = TIME.replace_all(&text, "TIME");
        VERSION.replace_all(&text, "${1}VERSION").into_owned()
    }
}

/// The claims of a service account token, with times from its issue on; any other text as it is.
fn token_claims(token: &str) -> Value {
    let parts: Vec<&str> = token.split('.').collect();
    let payload = match parts[..] {
        [_, payload, _] => base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(payload).ok(),
        _ => None,
    };
    let claims = payload.and_then(|payload| serde_json::from_slice::<Value>(&payload).ok());
    let Some((mut claims, issued)) = claims.and_then(|claims| claims["iat"].as_i64().map(|issued| (claims, issued)))
    else {
        return token.into();
    };
    for time in ["/iat", "/nbf", "/exp", "/kubernetes.io/warnafter"] {
        if let Some(value) = claims.pointer_mut(time)
            && let Some(seconds) = value.as_i64()
        {
            *value = (seconds - issued).into();
        }
    }
    claims
}

/// Sorts the causes in a Status about a custom resource or a CRD: kube-apiserver has them in the order of a Go map.
fn sort_causes(status: &mut Map<String, Value>) {
    let group = status.get("details").and_then(|details| details["group"].as_str()).unwrap_or_default();
    if !group.ends_with(".example.com") && group != "apiextensions.k8s.io" {
        return;
    }
    if let Some(Value::Array(causes)) = status.get_mut("details").map(|details| &mut details["causes"]) {
        causes.sort_by_key(|cause| format!("{} {}", cause["field"], cause["message"]));
    }
    if let Some(Value::String(message)) = status.get_mut("message")
        && let Some((head, causes)) = message.split_once(" is invalid: [")
    {
        let mut causes: Vec<&str> = causes.trim_end_matches(']').split(", ").collect();
        causes.sort_unstable();
        *message = format!("{head} is invalid: [{}]", causes.join(", "));
    }
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36 && text.matches('-').count() == 4
}

/// Sends the request until the response is the one that is waited for. kube-apiserver refuses requests while it reads the
/// objects of a changed CRD, also if it cannot read them.
fn send(endpoint: &HttpsEndpoint, identity: &Identity, row: &RequestRow) -> HttpResponse {
    eventually(&row.title, || {
        let response = send_once(endpoint, identity, row);
        let text = format!("{} {}", response.status.as_u16(), response.text());
        let is_ready = response.status != 429
            || !text.contains("storage is (re)initializing")
            || text.contains("initializing: failed to list");
        let is_met = |wanted: &String| match wanted.parse::<u16>() {
            Ok(code) => response.status == code,
            Err(_) => text.contains(wanted),
        };
        if is_ready && row.until.iter().all(is_met) { Ok(response) } else { Err(text) }
    })
}

fn send_once(endpoint: &HttpsEndpoint, identity: &Identity, row: &RequestRow) -> HttpResponse {
    let headers: Vec<(&str, &str)> = row.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
    let body = match row.is_base64 {
        true => base64::engine::general_purpose::STANDARD.decode(&row.body).unwrap(),
        false => row.body.clone().into_bytes(),
    };
    let response = endpoint.send(Some(identity), &row.method, &row.path, &headers, &body);
    response.unwrap_or_else(|error| panic!("{}: {} {}: {error}", row.title, row.method, row.path))
}

/// Whether an event is a bookmark that marks no end of initial events. kube-apiserver sends these by the clock, sometimes
/// within a watch of one second.
fn is_periodic_bookmark(event: &Value) -> bool {
    event["type"] == "BOOKMARK" && event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"].is_null()
}

/// The body as JSON; a list of documents for a stream of them; text for anything else. YAML is named so.
fn body_value(response: &HttpResponse) -> Value {
    let media_type = response.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    if media_type.starts_with("application/yaml")
        && let Ok(document) = serde_saphyr::from_slice::<Value>(&response.body)
    {
        return json!({ "yaml": document });
    }
    let documents = serde_json::Deserializer::from_slice(&response.body).into_iter::<Value>();
    let is_stream = response.headers.get("transfer-encoding").is_some() && !response.body.starts_with(b"{\"kind\"");
    match documents.collect::<Result<Vec<Value>, _>>() {
        Ok(mut documents)
            if documents.iter().all(|document| {
                document.get("type").is_some_and(Value::is_string) && document.get("object").is_some()
            }) =>
        {
            documents.retain(|event| !is_periodic_bookmark(event));
            json!({ "events": documents })
        }
        Ok(mut documents) if documents.len() == 1 && !is_stream => documents.remove(0),
        Ok(mut documents) if documents.len() == 1 => documents.remove(0),
        _ if response.body.starts_with(b"k8s\0") => "protobuf".into(),
        _ => response.text().into(),
    }
}
