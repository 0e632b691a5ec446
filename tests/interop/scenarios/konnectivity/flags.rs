//! Each flag of the reference's server and agent is accepted by narthex's, and has its default.

use std::collections::BTreeMap;
use std::process::Command;

use crate::environment::{TestEnvironment, peer};

/// Flags of Go's and pflag's own.
const EXCEPTIONS: [&str; 2] = ["help", "version"];

/// Flags whose defaults differ; the page of differences says why. Ids are random.
const OTHER_DEFAULTS: [&str; 4] = ["keepalive-time", "v", "server-id", "agent-id"];

struct ReferenceFlag {
    name: String,
    has_value: bool,
    default: Option<String>,
}

/// The flags of a help text.
fn flags(help: &str) -> Vec<ReferenceFlag> {
    let flag = |line: &str| {
        let (_, rest) = line.split_once("--")?;
        let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect();
        // pflag: one space and the type, or at once the columns of the text.
        let has_value = rest[name.len()..].starts_with(' ') && !rest[name.len()..].starts_with("  ");
        let default = rest.rsplit_once("(default ").and_then(|(_, value)| value.strip_suffix(')'));
        let default = default.map(|value| value.trim_matches('"').to_owned());
        Some(ReferenceFlag { name, has_value, default })
    };
    let is_flag = |line: &&str| line.trim_start().starts_with('-');
    help.lines().filter(is_flag).filter_map(flag).filter(|flag| !flag.name.is_empty()).collect()
}

/// Defaults of the flags that narthex's help has with one, but for those without effect.
fn own_defaults(command: &str) -> BTreeMap<String, String> {
    let output = Command::new(env!("CARGO_BIN_EXE_narthex")).args([command, "--help"]).output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    // The text of a flag is wrapped.
    let mut texts: Vec<String> = Vec::new();
    for line in help.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match texts.last_mut() {
            Some(text) if !line.starts_with('-') => *text += &format!(" {line}"),
            _ => texts.push(line.to_owned()),
        }
    }
    let default = |text: String| {
        let (_, name) = text.split_once("--")?;
        let name = name.split([' ', '[']).next()?.to_owned();
        let (_, value) = text.rsplit_once("(default ").filter(|_| !text.contains("Accepted, without effect"))?;
        Some((name, value.split(')').next()?.to_owned()))
    };
    texts.into_iter().filter_map(default).collect()
}

/// Go prints all units of a duration.
fn shorten(value: &str) -> &str {
    let value = value.strip_suffix("m0s").map_or(value, |_| &value[..value.len() - 2]);
    value.strip_suffix("h0m").map_or(value, |_| &value[..value.len() - 2])
}

pub(super) fn are_accepted(_: &TestEnvironment) {
    for (program, command) in
        [("konnectivity-server", "konnectivity-server"), ("konnectivity-agent", "konnectivity-agent")]
    {
        let output = Command::new(peer(program)).arg("--help").output().unwrap();
        let help = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        let flags = flags(&help);
        assert!(flags.len() > 20, "the help of {program} is written in a way that this test does not read:\n{help}");
        let mut unknown = Vec::new();
        for ReferenceFlag { name, has_value, default } in
            flags.iter().filter(|flag| !EXCEPTIONS.contains(&flag.name.as_str()))
        {
            let flag = match default {
                Some(default) => format!("--{name}={default}"),
                None if *has_value => format!("--{name}=1"),
                None => format!("--{name}"),
            };
            let checked = Command::new(env!("CARGO_BIN_EXE_narthex")).args(["check", command, &flag]).output().unwrap();
            let said = String::from_utf8_lossy(&checked.stderr).into_owned();
            // Other flags are missing. Of this one, the reference's default is valid.
            let is_refused = default.is_some() && said.contains(&format!("--{name}:"));
            if is_refused || said.starts_with("error:") {
                unknown.push(format!("{flag}: {said}"));
            }
        }
        assert!(unknown.is_empty(), "{program}: {unknown:#?}");
        let own = own_defaults(command);
        let mut compared = 0;
        for ReferenceFlag { name, default, .. } in flags.iter().filter(|flag| !OTHER_DEFAULTS.contains(&&*flag.name)) {
            let (Some(default), Some(own)) = (default, own.get(name)) else { continue };
            assert_eq!(own, shorten(default), "{program}: default of --{name}");
            compared += 1;
        }
        assert!(compared >= 10, "{program}: only {compared} defaults were compared: {own:?}");
        println!("{program}: {compared} defaults are the same");
        println!("{program}: {} flags are accepted", flags.len());
    }
}
