//! APIServices as discovery and OpenAPI see them.

use crate::registry::{ApiService, ApiServiceBackend, DELEGATE};

/// One APIService, or the delegate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServiceClaim {
    /// Name of the APIService, `<version>.<group>`.
    pub name: String,
    /// `spec.group`; empty for the core group.
    pub group: String,
    /// The field `spec.version`.
    pub version: String,
    /// The field `spec.groupPriorityMinimum`.
    pub group_priority_minimum: i32,
    /// The field `spec.versionPriority`.
    pub version_priority: i32,
    /// Key of the backend in all respects: address, trust and client identity. APIServices with equal keys share one
    /// fetch of `/apis`.
    pub service_key: String,
    /// Key of the server alone, without its CA or client identity. A document stays valid when only these change.
    pub backend: String,
    /// What serves the APIService.
    pub served_by: ServedBy,
}

/// What serves an APIService.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedBy {
    /// A backend of its own.
    Backend,
    /// The delegate. The APIService is a Local one, and only sets its priorities.
    Delegate,
    /// Not an APIService but the delegate itself, which serves all that no backend claims.
    DelegateItself,
}

impl ApiServiceClaim {
    /// The claim of `one`, an APIService or the delegate.
    pub fn new(one: &ApiService) -> ApiServiceClaim {
        // Compared as a whole, never by hash. Debug quotes strings, so that no two values run together.
        let service_key = format!(
            "{:?}",
            (
                &one.backend,
                one.manifest.pointer("/spec/caBundle"),
                one.insecure_skip_tls_verify,
                &one.settings.server_name,
                &one.settings.egress,
                &one.settings.client_certificate,
            )
        );
        // Content from an unverified server must not pass for that of a verified one.
        let address = match &one.backend {
            ApiServiceBackend::Service(service) => format!("{service:?}"),
            ApiServiceBackend::Url(url) => url.to_string(),
            ApiServiceBackend::Local => String::new(),
        };
        let backend = format!("{:?}", (address, &one.settings.server_name, one.insecure_skip_tls_verify));
        ApiServiceClaim {
            name: one.name.clone(),
            group: one.group.clone(),
            version: one.version.clone(),
            group_priority_minimum: one.group_priority_minimum,
            version_priority: one.version_priority,
            service_key,
            backend,
            served_by: match &one.backend {
                ApiServiceBackend::Local => ServedBy::Delegate,
                _ if one.name == DELEGATE => ServedBy::DelegateItself,
                _ => ServedBy::Backend,
            },
        }
    }

    /// `<group>/<version>`, or the version alone for the core group.
    pub fn group_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// The group and the version.
    pub(crate) fn group_and_version(&self) -> (&str, &str) {
        (&self.group, &self.version)
    }

    /// `/apis/<group>/<version>`, or `/api/<version>`.
    pub(crate) fn path(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::registry::{Settings, load_directory};

    const ALIKE: &str = "  service: {name: api, namespace: wardle}\n";

    fn known(spec: &str, annotations: &str) -> ApiServiceClaim {
        let dir = tempfile::tempdir().unwrap();
        let text = format!(
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata:\n  name: v1.g.dev\n{annotations}spec:\n  group: g.dev\n  version: v1\n  groupPriorityMinimum: 7\n  versionPriority: 9\n{spec}"
        );
        fs::write(dir.path().join("a.yaml"), text).unwrap();
        let registry = load_directory(&Settings { dir: dir.path().to_owned(), ..Settings::default() }).unwrap();
        ApiServiceClaim::new(registry.api_service("v1.g.dev").unwrap())
    }

    #[test]
    fn claim_of_local_apiservice_served_by_delegate() {
        let one = known(ALIKE, "");
        assert_eq!(one.served_by, ServedBy::Backend);
        assert_eq!((one.name.as_str(), one.group_version().as_str()), ("v1.g.dev", "g.dev/v1"));
        assert_eq!((one.group_priority_minimum, one.version_priority), (7, 9));
        assert_eq!(one.path(), "/apis/g.dev/v1");
        assert_eq!(known("", "").served_by, ServedBy::Delegate);
    }

    #[test]
    fn claim_service_key_differs_with_trust_settings() {
        let key = |spec: &str, annotations: &str| known(spec, annotations).service_key;
        let plain = key(ALIKE, "");
        assert_eq!(plain, key(ALIKE, "  annotations: {narthex.dev/request-timeout: 3s}\n"));
        for (spec, annotations) in [
            ("  service: {name: api, namespace: wardle, port: 444}\n", ""),
            ("  service: {name: other, namespace: wardle}\n", ""),
            ("  service: {name: api, namespace: wardle}\n  insecureSkipTLSVerify: true\n", ""),
            (ALIKE, "  annotations: {narthex.dev/server-name: other.dev}\n"),
        ] {
            assert_ne!(plain, key(spec, annotations), "{spec}{annotations}");
        }
    }

    #[test]
    fn claim_backend_same_with_other_ca() {
        use base64::Engine as _;
        let encoded =
            |name: &str| base64::engine::general_purpose::STANDARD.encode(crate::tls::Authority::generate(name).pem());
        let [old, new] = ["old", "new"].map(|name| known(&format!("{ALIKE}  caBundle: {}\n", encoded(name)), ""));
        assert_ne!(old.service_key, new.service_key);
        assert_eq!(old.backend, new.backend);
        let unverified = known(&format!("{ALIKE}  insecureSkipTLSVerify: true\n"), "");
        let elsewhere = known("  service: {name: other, namespace: wardle}\n", "");
        assert!(unverified.backend != new.backend && elsewhere.backend != new.backend);
    }
}
