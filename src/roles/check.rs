//! `narthex check`: reads all that a role would read and reports every mistake at once; starts nothing.

use std::process::ExitCode;

use super::{cli, gateway, print, proxy, socks5, warn};
use crate::config::sidecar::Name;
use crate::config::{GatewayConfig, Mistakes, environment};

/// Checks the role that the command line names.
pub(super) fn run(check: &cli::Check) -> ExitCode {
    match check {
        cli::Check::Gateway(arguments) => {
            let (config, mistakes) = arguments.read(&environment);
            gateway_s(&config, mistakes, "gateway")
        }
        cli::Check::Sidecar(arguments) => {
            let (config, mistakes) = arguments.read(Name::Narthex, &environment);
            gateway_s(&config, mistakes, "sidecar")
        }
        cli::Check::KubeRbacProxy(arguments) => {
            let (config, mistakes) = arguments.read(Name::KubeRbacProxy, &environment);
            gateway_s(&config, mistakes, "kube-rbac-proxy")
        }
        cli::Check::Proxy(arguments) => {
            let (config, mistakes) = arguments.read(&environment);
            match proxy::prepare(&config, mistakes) {
                Ok(_) => print(b"proxy: no mistakes found\n"),
                Err(status) => status,
            }
        }
        cli::Check::Socks5(arguments) => {
            let (config, mistakes) = arguments.read(&environment);
            match socks5::prepare(&config, mistakes) {
                Ok(_) => print(b"socks5: no mistakes found\n"),
                Err(status) => status,
            }
        }
    }
}

/// A gateway's, and what works as one.
fn gateway_s(config: &GatewayConfig, mistakes: Mistakes, role: &str) -> ExitCode {
    match gateway::prepare(config, mistakes, role) {
        Ok((_, files)) => {
            warn(&files.warnings());
            print(format!("{role}: no mistakes found\n").as_bytes())
        }
        Err(status) => status,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The flags and, in the same go, the files they name.
    fn check(line: &[String], home: &Path) -> (Mistakes, Vec<String>) {
        let line = ["narthex", "check", "gateway"].into_iter().map(str::to_owned).chain(line.iter().cloned());
        let Ok(cli::Command::Check(cli::Check::Gateway(arguments))) = cli::parse(line) else { panic!("not read") };
        let home = home.to_str().unwrap().to_owned();
        let (config, mistakes) = arguments.read(&|name| (name == "HOME").then(|| home.clone()));
        let of_files = gateway::Files::read(&config).err().unwrap_or_default();
        let problems = mistakes.problems.0.iter().chain(&of_files.0).map(ToString::to_string).collect();
        (mistakes, problems)
    }

    fn authority() -> String {
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
    }

    fn write(folder: &Path, name: &str, content: &str) -> String {
        let path = folder.join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    #[test]
    fn nothing_is_written() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(check(&[], home.path()).1, [""; 0]);
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }

    #[test]
    fn mistakes_of_flags_and_files_come_together() {
        let home = tempfile::tempdir().unwrap();
        let registry = home.path().join("registry");
        std::fs::create_dir(&registry).unwrap();
        write(&registry, "a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n");
        let (_, problems) = check(
            &[
                "--goaway-chance=1".to_owned(),
                "--token-auth-file=/nowhere/tokens.csv".to_owned(),
                "--authorization-mode=Static".to_owned(),
                "--authorization-policy-file=/nowhere/policy.yaml".to_owned(),
                "--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA".to_owned(),
                "--tls-cert-file=/nowhere/a.crt".to_owned(),
                "--tls-private-key-file=/nowhere/a.key".to_owned(),
                "--proxy-client-cert-file=/nowhere/b.crt".to_owned(),
                "--proxy-client-key-file=/nowhere/b.key".to_owned(),
                format!("--client-ca-file={}", write(home.path(), "ca.crt", "not PEM")),
                format!("--registry-dir={}", registry.display()),
            ],
            home.path(),
        );
        let expected: [&[&str]; 8] = [
            &["--goaway-chance"],
            &["/nowhere/a.crt", "/nowhere/a.key"],
            &["ca.crt"],
            &["TLS_RSA_WITH_RC4_128_SHA"],
            &["/nowhere/tokens.csv"],
            &["/nowhere/policy.yaml"],
            &["/nowhere/b.crt", "/nowhere/b.key"],
            &["a.yaml", "Pod"],
        ];
        assert_eq!(problems.len(), expected.len(), "{problems:#?}");
        for (problem, words) in problems.iter().zip(expected) {
            assert!(words.iter().all(|word| problem.contains(word)), "{problem} does not name {words:?}");
        }
    }

    #[test]
    fn one_authority_for_clients_and_front_proxies_needs_names() {
        let home = tempfile::tempdir().unwrap();
        let (shared, other) = (authority(), authority());
        let client = format!("--client-ca-file={}", write(home.path(), "client.crt", &shared));
        let front =
            |name: &str, content: &str| format!("--requestheader-client-ca-file={}", write(home.path(), name, content));
        // Different text, same certificate; and a bundle that holds it among others.
        for front in [front("same.crt", &format!("# text\n{shared}")), front("among.crt", &format!("{other}{shared}"))]
        {
            let (_, problems) = check(&[client.clone(), front.clone()], home.path());
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].contains("--requestheader-allowed-names is empty"), "{problems:?}");
            let names = "--requestheader-allowed-names=front".to_owned();
            assert_eq!(check(&[client.clone(), front, names], home.path()).1, [""; 0]);
        }
        assert_eq!(check(&[client, front("distinct.crt", &other)], home.path()).1, [""; 0]);
    }
}
