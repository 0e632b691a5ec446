//! A gateway with the embedded API server, and its administrator as client.

use http::Method;
use serde_json::Value;

use crate::support::client::{Client, ClientResponse, request};
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TestEnvironment};

/// ConfigMaps in the namespace `default`, which exists from the start.
pub(crate) const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// One test's embedded API server. It ends with the value.
pub(crate) struct EmbeddedApiFixture {
    pub(crate) environment: TestEnvironment,
    pub(crate) gateway: GatewayProcess,
    admin: CertKeyPair,
}

impl EmbeddedApiFixture {
    /// Starts a gateway with an empty store and more flags.
    pub(crate) fn start(flags: &[&str]) -> EmbeddedApiFixture {
        let environment = TestEnvironment::new();
        let flags: Vec<&str> = ["--embedded-api", "--unsafe-no-fsync"].iter().chain(flags).copied().collect();
        let gateway = environment.start_gateway(&flags);
        let admin = environment.issue_user("admin", &["system:masters"]);
        EmbeddedApiFixture { environment, gateway, admin }
    }

    /// A connection of the administrator.
    pub(crate) async fn http1(&self) -> Client {
        Client::http1(&self.environment, &self.gateway, Some(&self.admin)).await
    }

    /// A connection of the administrator.
    pub(crate) async fn http2(&self) -> Client {
        Client::http2(&self.environment, &self.gateway, Some(&self.admin)).await
    }
}

/// Sends a JSON document and reads the response.
pub(crate) async fn send_json(client: &Client, method: Method, path: &str, document: &Value) -> ClientResponse {
    let headers = [("content-type", "application/json")];
    client.send_and_read(request(method, path, &headers, &document.to_string())).await
}
