//! `narthex quickstart`: the printed commands are run, and the custom resources are used with kubectl.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;

use super::KubectlTestFn;
use crate::environment::{CommandResult, Kubectl, Process, RunningKubectl, TestEnvironment};

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] =
    &[("quickstart: printed commands and custom resources", quickstart)];

fn quickstart(environment: &TestEnvironment, kubectl: &Kubectl) {
    // A path with a blank, which the printed commands must quote.
    let directory = environment.scratch(&format!("quickstart with {}", kubectl.version));
    let data = directory.join("data");
    let first = Quickstart::start(&directory, "first", &data);
    assert!(first.output.starts_with("Created "), "{}", first.output);
    first.lines_can_be_pasted(kubectl, &directory);
    let user = QuickstartUser { kubectl, kubeconfig: data.join("admin.kubeconfig"), home: directory.clone() };
    for kind in [ResourceKind::greetings(), ResourceKind::doors()] {
        user.exercise_kind(&kind);
    }
    user.list_everything();
    let made = certificates(&data);
    first.end();

    let second = Quickstart::start(&directory, "second", &data);
    assert!(second.output.starts_with("Found "), "{}", second.output);
    second.lines_can_be_pasted(kubectl, &directory);
    assert!(certificates(&data) == made, "the certificates changed");
    second.end();
}

/// A running quickstart and its output.
struct Quickstart {
    process: Process,
    output: String,
}

impl Quickstart {
    fn start(directory: &Path, name: &str, data: &Path) -> Quickstart {
        let arguments = ["quickstart", "--secure-port=0", "--admin-address=127.0.0.1:0", "--data-dir"].map(Into::into);
        let arguments: Vec<std::ffi::OsString> = arguments.into_iter().chain([data.into()]).collect();
        let program = Path::new(env!("CARGO_BIN_EXE_narthex"));
        let mut process = Process::start(&format!("quickstart-{name}"), program, arguments, directory);
        let log = process.reader();
        let output = process.wait_until(|| {
            let output = log();
            if output.ends_with("Ctrl-C ends it.\n") { Ok(output) } else { Err(output) }
        });
        Quickstart { process, output }
    }

    /// Runs each printed command in a shell, with `kubectl` replaced by the program under test.
    fn lines_can_be_pasted(&self, kubectl: &Kubectl, directory: &Path) {
        let tools = directory.join("tools");
        std::fs::create_dir_all(&tools).unwrap();
        // The object exists at the second start.
        let _ = std::os::unix::fs::symlink(&kubectl.program, tools.join("kubectl"));
        let mut path = tools.into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());

        let lines = |word: &str| self.output.lines().filter(|line| line.contains(word)).collect::<Vec<_>>();
        assert_eq!((lines("kubectl").len(), lines("curl").len()), (6, 1), "{}", self.output);
        for line in [lines("kubectl"), lines("curl")].concat() {
            let output =
                Command::new("sh").args(["-c", line]).env("PATH", &path).env("HOME", directory).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{line}: {text}{}", String::from_utf8_lossy(&output.stderr));
            let expected = match line {
                line if line.contains("curl") => "\"kind\": \"GreetingList\"",
                line if line.contains("explain") => "FIELDS:",
                line if line.contains("bells") => "sunday ",
                _ => "NAME ",
            };
            assert!(text.contains(expected), "{line}:\n{text}");
        }
        let page = self.output.lines().find_map(|line| line.strip_prefix("Status page: ")).expect("a status page");
        let output = Command::new("curl").args(["--silent", "--fail", page]).output().unwrap();
        assert!(output.status.success() && !output.stdout.is_empty(), "{page}: {output:?}");
    }

    fn end(mut self) {
        self.process.signal(Signal::INT);
        let status = self.process.wait();
        assert_eq!(status.code(), Some(0), "{status}");
    }
}

/// All keys and certificates, by name.
fn certificates(data: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(data.join("pki")).unwrap().map(|entry| entry.unwrap().path());
    let kept = files.filter(|path| path.extension().is_some_and(|it| it == "crt" || it == "key"));
    kept.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// A kind of the group `example.narthex.dev`.
struct ResourceKind {
    plural: &'static str,
    singular: &'static str,
    /// Kind in a manifest.
    names: serde_json::Value,
    /// Name of a string field in `spec`.
    field: &'static str,
    /// Name of an object that exists from the start.
    present: &'static str,
}

impl ResourceKind {
    fn greetings() -> ResourceKind {
        let names = json!({"apiVersion": "example.narthex.dev/v1", "kind": "Greeting"});
        ResourceKind { plural: "greetings", singular: "greeting", names, field: "message", present: "hello" }
    }

    fn doors() -> ResourceKind {
        let names = json!({"apiVersion": "example.narthex.dev/v1alpha1", "kind": "Door"});
        ResourceKind { plural: "doors", singular: "door", names, field: "leadsTo", present: "nave" }
    }

    fn manifest(&self, value: &str) -> serde_json::Value {
        let mut document = self.names.clone();
        document["metadata"] = json!({"name": "mine"});
        document["spec"] = json!({self.field: value});
        document
    }
}

/// A user of the generated kubeconfig.
struct QuickstartUser<'k> {
    kubectl: &'k Kubectl,
    kubeconfig: PathBuf,
    home: PathBuf,
}

impl QuickstartUser<'_> {
    fn kubectl(&self, args: &str) -> CommandResult {
        self.with_input(args, &serde_json::Value::Null)
    }

    fn with_input(&self, args: &str, document: &serde_json::Value) -> CommandResult {
        let input = if document.is_null() { String::new() } else { document.to_string() };
        CommandResult::run(args, self.command(args), &input)
    }

    fn command(&self, args: &str) -> Command {
        let mut command = self.kubectl.command(&self.kubeconfig, &self.home);
        command.args(args.split_whitespace());
        command
    }

    /// Creates, reads, changes and deletes an object with a watch open.
    fn exercise_kind(&self, kind: &ResourceKind) {
        let ResourceKind { plural, singular, field, present, .. } = kind;
        let value = || self.kubectl(&format!("get {singular} mine -o jsonpath={{.spec.{field}}}")).ok().to_owned();
        let mut watch = RunningKubectl::start(self.command(&format!("get {plural} -w --output-watch-events")));
        watch.line_with(present);

        let step = self.with_input("create -f -", &kind.manifest("one"));
        assert_eq!(step.ok(), format!("{singular}.example.narthex.dev/mine created\n"));
        assert!(watch.line_with("mine").starts_with("ADDED"));
        self.with_input("create -f -", &kind.manifest("one")).expect_error("AlreadyExists");

        assert!(self.with_input("apply -f -", &kind.manifest("two")).ok().contains("configured"));
        assert!(watch.line_with("mine").starts_with("MODIFIED"));
        assert!(self.with_input("apply -f -", &kind.manifest("two")).ok().contains("unchanged"));
        assert_eq!(value(), "two");
        let step = self.with_input("diff -f -", &kind.manifest("three"));
        assert!(!step.success && step.output.contains(&format!("+  {field}: three")), "{step:?}");

        let patch = format!(r#"{{"spec":{{"{field}":"four"}}}}"#);
        self.kubectl(&format!("patch {singular} mine --type=merge -p {patch}")).ok();
        assert_eq!(value(), "four");
        let patch = format!(r#"[{{"op":"replace","path":"/spec/{field}","value":"five"}}]"#);
        self.kubectl(&format!("patch {singular} mine --type=json -p {patch}")).ok();
        assert_eq!(value(), "five");
        self.kubectl(&format!("label {singular} mine seen=yes")).ok();
        let step = self.kubectl(&format!("get {plural} -l seen=yes --field-selector metadata.name=mine -o name"));
        assert_eq!(step.ok(), format!("{singular}.example.narthex.dev/mine\n"));
        self.kubectl(&format!("wait {singular} mine --for=jsonpath={{.spec.{field}}}=five --timeout=60s")).ok();

        let mut edit = self.command(&format!("edit {singular} mine"));
        edit.env("KUBE_EDITOR", "sed -i s/five/six/");
        assert!(CommandResult::run("edit", edit, "").ok().contains("edited"));
        assert_eq!(value(), "six");
        let current = self.kubectl(&format!("get {singular} mine -o json"));
        let current: serde_json::Value = serde_json::from_str(current.ok()).unwrap();
        let mut changed = current.clone();
        changed["spec"][field] = "seven".into();
        self.with_input("replace -f -", &changed).ok();
        assert_eq!(value(), "seven");
        self.with_input("replace -f -", &current).expect_error("Conflict");

        let mut wrong = kind.manifest("x");
        wrong["spec"]["nonsense"] = 1.into();
        self.with_input("apply -f -", &wrong).expect_error("unknown field \"spec.nonsense\"");
        assert!(self.kubectl(&format!("describe {singular} mine")).ok().contains("seven"));
        assert!(self.kubectl(&format!("explain {plural}.spec.{field}")).ok().contains("FIELD:"));
        self.kubectl(&format!("explain {plural} --recursive")).ok();
        self.kubectl(&format!("explain {plural}.nothing")).expect_error("field \"nothing\" does not exist");

        assert!(self.kubectl(&format!("delete {singular} mine")).ok().contains("deleted"));
        while !watch.line_with("mine").starts_with("DELETED") {}
        assert!(watch.is_running());
        self.kubectl(&format!("get {singular} mine")).expect_error("\"mine\" not found");
        self.kubectl(&format!("get {singular} mine --namespace=elsewhere")).expect_error("\" not found");
    }

    fn list_everything(&self) {
        let services = ["v1.example.narthex.dev", "v1alpha1.example.narthex.dev", "v1.samples.narthex.dev"];
        let step = self.kubectl(&format!("get apiservices {}", services.join(" ")));
        let lines: Vec<Vec<&str>> = step.ok().lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["NAME", "SERVICE", "AVAILABLE", "AGE"]);
        for (line, service) in lines[1..].iter().zip(services) {
            assert_eq!(line[..3], [service, "Local", "True"], "{}", step.output);
        }
        let step = self.kubectl("api-resources --api-group=example.narthex.dev -o name");
        assert_eq!(step.ok(), "doors.example.narthex.dev\ngreetings.example.narthex.dev\n");
        let step = self.kubectl("api-versions");
        for version in ["example.narthex.dev/v1", "example.narthex.dev/v1alpha1"] {
            assert!(step.ok().lines().any(|line| line == version), "{}", step.output);
        }
        assert!(self.kubectl("get all -o name").ok().contains("greeting.example.narthex.dev/hello"));
        assert!(self.kubectl("get doors -o wide").ok().contains("narthex quickstart"));
        self.kubectl("version").ok();
    }
}
