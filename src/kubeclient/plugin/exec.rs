//! Exec credential plugins (KEP-541): `client.authentication.k8s.io` v1 and v1beta1, run as by
//! `k8s.io/client-go/plugin/pkg/client/auth/exec`.

use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::Deserialize;
use serde_json::json;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use super::{CredentialError, PluginCredentials, bearer_header, strip_control_characters};
use crate::process::Problem;
use crate::tls::KeyPair;

/// Timeout of the program. It may wait for a login in a browser.
pub(super) const EXEC_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Maximum bytes of the program's output.
const MAX_OUTPUT_BYTES: u64 = 1 << 20;
/// Environment variable with the request to the program.
const EXEC_INFO_VARIABLE: &str = "KUBERNETES_EXEC_INFO";

/// The field `exec` of a kubeconfig's user.
#[derive(Clone, Deserialize, Default)]
#[serde(rename_all = "camelCase", default, expecting = "a mapping")]
pub(in crate::kubeclient) struct ExecConfig {
    api_version: String,
    command: String,
    args: Vec<String>,
    env: Vec<ExecEnvVar>,
    install_hint: String,
    provide_cluster_info: bool,
    interactive_mode: String,
}

/// A variable of the program's environment.
#[derive(Clone, Deserialize, Default)]
#[serde(default, expecting = "a mapping")]
pub(in crate::kubeclient) struct ExecEnvVar {
    name: String,
    value: String,
}

/// A program and how it is run. Has no `Debug`: arguments and variables may hold secrets.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::kubeclient) struct ExecPlugin {
    /// Name of the user in the kubeconfig.
    user: String,
    /// Path of the kubeconfig.
    location: String,
    version: &'static str,
    /// The command as in the kubeconfig, for messages.
    command_text: String,
    command: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    install_hint: String,
    interactive: InteractiveMode,
    /// Whether the plugin gets information about the cluster (`provideClusterInfo`).
    pub(in crate::kubeclient) provides_cluster_info: bool,
    cluster: Option<serde_json::Value>,
}

/// Whether a plugin may use standard input (`interactiveMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InteractiveMode {
    Never,
    IfAvailable,
    Always,
}

/// Output of the program.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ExecCredential {
    api_version: String,
    kind: String,
    status: Option<Status>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    expiration_timestamp: Option<String>,
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
}

impl ExecPlugin {
    /// Creates the plugin of a kubeconfig's user.
    ///
    /// # Errors
    /// The invalid fields with their errors.
    pub(in crate::kubeclient) fn new(
        user: &str,
        folder: &Path,
        location: &str,
        config: &ExecConfig,
    ) -> Result<ExecPlugin, Vec<(&'static str, String)>> {
        let mut mistakes = Vec::new();
        let version = match config.api_version.as_str() {
            "client.authentication.k8s.io/v1" => "client.authentication.k8s.io/v1",
            "client.authentication.k8s.io/v1beta1" => "client.authentication.k8s.io/v1beta1",
            other => {
                let why =
                    format!("{other:?}: use client.authentication.k8s.io/v1, or v1beta1 if the program knows no other");
                mistakes.push(("apiVersion", why));
                ""
            }
        };
        if config.command.is_empty() {
            mistakes.push(("command", "is missing".to_owned()));
        }
        if config.env.iter().any(|variable| variable.name.is_empty() || variable.name.contains(['=', '\0'])) {
            mistakes.push(("env", "a variable has no name, or an invalid one".to_owned()));
        }
        let values = config.env.iter().map(|variable| &variable.value);
        if config.args.iter().chain(values).chain([&config.command]).any(|text| text.contains('\0')) {
            mistakes.push(("args", "a NUL character cannot be passed to a program".to_owned()));
        }
        let interactive = match (config.interactive_mode.as_str(), version) {
            ("Never", _) => InteractiveMode::Never,
            ("Always", _) => InteractiveMode::Always,
            ("IfAvailable", _) => InteractiveMode::IfAvailable,
            ("", version) if !version.ends_with("/v1") => InteractiveMode::IfAvailable,
            (other, _) => {
                mistakes.push(("interactiveMode", format!("{other:?}: use Never, IfAvailable or Always")));
                InteractiveMode::Never
            }
        };
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        // A name without a slash is looked up in PATH. A path is relative to the kubeconfig.
        let named = &config.command;
        let command = if named.contains('/') { folder.join(named) } else { PathBuf::from(named) };
        Ok(ExecPlugin {
            user: user.to_owned(),
            location: location.to_owned(),
            version,
            command_text: named.clone(),
            command,
            arguments: config.args.clone(),
            environment: config.env.iter().map(|it| (it.name.clone(), it.value.clone())).collect(),
            install_hint: config.install_hint.clone(),
            interactive,
            provides_cluster_info: config.provide_cluster_info,
            cluster: None,
        })
    }

    /// The plugin with information about the cluster for the program.
    pub(in crate::kubeclient) fn with_cluster_info(&self, cluster: serde_json::Value) -> ExecPlugin {
        ExecPlugin { cluster: Some(cluster), ..self.clone() }
    }

    /// Runs the program. It inherits standard error: it may ask a question there.
    pub(super) async fn run(&self, patience: Duration) -> Result<PluginCredentials, CredentialError> {
        let interactive = match self.interactive {
            InteractiveMode::Never => false,
            InteractiveMode::IfAvailable => io::stdin().is_terminal(),
            InteractiveMode::Always if io::stdin().is_terminal() => true,
            InteractiveMode::Always => {
                let why = "exec plugin cannot support interactive mode: standard input is not a terminal";
                return Err(self.error(why, "run narthex proxy in a terminal, so that the plugin can prompt"));
            }
        };
        let mut command = Command::new(&self.command);
        command
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .env(EXEC_INFO_VARIABLE, self.exec_info(interactive))
            .stdin(if interactive { Stdio::inherit() } else { Stdio::null() })
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let why = format!("exec: executable {} not found", self.command_text);
                self.error(&why, &self.install_advice())
            }
            _ => self.error(&format!("exec: {}: {error}", self.command_text), "check the permissions of the file"),
        })?;
        let mut output = Vec::new();
        let stdout = child.stdout.take();
        let run = timeout(patience, async {
            if let Some(stdout) = stdout {
                stdout.take(MAX_OUTPUT_BYTES + 1).read_to_end(&mut output).await?;
            }
            // Not waited for: it may block until the rest is read.
            if output.len() as u64 > MAX_OUTPUT_BYTES {
                return Ok(None);
            }
            child.wait().await.map(Some)
        });
        let status = match run.await {
            Ok(Ok(Some(status))) => status,
            Ok(Ok(None)) => {
                let why = format!("exec: decoding stdout: longer than {MAX_OUTPUT_BYTES} bytes");
                return Err(self.error(&why, "run it manually"));
            }
            Ok(Err(error)) => {
                return Err(self.error(&format!("exec: {}: {error}", self.command_text), "run it manually"));
            }
            Err(_) => {
                let why = format!("exec: executable {} did not end within {patience:?}", self.command_text);
                return Err(self.error(&why, "it was killed; run it manually to see what it waits for"));
            }
        };
        if !status.success() {
            // -1 if a signal ended it, as in Go.
            let code = status.code().unwrap_or(-1);
            let why = format!("exec: executable {} failed with exit code {code}", self.command_text);
            return Err(self.error(&why, "its error output is in the terminal or log of narthex proxy"));
        }
        self.parse_credential(&output, SystemTime::now()).map_err(|why| {
            self.error(&why, "run it manually: it must write an ExecCredential and nothing else to standard output")
        })
    }

    /// The request to the program, passed in its environment.
    fn exec_info(&self, interactive: bool) -> String {
        let mut spec = json!({ "interactive": interactive });
        if let Some(cluster) = &self.cluster {
            spec["cluster"] = cluster.clone();
        }
        json!({ "kind": "ExecCredential", "apiVersion": self.version, "spec": spec }).to_string()
    }

    /// Parses the output. Errors do not quote it: it may hold secrets.
    fn parse_credential(&self, output: &[u8], now: SystemTime) -> Result<PluginCredentials, String> {
        let no_credential = || "exec: decoding stdout: not an ExecCredential".to_owned();
        let output = std::str::from_utf8(output).map_err(|_| no_credential())?;
        // JSON, or YAML, which client-go accepts too.
        let credential: ExecCredential = serde_saphyr::from_str(output).map_err(|_| no_credential())?;
        if credential.kind != "ExecCredential" {
            return Err(no_credential());
        }
        if credential.api_version != self.version {
            return Err(format!(
                "exec plugin is configured to use API version {}, plugin returned version {}",
                self.version,
                strip_control_characters(&credential.api_version)
            ));
        }
        let status = credential.status.ok_or("exec plugin didn't return a status field")?;
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let identity = match (given(status.client_certificate_data), given(status.client_key_data)) {
            (None, None) => None,
            (Some(chain), Some(key)) => {
                let pair = KeyPair::from_pem(chain.as_bytes(), key.as_bytes(), &self.command_text);
                Some(pair.map_err(|problem| format!("failed parsing client key/certificate: {}", problem.message))?)
            }
            _ => return Err("exec plugin returned only certificate or key, not both".to_owned()),
        };
        let authorization = match given(status.token) {
            None => None,
            Some(token) => Some(bearer_header(&token).ok_or("exec plugin returned a token with invalid bytes")?),
        };
        if identity.is_none() && authorization.is_none() {
            return Err("exec plugin didn't return a token or cert/key pair".to_owned());
        }
        let stamp = given(status.expiration_timestamp);
        let stamp = stamp.map(|stamp| stamp.parse::<jiff::Timestamp>().map(SystemTime::from));
        let expiry =
            stamp.transpose().map_err(|_| "exec: decoding stdout: expirationTimestamp is not an RFC 3339 time")?;
        // A certificate also expires by itself.
        let ends =
            identity.as_ref().map(|pair| SystemTime::UNIX_EPOCH + Duration::from_secs(pair.not_after().as_secs()));
        let until = [expiry, ends].into_iter().flatten().min();
        Ok(PluginCredentials { authorization, identity: identity.map(Arc::new), valid_from: now, expires_at: until })
    }

    /// A warning if the program does not exist, before it is needed.
    pub(super) fn warning(&self) -> Option<Problem> {
        let found = match self.command_text.contains('/') {
            true => self.command.exists(),
            false => std::env::var_os("PATH")
                .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(&self.command).is_file())),
        };
        let message =
            format!("user {:?}: executable {} not found; {}", self.user, self.command_text, self.install_advice());
        (!found).then(|| Problem::new(&self.location, message))
    }

    fn install_advice(&self) -> String {
        let hint = strip_control_characters(&self.install_hint);
        if hint.trim().is_empty() {
            "install it, or put its folder into PATH".to_owned()
        } else {
            hint.trim().to_owned()
        }
    }

    fn error(&self, why: &str, advice: &str) -> CredentialError {
        CredentialError(format!("getting credentials: {why}\nuser {:?} of {}: {advice}", self.user, self.location))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::tls::{Authority, CertificateSpec};

    fn exec(folder: &Path, script: &str, more: &serde_json::Value) -> ExecPlugin {
        let program = folder.join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let mut written = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "./program", "interactiveMode": "Never"});
        written.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let written: ExecConfig = serde_json::from_value(written).unwrap();
        ExecPlugin::new("jane", folder, "/home/jane/.kube/config", &written).unwrap()
    }

    #[tokio::test]
    async fn exec_plugin_run_with_arguments_and_environment() {
        let folder = tempfile::tempdir().unwrap();
        let script = "printf '{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":\
                      {\"token\":\"%s-%s-%s\"}}' \"$1\" \"$MINE\" \"$#\"; printf %s \"$KUBERNETES_EXEC_INFO\" > \"$2\"; read x; true";
        let told = folder.path().join("told");
        let more = json!({"args": ["a b", told.to_str().unwrap()], "env": [{"name": "MINE", "value": "v"}]});
        let exec = exec(folder.path(), script, &more).with_cluster_info(json!({"server": "https://api"}));
        let granted = exec.run(EXEC_TIMEOUT).await.ok().unwrap();
        assert_eq!(granted.authorization.unwrap().as_bytes(), b"Bearer a b-v-2");
        let told: serde_json::Value = serde_json::from_slice(&std::fs::read(told).unwrap()).unwrap();
        let spec = json!({"interactive": false, "cluster": {"server": "https://api"}});
        assert_eq!(
            told,
            json!({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "spec": spec})
        );
    }

    #[tokio::test]
    async fn exec_plugin_errors_match_client_go_without_output() {
        let folder = tempfile::tempdir().unwrap();
        let credential = |status: &str| {
            format!("echo '{{kind: ExecCredential, apiVersion: client.authentication.k8s.io/v1, status: {status}}}'")
        };
        for (script, expected) in [
            ("echo secret; exit 3".to_owned(), "exec: executable ./program failed with exit code 3"),
            ("kill -9 $$".to_owned(), "exec: executable ./program failed with exit code -1"),
            ("exec sleep 600".to_owned(), "exec: executable ./program did not end within 500ms"),
            ("echo secret".to_owned(), "exec: decoding stdout: not an ExecCredential"),
            ("echo '{\"kind\": \"Secret\"}'".to_owned(), "exec: decoding stdout: not an ExecCredential"),
            ("head -c 2000000 /dev/zero".to_owned(), "exec: decoding stdout: longer than 1048576 bytes"),
            (
                credential("{token: secret}").replace("/v1", "/v1beta1"),
                "exec plugin is configured to use API version client.authentication.k8s.io/v1, plugin returned version \
                 client.authentication.k8s.io/v1beta1",
            ),
            (credential("null"), "exec plugin didn't return a status field"),
            (credential("{token: \"\"}"), "exec plugin didn't return a token or cert/key pair"),
            (credential("{clientKeyData: secret}"), "exec plugin returned only certificate or key, not both"),
            (
                credential("{clientKeyData: secret, clientCertificateData: secret}"),
                "failed parsing client key/certificate: ",
            ),
            (credential("{token: \"secret\\u0001\"}"), "exec plugin returned a token with invalid bytes"),
            (
                credential("{token: secret, expirationTimestamp: soon}"),
                "exec: decoding stdout: expirationTimestamp is not",
            ),
        ] {
            let patience = if script.contains("sleep") { Duration::from_millis(500) } else { EXEC_TIMEOUT };
            let why = exec(folder.path(), &script, &json!({})).run(patience).await.err().unwrap().to_string();
            assert!(why.starts_with(&format!("getting credentials: {expected}")), "{script}: {why}");
            assert!(
                why.contains("\nuser \"jane\" of /home/jane/.kube/config: ") && !why.contains("secret"),
                "{script}: {why}"
            );
        }
        let hint = json!({"command": "no-such-program", "installHint": "brew install \u{1b}[31mit"});
        let missing = exec(folder.path(), "", &hint);
        let why = missing.run(EXEC_TIMEOUT).await.err().unwrap().to_string();
        assert_eq!(
            why,
            "getting credentials: exec: executable no-such-program not found\n\
             user \"jane\" of /home/jane/.kube/config: brew install [31mit"
        );
        let warning = missing.warning().unwrap().to_string();
        assert!(warning.contains("user \"jane\": executable no-such-program not found; brew install"), "{warning}");
        assert!(exec(folder.path(), "", &json!({})).warning().is_none());
        assert!(exec(folder.path(), "", &json!({"command": "sh"})).warning().is_none());
    }

    #[test]
    fn exec_plugin_credentials_expire_with_timestamp_or_certificate() {
        let now = SystemTime::now();
        let pair = Authority::generate("a").issue(&CertificateSpec::client("jane", &[]), now).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let exec = exec(folder.path(), "", &json!({}));
        let read = |status: serde_json::Value| {
            let credential = json!({"kind": "ExecCredential", "apiVersion": exec.version, "status": status});
            exec.parse_credential(credential.to_string().as_bytes(), now).ok().unwrap()
        };
        assert_eq!(read(json!({"token": "t"})).expires_at, None);
        let until = read(json!({"token": "t", "expirationTimestamp": "2030-01-02T03:04:05Z"})).expires_at.unwrap();
        assert_eq!(until, SystemTime::UNIX_EPOCH + Duration::from_secs(1_893_553_445));
        let both = read(json!({"clientCertificateData": pair.certificate, "clientKeyData": pair.key, "token": "t"}));
        assert!(
            both.identity.is_some() && both.authorization.is_some() && both.expires_at.is_some_and(|until| until > now)
        );
    }
}
