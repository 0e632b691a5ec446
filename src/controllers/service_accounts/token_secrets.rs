//! Tokens in Secrets of the type `kubernetes.io/service-account-token` (`pkg/controller/serviceaccount/tokens_controller.go`).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubeapi::Status;
use kubeapi::json::write_stored_json;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Map, Value, json};
use store::Key;
use store::watch_cache::{ResourceCollection, Stored, WatchEvent, WatchEventKind};

use crate::authenticate::service_accounts::{RootCa, TokenAccount, TokenIssuer};
use crate::compute::run_for_server;
use crate::controllers::builtin_collection;
use crate::controllers::runner::{Controller, FeedEvent};
use crate::conversion::stored_object;
use crate::observe::metrics::WorkQueueRegistry;
use crate::process::Published;
use crate::rest::{ApiServer, PropagationPolicy, finish_write, unavailable};
use crate::work_queue::{BackOff, WorkQueue};

/// The type of the Secrets.
const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";
/// Annotations with name and uid of the ServiceAccount.
const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";
const ACCOUNT_UID: &str = "kubernetes.io/service-account.uid";

/// The controller that fills token Secrets, and deletes them when their ServiceAccount is gone. A key is a Secret.
pub(in crate::controllers) struct TokenSecretController {
    api: ApiServer,
    issuer: Arc<TokenIssuer>,
    root_ca: Option<Published<RootCa>>,
    accounts: ResourceCollection,
    secrets: ResourceCollection,
    queue: WorkQueue<Key>,
}

impl TokenSecretController {
    /// A controller that has to be fed and run; none if no tokens are issued.
    ///
    /// # Errors
    /// There are no Secrets or ServiceAccounts.
    pub(in crate::controllers) fn new(
        api: &ApiServer,
        root_ca: Option<Published<RootCa>>,
        metrics: &WorkQueueRegistry,
    ) -> Result<Option<TokenSecretController>, Status> {
        let Some(issuer) = api.token_issuer() else { return Ok(None) };
        Ok(Some(TokenSecretController {
            api: api.clone(),
            issuer: issuer.clone(),
            root_ca,
            accounts: builtin_collection(api, "", "serviceaccounts")?,
            secrets: builtin_collection(api, "", "secrets")?,
            queue: WorkQueue::new(BackOff::default(), metrics.register("service_account_tokens")),
        }))
    }

    /// The Secrets, which are to be followed.
    pub(in crate::controllers) fn secrets(&self) -> &ResourceCollection {
        &self.secrets
    }

    /// The ServiceAccounts, which are to be followed.
    pub(in crate::controllers) fn accounts(&self) -> &ResourceCollection {
        &self.accounts
    }

    /// Adds a token Secret.
    pub(in crate::controllers) fn observe_secret(&self, event: &FeedEvent<'_>) {
        if let FeedEvent::Object(WatchEvent { kind, object: Some(secret), .. }) = event
            && *kind != WatchEventKind::Deleted
            && self.is_token_secret(secret)
        {
            self.queue.add(secret.key().clone());
        }
    }

    /// Adds the token Secrets of the namespace of a ServiceAccount that was deleted.
    pub(in crate::controllers) fn observe_account(&self, event: &FeedEvent<'_>) {
        if let FeedEvent::Object(WatchEvent { kind, object: Some(account), .. }) = event
            && *kind == WatchEventKind::Deleted
        {
            let Ok(prefix) = self.secrets.prefix().namespace(account.namespace()) else { return };
            let snapshot = self.secrets.snapshot();
            let secrets = snapshot.range(&prefix, None).filter(|secret| self.is_token_secret(secret));
            secrets.for_each(|secret| self.queue.add(secret.key().clone()));
        }
    }

    /// Whether a stored Secret is of the type.
    fn is_token_secret(&self, secret: &Stored) -> bool {
        let fields = self.secrets.declared_fields();
        fields.iter().position(|field| field.name() == "type").is_some_and(|index| secret.field(index) == TOKEN_TYPE)
    }

    /// Adds what is missing in a Secret; returns whether something was.
    async fn complete(&self, secret: &mut Map<String, Value>, account: &Arc<Stored>) -> Result<bool, Status> {
        let (namespace, name, uid) = (account.namespace(), account.name(), &*account.metadata().uid);
        let before = secret.clone();
        if let Some(metadata) = secret.get_mut("metadata") {
            metadata["annotations"][ACCOUNT_NAME] = name.into();
            metadata["annotations"][ACCOUNT_UID] = uid.into();
        }
        let secret_name = ObjectMetaView::of_map(secret).name().to_owned();
        let data = secret.entry("data").or_insert_with(|| json!({}));
        if !data.is_object() {
            *data = json!({});
        }
        let is_empty = |value: &Value| value.as_str().is_none_or(str::is_empty);
        if let Some(root_ca) = &self.root_ca {
            data["ca.crt"] = STANDARD.encode(root_ca.load().pem()).into();
        }
        if is_empty(&data["namespace"]) {
            data["namespace"] = STANDARD.encode(namespace).into();
        }
        if is_empty(&data["token"]) {
            let (issuer, account) = (self.issuer.clone(), account.clone());
            let issued = run_for_server(move || {
                let (namespace, name, uid) = (account.namespace(), account.name(), &*account.metadata().uid);
                issuer.issue_for_secret(TokenAccount { namespace, name, uid }, &secret_name)
            });
            data["token"] = STANDARD.encode(issued.await?.map_err(Status::internal_error)?).into();
        }
        Ok(*secret != before)
    }
}

impl Controller for TokenSecretController {
    type Key = Key;

    const CONCURRENCY: usize = 5;

    fn queue(&self) -> &WorkQueue<Key> {
        &self.queue
    }

    async fn reconcile(&self, key: &Key) -> Result<(), Status> {
        let stored = self.secrets.get_latest(key).await.map_err(|error| unavailable(&error))?;
        let Some(stored) = stored.filter(|stored| stored.metadata().deletion_timestamp.is_none()) else {
            return Ok(());
        };
        let mut secret = stored_object(&stored).await?;
        let annotation = |name: &str| {
            let metadata = secret.get("metadata").unwrap_or(&Value::Null);
            metadata["annotations"][name].as_str().unwrap_or_default().to_owned()
        };
        let (name, uid) = (annotation(ACCOUNT_NAME), annotation(ACCOUNT_UID));
        if secret.get("type").and_then(Value::as_str) != Some(TOKEN_TYPE) || name.is_empty() {
            return Ok(());
        }
        let account = match self.accounts.prefix().key(stored.namespace(), &name) {
            Ok(key) => self.accounts.get_latest(&key).await.map_err(|error| unavailable(&error))?,
            Err(_) => None,
        };
        let account = account.filter(|account| uid.is_empty() || *account.metadata().uid == *uid);
        let outcome = match account {
            None => {
                let kind = self.api.catalog().get().find("", "v1", "secrets").map(|entry| entry.kind.clone());
                let kind = kind.ok_or_else(|| Status::internal_error("no Secrets"))?;
                // As a client does: a finalizer keeps it.
                return self.api.delete_collected(&kind, &self.secrets, &stored, PropagationPolicy::Background).await;
            }
            Some(account) => {
                if !self.complete(&mut secret, &account).await? {
                    return Ok(());
                }
                let value = write_stored_json(&secret).bytes;
                self.secrets.update(key, stored.revision(), value.into(), None).await.map(drop)
            }
        };
        finish_write(outcome)
    }
}
