//! Plugins of CertificateSigningRequests. `CertificateSubjectRestriction`: no client certificate of the group `system:masters` can be requested.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubeapi::{GoQuoted, Status};
use serde_json::{Map, Value};
use store::watch_cache::Stored;
use x509_parser::prelude::{FromDer as _, X509CertificationRequest};

use super::{AdmittedWrite, CERTIFICATE_REQUESTS};
use crate::authorize::CreateAuthorization;
use crate::conversion::stored_object;
use crate::kinds::read_certificate_request;
use crate::rest::admission_plugins::AdmissionPlugin;
use crate::rest::api_server::ApiServer;
use crate::rest::target::ObjectTarget;

const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

impl AdmittedWrite<'_> {
    pub(super) fn check_certificate_subject(self, request: &Map<String, Value>) -> Result<(), Status> {
        let spec = request.get("spec").unwrap_or(&Value::Null);
        if spec["signerName"] != CLIENT_SIGNER || !self.has_plugin(AdmissionPlugin::CertificateSubjectRestriction) {
            return Ok(());
        }
        let pem = STANDARD.decode(spec["request"].as_str().unwrap_or_default()).unwrap_or_default();
        // What cannot be read is refused by validation.
        if has_organization(&pem, "system:masters") {
            let why = format!("use of {CLIENT_SIGNER} signer with system:masters group is not allowed");
            return Err(self.forbidden(request, why));
        }
        Ok(())
    }
}

impl ApiServer {
    /// Refuses the approval of a request, or its certificate, to users who may not use the signer (`CertificateApproval`,
    /// `CertificateSigning`).
    ///
    /// # Errors
    /// 403.
    pub(in crate::rest) async fn check_signer(
        &self,
        target: &ObjectTarget<'_>,
        authorization: &CreateAuthorization<'_>,
        stored: &Arc<Stored>,
        object: &Map<String, Value>,
    ) -> Result<(), Status> {
        let (verb, plugin) = match target.subresource {
            "approval" => ("approve", AdmissionPlugin::CertificateApproval),
            "status" => ("sign", AdmissionPlugin::CertificateSigning),
            _ => return Ok(()),
        };
        if target.kind.resource.group_resource() != CERTIFICATE_REQUESTS || !self.has_plugin(plugin) {
            return Ok(());
        }
        let old = stored_object(stored).await?;
        let of = |object: &Map<String, Value>, field: &str| object.get("status").map(|status| status[field].clone());
        let changes = ["certificate", "conditions"].iter().any(|field| of(&old, field) != of(object, field));
        let signer = old.get("spec").and_then(|spec| spec["signerName"].as_str()).unwrap_or_default();
        if verb == "sign" && !changes || authorization.allows_signer(verb, signer).await {
            return Ok(());
        }
        let why = format!("user not permitted to {verb} requests with signerName {}", GoQuoted(signer));
        let (group, plural) = CERTIFICATE_REQUESTS;
        Err(Status::object_forbidden(group, plural, &target.name, why))
    }
}

fn has_organization(pem: &[u8], organization: &str) -> bool {
    // As validation reads it.
    let Ok(der) = read_certificate_request(pem) else { return false };
    let Ok((_, request)) = X509CertificationRequest::from_der(&der) else { return false };
    let mut organizations = request.certification_request_info.subject.iter_organization();
    // A name in another type of string is refused as well: a reader of another kind may see the group in it.
    organizations.any(|name| name.as_str().map_or(true, |name| name == organization))
}
