//! Bodies of stored objects and what comes with them: JSON, YAML, continue tokens, patches.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};
use kubeapi::continue_token::ContinueToken;
use kubeapi::json::{MAX_JSON_DEPTH, read_json, write_json};
use kubeapi::list_options::ListOptions;
use kubeapi::patch::{JsonPatch, MergePatch, StrategicPatch};
use kubeapi::yaml::read_yaml;
use kubeapi::{CanonicalPath, Query, RequestInfo};
use narthex::authenticate::{
    AuthenticatedUser, Authenticator, GroupFilter, Peer, RequestHeaderConfig, Settings as AuthenticationSettings,
};
use narthex::authorize::{Authorizer, CreateAuthorization, EffectiveUser};
use narthex::controllers::Controllers;
use narthex::observe::audit::AuditAnnotations;
use narthex::observe::metrics::WorkQueueRegistry;
use narthex::process::{Drain, Published};
use narthex::resources::builtin::{builtin_kinds, merge_schema};
use narthex::rest::{ApiRequest, ApiServer, ApiServerSettings, DEFAULT_KEY_ROOT, FailedRequest, ServiceSettings};
use narthex::route::Dealer;
use narthex::tls::ClientTrust;
use serde_json::Value;
use store::MemoryStore;
use store::watch_cache::{Collections, HistoryLimits};

use crate::{fuzz_bytes, fuzz_text, text_from_words};

const JSON: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "{",
    "}",
    "{\"a\":",
    "\"a\":1,",
    "\"b\":[",
    "\"\"",
    "null",
    "true",
    "-0",
    "1e5",
    "1.0",
    "9223372036854775808",
    "\"\\ud800\"",
    "\"\\u00e9\"",
    "\"é\"",
    " ",
    "\"<&>\"",
];

const YAML: &[&str] = &[
    "a: ",
    "b:\n",
    "- ",
    "  ",
    "\n",
    "\n  ",
    "{",
    "}",
    "[",
    "]",
    ", ",
    "&x ",
    "*x",
    "<<: ",
    "<<: *x\n",
    "? ",
    "!!str ",
    "!!binary ",
    "yes",
    "0o17",
    "017",
    "1_000",
    "~",
    "'",
    "\"",
    "|\n",
    ">-\n",
    "# c\n",
    "---\n",
    "...\n",
    "2026-01-01",
    ".inf",
    "\t",
    "%",
    "@",
    ": ",
];

/// Words of a Service, which has map lists, sets and atomic fields, and of the directives of a strategic merge patch.
const PATCH: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    "{",
    "}",
    "\"spec\":{",
    "\"ports\":[",
    "{\"port\":80},",
    "{\"port\":81,\"protocol\":\"UDP\"}",
    "\"selector\":{",
    "\"metadata\":{",
    "\"labels\":{",
    "\"finalizers\":[",
    "\"a\",",
    "\"a\"",
    "\"b\":",
    "null",
    "1",
    "\"$patch\":\"delete\"",
    "\"$patch\":\"replace\"",
    "\"$retainKeys\":[",
    "\"$setElementOrder/ports\":[",
    "\"$setElementOrder/finalizers\":[",
    "\"$deleteFromPrimitiveList/finalizers\":[",
    "\"port\":80",
    "\"name\":\"x\"",
    "\"conditions\":[",
    "{\"type\":\"A\"}",
];

const JSON_PATCH: &[&str] = &[
    "[",
    "]",
    "{",
    "}",
    ",",
    "{\"op\":\"add\",",
    "{\"op\":\"copy\",",
    "{\"op\":\"move\",",
    "{\"op\":\"remove\",",
    "{\"op\":\"test\",",
    "{\"op\":\"replace\",",
    "\"path\":\"/spec\"",
    "\"path\":\"/spec/ports/-\"",
    "\"path\":\"/spec/ports/0\"",
    "\"path\":\"/~1~0\"",
    "\"path\":\"\"",
    ",\"from\":\"/spec\"",
    ",\"from\":\"\"",
    ",\"value\":1}",
    ",\"value\":{\"a\":[]}}",
    "}",
];

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn service() -> Value {
    serde_json::json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "labels": {"a": "b"}, "finalizers": ["a", "c"]},
        "spec": {"ports": [{"port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "UDP"}], "selector": {"a": "b"}},
    })
}

#[test]
fn json_documents() {
    fuzz_text(JSON, |text| {
        let Ok((value, findings)) = read_json(text.as_bytes()) else { return };
        assert!(depth(&value) <= MAX_JSON_DEPTH);
        let theirs: Value = serde_json::from_str(text).unwrap_or(Value::Null);
        if !text.contains("\\ud800") {
            assert_eq!(depth(&theirs), depth(&value), "{text}");
        }
        let _ = findings.messages().count();
        let again = read_json(write_json(&value).as_bytes()).expect("what is written can be read").0;
        assert_eq!(write_json(&again), write_json(&value));
    });
    fuzz_bytes(|bytes| drop(read_json(bytes)));
}

#[test]
fn yaml_documents() {
    fuzz_text(YAML, |text| {
        let Ok(document) = read_yaml(text) else { return };
        assert!(depth(&document.value) <= MAX_JSON_DEPTH);
        let _ = document.strict_error();
        read_json(write_json(&document.value).as_bytes()).expect("YAML becomes JSON");
    });
}

#[test]
fn json_is_yaml() {
    fuzz_text(JSON, |text| {
        // Numbers, keys and surrogates are where the two differ.
        if text.contains(|letter: char| letter.is_ascii_digit() || letter == '\\') {
            return;
        }
        if let (Ok((json, findings)), Ok(yaml)) = (read_json(text.as_bytes()), read_yaml(text))
            && findings.duplicates.is_empty()
        {
            assert_eq!(json, yaml.value, "{text}");
        }
    });
}

#[test]
fn continue_tokens() {
    const WORDS: &[&str] = &[
        "{\"v\":\"meta.k8s.io/v1\",",
        "\"rv\":1,",
        "\"rv\":-1,",
        "\"rv\":0",
        "\"start\":\"",
        "a",
        "/",
        "..",
        ".",
        "\\u0000",
        "\"}",
        "\"",
        "}",
        "9223372036854775808",
        "null",
    ];
    fuzz_text(WORDS, |text| {
        for token in [text.to_owned(), URL_SAFE_NO_PAD.encode(text)] {
            let Ok(token) = ContinueToken::decode(&token) else { continue };
            let segments = token.start.strip_prefix('/').expect("a path");
            assert!(segments.is_empty() || segments.split('/').all(|segment| !matches!(segment, "" | "." | "..")));
            assert_eq!(ContinueToken::decode(&token.encode()).expect("our own"), token);
        }
    });
}

#[test]
fn list_options() {
    const WORDS: &[&str] = &[
        "&limit=",
        "&continue=",
        "&resourceVersion=",
        "&resourceVersionMatch=",
        "&watch=",
        "&sendInitialEvents=",
        "&allowWatchBookmarks=",
        "&timeoutSeconds=",
        "&labelSelector=",
        "&fieldSelector=",
        "1",
        "0",
        "-1",
        "true",
        "x",
        "Exact",
        "NotOlderThan",
        "18446744073709551615",
        "18446744073709551616",
        "a%3Db",
        "metadata.name%3Da",
        ",",
    ];
    fuzz_text(WORDS, |text| {
        let query = Query::parse(text);
        if let Ok(options) = ListOptions::parse(&query) {
            let _ = (options.list_version(), options.watch_version(), options.check_continue());
        }
    });
}

#[test]
fn strategic_merge_patches() {
    let message = builtin_kinds().find("", "v1", "services").unwrap().version.message().unwrap();
    fuzz_text(PATCH, |text| {
        let Ok((patch, _)) = StrategicPatch::parse(text.as_bytes()) else { return };
        let Value::Object(object) = service() else { return };
        if let Ok(patched) = patch.apply(object, merge_schema(message).unwrap()) {
            let text = write_json(&Value::Object(patched));
            read_json(text.as_bytes()).expect("within the limits of a document");
        }
    });
}

#[test]
fn json_and_merge_patches() {
    fuzz_bytes(|bytes| {
        let text = text_from_words(bytes, JSON_PATCH);
        if let Ok((patch, _)) = JsonPatch::parse(text.as_bytes(), true)
            && let Ok(patched) = patch.apply(service())
        {
            read_json(write_json(&patched).as_bytes()).expect("within the limits of a document");
        }
        let text = text_from_words(bytes, PATCH);
        if let (Ok((patch, _)), Value::Object(object)) = (MergePatch::parse(text.as_bytes()), service()) {
            let patched = Value::Object(patch.apply(object));
            read_json(write_json(&patched).as_bytes()).expect("within the limits of a document");
        }
    });
}

/// Parts of objects, some of which fit the kinds below.
const OBJECT: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    "{\"apiVersion\":\"v1\",",
    "\"metadata\":{\"name\":\"a\"}",
    "\"metadata\":{\"name\":\"a\",",
    "\"metadata\":{\"generateName\":\"g-\"}",
    "\"labels\":{\"a\":\"b\"}",
    "\"annotations\":{\"a/b/c\":\"\"}",
    "\"finalizers\":[\"a/b\"]",
    "\"resourceVersion\":\"1\"",
    "\"uid\":\"u\"",
    "\"deletionTimestamp\":\"x\"",
    "\"ownerReferences\":[{}]",
    "\"managedFields\":[{}]",
    "\"data\":{\"k\":\"v\"}",
    "\"data\":{\"..\":\"v\"}",
    "\"binaryData\":{\"k\":\"AA==\"}",
    "\"immutable\":true",
    "\"spec\":{",
    "\"leaseDurationSeconds\":15",
    "\"renewTime\":\"2026-01-01T00:00:00.000000Z\"",
    "\"ports\":[{\"port\":80}]",
    "\"kind\":\"Pod\",",
    "null",
    "\"\"",
    "1",
];

const PATHS: [&str; 4] = [
    "/api/v1/namespaces/default/configmaps",
    "/api/v1/namespaces/default/services",
    "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    "/api/v1/namespaces",
];

const MEDIA_TYPES: [&str; 6] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

/// Requests to the embedded API server, with its checks in front of the store and behind it.
#[test]
fn stored_object_requests() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let settings = ApiServerSettings {
        key_root: DEFAULT_KEY_ROOT.into(),
        shares_store: false,
        is_read_only: false,
        event_ttl: Duration::from_secs(60),
        min_request_timeout: Duration::from_secs(60),
        request_timeout: Duration::from_secs(60),
        catalog: Arc::default(),
        validation: narthex::kinds::ValidationSettings::default(),
        has_collector: false,
        warns_unenforced: true,
        // No controller runs that makes accounts.
        disabled_plugins: narthex::rest::DisabledPlugins::parse(&["ServiceAccount".to_owned()]).unwrap(),
        // More addresses than there are Services.
        services: ServiceSettings { primary_range: "10.0.0.0/8".parse().unwrap(), ..ServiceSettings::default() },
    };
    let (_drainer, drain) = Drain::new();
    let clock: store::Clock = Arc::new(|| 1_000_000);
    let store = Arc::new(MemoryStore::new());
    let api = ApiServer::new(Collections::new(store, HistoryLimits::default(), clock), settings, drain);
    let enabled = narthex::controllers::EnabledControllers::default();
    local.block_on(&runtime, Controllers::start(&api, None, enabled, &WorkQueueRegistry::default())).unwrap();
    let notifier = api.collections().notifier();
    let user = local.block_on(&runtime, anonymous_user());
    let fixture = std::panic::AssertUnwindSafe((runtime, local, api, notifier, user));
    bolero::check!().with_iterations(2000).with_max_len(24).for_each(move |bytes: &[u8]| {
        let std::panic::AssertUnwindSafe((runtime, local, api, notifier, user)) = &fixture;
        let [kind, verb, rest @ ..] = bytes else { return };
        let media_type = MEDIA_TYPES[usize::from(*verb) % MEDIA_TYPES.len()];
        let body = match media_type {
            "application/yaml" => text_from_words(rest, YAML).into_bytes(),
            "application/vnd.kubernetes.protobuf" => [b"k8s\0", rest].concat(),
            _ => text_from_words(rest, OBJECT).into_bytes(),
        };
        let is_patch = media_type.contains("patch");
        let method = match (is_patch, verb % 2) {
            (true, _) => Method::PATCH,
            (false, 0) => Method::PUT,
            (false, _) => Method::POST,
        };
        let collection = PATHS[usize::from(*kind) % PATHS.len()];
        let path = if method == Method::POST { collection.to_owned() } else { format!("{collection}/a") };
        let path = CanonicalPath::parse(&path).unwrap();
        let query = Query::parse(["", "fieldValidation=Strict", "dryRun=All"][usize::from(*kind / 16) % 3]);
        let info = RequestInfo::parse(&method, &path, &query).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        let hand = Dealer::default().hand("fuzz");
        let response = local.block_on(runtime, async {
            let authorizer = Authorizer::default();
            let actor = EffectiveUser::from_authenticated(user).unwrap();
            let permit = authorizer.authorize(&actor, info).await.unwrap();
            let (info, creation) = (permit.request(), &CreateAuthorization::new(&authorizer, &permit));
            let (query, headers) = (&query, &headers);
            let audit = &AuditAnnotations::default();
            let body = body.into();
            let request = ApiRequest { info, query, headers, body, hand, deadline: None, creation, audit };
            api.respond(&request, notifier).await
        });
        if let Err(FailedRequest { status, .. }) = response {
            // Directives that do not fit the object are 500, as upstream.
            let is_unmergeable = is_patch && status.code == 500 && status.reason.is_empty();
            assert!(status.code < 500 || is_unmergeable, "{status:?}");
        }
    });
}

/// The user of requests without credentials.
async fn anonymous_user() -> AuthenticatedUser {
    let authenticator = Authenticator::new(AuthenticationSettings {
        trust: Published::new(ClientTrust::default()).1,
        request_headers: RequestHeaderConfig::default(),
        tokens: None,
        service_accounts: None,
        jwt: None,
        group_filter: GroupFilter::default(),
        token_reviews: Vec::new(),
        audiences: Vec::new(),
        anonymous: true,
        auth_header_names: Vec::new(),
    });
    let peer = Peer::new(([127, 0, 0, 1], 1).into(), Vec::new());
    authenticator.authenticate(&peer, "/", &mut HeaderMap::new()).await.expect("anonymous requests are allowed")
}
