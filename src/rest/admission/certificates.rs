//! The plugin `CertificateSubjectRestriction`: nobody gets a client certificate of the group `system:masters`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubeapi::Status;
use serde_json::{Map, Value};
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::{FromDer as _, X509CertificationRequest};

use super::AdmittedWrite;
use crate::rest::admission_plugins::AdmissionPlugin;

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

fn has_organization(pem: &[u8], organization: &str) -> bool {
    let Ok((_, block)) = parse_x509_pem(pem) else { return false };
    let Ok((_, request)) = X509CertificationRequest::from_der(&block.contents) else { return false };
    let mut organizations = request.certification_request_info.subject.iter_organization();
    organizations.any(|name| name.as_str() == Ok(organization))
}
