//! Checks configuration files of installed gateways with the real program.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory that stands for the root of the file system that a gateway is installed in: `/etc/narthex` with certificates
/// of `narthex pki init`, and a kubeconfig that stands for `in-cluster`.
pub(crate) struct InstallRoot {
    directory: PathBuf,
}

impl InstallRoot {
    /// Fills `directory`, which exists.
    pub(crate) fn create(directory: &Path) -> InstallRoot {
        let root = InstallRoot { directory: directory.to_owned() };
        let pki = root.path("pki");
        run(Command::new(env!("CARGO_BIN_EXE_narthex")).args(["pki", "init", "--dir"]).arg(&pki));
        for name in ["serving", "front-proxy"] {
            std::fs::create_dir_all(root.path(name)).unwrap();
            for (from, to) in [("crt", "tls.crt"), ("key", "tls.key")] {
                std::fs::copy(pki.join(format!("{name}.{from}")), root.path(name).join(to)).unwrap();
            }
        }
        let kubeconfig = r#"{"apiVersion": "v1", "kind": "Config", "current-context": "pod",
            "clusters": [{"name": "pod", "cluster": {"server": "https://127.0.0.1:1"}}],
            "users": [{"name": "pod", "user": {"token": "any"}}],
            "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}]}"#;
        std::fs::write(root.path("in-cluster.kubeconfig"), kubeconfig).unwrap();
        std::fs::create_dir_all(root.path("registry")).unwrap();
        root
    }

    /// A path below `/etc/narthex`.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Checks a `GatewayConfiguration` with `narthex check gateway`; panics with its findings.
    pub(crate) fn check_gateway(&self, what: &str, config: &str) {
        let at = |name: &str| self.path(name).display().to_string();
        let config = config
            .replace("in-cluster", &at("in-cluster.kubeconfig"))
            .replace("/etc/narthex", &at(""))
            .replace("/var/lib/narthex", &at("data"));
        let file = self.path("gateway.yaml");
        std::fs::write(&file, &config).unwrap();
        let mut check = Command::new(env!("CARGO_BIN_EXE_narthex"));
        let output = run(check.args(["check", "gateway", "--config"]).arg(&file));
        assert!(output.ends_with("gateway: no mistakes found\n"), "{what}: {output}\n{config}");
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text.into_owned()
}
