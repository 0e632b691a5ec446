//! The gateway with no kube-apiserver: kubectl asks who it is and what it may, and a real kube-apiserver with the
//! same roles and bindings answers the same.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::TrialWith;
use crate::world::{Kubectl, Process, World, kubectl_run};

pub(super) const WITH_KUBECTL: &[(&str, TrialWith)] = &[("standalone: whoami, can-i", alone)];

/// Who asks: a name, its groups, and its token.
const PEOPLE: [(&str, &[&str], &str); 4] = [
    ("jane", &["devs"], "token-of-jane"),
    ("bob", &["ops", "devs"], "token-of-bob"),
    ("system:serviceaccount:robots:robot", &["system:serviceaccounts"], "token-of-a-robot"),
    ("nobody", &[], "token-of-nobody"),
];

/// Behind `auth can-i`.
const QUESTIONS: [&str; 22] = [
    "get things.things.example.com -n NAMESPACE",
    "list things.things.example.com -n NAMESPACE",
    "create things.things.example.com -n NAMESPACE",
    "delete things.things.example.com -n NAMESPACE",
    "deletecollection things.things.example.com -n NAMESPACE",
    "get things.things.example.com -n elsewhere",
    "create things.things.example.com -n elsewhere",
    "list things.things.example.com -A",
    "get things.things.example.com/door -n NAMESPACE",
    "update things.things.example.com/door --subresource=scale -n NAMESPACE",
    "update things.things.example.com/gate --subresource=scale -n NAMESPACE",
    "update others.things.example.com/door --subresource=scale -n NAMESPACE",
    "get things.things.example.com --subresource=status -n NAMESPACE",
    "update things.things.example.com --subresource=status -n NAMESPACE",
    "get things.things.example.com --subresource=log -n NAMESPACE",
    "* things.things.example.com -n NAMESPACE",
    "get * -n NAMESPACE",
    "watch *.wild.example.com -A",
    "get /stories",
    "get /stories/one",
    "get /storiesque",
    "post /stories",
];

fn alone(world: &World, kubectl: &Kubectl) {
    let namespace = format!("standalone-{}-{:08x}", kubectl.version.replace('.', "-"), fastrand::u32(..));
    let scratch = world.scratch(&namespace);
    let policy = scratch.join("policy.yaml");
    std::fs::write(&policy, include_str!("../fixtures/policy.yaml").replace("NAMESPACE", &namespace)).unwrap();

    // The real one: the same objects, made with kubectl; what is aggregated, its controller gathers.
    world.cluster.create_namespace(&namespace);
    let real = Person { kubectl, kubeconfig: world.cluster.admin_kubeconfig.clone(), home: scratch.clone() };
    real.says(&["apply", "-f", policy.to_str().unwrap()]);

    let gateway = Alone::start(&scratch, &policy);
    for (name, groups, token) in PEOPLE {
        let ours = gateway.person(kubectl, token);
        let who = ours.says(&["auth", "whoami", "-o", "json"]);
        let who: serde_json::Value = serde_json::from_str(&who).unwrap();
        let mut expected: Vec<&str> = groups.to_vec();
        expected.push("system:authenticated");
        assert_eq!(who["status"]["userInfo"]["username"], name);
        assert_eq!(who["status"]["userInfo"]["groups"], serde_json::json!(expected));

        let mut like = vec![format!("--as={name}")];
        like.extend(expected.iter().map(|group| format!("--as-group={group}")));
        for question in QUESTIONS {
            let question = question.replace("NAMESPACE", &namespace);
            let words: Vec<&str> = ["auth", "can-i"].into_iter().chain(question.split(' ')).collect();
            let wanted: Vec<&str> = words.iter().copied().chain(like.iter().map(String::as_str)).collect();
            // The aggregated roles take a moment there, and none here.
            crate::world::eventually(&format!("{name}: {question}"), || {
                let (theirs, ours) = (real.answers(&wanted), ours.answers(&words));
                if theirs == ours { Ok(()) } else { Err(format!("kube-apiserver: {theirs}; narthex: {ours}")) }
            });
        }
    }
    let jane = gateway.person(kubectl, PEOPLE[0].2);
    let list = jane.says(&["auth", "can-i", "--list", "-n", &namespace]);
    for line in ["things.things.example.com", "selfsubjectaccessreviews.authorization.k8s.io", "[/stories/*]"] {
        assert!(list.contains(line), "{line} is missing:\n{list}");
    }
    assert!(jane.says(&["api-resources", "--api-group=authorization.k8s.io"]).contains("SelfSubjectRulesReview"));
}

/// A gateway of its own making: no kube-apiserver, no registry.
struct Alone {
    _process: Process,
    directory: PathBuf,
}

impl Alone {
    fn start(directory: &Path, policy: &Path) -> Alone {
        let tokens = directory.join("tokens.csv");
        let line =
            |(name, groups, token): &(&str, &[&str], &str)| format!("{token},{name},,\"{}\"\n", groups.join(","));
        std::fs::write(&tokens, PEOPLE.iter().map(line).collect::<String>()).unwrap();
        let data = directory.join("data");
        let mut arguments: Vec<OsString> =
            ["gateway", "--secure-port=0", "--admin-address=", "--authorization-mode=Static"].map(Into::into).into();
        for (flag, path) in
            [("--data-dir", data.as_path()), ("--token-auth-file", &tokens), ("--authorization-policy-file", policy)]
        {
            arguments.extend([flag.into(), path.into()]);
        }
        let mut process = Process::start("standalone", Path::new(env!("CARGO_BIN_EXE_narthex")), arguments, directory);
        let log = process.reader();
        process.wait_until(|| if log().contains("serving") { Ok(()) } else { Err(log()) });
        Alone { _process: process, directory: directory.to_owned() }
    }

    /// Who has `token`, and no certificate.
    fn person<'k>(&self, kubectl: &'k Kubectl, token: &str) -> Person<'k> {
        let kubeconfig = self.directory.join(format!("{token}.kubeconfig"));
        std::fs::copy(self.directory.join("data/admin.kubeconfig"), &kubeconfig).unwrap();
        let person = Person { kubectl, kubeconfig, home: self.directory.clone() };
        person.says(&["config", "set-credentials", "person", &format!("--token={token}")]);
        person.says(&["config", "set-context", "--current", "--user=person"]);
        person
    }
}

pub(super) struct Person<'k> {
    pub(super) kubectl: &'k Kubectl,
    pub(super) kubeconfig: PathBuf,
    pub(super) home: PathBuf,
}

impl Person<'_> {
    /// What kubectl prints, which must succeed.
    pub(super) fn says(&self, words: &[&str]) -> String {
        let mut command = self.kubectl.command(&self.kubeconfig, &self.home);
        command.args(words);
        let output = kubectl_run(command, "");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// `yes` or `no`.
    pub(super) fn answers(&self, words: &[&str]) -> String {
        let mut command = self.kubectl.command(&self.kubeconfig, &self.home);
        command.args(words);
        let output = kubectl_run(command, "");
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if said.is_empty() { String::from_utf8_lossy(&output.stderr).into_owned() } else { said }
    }
}
