//! Watches ConfigMap `kube-system/extension-apiserver-authentication` for client and request-header CAs.
//!
//! Parsed like `k8s.io/apiserver/pkg/server/options` and `pkg/authentication/request/headerrequest`, except that trust
//! can shrink: a CA removed from the ConfigMap is untrusted at once, and after [`DELETION_GRACE`] when the ConfigMap is
//! deleted. Kubernetes keeps the last CAs for the life of the process.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::RequestHeaderNames;
use crate::kubeclient::watch::{ReflectorHandler, WatchFailure, list_and_watch};
use crate::kubeclient::{CallPolicy, Client};
use crate::observe::metrics::CallHealth;
use crate::process::{Problem, Problems, Publisher};
use crate::tls::Bundle;
use crate::tls::server::{ClusterTrust, FrontProxies};

/// The ConfigMap's name in messages.
const CONFIG_MAP: &str = "configmap/extension-apiserver-authentication in kube-system";
/// Prefix of the error when the kubeconfig's user may not read it.
const FORBIDDEN_ADVICE: &str = "Unable to get configmap/extension-apiserver-authentication in kube-system.  Usually \
    fixed by 'kubectl create rolebinding -n kube-system ROLEBINDING_NAME \
    --role=extension-apiserver-authentication-reader --serviceaccount=YOUR_NS:YOUR_SA'";
const PATH: &str =
    "/api/v1/namespaces/kube-system/configmaps?fieldSelector=metadata.name%3Dextension-apiserver-authentication";
/// How long the CAs of a deleted ConfigMap stay trusted: kube-apiserver deletes and recreates it when it has grown too
/// large.
const DELETION_GRACE: Duration = Duration::from_secs(300);

/// The error of reading the ConfigMap.
#[derive(Debug)]
pub struct AuthConfigMapError(String);

/// Watches the ConfigMap; created by [`load_auth_configmap`].
pub struct AuthConfigMapWatcher {
    client: Rc<Client>,
    health: Arc<CallHealth>,
    state: TrustState,
}

/// What the ConfigMap said last.
#[derive(Default)]
struct TrustState {
    cluster_trust: ClusterTrust,
    /// Since when the ConfigMap is absent while its CAs are still trusted.
    absent_since: Option<Instant>,
    logged_problems: Option<Problems>,
}

/// Handles the events of the watch.
struct ConfigMapHandler {
    client: Rc<Client>,
    health: Arc<CallHealth>,
    state: RefCell<TrustState>,
    /// Whether the list that is being read contains the ConfigMap.
    is_listed: Cell<bool>,
    publisher: Publisher<ClusterTrust>,
    /// Notified when the ConfigMap was deleted.
    deleted: Notify,
}

#[derive(Deserialize)]
struct ConfigMapList {
    #[serde(default)]
    items: Option<Vec<ConfigMap>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ConfigMap {
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

/// Reads the ConfigMap for the first time. Its absence is no error: it may be created later.
///
/// # Errors
/// When the API server cannot be read; [`AuthConfigMapWatcher::new`] starts without it.
pub async fn load_auth_configmap(
    client: Rc<Client>,
    health: Arc<CallHealth>,
) -> Result<AuthConfigMapWatcher, AuthConfigMapError> {
    let mut watcher = AuthConfigMapWatcher::new(client, health);
    watcher.list().await?;
    Ok(watcher)
}

impl AuthConfigMapWatcher {
    /// Creates a watcher that trusts no CA until the ConfigMap can be read.
    pub fn new(client: Rc<Client>, health: Arc<CallHealth>) -> AuthConfigMapWatcher {
        AuthConfigMapWatcher { client, health, state: TrustState::default() }
    }

    /// Returns the trust of the ConfigMap as last read.
    pub fn cluster_trust(&self) -> &ClusterTrust {
        &self.state.cluster_trust
    }

    /// Publishes the trust of the ConfigMap whenever it changes; never returns.
    pub async fn run(self, publisher: Publisher<ClusterTrust>) {
        let handler = ConfigMapHandler {
            client: self.client.clone(),
            health: self.health,
            state: RefCell::new(self.state),
            is_listed: Cell::new(false),
            publisher,
            deleted: Notify::new(),
        };
        tokio::join!(list_and_watch(self.client, PATH, &handler), handler.end_grace_periods());
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
        let answer = called.map_err(|error| AuthConfigMapError(error.to_string()))?;
        if answer.status == 403 {
            return Err(AuthConfigMapError(format!("{FORBIDDEN_ADVICE}: {}", answer.describe())));
        }
        if !answer.is_success() {
            return Err(AuthConfigMapError(answer.describe()));
        }
        let list: ConfigMapList = serde_json::from_slice(&answer.body)
            .map_err(|error| AuthConfigMapError(format!("{CONFIG_MAP} cannot be decoded: {error}")))?;
        match list.items.and_then(|items| items.into_iter().next()) {
            Some(found) => self.state.apply(&found.data.unwrap_or_default()),
            None => self.state.on_deleted(),
        }
        Ok(())
    }
}

impl ConfigMapHandler {
    fn apply(&self, object: &RawValue) {
        match serde_json::from_str::<ConfigMap>(object.get()) {
            Ok(object) => self.state.borrow_mut().apply(&object.data.unwrap_or_default()),
            Err(error) => tracing::error!(%error, "{CONFIG_MAP} cannot be decoded; the CAs read last stay trusted"),
        }
    }

    fn publish(&self) {
        let state = self.state.borrow();
        let now = &state.cluster_trust;
        if *now != **self.publisher.reader().load() {
            tracing::info!(
                client = ?now.client,
                front_proxies = ?now.front_proxies.as_ref().map(|it| &it.ca_bundle),
                "client and request-header CAs updated from {CONFIG_MAP}"
            );
            self.publisher.publish(Arc::new(now.clone()));
        }
    }

    /// Removes the trust of a ConfigMap that stays absent for [`DELETION_GRACE`].
    async fn end_grace_periods(&self) {
        loop {
            let absent_since = self.state.borrow().absent_since;
            let Some(since) = absent_since else {
                self.deleted.notified().await;
                continue;
            };
            sleep_until(since + DELETION_GRACE).await;
            if self.state.borrow().absent_since == Some(since) {
                tracing::warn!("{CONFIG_MAP} absent for more than 5m; its CAs are no longer trusted");
                *self.state.borrow_mut() = TrustState::default();
                self.publish();
            }
        }
    }
}

impl ReflectorHandler for ConfigMapHandler {
    fn on_list_start(&self) {
        self.is_listed.set(false);
    }

    fn on_item(&self, object: &RawValue) {
        self.is_listed.set(true);
        self.apply(object);
    }

    fn on_synced(&self) {
        if !self.is_listed.get() {
            self.state.borrow_mut().on_deleted();
            self.deleted.notify_one();
        }
        self.publish();
    }

    fn on_apply(&self, object: &RawValue) {
        self.apply(object);
        self.publish();
    }

    fn on_delete(&self, _: &RawValue) {
        self.state.borrow_mut().on_deleted();
        self.deleted.notify_one();
    }

    fn on_healthy(&self, duration: Duration) {
        self.health.record_quietly(self.client.server(), Ok(()), duration);
    }

    fn on_error(&self, failure: &WatchFailure) {
        let advice = if failure.status == Some(403) { format!("{FORBIDDEN_ADVICE}: ") } else { String::new() };
        let why = format!("{advice}{}", failure.why);
        self.health.record_quietly(self.client.server(), Err(&why), Duration::ZERO);
        tracing::warn!(why, "watching {CONFIG_MAP} failed; the CAs read last stay trusted");
    }
}

impl TrustState {
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

/// Parses the data. A missing CA is not trusted; an invalid value keeps its value from `before`.
fn parse_data(data: &ConfigMapData, before: &ClusterTrust) -> (ClusterTrust, Problems) {
    let mut problems = Problems::default();
    let location = |key: &str| format!("{CONFIG_MAP}, {key}");
    let mut bundle = |key: &str, pem: &str, before: Option<Bundle>| {
        if pem.trim().is_empty() {
            return None;
        }
        problems.collect(Bundle::from_pem(pem.as_bytes(), location(key))).or(before)
    };
    let client = bundle("client-ca-file", &data.client_ca_file, before.client.clone());
    let proxies = before.front_proxies.as_ref();
    let authorities = bundle(
        "requestheader-client-ca-file",
        &data.requestheader_client_ca_file,
        proxies.map(|old_proxies| old_proxies.ca_bundle.clone()),
    );
    let mut list = |key: &str, text: &str| {
        if text.is_empty() {
            return Some(Vec::new());
        }
        let list: Result<Option<Vec<String>>, _> = serde_json::from_str(text);
        problems
            .collect(list.map_err(|_| Problem::new(location(key), "is not a JSON list of texts")))
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
        // As in Kubernetes: one invalid list keeps all of them. A CA that was removed is untrusted all the same.
        let front_proxies = authorities.and(before.front_proxies.clone());
        return (ClusterTrust { client, front_proxies }, problems);
    };
    if let Err(wrong) = RequestHeaderNames::new(&username_headers, &uid_headers, &group_headers, &extra_prefixes) {
        problems.0.extend(wrong.0);
        let front_proxies = authorities.and(before.front_proxies.clone());
        return (ClusterTrust { client, front_proxies }, problems);
    }
    let front_proxies = authorities.map(|authorities| {
        let new_proxies = FrontProxies {
            ca_bundle: authorities,
            allowed_names,
            username_headers,
            uid_headers,
            group_headers,
            extra_prefixes,
        };
        // An unchanged value stays the same allocation.
        before.front_proxies.clone().filter(|before| **before == new_proxies).unwrap_or_else(|| Arc::new(new_proxies))
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
