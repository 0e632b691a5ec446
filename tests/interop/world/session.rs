//! One person with one kubectl in one namespace at one target, and a transcript of what was said.
//!
//! The same story is told to the extension server directly and through narthex; what is only an
//! accident of the telling (namespace, address, uid, times, resource versions) is blanked, and then
//! the two transcripts must be equal, word for word.

use std::fmt::Display;
use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use regex::Regex;

use super::kubectl::{Stream, run};
use super::{Door, Identity, Kubectl, Target, World, kubeconfig};

/// What one command said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) command: String,
    pub(crate) success: bool,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Step {
    /// Runs a kubectl `command`, which people know as `words`.
    pub(crate) fn run(words: &str, command: Command, input: &str) -> Step {
        let output = run(command, input);
        Step {
            command: format!("kubectl {words}"),
            success: output.status.success(),
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Asserts that it succeeded, and gives its output.
    #[track_caller]
    pub(crate) fn ok(&self) -> &str {
        assert!(self.success, "`{}` failed:\n{}{}", self.command, self.output, self.errors);
        &self.output
    }

    /// Asserts that it failed saying `text`.
    #[track_caller]
    pub(crate) fn refused(&self, text: &str) {
        assert!(!self.success, "`{}` succeeded:\n{}", self.command, self.output);
        assert!(self.errors.contains(text), "`{}` did not say {text:?} but:\n{}", self.command, self.errors);
    }
}

/// A person at work.
pub(crate) struct Session<'w> {
    pub(crate) world: &'w World,
    pub(crate) target: Target,
    pub(crate) door: Door,
    pub(crate) namespace: String,
    kubectl: Kubectl,
    kubeconfig: PathBuf,
    home: PathBuf,
    transcript: Vec<Step>,
}

impl<'w> Session<'w> {
    /// `who` with `kubectl` at `target`, in a new namespace.
    pub(crate) fn open(world: &'w World, kubectl: &Kubectl, target: Target, who: &Identity) -> Session<'w> {
        let namespace = format!("story-{:08x}", fastrand::u32(..));
        world.cluster.create_namespace(&namespace);
        Self::open_in(world, kubectl, target, world.door(target), who, namespace)
    }

    /// The same at another `door` than the world's, which is to be taken for narthex there.
    pub(crate) fn open_at(world: &'w World, kubectl: &Kubectl, door: &Door, who: &Identity) -> Session<'w> {
        let namespace = format!("story-{:08x}", fastrand::u32(..));
        world.cluster.create_namespace(&namespace);
        Self::open_in(world, kubectl, Target::Through, door, who, namespace)
    }

    fn open_in(
        world: &'w World,
        kubectl: &Kubectl,
        target: Target,
        door: &Door,
        who: &Identity,
        namespace: String,
    ) -> Session<'w> {
        let home = world.scratch(&namespace);
        let name = who.certificate.file_stem().unwrap().to_string_lossy();
        let kubeconfig = kubeconfig::write(&home, &name, &door.url(), &door.authority, Some(who));
        let (kubectl, door) = (kubectl.clone(), door.clone());
        Session { world, target, door, namespace, kubectl, kubeconfig, home, transcript: Vec::new() }
    }

    /// Lets someone else act in the same namespace, and in the same transcript.
    pub(crate) fn joined_by(&mut self, who: &Identity, act: impl FnOnce(&mut Session<'w>)) {
        let namespace = self.namespace.clone();
        let mut guest = Self::open_in(self.world, &self.kubectl, self.target, &self.door, who, namespace);
        act(&mut guest);
        self.transcript.append(&mut guest.transcript);
    }

    /// kubectl with these words (split at blanks) in the session's namespace, ready to run.
    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = self.kubectl.command(&self.kubeconfig, &self.home);
        command.arg(format!("--namespace={}", self.namespace)).args(words.split_whitespace());
        command
    }

    /// Runs it and writes it into the transcript that is compared.
    pub(crate) fn kubectl(&mut self, words: &str) -> Step {
        self.with_input(words, "")
    }

    /// The same with a document on standard input.
    pub(crate) fn with_input(&mut self, words: &str, input: &(impl Display + ?Sized)) -> Step {
        let command = self.command(words);
        self.record(words, command, &input.to_string())
    }

    /// The same with a command that was prepared further (an editor, odd arguments).
    pub(crate) fn record(&mut self, words: &str, command: Command, input: &str) -> Step {
        let step = Step::run(words, command, input);
        self.transcript.push(Step {
            command: self.blanked(&step.command),
            success: step.success,
            output: self.blanked(&step.output),
            errors: self.blanked(&step.errors),
        });
        step
    }

    /// Runs it without comparing: where the targets rightly differ.
    pub(crate) fn aside(&self, words: &str) -> Step {
        Step::run(words, self.command(words), "")
    }

    /// Starts a kubectl that keeps running.
    pub(crate) fn stream(&self, words: &str) -> Stream {
        Stream::start(self.command(words))
    }

    /// Adds something else that must be the same at both targets.
    pub(crate) fn note(&mut self, what: &str, output: &str) {
        let output = self.blanked(output);
        self.transcript.push(Step { command: what.to_owned(), success: true, output, errors: String::new() });
    }

    pub(crate) fn into_transcript(self) -> Vec<Step> {
        self.transcript
    }

    fn blanked(&self, text: &str) -> String {
        static ACCIDENTS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
            [
                (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UID"),
                (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
                (r#"(resourceVersion"?: ?)"\d+""#, "${1}VERSION"),
                (r#"("continue": ?)"[^"]+""#, "${1}CONTINUE"),
                (r"(Resource Version: +)\d+", "${1}VERSION"),
                // What `kubectl diff` calls its two files.
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
        let url = self.world.door(self.target).url();
        let mut text = text
            .replace(&self.namespace, "NAMESPACE")
            .replace(&url, "SERVER")
            // kube-apiserver says where it is itself.
            .replace(&self.world.cluster.door.url(), "SERVER")
            .replace(url.trim_start_matches("https://"), "SERVER");
        for (accident, blank) in ACCIDENTS.iter() {
            text = accident.replace_all(&text, *blank).into_owned();
        }
        text
    }
}
