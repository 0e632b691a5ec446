//! `narthex check`: reads the flags and files of a command and reports all errors at once; starts nothing.

use std::process::ExitCode;

use super::{cli, gateway, konnectivity, print, print_warnings, proxy, socks5};
use crate::config::sidecar::ProgramName;
use crate::config::{Diagnostics, GatewayConfig, environment};

/// Checks the command that the command line names.
pub(super) fn run(check: &cli::CheckCommand) -> ExitCode {
    match check {
        cli::CheckCommand::Gateway(arguments) => {
            let (config, mistakes) = arguments.read(&environment);
            check_gateway(&config, mistakes, "gateway")
        }
        cli::CheckCommand::Sidecar(arguments) => {
            let (config, mistakes) = arguments.read(ProgramName::Narthex, &environment);
            check_gateway(&config, mistakes, "sidecar")
        }
        cli::CheckCommand::KubeRbacProxy(arguments) => {
            let (config, mistakes) = arguments.read(ProgramName::KubeRbacProxy, &environment);
            check_gateway(&config, mistakes, "kube-rbac-proxy")
        }
        cli::CheckCommand::Proxy(arguments) => {
            let (config, mistakes) = arguments.read(&environment);
            match proxy::prepare(&config, mistakes) {
                Ok(_) => print(b"proxy: no mistakes found\n"),
                Err(status) => status,
            }
        }
        cli::CheckCommand::KonnectivityServer(arguments) => {
            let (config, mistakes) = arguments.read(&environment);
            match konnectivity::server::prepare(&config, mistakes) {
                Ok(_) => print(b"konnectivity-server: no mistakes found\n"),
                Err(status) => status,
            }
        }
        cli::CheckCommand::KonnectivityAgent(arguments) => {
            let (config, mistakes) = arguments.read(&environment);
            match konnectivity::agent::prepare(&config, mistakes) {
                Ok(_) => print(b"konnectivity-agent: no mistakes found\n"),
                Err(status) => status,
            }
        }
        cli::CheckCommand::Socks5(arguments) => {
            let (config, mistakes) = arguments.read(&environment);
            match socks5::prepare(&config, mistakes) {
                Ok(_) => print(b"socks5: no mistakes found\n"),
                Err(status) => status,
            }
        }
    }
}

/// Checks a gateway or a sidecar.
fn check_gateway(config: &GatewayConfig, mistakes: Diagnostics, role: &str) -> ExitCode {
    match gateway::prepare(config, mistakes, role, gateway::ReadPurpose::Check) {
        Ok((_, files)) => {
            print_warnings(&files.warnings());
            print(format!("{role}: no mistakes found\n").as_bytes())
        }
        Err(status) => status,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::tls::{Authority, CertificateSpec};

    /// Checks the flags and the files they name.
    fn check(line: &[String], home: &Path) -> (Diagnostics, Vec<String>) {
        let line = ["narthex", "check", "gateway"].into_iter().map(str::to_owned).chain(line.iter().cloned());
        let Ok(cli::Command::Check(cli::CheckCommand::Gateway(arguments))) = cli::parse(line) else {
            panic!("not read")
        };
        let home = home.to_str().unwrap().to_owned();
        let (config, mut mistakes) = arguments.read(&|name| (name == "HOME").then(|| home.clone()));
        let flags = mistakes.clone();
        mistakes.add_file_problems(gateway::GatewayFiles::check(&config).err().unwrap_or_default());
        (flags, mistakes.problems.0.iter().map(ToString::to_string).collect())
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
    fn check_writes_no_files() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(check(&[], home.path()).1, [""; 0]);
        assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    }

    #[test]
    fn check_reports_flag_and_file_errors_together() {
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
    fn registry_directory_beside_embedded_api_may_refer_to_stored_services() {
        let home = tempfile::tempdir().unwrap();
        let registry = home.path().join("registry");
        std::fs::create_dir(&registry).unwrap();
        let api_service = "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1.a.io}\n\
            spec: {group: a.io, version: v1, groupPriorityMinimum: 1000, versionPriority: 15, \
            insecureSkipTLSVerify: true, service: {namespace: default, name: a}}\n";
        write(&registry, "a.yaml", api_service);
        let directory = format!("--registry-dir={}", registry.display());
        let (alone, problems) = check(std::slice::from_ref(&directory), home.path());
        assert!(problems.len() == 1 && problems[0].contains("ServiceNotFound"), "{problems:?}");
        let (beside, problems) = check(&[directory, "--embedded-api".to_owned()], home.path());
        assert_eq!(problems, [""; 0]);
        // The APIServices of the directory are not in the store that kubectl lists.
        let warns =
            |found: &Diagnostics| found.warnings.iter().any(|one| one.message.contains("kubectl get apiservices"));
        assert!(warns(&beside) && !warns(&alone), "{:?}", beside.warnings);
    }

    #[test]
    fn requestheader_ca_shared_with_client_ca_needs_allowed_names() {
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

    /// A key pair issued `days_ago`, valid for a year from then.
    fn pair(folder: &Path, name: &str, days_ago: u64) -> (String, String) {
        let then = SystemTime::now() - Duration::from_secs(days_ago * 24 * 60 * 60);
        let (authority, _) = Authority::new("old", then).unwrap();
        let issued = authority.issue(&CertificateSpec::client("us", &[]), then).unwrap();
        (write(folder, &format!("{name}.crt"), &issued.certificate), write(folder, &format!("{name}.key"), &issued.key))
    }

    #[test]
    fn check_reports_expired_certificate_and_start_accepts_it() {
        let home = tempfile::tempdir().unwrap();
        let (certificate, key) = pair(home.path(), "proxy", 400);
        let line = [format!("--proxy-client-cert-file={certificate}"), format!("--proxy-client-key-file={key}")];
        let (_, problems) = check(&line, home.path());
        assert_eq!(problems.len(), 1, "{problems:?}");
        for words in ["--proxy-client-cert-file", "proxy.crt", "CN=us", "is not valid: it expired on 2"] {
            assert!(problems[0].contains(words), "{problems:?}");
        }
        let line = ["narthex", "gateway"].into_iter().map(str::to_owned).chain(line);
        let Ok(cli::Command::Gateway(arguments)) = cli::parse(line) else { panic!("not read") };
        let (config, _) = arguments.read(&|name| (name == "HOME").then(|| home.path().display().to_string()));
        assert_eq!(gateway::GatewayFiles::read(&config).err(), None);

        let (authority, _) =
            Authority::new("old", SystemTime::now() - Duration::from_secs(20 * 366 * 24 * 3600)).unwrap();
        let bundle = write(home.path(), "old-ca.crt", &authority.pem());
        let config = format!(
            "{{apiVersion: v1, kind: Config, current-context: x, contexts: [{{name: x, context: {{cluster: c, user: u}}}}], \
             clusters: [{{name: c, cluster: {{server: 'https://a', certificate-authority: {bundle:?}}}}}], users: [{{name: u, \
             user: {{client-certificate: {certificate:?}, client-key: {key:?}}}}}]}}"
        );
        let config = write(home.path(), "kubeconfig", &config);
        let line = [
            format!("--client-ca-file={bundle}"),
            format!("--authentication-kubeconfig={config}"),
            format!("--authorization-kubeconfig={config}"),
            "--authorization-mode=Webhook".to_owned(),
        ];
        let (_, problems) = check(&line, home.path());
        // The flag and the kubeconfig name the same bundle file: one error.
        assert_eq!(problems.len(), 2, "{problems:#?}");
        assert!(problems[0].contains("--client-ca-file") && problems[0].contains("old-ca.crt"), "{problems:#?}");
        assert!(problems[1].contains("proxy.crt with") && problems[1].contains("expired"), "{problems:#?}");
    }

    #[test]
    fn certificate_expired_in_a_manifest_is_told_with_file_and_field() {
        let home = tempfile::tempdir().unwrap();
        let registry = home.path().join("registry");
        std::fs::create_dir(&registry).unwrap();
        let then = SystemTime::now() - Duration::from_secs(20 * 366 * 24 * 3600);
        let (authority, _) = Authority::new("old", then).unwrap();
        use base64::Engine as _;
        let bundle = base64::engine::general_purpose::STANDARD.encode(authority.pem());
        let text = format!(
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: v1.a.io}}\nspec: {{group: a.io, \
             version: v1, groupPriorityMinimum: 1, versionPriority: 1, caBundle: {bundle}, service: {{namespace: ns, name: \
             s}}}}\n---\napiVersion: v1\nkind: Service\nmetadata: {{namespace: ns, name: s}}\nspec: {{clusterIP: 10.0.0.1, \
             ports: [{{port: 443}}]}}\n---\napiVersion: v1\nkind: Pod\nmetadata: {{name: a, namespace: ns}}\n"
        );
        write(&registry, "a.yaml", &text);
        let (_, problems) = check(&[format!("--registry-dir={}", registry.display())], home.path());
        // Beside an object that is wrong.
        assert_eq!(problems.len(), 2, "{problems:#?}");
        assert!(problems[0].contains("document 3") && problems[0].contains("Pod"), "{problems:#?}");
        let place = "a.yaml, document 1, APIService \"v1.a.io\": spec.caBundle: the certificate (CN=old";
        assert!(problems[1].contains(place) && problems[1].contains("expired on 2"), "{problems:#?}");
    }

    #[test]
    fn certificate_expired_in_the_kubeconfig_of_an_authorizer_is_a_finding() {
        let home = tempfile::tempdir().unwrap();
        pair(home.path(), "webhook", 400);
        let (authority, _) = Authority::new("new", SystemTime::now()).unwrap();
        write(home.path(), "ca.crt", &authority.pem());
        let kubeconfig = "{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c, user: \
                          u}}], clusters: [{name: c, cluster: {server: 'https://a', certificate-authority: ca.crt}}], \
                          users: [{name: u, user: {client-certificate: webhook.crt, client-key: webhook.key}}]}";
        let kubeconfig = write(home.path(), "kubeconfig", kubeconfig);
        let text = format!(
            "{{apiVersion: apiserver.config.k8s.io/v1, kind: AuthorizationConfiguration, authorizers: [{{type: Webhook, name: \
             guard, webhook: {{timeout: 3s, subjectAccessReviewVersion: v1, matchConditionSubjectAccessReviewVersion: v1, \
             failurePolicy: Deny, authorizedTTL: 1s, unauthorizedTTL: 1s, connectionInfo: {{type: KubeConfigFile, \
             kubeConfigFile: {kubeconfig:?}}}}}}}]}}"
        );
        let file = write(home.path(), "authorization.yaml", &text);
        let (_, problems) = check(&[format!("--authorization-config={file}")], home.path());
        assert_eq!(problems.len(), 1, "{problems:#?}");
        for words in [
            "authorization.yaml: authorizers[0].webhook.connectionInfo: ",
            "webhook.crt",
            "CN=us",
            "expired on",
            "(client-certificate in ",
        ] {
            assert!(problems[0].contains(words), "{problems:#?}");
        }
    }

    /// What stands beside a mistake is judged in the same run.
    #[test]
    fn certificate_expired_is_found_beside_other_mistakes() {
        let home = tempfile::tempdir().unwrap();
        let (certificate, key) = pair(home.path(), "serving", 400);
        let line = [
            format!("--tls-cert-file={certificate}"),
            format!("--tls-private-key-file={key}"),
            format!("--client-ca-file={}", write(home.path(), "ca.crt", "not PEM")),
        ];
        let (_, problems) = check(&line, home.path());
        assert_eq!(problems.len(), 2, "{problems:#?}");
        assert!(problems[0].contains("ca.crt") && problems[1].contains("--tls-cert-file"), "{problems:#?}");
        assert!(problems[1].contains("serving.crt") && problems[1].contains("expired on 2"), "{problems:#?}");
    }

    #[test]
    fn check_reports_file_error_once_with_all_flags() {
        let home = tempfile::tempdir().unwrap();
        let bad = write(home.path(), "ca.crt", "not PEM");
        let (_, problems) = check(
            &[
                format!("--client-ca-file={bad}"),
                format!("--requestheader-client-ca-file={bad}"),
                "--authorization-mode=Webhook".to_owned(),
                "--authentication-kubeconfig=/nowhere/kubeconfig".to_owned(),
                "--authorization-kubeconfig=/nowhere/kubeconfig".to_owned(),
                "--delegate-kubeconfig=/nowhere/kubeconfig".to_owned(),
                "--kubeconfig=/nowhere/kubeconfig".to_owned(),
            ],
            home.path(),
        );
        assert_eq!(problems.len(), 2, "{problems:#?}");
        let all = |problem: &str| {
            let flags =
                ["--client-ca-file", "--requestheader-client-ca-file", "--authentication-kubeconfig", "--kubeconfig"];
            flags.into_iter().filter(|flag| problem.contains(flag)).count()
        };
        assert_eq!(problems.iter().map(|problem| all(problem)).collect::<Vec<_>>(), [2, 2], "{problems:#?}");
    }

    #[test]
    fn kubeconfig_context_missing_lists_available_contexts() {
        let home = tempfile::tempdir().unwrap();
        let config = "{apiVersion: v1, kind: Config, current-context: prod, contexts: [{name: test}, {name: stage}]}";
        let line = [format!("--delegate-kubeconfig={}", write(home.path(), "kubeconfig", config))];
        let (_, problems) = check(&line, home.path());
        assert_eq!(problems.len(), 1, "{problems:?}");
        let expected = "there is no single context \"prod\"; the contexts are \"stage\", \"test\"";
        assert!(problems[0].ends_with(expected), "{problems:?}");
    }

    #[test]
    fn check_reports_registry_inconsistencies() {
        let home = tempfile::tempdir().unwrap();
        let registry = home.path().join("registry");
        std::fs::create_dir(&registry).unwrap();
        let text = "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: v1.a.io}\nspec: {group: a.io, \
                    version: v1, groupPriorityMinimum: 1, versionPriority: 1, service: {namespace: ns, name: s, port: \
                    8443}}\n---\napiVersion: v1\nkind: Service\nmetadata: {namespace: ns, name: s}\nspec: {clusterIP: \
                    10.0.0.1, ports: [{port: 443}]}\n";
        write(&registry, "a.yaml", text);
        let (_, problems) = check(&[format!("--registry-dir={}", registry.display())], home.path());
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].contains("a.yaml, document 1") && problems[0].contains("spec.service"), "{problems:?}");
        assert!(problems[0].ends_with("is not listening on port 8443"), "{problems:?}");
    }

    #[test]
    fn config_file_paths_are_relative_to_file() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("conf");
        std::fs::create_dir(&folder).unwrap();
        let text = "apiVersion: narthex.dev/v1alpha1\nkind: GatewayConfiguration\nclientCaFile: pki/ca.crt\nauditLogPath: \
                    a.log\nauditPolicyFile: /nowhere/policy.yaml\nauthorizationMode: [Webhook]\n\
                    authorizationKubeconfig: in-cluster\ntlsSniCertKey: ['a.crt,a.key']\n";
        let config = write(&folder, "gateway.yaml", text);
        let (_, problems) =
            check(&[format!("--config={config}"), "--token-auth-file=tokens.csv".to_owned()], home.path());
        let shown = |name: &str| folder.join(name).display().to_string();
        for (path, is_named) in [
            (shown("pki/ca.crt"), true),
            (shown("a.crt"), true),
            ("/nowhere/policy.yaml".to_owned(), true),
            // Paths of flags are relative to the working directory.
            ("--token-auth-file tokens.csv: ".to_owned(), true),
            (shown("in-cluster"), false),
            (shown("tokens.csv"), false),
        ] {
            assert_eq!(problems.iter().any(|problem| problem.contains(&path)), is_named, "{path}: {problems:#?}");
        }
        assert!(problems.iter().any(|problem| problem.contains("line 3: clientCaFile ")), "{problems:#?}");
    }
}
