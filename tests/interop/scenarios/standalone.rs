//! A gateway without kube-apiserver: kubectl auth whoami and can-i give the same results as a real kube-apiserver
//! with the same RBAC objects.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::KubectlTestFn;
use crate::environment::{Kubectl, Process, TestEnvironment, kubectl_run};

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] = &[("standalone: auth whoami and can-i", whoami_and_can_i)];

/// Users: name, groups and token.
const USERS: [(&str, &[&str], &str); 4] = [
    ("jane", &["devs"], "token-of-jane"),
    ("bob", &["ops", "devs"], "token-of-bob"),
    ("system:serviceaccount:robots:robot", &["system:serviceaccounts"], "token-of-a-robot"),
    ("erin", &[], "token-of-erin"),
];

/// Arguments of `kubectl auth can-i`.
const CAN_I_QUERIES: [&str; 22] = [
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

fn whoami_and_can_i(environment: &TestEnvironment, kubectl: &Kubectl) {
    let namespace = format!("standalone-{}-{:08x}", kubectl.version.replace('.', "-"), fastrand::u32(..));
    let scratch = environment.scratch(&namespace);
    let policy = scratch.join("policy.yaml");
    std::fs::write(&policy, include_str!("../fixtures/policy.yaml").replace("NAMESPACE", &namespace)).unwrap();

    // The reference: the same objects in kube-apiserver, whose controller aggregates ClusterRoles.
    environment.cluster.create_namespace(&namespace);
    let reference =
        KubectlUser { kubectl, kubeconfig: environment.cluster.admin_kubeconfig.clone(), home: scratch.clone() };
    reference.run(&["apply", "-f", policy.to_str().unwrap()]);

    let gateway = StandaloneGateway::start(&scratch, &policy);
    for (name, groups, token) in USERS {
        let user = gateway.user(kubectl, token);
        let review = user.run(&["auth", "whoami", "-o", "json"]);
        let review: serde_json::Value = serde_json::from_str(&review).unwrap();
        let mut expected: Vec<&str> = groups.to_vec();
        expected.push("system:authenticated");
        assert_eq!(review["status"]["userInfo"]["username"], name);
        assert_eq!(review["status"]["userInfo"]["groups"], serde_json::json!(expected));

        let mut impersonation = vec![format!("--as={name}")];
        impersonation.extend(expected.iter().map(|group| format!("--as-group={group}")));
        for query in CAN_I_QUERIES {
            let query = query.replace("NAMESPACE", &namespace);
            let args: Vec<&str> = ["auth", "can-i"].into_iter().chain(query.split(' ')).collect();
            let with_impersonation: Vec<&str> =
                args.iter().copied().chain(impersonation.iter().map(String::as_str)).collect();
            // kube-apiserver aggregates ClusterRoles asynchronously.
            crate::environment::eventually(&format!("{name}: {query}"), || {
                let (expected, actual) = (reference.try_run(&with_impersonation), user.try_run(&args));
                if expected == actual { Ok(()) } else { Err(format!("kube-apiserver: {expected}; narthex: {actual}")) }
            });
        }
    }
    let jane = gateway.user(kubectl, USERS[0].2);
    let list = jane.run(&["auth", "can-i", "--list", "-n", &namespace]);
    for line in ["things.things.example.com", "selfsubjectaccessreviews.authorization.k8s.io", "[/stories/*]"] {
        assert!(list.contains(line), "{line} is missing:\n{list}");
    }
    assert!(jane.run(&["api-resources", "--api-group=authorization.k8s.io"]).contains("SelfSubjectRulesReview"));
}

/// A gateway without kube-apiserver and registry.
struct StandaloneGateway {
    _process: Process,
    directory: PathBuf,
}

impl StandaloneGateway {
    fn start(directory: &Path, policy: &Path) -> StandaloneGateway {
        let tokens = directory.join("tokens.csv");
        let line =
            |(name, groups, token): &(&str, &[&str], &str)| format!("{token},{name},,\"{}\"\n", groups.join(","));
        std::fs::write(&tokens, USERS.iter().map(line).collect::<String>()).unwrap();
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
        StandaloneGateway { _process: process, directory: directory.to_owned() }
    }

    /// A user with a token and without a certificate.
    fn user<'k>(&self, kubectl: &'k Kubectl, token: &str) -> KubectlUser<'k> {
        let kubeconfig = self.directory.join(format!("{token}.kubeconfig"));
        std::fs::copy(self.directory.join("data/admin.kubeconfig"), &kubeconfig).unwrap();
        let user = KubectlUser { kubectl, kubeconfig, home: self.directory.clone() };
        user.run(&["config", "set-credentials", "user", &format!("--token={token}")]);
        user.run(&["config", "set-context", "--current", "--user=user"]);
        user
    }
}

pub(super) struct KubectlUser<'k> {
    pub(super) kubectl: &'k Kubectl,
    pub(super) kubeconfig: PathBuf,
    pub(super) home: PathBuf,
}

impl KubectlUser<'_> {
    /// Runs kubectl, asserts success and returns its output.
    pub(super) fn run(&self, args: &[&str]) -> String {
        let mut command = self.kubectl.command(&self.kubeconfig, &self.home);
        command.args(args);
        let output = kubectl_run(command, "");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs kubectl; returns standard output, or standard error if that is empty.
    pub(super) fn try_run(&self, args: &[&str]) -> String {
        let mut command = self.kubectl.command(&self.kubeconfig, &self.home);
        command.args(args);
        let output = kubectl_run(command, "");
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if text.is_empty() { String::from_utf8_lossy(&output.stderr).into_owned() } else { text }
    }
}
