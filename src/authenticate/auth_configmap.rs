//! Watches ConfigMap `kube-system/extension-apiserver-authentication` for client and request-header CAs.
//!
//! Parsed like `k8s.io/apiserver/pkg/server/options` and `pkg/authentication/request/headerrequest`, except that trust
//! can shrink: a CA removed from the ConfigMap is untrusted at once, and after [`DELETION_GRACE`] when the ConfigMap is deleted.
//! Upstream keeps the last CAs for the life of the process.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};

use super::RequestHeaderNames;
use crate::egress::EndpointResponse;
use crate::kubeclient::{CallError, CallPolicy, Client};
use crate::observe::metrics::CallHealth;
use crate::process::{Problem, Problems, Publisher};
use crate::tls::Bundle;
use crate::tls::server::{ClusterTrust, FrontProxies};

/// The ConfigMap's name in messages.
const CONFIG_MAP: &str = "configmap/extension-apiserver-authentication in kube-system";
const PATH: &str =
    "/api/v1/namespaces/kube-system/configmaps?fieldSelector=metadata.name%3Dextension-apiserver-authentication";
/// How long the CAs of a deleted ConfigMap stay trusted: kube-apiserver deletes and recreates it when it has grown too
/// large.
const DELETION_GRACE: Duration = Duration::from_secs(300);
/// The `timeoutSeconds` of one watch.
const WATCH_SECONDS: u64 = 540;
/// A watch without events for this long is closed; bookmarks come every minute.
const WATCH_IDLE_TIMEOUT: Duration = Duration::from_secs(150);
/// The maximum size of a watch event.
const MAX_EVENT_BYTES: usize = 4 << 20;
/// Initial and maximum backoff after a failure.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The error of reading the ConfigMap.
#[derive(Debug)]
pub struct AuthConfigMapError(String);

/// Watches the ConfigMap; created by [`load_auth_configmap`].
pub struct AuthConfigMapWatcher {
    client: Rc<Client>,
    health: Arc<CallHealth>,
    /// The trust last published, or to be published.
    cluster_trust: ClusterTrust,
    resource_version: String,
    /// Since when the ConfigMap is absent while its CAs are still trusted.
    absent_since: Option<Instant>,
    logged_problems: Option<Problems>,
}

#[derive(Deserialize)]
struct ConfigMapList {
    metadata: Metadata,
    #[serde(default)]
    items: Option<Vec<ConfigMap>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    resource_version: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ConfigMap {
    metadata: Metadata,
    data: Option<ConfigMapData>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "kebab-case", default)]
struct ConfigMapData {
    client_ca_file: String,
    requestheader_client_ca_file: String,
    requestheader_username_headers: String,
    requestheader_uid_headers: String,
    requestheader_group_headers: String,
    requestheader_extra_headers_prefix: String,
    requestheader_allowed_names: String,
}

#[derive(Deserialize)]
struct ConfigMapEvent<'e> {
    r#type: String,
    #[serde(borrow)]
    object: &'e serde_json::value::RawValue,
}

/// Reads the ConfigMap for the first time. Its absence is no error: it may be created later.
///
/// # Errors
/// When the API server cannot be read; [`AuthConfigMapWatcher::new`] starts without it.
pub async fn load_auth_configmap(
    client: Rc<Client>,
    health: Arc<CallHealth>,
) -> Result<AuthConfigMapWatcher, AuthConfigMapError> {
    let mut following = AuthConfigMapWatcher::new(client, health);
    following.list().await?;
    Ok(following)
}

impl AuthConfigMapWatcher {
    /// Creates a watcher that trusts no CA until the ConfigMap can be read.
    pub fn new(client: Rc<Client>, health: Arc<CallHealth>) -> AuthConfigMapWatcher {
        let (announced, version) = (ClusterTrust::default(), String::new());
        AuthConfigMapWatcher {
            client,
            health,
            cluster_trust: announced,
            resource_version: version,
            absent_since: None,
            logged_problems: None,
        }
    }

    /// Returns the trust of the ConfigMap as last read.
    pub fn cluster_trust(&self) -> &ClusterTrust {
        &self.cluster_trust
    }

    /// Publishes the trust of the ConfigMap whenever it changes; never returns.
    pub async fn run(mut self, publisher: Publisher<ClusterTrust>) {
        let mut published = publisher.reader().get().as_ref().clone();
        let mut pause = RETRY_BACKOFF.0;
        loop {
            let watched = !self.resource_version.is_empty();
            let result = if watched { self.watch().await } else { self.list().await };
            if let (true, Err(AuthConfigMapError(why))) = (watched, &result) {
                self.health.record_quietly(self.client.server(), Err(why), Duration::ZERO);
            }
            if self.absent_since.is_some_and(|since| since.elapsed() >= DELETION_GRACE) {
                tracing::warn!("{CONFIG_MAP} absent for more than 5m; its CAs are no longer trusted");
                (self.cluster_trust, self.absent_since) = (ClusterTrust::default(), None);
            }
            if self.cluster_trust != published {
                published = self.cluster_trust.clone();
                tracing::info!(
                    client = ?published.client,
                    front_proxies = ?published.front_proxies.as_ref().map(|it| &it.ca_bundle),
                    "client and request-header CAs updated from {CONFIG_MAP}"
                );
                publisher.publish(Arc::new(published.clone()));
            }
            match result {
                Ok(()) => pause = RETRY_BACKOFF.0,
                Err(AuthConfigMapError(why)) => {
                    tracing::warn!(why, "watching {CONFIG_MAP} failed; the CAs read last stay trusted");
                    // List again: the resource version may be too old to continue from.
                    self.resource_version.clear();
                    sleep(pause.mul_f64(0.8 + 0.4 * fastrand::f64())).await;
                    pause = (pause * 2).min(RETRY_BACKOFF.1);
                }
            }
        }
    }

    async fn list(&mut self) -> Result<(), AuthConfigMapError> {
        let began = Instant::now();
        let result = self.fetch_list().await;
        let failure = result.as_ref().map(drop).map_err(|AuthConfigMapError(why)| why.as_str());
        // The caller logs the failure.
        self.health.record_quietly(self.client.server(), failure, began.elapsed());
        result
    }

    async fn fetch_list(&mut self) -> Result<(), AuthConfigMapError> {
        let called = self.client.call(http::Method::GET, PATH, None, CallPolicy::default(), |_, _| {}).await;
        let answer = called.map_err(|error| call_error(&error))?;
        if answer.status == 403 {
            let advice = format!(
                "Unable to get {CONFIG_MAP}.  Usually fixed by 'kubectl create rolebinding -n kube-system ROLEBINDING_NAME \
                 --role=extension-apiserver-authentication-reader --serviceaccount=YOUR_NS:YOUR_SA': {}",
                answer.describe()
            );
            return Err(AuthConfigMapError(advice));
        }
        if !answer.is_success() {
            return Err(AuthConfigMapError(answer.describe()));
        }
        let list: ConfigMapList = serde_json::from_slice(&answer.body).map_err(|error| decode_error(&error))?;
        self.resource_version = list.metadata.resource_version;
        match list.items.and_then(|items| items.into_iter().next()) {
            Some(found) => self.apply(&found.data.unwrap_or_default()),
            None => self.on_deleted(),
        }
        Ok(())
    }

    /// Waits for one watch event, or until the watch is idle. Each event gets a new watch: events are rare.
    async fn watch(&mut self) -> Result<(), AuthConfigMapError> {
        let path = format!(
            "{PATH}&watch=true&allowWatchBookmarks=true&resourceVersion={}&timeoutSeconds={WATCH_SECONDS}",
            self.resource_version
        );
        let began = Instant::now();
        let EndpointResponse { response, guard: lease, .. } =
            self.client.open(&path, CallPolicy::default().attempt_timeout).await.map_err(|error| call_error(&error))?;
        if !response.status().is_success() {
            return Err(AuthConfigMapError(format!(
                "the API server answered a watch with {}",
                response.status().as_u16()
            )));
        }
        self.health.record_quietly(self.client.server(), Ok(()), began.elapsed());
        let mut body = response.into_body();
        let mut text = Vec::new();
        loop {
            // While the ConfigMap is absent, wake up when the grace period ends.
            let wait = self.absent_since.map_or(WATCH_IDLE_TIMEOUT, |since| {
                DELETION_GRACE.saturating_sub(since.elapsed()).min(WATCH_IDLE_TIMEOUT)
            });
            let Ok(frame) = timeout(wait, body.frame()).await else {
                // Resets the stream; the next watch continues from the same resource version.
                drop(lease);
                return Ok(());
            };
            let Some(frame) = frame else { return Ok(()) };
            let frame = frame.map_err(|error| AuthConfigMapError(format!("the watch failed: {error}")))?;
            let Ok(data) = frame.into_data() else { continue };
            text.extend_from_slice(&data);
            if text.len() > MAX_EVENT_BYTES {
                return Err(AuthConfigMapError(format!("an event is longer than {MAX_EVENT_BYTES} bytes")));
            }
            let mut changed = false;
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                changed |= self.handle_event(&line)?;
            }
            if changed {
                return Ok(());
            }
        }
    }

    /// Handles a watch event; returns whether it changed the trust.
    fn handle_event(&mut self, line: &[u8]) -> Result<bool, AuthConfigMapError> {
        let event: ConfigMapEvent<'_> = serde_json::from_slice(line).map_err(|error| decode_error(&error))?;
        if event.r#type == "ERROR" {
            return Err(AuthConfigMapError("the watch ended with an error".to_owned()));
        }
        let object: ConfigMap = serde_json::from_str(event.object.get()).map_err(|error| decode_error(&error))?;
        if !object.metadata.resource_version.is_empty() {
            self.resource_version = object.metadata.resource_version;
        }
        match &*event.r#type {
            "ADDED" | "MODIFIED" => self.apply(&object.data.unwrap_or_default()),
            "DELETED" => self.on_deleted(),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn apply(&mut self, data: &ConfigMapData) {
        self.absent_since = None;
        let (announced, problems) = parse_data(data, &self.cluster_trust);
        self.cluster_trust = announced;
        if problems.0.is_empty() {
            self.logged_problems = None;
        } else if self.logged_problems.as_ref() != Some(&problems) {
            problems.log(&format!("{CONFIG_MAP} has invalid values; their last valid values stay in use"));
            self.logged_problems = Some(problems);
        }
    }

    fn on_deleted(&mut self) {
        if self.cluster_trust != ClusterTrust::default() && self.absent_since.is_none() {
            tracing::warn!(grace = ?DELETION_GRACE, "{CONFIG_MAP} was deleted; its CAs stay trusted during the grace period");
            self.absent_since = Some(Instant::now());
        }
    }
}

impl std::fmt::Display for AuthConfigMapError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn call_error(error: &CallError) -> AuthConfigMapError {
    AuthConfigMapError(error.to_string())
}

fn decode_error(error: &serde_json::Error) -> AuthConfigMapError {
    AuthConfigMapError(format!("{CONFIG_MAP} cannot be decoded: {error}"))
}

/// Parses the data. A missing CA is not trusted; an invalid value keeps its value from `before`.
fn parse_data(data: &ConfigMapData, before: &ClusterTrust) -> (ClusterTrust, Problems) {
    let mut problems = Problems::default();
    let place = |key: &str| format!("{CONFIG_MAP}, {key}");
    let mut bundle = |key: &str, pem: &str, before: Option<Bundle>| {
        if pem.trim().is_empty() {
            return None;
        }
        problems.collect(Bundle::from_pem(pem.as_bytes(), place(key))).or(before)
    };
    let client = bundle("client-ca-file", &data.client_ca_file, before.client.clone());
    let theirs = before.front_proxies.as_ref();
    let authorities = bundle(
        "requestheader-client-ca-file",
        &data.requestheader_client_ca_file,
        theirs.map(|theirs| theirs.ca_bundle.clone()),
    );
    let mut list = |key: &str, text: &str| {
        if text.is_empty() {
            return Some(Vec::new());
        }
        let list: Result<Option<Vec<String>>, _> = serde_json::from_str(text);
        problems
            .collect(list.map_err(|_| Problem::new(place(key), "is not a JSON list of texts")))
            .map(Option::unwrap_or_default)
    };
    let allowed_names = list("requestheader-allowed-names", &data.requestheader_allowed_names);
    let username_headers = list("requestheader-username-headers", &data.requestheader_username_headers);
    let uid_headers = list("requestheader-uid-headers", &data.requestheader_uid_headers);
    let group_headers = list("requestheader-group-headers", &data.requestheader_group_headers);
    let extra_prefixes = list("requestheader-extra-headers-prefix", &data.requestheader_extra_headers_prefix);
    let lists = (allowed_names, username_headers, uid_headers, group_headers, extra_prefixes);
    let (Some(allowed_names), Some(username_headers), Some(uid_headers), Some(group_headers), Some(extra_prefixes)) =
        lists
    else {
        // As upstream: one invalid list keeps all of them. A CA that was removed is untrusted all the same.
        let front_proxies = authorities.and(before.front_proxies.clone());
        return (ClusterTrust { client, front_proxies }, problems);
    };
    if let Err(wrong) = RequestHeaderNames::new(&username_headers, &uid_headers, &group_headers, &extra_prefixes) {
        problems.0.extend(wrong.0);
        let front_proxies = authorities.and(before.front_proxies.clone());
        return (ClusterTrust { client, front_proxies }, problems);
    }
    let front_proxies = authorities.map(|authorities| {
        let said = FrontProxies {
            ca_bundle: authorities,
            allowed_names,
            username_headers,
            uid_headers,
            group_headers,
            extra_prefixes,
        };
        // An unchanged value stays the same allocation.
        before.front_proxies.clone().filter(|before| **before == said).unwrap_or_else(|| Arc::new(said))
    });
    (ClusterTrust { client, front_proxies }, problems)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::Authority;

    fn data(pairs: &[(&str, &str)]) -> ConfigMapData {
        let map: std::collections::BTreeMap<_, _> = pairs.iter().copied().collect();
        serde_json::from_value(serde_json::json!(map)).unwrap()
    }

    fn pem(name: &str) -> String {
        Authority::generate(name).pem()
    }

    #[test]
    fn auth_configmap_of_kube_apiserver_parsed() {
        let (client, proxies) = (pem("clients"), pem("proxies"));
        let (announced, problems) = parse_data(
            &data(&[
                ("client-ca-file", &client),
                ("requestheader-client-ca-file", &proxies),
                ("requestheader-username-headers", r#"["X-Remote-User"]"#),
                ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#),
                ("requestheader-group-headers", r#"["X-Remote-Group","X-Other"]"#),
                ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
                ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
                ("something-else", "ignored"),
            ]),
            &ClusterTrust::default(),
        );
        assert_eq!(problems, Problems::default());
        assert_eq!(announced.client, Some(Bundle::from_pem(client.as_bytes(), "x").unwrap()));
        let said = announced.front_proxies.unwrap();
        assert_eq!(said.ca_bundle, Bundle::from_pem(proxies.as_bytes(), "x").unwrap());
        assert_eq!(said.group_headers, ["X-Remote-Group", "X-Other"]);
        assert_eq!(
            (&said.allowed_names[..], &said.uid_headers[..]),
            (&["front-proxy-client".into()][..], &["X-Remote-Uid".into()][..])
        );
    }

    #[test]
    fn auth_configmap_removed_keys_are_dropped_and_invalid_keys_keep_last_good() {
        let (client, proxies) = (pem("clients"), pem("proxies"));
        let full = [
            ("client-ca-file", client.as_str()),
            ("requestheader-client-ca-file", proxies.as_str()),
            ("requestheader-username-headers", r#"["X-Remote-User"]"#),
            ("requestheader-allowed-names", "[]"),
        ];
        let (before, _) = parse_data(&data(&full), &ClusterTrust::default());
        let with = |key: &'static str, value: &'static str| {
            let mut pairs = full.to_vec();
            pairs.retain(|(name, _)| *name != key);
            pairs.push((key, value));
            parse_data(&data(&pairs), &before)
        };
        let said = before.front_proxies.as_ref().unwrap();
        assert_eq!((said.allowed_names.len(), said.group_headers.len()), (0, 0));
        for (key, value) in [("client-ca-file", ""), ("client-ca-file", " \n")] {
            let (now, problems) = with(key, value);
            assert!(now.client.is_none() && now.front_proxies == before.front_proxies && problems.0.is_empty());
        }
        let (now, problems) = with("requestheader-client-ca-file", "");
        assert!(now.front_proxies.is_none() && now.client == before.client && problems.0.is_empty());
        for (key, value) in [
            ("client-ca-file", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"),
            ("requestheader-client-ca-file", "nonsense"),
            ("requestheader-username-headers", "X-Remote-User"),
            ("requestheader-username-headers", r#"["X Remote"]"#),
            ("requestheader-allowed-names", r#"{"a":1}"#),
            ("requestheader-group-headers", "[1]"),
        ] {
            let (now, problems) = with(key, value);
            assert_eq!(now, before, "{key} {value}");
            assert_eq!(problems.0.len(), 1, "{key} {value}: {problems}");
        }
        // With an invalid list and the CA removed, no front proxy is trusted.
        let mut pairs = full.to_vec();
        pairs[1] = ("requestheader-client-ca-file", "");
        pairs[2] = ("requestheader-username-headers", "nonsense");
        assert!(parse_data(&data(&pairs), &before).0.front_proxies.is_none());
        assert_eq!(parse_data(&ConfigMapData::default(), &before).0, ClusterTrust::default());
        // Equal data yield the same allocation.
        let again = parse_data(&data(&full), &before).0;
        assert!(Arc::ptr_eq(again.front_proxies.as_ref().unwrap(), said));
        assert_eq!(parse_data(&data(&[("requestheader-username-headers", "null")]), &before).1, Problems::default());
    }
}
