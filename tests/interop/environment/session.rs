//! A kubectl session of one user in one namespace at one target, with a transcript.
//!
//! The same scenario runs at the reference server and through narthex. Values that differ from run to run (namespace,
//! address, uid, times, resource versions) are replaced; the transcripts must then be equal.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use regex::Regex;

use super::kubectl::{RunningKubectl, run};
use super::{HttpsEndpoint, Identity, Kubectl, Target, TestEnvironment, kubeconfig};

/// Output and exit status of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandResult {
    pub(crate) command: String,
    pub(crate) success: bool,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl CommandResult {
    /// Runs a kubectl `command`; `args` is its name in the transcript.
    pub(crate) fn run(args: &str, command: Command, input: &str) -> CommandResult {
        let output = run(command, input);
        CommandResult {
            command: format!("kubectl {args}"),
            success: output.status.success(),
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Asserts success and returns standard output.
    #[track_caller]
    pub(crate) fn ok(&self) -> &str {
        assert!(self.success, "`{}` failed:\n{}{}", self.command, self.output, self.errors);
        &self.output
    }

    /// Asserts failure with `text` on standard error.
    #[track_caller]
    pub(crate) fn expect_error(&self, text: &str) {
        assert!(!self.success, "`{}` succeeded:\n{}", self.command, self.output);
        assert!(self.errors.contains(text), "`{}` printed no {text:?} but:\n{}", self.command, self.errors);
    }
}

/// A kubectl session of one user.
pub(crate) struct Session<'w> {
    pub(crate) environment: &'w TestEnvironment,
    pub(crate) target: Target,
    pub(crate) endpoint: HttpsEndpoint,
    pub(crate) namespace: String,
    kubectl: Kubectl,
    kubeconfig: PathBuf,
    home: PathBuf,
    transcript: Vec<CommandResult>,
}

impl<'w> Session<'w> {
    /// Opens a session of `identity` at `target` in a new namespace.
    pub(crate) fn open(
        environment: &'w TestEnvironment,
        kubectl: &Kubectl,
        target: Target,
        identity: &Identity,
    ) -> Session<'w> {
        let namespace = format!("story-{:08x}", fastrand::u32(..));
        environment.cluster.create_namespace(&namespace);
        Self::open_in(environment, kubectl, target, environment.endpoint(target), identity, namespace)
    }

    /// Opens a session at `endpoint`, a gateway outside the shared environment.
    pub(crate) fn open_at(
        environment: &'w TestEnvironment,
        kubectl: &Kubectl,
        endpoint: &HttpsEndpoint,
        identity: &Identity,
    ) -> Session<'w> {
        let namespace = format!("story-{:08x}", fastrand::u32(..));
        environment.cluster.create_namespace(&namespace);
        Self::open_in(environment, kubectl, Target::Gateway, endpoint, identity, namespace)
    }

    fn open_in(
        environment: &'w TestEnvironment,
        kubectl: &Kubectl,
        target: Target,
        endpoint: &HttpsEndpoint,
        identity: &Identity,
        namespace: String,
    ) -> Session<'w> {
        let home = environment.scratch(&namespace);
        let name = identity.certificate.file_stem().unwrap().to_string_lossy();
        let kubeconfig = kubeconfig::write(&home, &name, &endpoint.url(), &endpoint.authority, Some(identity));
        let (kubectl, endpoint) = (kubectl.clone(), endpoint.clone());
        Session { environment, target, endpoint, namespace, kubectl, kubeconfig, home, transcript: Vec::new() }
    }

    /// Runs `commands` as another user in the same namespace, with the same transcript.
    pub(crate) fn as_user(&mut self, identity: &Identity, commands: impl FnOnce(&mut Session<'w>)) {
        let namespace = self.namespace.clone();
        let mut session =
            Self::open_in(self.environment, &self.kubectl, self.target, &self.endpoint, identity, namespace);
        commands(&mut session);
        self.transcript.append(&mut session.transcript);
    }

    /// A kubectl command with these arguments (split at blanks) in the session's namespace.
    pub(crate) fn command(&self, args: &str) -> Command {
        let mut command = self.kubectl.command(&self.kubeconfig, &self.home);
        command.arg(format!("--namespace={}", self.namespace)).args(args.split_whitespace());
        command
    }

    /// Runs kubectl and records the result in the transcript.
    pub(crate) fn kubectl(&mut self, args: &str) -> CommandResult {
        self.with_input(args, "")
    }

    /// Runs kubectl with a document on standard input and records the result.
    pub(crate) fn with_input(&mut self, args: &str, input: &(impl Display + ?Sized)) -> CommandResult {
        let command = self.command(args);
        self.record(args, command, &input.to_string())
    }

    /// Runs a prepared command and records the result (for example with an editor or special arguments).
    pub(crate) fn record(&mut self, args: &str, command: Command, input: &str) -> CommandResult {
        let step = CommandResult::run(args, command, input);
        self.transcript.push(CommandResult {
            command: self.normalized(&step.command),
            success: step.success,
            output: self.normalized(&step.output),
            errors: self.normalized(&step.errors),
        });
        step
    }

    /// Runs kubectl without recording, where the targets may differ.
    pub(crate) fn run_unrecorded(&self, args: &str) -> CommandResult {
        CommandResult::run(args, self.command(args), "")
    }

    /// Starts a kubectl that keeps running, without recording.
    pub(crate) fn stream(&self, args: &str) -> RunningKubectl {
        RunningKubectl::start(self.command(args))
    }

    /// Records an additional value that must be equal at both targets.
    pub(crate) fn record_note(&mut self, what: &str, output: &str) {
        let (command, output) = (self.normalized(what), self.normalized(output));
        self.transcript.push(CommandResult { command, success: true, output, errors: String::new() });
    }

    /// Number of results in the transcript.
    pub(crate) fn recorded(&self) -> usize {
        self.transcript.len()
    }

    pub(crate) fn into_transcript(self) -> Vec<CommandResult> {
        self.transcript
    }

    fn normalized(&self, text: &str) -> String {
        static ACCIDENTS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
            [
                (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
                (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
                (r#"(resourceVersion"?: ?)"\d+""#, "${1}VERSION"),
                (r#"("continue": ?)"[^"]+""#, "${1}CONTINUE"),
                (r"(Resource Version: +)\d+", "${1}VERSION"),
                // Names of the two files of `kubectl diff`.
                (r"(LIVE|MERGED)-\d+", "${1}"),
                (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ [+-]\d{4}", "TIME"),
                (r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "TIME"),
                (r#"("storageVersionHash": ?)"[^"]+""#, "${1}HASH"),
                // klog's prefix of warnings and errors: severity, date, time, thread.
                (r"(?m)^[IWE]\d{4} [\d:.]+ +\d+ ", "KLOG "),
                (r" {2,}", "  "),
            ]
            .into_iter()
            .map(|(pattern, blank)| (Regex::new(pattern).unwrap(), blank))
            .collect()
        });
        let url = self.endpoint.url();
        let mut text = text
            .replace(&self.namespace, "NAMESPACE")
            .replace(&url, "SERVER")
            // kube-apiserver reports its own address.
            .replace(&self.environment.cluster.endpoint.url(), "SERVER")
            .replace(url.trim_start_matches("https://"), "SERVER");
        for (accident, blank) in ACCIDENTS.iter() {
            text = accident.replace_all(&text, *blank).into_owned();
        }
        text
    }
}
