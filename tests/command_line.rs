//! The command as people call it: what it prints where, and with which exit status it ends.

use std::process::{Command, Output};

fn narthex(line: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_narthex"));
    command.env_clear().env("HOME", env!("CARGO_TARGET_TMPDIR")).envs(environment.iter().copied());
    command.args(line).output().expect("the command starts")
}

fn status(line: &[&str], environment: &[(&str, &str)]) -> i32 {
    narthex(line, environment).status.code().expect("the command ends by itself")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

#[test]
fn help_version_and_completion_go_to_standard_output() {
    for line in [&["--help"][..], &["--version"], &["gateway", "--help"], &["completion", "bash"]] {
        let output = narthex(line, &[]);
        assert_eq!(output.status.code(), Some(0), "{line:?}");
        assert!(!output.stdout.is_empty() && output.stderr.is_empty(), "{line:?}");
    }
    assert_eq!(text(&narthex(&["--version"], &[]).stdout), format!("narthex {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_bad_command_line_is_2() {
    for line in [
        &[][..],
        &["no-such-command"],
        &["gateway", "--no-such-flag"],
        &["check", "gateway", "--secure-port=http"],
        &["check", "gateway", "--anonymous-auth", "false"],
        &["completion", "tcsh"],
    ] {
        let output = narthex(line, &[]);
        assert_eq!(output.status.code(), Some(2), "{line:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{line:?}");
    }
    let suggestion = text(&narthex(&["gateway", "--registry-dri=x"], &[]).stderr);
    assert!(suggestion.contains("--registry-dir"), "{suggestion}");
}

#[test]
fn a_bad_configuration_is_1_and_all_of_it_is_told() {
    let line =
        ["check", "gateway", "--tls-min-version=VersionTLS10", "--tracing-config-file=x", "--registry-dir=/nowhere"];
    let output = narthex(&line, &[("NARTHEX_GOAWAY_CHANCE", "1")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let errors = text(&output.stderr);
    for word in [
        "VersionTLS13",
        "--tracing-config-file: not in this version yet",
        "/nowhere",
        "NARTHEX_GOAWAY_CHANCE: 1 is not",
    ] {
        assert!(errors.contains(word), "{word} is missing:\n{errors}");
    }
    // The same mistake is one of the command line when it stands there.
    assert_eq!(status(&["check", "gateway"], &[("NARTHEX_SECURE_PORT", "http")]), 1);
}

#[test]
fn a_good_configuration_is_0() {
    let output = narthex(&["check", "gateway", "--secure-port=1", "--secure-port=2", "--anonymous-auth=false"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "gateway: no mistakes found\n");
}

/// kube-apiserver's 37 files, as k8s.io/apiserver 0.36.3 takes and refuses them.
#[test]
fn an_egress_selector_configuration_is_taken_and_refused_as_by_kube_apiserver() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/egress_config");
    let expected = std::fs::read_to_string(format!("{folder}/expected.json")).unwrap();
    let expected: std::collections::BTreeMap<String, String> = serde_json::from_str(&expected).unwrap();
    assert_eq!(expected.len(), 37);
    for (name, expected) in expected {
        let output = narthex(&["check", "gateway", &format!("--egress-selector-config-file={folder}/{name}")], &[]);
        let errors = text(&output.stderr);
        if expected == "ok" {
            assert_eq!(output.status.code(), Some(0), "{name}: {errors}");
            continue;
        }
        assert_eq!(output.status.code(), Some(1), "{name}: {errors}");
        let (phase, message) = expected.split_once(": ").unwrap();
        let phase = match phase {
            "read" => "failed to read egress selector config",
            _ => "failed to validate egress selector configuration",
        };
        // What follows names the program that refuses.
        let message = message.split(" in scheme ").next().unwrap();
        assert!(errors.contains(&format!("{folder}/{name}: {phase}: {message}")), "{name}: {errors}");
    }
}
