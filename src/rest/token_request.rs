//! The subresource `token` of ServiceAccounts: a `TokenRequest` that is answered with a token
//! (`pkg/registry/core/serviceaccount/storage/token.go`).

use std::sync::Arc;
use std::time::SystemTime;

use http::StatusCode;
use jiff::Timestamp;
use kubeapi::field_error::{FieldError, invalid_fields_status};
use kubeapi::object_meta::{ObjectMetaView, change_metadata};
use kubeapi::{GoQuoted, Status, token_credential_id};
use serde_json::{Map, Value, json};
use store::watch_cache::{ResourceCollection, Stored};

use super::api_server::ApiServer;
use super::errors::cache_error;
use super::representation::{ReplyContent, ReplyObject, VerbReply};
use super::request::ApiRequest;
use super::target::{ObjectTarget, check_name_parameter};
use super::write_options::WriteOptions;
use super::{metadata, namespace, request_body};
use crate::authenticate::service_accounts::{
    BoundObject, EXTENDED_LIFETIME, IssuedToken, ObjectIdentity, TokenAccount, TokenClaims, TokenIssuer,
};
use crate::compute::{MAX_INLINE_BYTES, run_sized};
use crate::conversion::stored_object;
use crate::kinds::parse_group_version;
use crate::resources::ServedKind;

/// Group and kind in errors.
const TOKEN_REQUEST: (&str, &str) = ("authentication.k8s.io", "TokenRequest");

/// Lifetime in seconds without `spec.expirationSeconds`.
const DEFAULT_SECONDS: i64 = 3600;
/// Bounds of `spec.expirationSeconds`.
const MIN_SECONDS: i64 = 10 * 60;
const MAX_SECONDS: i64 = 1 << 32;

/// Lifetime in seconds that a kubelet asks for in its usual way (`WarnOnlyBoundTokenExpirationSeconds`).
const KUBELET_SECONDS: i64 = 60 * 60 + 7;

/// Most bytes of `spec.audiences`; kube-apiserver has no limit. A longer token would not be read.
const MAX_AUDIENCE_BYTES: usize = 32 << 10;

/// Issues a token of a ServiceAccount.
///
/// # Errors
/// 400, 404, 409 for another uid, 422.
pub(super) async fn issue_token(
    api: &ApiServer,
    accounts: &ResourceCollection,
    target: &ObjectTarget<'_>,
    kind: &ServedKind,
    request: &ApiRequest<'_>,
    warnings: &mut Vec<String>,
) -> Result<VerbReply, Status> {
    let issuer = api.token_issuer().ok_or_else(Status::not_found)?;
    let options = WriteOptions::parse(request.query, "CreateOptions")?;
    let of_request = ObjectTarget::new(kind.clone(), target.namespace, target.name.clone(), "");
    let decoded = request_body::decode(request, &of_request, options.validation).await?;
    warnings.extend(decoded.warnings);
    let mut object = decoded.object;
    metadata::set_namespace(&of_request, &mut object)?;
    request.creation.check().await?;
    namespace::check_active(api, target, &object).await?;
    check_name(target, &object)?;
    let account = accounts.get_latest(&target.key(accounts)?).await.map_err(|error| cache_error(target, error))?;
    let account = account.ok_or_else(|| target.not_found())?;
    check_account_uid(target, &account, &object)?;
    let mut spec = TokenRequestSpec::read(object.get("spec"), issuer);
    spec.validate()?;
    let bound = spec.find_bound_object(api, target).await?;
    spec.shorten(issuer, warnings);
    let now = SystemTime::now();
    let issued = spec.issue(issuer, &account, bound).await?;
    request.audit.add("authentication.kubernetes.io/issued-credential-id", || token_credential_id(&issued.id));
    complete_metadata(&mut object, &account, now);
    object.insert("spec".to_owned(), spec.value());
    let expires = Timestamp::try_from(now).unwrap_or(Timestamp::MAX).as_second().saturating_add(spec.seconds);
    let expires = Timestamp::from_second(expires).unwrap_or(Timestamp::MAX);
    object.insert("status".to_owned(), json!({"expirationTimestamp": format!("{expires:.0}"), "token": issued.token}));
    let content = ReplyContent::Object(ReplyObject::Unstored(Value::Object(object)));
    Ok(VerbReply { code: StatusCode::CREATED, content })
}

/// What a `TokenRequest` asks for.
struct TokenRequestSpec {
    audiences: Vec<String>,
    seconds: i64,
    /// `spec.boundObjectRef`; null if there is none.
    bound: Value,
}

impl TokenRequestSpec {
    fn read(spec: Option<&Value>, issuer: &TokenIssuer) -> TokenRequestSpec {
        let spec = spec.unwrap_or(&Value::Null);
        let texts = spec["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let audiences: Vec<String> = texts.map(str::to_owned).collect();
        TokenRequestSpec {
            audiences: if audiences.is_empty() { issuer.settings().audiences.clone() } else { audiences },
            seconds: spec["expirationSeconds"].as_i64().unwrap_or(DEFAULT_SECONDS),
            bound: spec["boundObjectRef"].clone(),
        }
    }

    /// Checks the values (`ValidateTokenRequest`).
    fn validate(&self) -> Result<(), Status> {
        let invalid = |error| Err(invalid_fields_status(TOKEN_REQUEST.0, TOKEN_REQUEST.1, "", error));
        if self.audiences.iter().map(|audience| audience.len() + 3).sum::<usize>() > MAX_AUDIENCE_BYTES {
            return invalid(FieldError::too_long("spec.audiences", MAX_AUDIENCE_BYTES));
        }
        let why = match self.seconds {
            ..MIN_SECONDS => "may not specify a duration less than 10 minutes",
            MIN_SECONDS..=MAX_SECONDS => return Ok(()),
            _ => "may not specify a duration larger than 2^32 seconds",
        };
        invalid(FieldError::invalid("spec.expirationSeconds", self.seconds, why))
    }

    /// The object with whose end the token ends.
    ///
    /// # Errors
    /// 404 if it does not exist, 409 if it is another one, 400 for another kind and a Pod of another account.
    async fn find_bound_object(
        &self,
        api: &ApiServer,
        target: &ObjectTarget<'_>,
    ) -> Result<Option<BoundObject>, Status> {
        if self.bound.is_null() {
            return Ok(None);
        }
        let text = |field: &str| self.bound[field].as_str().unwrap_or_default();
        // As upstream (`FromAPIVersionAndKind`): what cannot be parsed is taken for none.
        let (group, version) = parse_group_version(text("apiVersion")).unwrap_or_default();
        let (plural, namespace) = match (group, text("kind")) {
            ("", "Pod") => ("pods", target.namespace),
            ("", "Secret") => ("secrets", target.namespace),
            ("", "Node") => ("nodes", ""),
            (group, kind) => {
                let why = format!("cannot bind token to object of type {group}/{version}, Kind={kind}");
                return Err(Status::bad_request(why));
            }
        };
        check_name_parameter(text("name"))?;
        let object = find(api, plural, namespace, text("name")).await?;
        let object = object.ok_or_else(|| Status::object_not_found("", plural, text("name")))?;
        let identity = ObjectIdentity { name: text("name").to_owned(), uid: object.metadata().uid.to_string() };
        let bound = match plural {
            "secrets" => BoundObject::Secret(identity.clone()),
            "nodes" => BoundObject::Node(identity.clone()),
            _ => BoundObject::Pod(identity.clone(), node_of_pod(api, target, &object).await?),
        };
        let (asked, found) = (text("uid"), &identity.uid);
        if !asked.is_empty() && asked != found {
            let why = format!(
                "the UID in the bound object reference ({asked}) does not match the UID in record. The object might have \
                 been deleted and then recreated"
            );
            return Err(Status::conflict("", text("kind"), text("name"), why));
        }
        Ok(Some(bound))
    }

    /// Shortens the lifetime to the longest that is allowed.
    fn shorten(&mut self, issuer: &TokenIssuer, warnings: &mut Vec<String>) {
        let longest = issuer.settings().max_expiration.map(|longest| longest.as_secs());
        let Some(longest) = longest.and_then(|longest| i64::try_from(longest).ok()) else { return };
        if self.seconds > longest {
            let asked = self.seconds;
            warnings.push(format!("requested expiration of {asked} seconds shortened to {longest} seconds"));
            self.seconds = longest;
        }
    }

    async fn issue(
        &self,
        issuer: &Arc<TokenIssuer>,
        account: &Stored,
        bound: Option<BoundObject>,
    ) -> Result<IssuedToken, Status> {
        let settings = issuer.settings();
        let is_extended = settings.extends_expiration
            && matches!(bound, Some(BoundObject::Pod(..)))
            && self.seconds == KUBELET_SECONDS
            && self.audiences.iter().all(|audience| settings.audiences.contains(audience));
        let extended = i64::try_from(EXTENDED_LIFETIME.as_secs()).unwrap_or(i64::MAX);
        let (expires_in, warns_after) = if is_extended { (extended, Some(self.seconds)) } else { (self.seconds, None) };
        let (namespace, name) = (account.namespace().to_owned(), account.name().to_owned());
        let (uid, audiences) = (account.metadata().uid.to_string(), self.audiences.clone());
        let (issuer, size) = (issuer.clone(), if issuer.is_slow() { MAX_INLINE_BYTES + 1 } else { 0 });
        let issued = run_sized(size, move || {
            let account = TokenAccount { namespace: &namespace, name: &name, uid: &uid };
            let claims = TokenClaims { account, bound: bound.as_ref(), audiences: &audiences, expires_in, warns_after };
            issuer.issue(&claims)
        });
        let failed = |why: &str| Status::internal_error(format_args!("failed to generate token: {why}"));
        issued.await?.map_err(failed)
    }

    fn value(&self) -> Value {
        json!({"audiences": self.audiences, "boundObjectRef": self.bound, "expirationSeconds": self.seconds})
    }
}

/// Checks that the body is for the account of the path.
fn check_name(target: &ObjectTarget<'_>, object: &Map<String, Value>) -> Result<(), Status> {
    let name = ObjectMetaView::of_map(object).name().to_owned();
    if name.is_empty() || name == target.name {
        return Ok(());
    }
    let error = FieldError::invalid("metadata.name", name.as_str(), "must match the service account name if specified");
    Err(invalid_fields_status(TOKEN_REQUEST.0, TOKEN_REQUEST.1, &target.name, error))
}

fn check_account_uid(target: &ObjectTarget<'_>, account: &Stored, object: &Map<String, Value>) -> Result<(), Status> {
    let (meta, uid) = (ObjectMetaView::of_map(object), &account.metadata().uid);
    let asked = meta.uid();
    if asked.is_empty() || *asked == **uid {
        return Ok(());
    }
    let why = format!("the UID in the token request ({asked}) does not match the UID of the service account ({uid})");
    Err(Status::conflict(TOKEN_REQUEST.0, TOKEN_REQUEST.1, &target.name, why))
}

/// Fills in what the request left out.
fn complete_metadata(object: &mut Map<String, Value>, account: &Stored, now: SystemTime) {
    let created = Timestamp::try_from(now).unwrap_or(Timestamp::MAX);
    change_metadata(object, |metadata| {
        metadata.insert("name".to_owned(), account.name().into());
        metadata.insert("uid".to_owned(), (*account.metadata().uid).into());
        metadata.insert("creationTimestamp".to_owned(), format!("{created:.0}").into());
    });
}

/// The node of a Pod of the account; none if it has none yet.
async fn node_of_pod(
    api: &ApiServer,
    target: &ObjectTarget<'_>,
    pod: &Arc<Stored>,
) -> Result<Option<ObjectIdentity>, Status> {
    let pod = stored_object(pod).await?;
    let text = |field: &str| pod.get("spec").and_then(|spec| spec[field].as_str()).unwrap_or_default();
    if text("serviceAccountName") != target.name {
        let name = GoQuoted(&target.name);
        let why =
            format!("cannot bind token for serviceaccount {name} to pod running with different serviceaccount name.");
        return Err(Status::bad_request(why));
    }
    let name = text("nodeName");
    if name.is_empty() {
        return Ok(None);
    }
    // The name alone says where the Pod runs.
    let uid = find(api, "nodes", "", name).await?.map_or_else(String::new, |node| node.metadata().uid.to_string());
    Ok(Some(ObjectIdentity { name: name.to_owned(), uid }))
}

async fn find(api: &ApiServer, plural: &str, namespace: &str, name: &str) -> Result<Option<Arc<Stored>>, Status> {
    let collection = api.builtin_collection("", plural);
    let collection = collection.ok_or_else(|| Status::internal_error(format_args!("no {plural}")))?;
    let Ok(key) = collection.prefix().key(namespace, name) else { return Ok(None) };
    collection.get_latest(&key).await.map_err(|error| super::errors::unavailable(&error))
}
