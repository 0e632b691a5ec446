//! `narthex quickstart`: a gateway with the embedded API server, and custom resources to try, in one process.

mod sample_objects;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use super::cli::{self, Command};
use super::gateway;
use super::signals::install_handlers;
use crate::config::{GatewayConfig, QuickstartConfig};
use crate::observe::log;
use crate::process::{Problem, Problems};
use sample_objects::create_sample_objects;

/// Timeout until the gateway serves the sample objects, which usually takes milliseconds.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the quickstart. Exit status: 0 after Ctrl-C, 1 after a failed start.
pub(super) fn run(config: &QuickstartConfig) -> ExitCode {
    // Standard output has the instructions; the log shows warnings and errors only.
    let mut settings = config.log.clone();
    if settings.filter.is_none() && settings.level == "info" {
        settings.level = "warn".to_owned();
    }
    let level = match log::install(&settings) {
        Ok(level) => level,
        Err(problem) => return super::report_problems("quickstart", &problem.into()),
    };
    install_handlers();
    match start(config, level) {
        Ok(running) => running.run_until_interrupt(),
        Err(problems) => super::report_problems("quickstart", &problems),
    }
}

fn start(config: &QuickstartConfig, level: log::LogLevel) -> Result<gateway::GatewayHandle, Problems> {
    let data = std::path::absolute(&config.data_dir).map_err(|error| Problem::new(config.data_dir.display(), error))?;
    let gateway_config = gateway_config(config, &data)?;
    let files = gateway::GatewayFiles::read(&gateway_config)?;
    let certificate = || std::fs::read(data.join("pki/admin.crt")).ok();
    let old_certificate = certificate();
    let running = gateway::start(&gateway_config, files, config.key_type, level)?;
    let is_new = certificate() != old_certificate;
    create_sample_objects(&running, &data.join("admin.kubeconfig"), STARTUP_TIMEOUT)?;
    print_instructions(&running, &data, is_new);
    Ok(running)
}

/// The configuration of the gateway. Its store is not that of a gateway with the same data directory.
fn gateway_config(config: &QuickstartConfig, data: &Path) -> Result<GatewayConfig, Problems> {
    let admin = config.admin_address.map(|address| address.to_string()).unwrap_or_default();
    let line = [
        "narthex".to_owned(),
        "gateway".to_owned(),
        format!("--data-dir={}", data.display()),
        "--embedded-api".to_owned(),
        format!("--store-file={}", data.join("quickstart.db").display()),
        format!("--secure-port={}", config.secure_port),
        format!("--admin-address={admin}"),
    ];
    parse_config(&line)
}

/// Parses a command line of the gateway, so that all defaults are the command's.
fn parse_config(line: &[String]) -> Result<GatewayConfig, Problems> {
    let wrong = |message: String| Problems::from(Problem::new("quickstart", message));
    let Command::Gateway(arguments) = cli::parse(line).map_err(|error| wrong(error.to_string()))? else {
        return Err(wrong("not the gateway's flags".into()));
    };
    let (config, mistakes) = arguments.read(&|_| None);
    if mistakes.problems.0.is_empty() { Ok(config) } else { Err(mistakes.problems) }
}

/// Prints what was done and commands to try.
fn print_instructions(running: &gateway::GatewayHandle, data: &Path, is_new: bool) {
    let quoted = |path: PathBuf| shell_quote(&path.display().to_string());
    let kubeconfig = quoted(data.join("admin.kubeconfig"));
    let pki = |name: &str| quoted(data.join("pki").join(name));
    let made = if is_new { "Created" } else { "Found" };
    let mut text = format!(
        "{made} authorities, certificates and a kubeconfig in {}\n\
         The gateway listens on https://{} and stores objects in quickstart.db there.\n\
         Sample custom resources: greetings and doors of example.narthex.dev, bells of samples.narthex.dev.\n\nTry:\n",
        data.display(),
        running.address()
    );
    for what in [
        "get greetings",
        "get doors -o wide",
        "explain greetings.spec",
        "get bells",
        "get bells --field-selector spec.tone=c",
        "get bells.v1alpha1.samples.narthex.dev",
    ] {
        text += &format!("  kubectl --kubeconfig {kubeconfig} {what}\n");
    }
    text += &format!(
        "  curl --cacert {} --cert {} --key {} https://{}/apis/example.narthex.dev/v1/namespaces/default/greetings\n",
        pki("serving-ca.crt"),
        pki("admin.crt"),
        pki("admin.key"),
        running.address()
    );
    if let Some(admin) = running.admin_address() {
        text += &format!("\nStatus page: http://{admin}/\n");
    }
    text += "Ctrl-C ends it.\n";
    super::print(text.as_bytes());
}

/// Quotes a word for a POSIX shell, if necessary.
fn shell_quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_quote_special_characters() {
        assert_eq!(shell_quote("/home/jane/.local/state/narthex"), "/home/jane/.local/state/narthex");
        assert_eq!(shell_quote("/tmp/two words/it's"), r"'/tmp/two words/it'\''s'");
    }
}
