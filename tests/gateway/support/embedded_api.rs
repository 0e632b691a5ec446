//! A gateway with the embedded API server, and its administrator as client.

use std::process::Command;

use http::Method;
use serde_json::Value;

use crate::support::client::{Client, ClientResponse, request};
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TestEnvironment};

/// ConfigMaps in the namespace `default`, which exists from the start.
pub(crate) const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Starts an embedded API server whose files may have 1 MiB. The limit is no signal: writes fail as on a full disk.
pub(crate) fn start_on_small_disk(environment: &TestEnvironment) -> GatewayProcess {
    let mut program = Command::new("/bin/bash");
    let line = "trap '' XFSZ; ulimit -f 1024; exec \"$0\" gateway \"$@\"";
    program.args(["-c", line, env!("CARGO_BIN_EXE_narthex")]);
    GatewayProcess::spawn(program, &environment.gateway_arguments(&["--embedded-api"]), &[])
}

/// One test's embedded API server. It ends with the value.
pub(crate) struct EmbeddedApiFixture {
    pub(crate) environment: TestEnvironment,
    pub(crate) gateway: GatewayProcess,
    admin: CertKeyPair,
    flags: Vec<String>,
}

impl EmbeddedApiFixture {
    /// Starts a gateway with an empty store and more flags.
    pub(crate) fn start(flags: &[&str]) -> EmbeddedApiFixture {
        EmbeddedApiFixture::start_with(|_| flags.iter().map(|flag| (*flag).to_owned()).collect())
    }

    /// Starts a gateway with flags that name files of the environment.
    pub(crate) fn start_with(flags: impl FnOnce(&TestEnvironment) -> Vec<String>) -> EmbeddedApiFixture {
        let environment = TestEnvironment::new();
        let mut flags = flags(&environment);
        flags.extend(["--embedded-api".to_owned(), "--unsafe-no-fsync".to_owned()]);
        EmbeddedApiFixture::start_in(environment, flags)
    }

    /// Starts a gateway whose writes wait for the disk.
    pub(crate) fn start_synchronized() -> EmbeddedApiFixture {
        EmbeddedApiFixture::start_in(TestEnvironment::new(), vec!["--embedded-api".to_owned()])
    }

    fn start_in(environment: TestEnvironment, flags: Vec<String>) -> EmbeddedApiFixture {
        let gateway = environment.start_gateway(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        let admin = environment.issue_user("admin", &["system:masters"]);
        EmbeddedApiFixture { environment, gateway, admin, flags }
    }

    /// Starts another process with the same store, after the last one has ended.
    pub(crate) fn restart(&mut self) {
        self.gateway = self.environment.start_gateway(&self.flags.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// Command line of another process with the same store.
    pub(crate) fn arguments(&self) -> Vec<String> {
        self.environment.gateway_arguments(&self.flags.iter().map(String::as_str).collect::<Vec<_>>())
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
