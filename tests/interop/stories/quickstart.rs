//! `narthex quickstart`: what it prints is pasted, and the example API is used as any other.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;

use super::TrialWith;
use crate::world::{Kubectl, Process, Step, Stream, World};

pub(super) const THROUGH: &[(&str, TrialWith)] = &[("quickstart", quickstart)];

fn quickstart(world: &World, kubectl: &Kubectl) {
    // A name that a shell would split.
    let directory = world.scratch(&format!("quickstart with {}", kubectl.version));
    let data = directory.join("data");
    let first = Quickstart::start(&directory, "first", &data);
    assert!(first.said.starts_with("Created "), "{}", first.said);
    first.lines_can_be_pasted(kubectl, &directory);
    let person = Person { kubectl, kubeconfig: data.join("admin.kubeconfig"), home: directory.clone() };
    for kind in [Kind::greetings(), Kind::doors()] {
        person.uses(&kind);
    }
    person.looks_around();
    let made = certificates(&data);
    first.end();

    let second = Quickstart::start(&directory, "second", &data);
    assert!(second.said.starts_with("Found "), "{}", second.said);
    second.lines_can_be_pasted(kubectl, &directory);
    assert!(certificates(&data) == made, "the certificates are others");
    second.end();
}

/// A running one, and what it printed.
struct Quickstart {
    process: Process,
    said: String,
}

impl Quickstart {
    fn start(directory: &Path, name: &str, data: &Path) -> Quickstart {
        let arguments = ["quickstart", "--secure-port=0", "--admin-address=127.0.0.1:0", "--data-dir"].map(Into::into);
        let arguments: Vec<std::ffi::OsString> = arguments.into_iter().chain([data.into()]).collect();
        let program = Path::new(env!("CARGO_BIN_EXE_narthex"));
        let mut process = Process::start(&format!("quickstart-{name}"), program, arguments, directory);
        let log = process.reader();
        let said = process.wait_until(|| {
            let said = log();
            if said.ends_with("Ctrl-C ends it.\n") { Ok(said) } else { Err(said) }
        });
        Quickstart { process, said }
    }

    /// Each line as a shell reads it, with `kubectl` being the one at hand.
    fn lines_can_be_pasted(&self, kubectl: &Kubectl, directory: &Path) {
        let tools = directory.join("tools");
        std::fs::create_dir_all(&tools).unwrap();
        // There already at the second start.
        let _ = std::os::unix::fs::symlink(&kubectl.program, tools.join("kubectl"));
        let mut path = tools.into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());

        let lines = |word: &str| self.said.lines().filter(|line| line.contains(word)).collect::<Vec<_>>();
        assert_eq!((lines("kubectl").len(), lines("curl").len()), (3, 1), "{}", self.said);
        for line in [lines("kubectl"), lines("curl")].concat() {
            let output =
                Command::new("sh").args(["-c", line]).env("PATH", &path).env("HOME", directory).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{line}: {text}{}", String::from_utf8_lossy(&output.stderr));
            let expected = match line {
                line if line.contains("curl") => "\"kind\": \"GreetingList\"",
                line if line.contains("explain") => "FIELDS:",
                _ => "NAME ",
            };
            assert!(text.contains(expected), "{line}:\n{text}");
        }
        let page = self.said.lines().find_map(|line| line.strip_prefix("Status page: ")).expect("a status page");
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

/// One of the example's kinds.
struct Kind {
    plural: &'static str,
    singular: &'static str,
    /// Of a manifest.
    names: serde_json::Value,
    /// A text in `spec`.
    field: &'static str,
    /// One that is there from the start.
    present: &'static str,
}

impl Kind {
    fn greetings() -> Kind {
        let names = json!({"apiVersion": "example.narthex.dev/v1", "kind": "Greeting"});
        Kind { plural: "greetings", singular: "greeting", names, field: "message", present: "hello" }
    }

    fn doors() -> Kind {
        let names = json!({"apiVersion": "example.narthex.dev/v1alpha1", "kind": "Door"});
        Kind { plural: "doors", singular: "door", names, field: "leadsTo", present: "nave" }
    }

    fn manifest(&self, value: &str) -> serde_json::Value {
        let mut document = self.names.clone();
        document["metadata"] = json!({"name": "mine"});
        document["spec"] = json!({self.field: value});
        document
    }
}

/// The person who was given the kubeconfig.
struct Person<'k> {
    kubectl: &'k Kubectl,
    kubeconfig: PathBuf,
    home: PathBuf,
}

impl Person<'_> {
    fn kubectl(&self, words: &str) -> Step {
        self.with_input(words, &serde_json::Value::Null)
    }

    fn with_input(&self, words: &str, document: &serde_json::Value) -> Step {
        let input = if document.is_null() { String::new() } else { document.to_string() };
        Step::run(words, self.command(words), &input)
    }

    fn command(&self, words: &str) -> Command {
        let mut command = self.kubectl.command(&self.kubeconfig, &self.home);
        command.args(words.split_whitespace());
        command
    }

    /// Everything people do with an object, with a watch open all the while.
    fn uses(&self, kind: &Kind) {
        let Kind { plural, singular, field, present, .. } = kind;
        let value = || self.kubectl(&format!("get {singular} mine -o jsonpath={{.spec.{field}}}")).ok().to_owned();
        let mut watch = Stream::start(self.command(&format!("get {plural} -w --output-watch-events")));
        watch.line_with(present);

        let step = self.with_input("create -f -", &kind.manifest("one"));
        assert_eq!(step.ok(), format!("{singular}.example.narthex.dev/mine created\n"));
        assert!(watch.line_with("mine").starts_with("ADDED"));
        self.with_input("create -f -", &kind.manifest("one")).refused("AlreadyExists");

        assert!(self.with_input("apply -f -", &kind.manifest("two")).ok().contains("configured"));
        assert!(watch.line_with("mine").starts_with("MODIFIED"));
        assert!(self.with_input("apply -f -", &kind.manifest("two")).ok().contains("unchanged"));
        assert_eq!(value(), "two");
        let step = self.with_input("diff -f -", &kind.manifest("three"));
        assert!(!step.success && step.output.contains(&format!("+  {field}: three")), "{step:?}");

        let second = "apply --server-side --field-manager=second -f -";
        self.with_input(second, &kind.manifest("three")).refused("conflict");
        let step = self.with_input(&format!("{second} --force-conflicts"), &kind.manifest("three"));
        assert!(step.ok().contains("serverside-applied"), "{step:?}");
        assert_eq!(value(), "three");

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
        assert!(Step::run("edit", edit, "").ok().contains("edited"));
        assert_eq!(value(), "six");
        let current = self.kubectl(&format!("get {singular} mine -o json"));
        let current: serde_json::Value = serde_json::from_str(current.ok()).unwrap();
        let mut changed = current.clone();
        changed["spec"][field] = "seven".into();
        self.with_input("replace -f -", &changed).ok();
        assert_eq!(value(), "seven");
        self.with_input("replace -f -", &current).refused("Conflict");

        let mut wrong = kind.manifest("x");
        wrong["spec"]["nonsense"] = 1.into();
        self.with_input("apply -f -", &wrong).refused("unknown field \"spec.nonsense\"");
        assert!(self.kubectl(&format!("describe {singular} mine")).ok().contains("seven"));
        assert!(self.kubectl(&format!("explain {plural}.spec.{field}")).ok().contains("FIELD:"));
        self.kubectl(&format!("explain {plural} --recursive")).ok();
        self.kubectl(&format!("explain {plural}.nothing")).refused("field \"nothing\" does not exist");

        assert!(self.kubectl(&format!("delete {singular} mine")).ok().contains("deleted"));
        while !watch.line_with("mine").starts_with("DELETED") {}
        assert!(watch.is_running());
        self.kubectl(&format!("get {singular} mine")).refused("\"mine\" not found");
        self.kubectl(&format!("get {singular} mine --namespace=elsewhere")).refused("\"mine\" not found");
    }

    fn looks_around(&self) {
        let step = self.kubectl("get apiservices");
        let mut lines = step.ok().lines();
        let titles: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
        assert_eq!(titles, ["NAME", "SERVICE", "AVAILABLE", "AGE"]);
        assert_eq!(lines.filter(|line| line.contains("example/example-api   True")).count(), 2, "{}", step.output);
        let step = self.kubectl("api-resources --api-group=example.narthex.dev -o name");
        assert_eq!(step.ok(), "doors.example.narthex.dev\ngreetings.example.narthex.dev\n");
        let step = self.kubectl("api-versions");
        for version in ["example.narthex.dev/v1", "example.narthex.dev/v1alpha1"] {
            assert!(step.ok().lines().any(|line| line == version), "{}", step.output);
        }
        assert!(self.kubectl("get all -o name").ok().contains("greeting.example.narthex.dev/hello"));
        self.kubectl("version").ok();
    }
}
