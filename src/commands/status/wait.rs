//! `narthex status --wait`: prints the report once nothing fails any more.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::Instant;

use super::{StatusCommand, StatusFormat};
use crate::admin::StatusSummary;

/// Interval between two reports.
const INTERVAL: Duration = Duration::from_millis(200);

/// Fetches the report until the process is ready and nothing fails, for at most `longest`, and prints it. A process that
/// cannot be reached is asked again: it may be starting.
///
/// # Errors
/// No report could be fetched in that time.
pub(super) async fn run(command: &StatusCommand, longest: Duration) -> Result<ExitCode, String> {
    let end = Instant::now() + longest;
    loop {
        let fetched = command.fetch_output(command.output == StatusFormat::Wide).await;
        let is_over = Instant::now() >= end;
        match fetched {
            Ok((text, summary)) if is_over || is_settled(&summary) => {
                // A closed pipe is not a failure.
                let _ = io::stdout().write_all(text.as_bytes());
                if is_settled(&summary) {
                    return Ok(ExitCode::SUCCESS);
                }
                return Err(format!("not ready within {longest:?}: {}", summary.line()));
            }
            Err(error) if is_over => return Err(format!("not ready within {longest:?}: {error}")),
            Ok(_) | Err(_) => tokio::time::sleep(INTERVAL.min(end - Instant::now())).await,
        }
    }
}

/// Whether nothing fails, and nothing has to be probed first.
fn is_settled(summary: &StatusSummary) -> bool {
    summary.is_ok() && summary.unprobed == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_wait_ends_when_nothing_fails_and_all_is_probed() {
        assert!(is_settled(&StatusSummary { warnings: vec!["audit".to_owned()], ..StatusSummary::default() }));
        assert!(!is_settled(&StatusSummary { unprobed: 1, ..StatusSummary::default() }));
        assert!(!is_settled(&StatusSummary { failures: vec!["not ready".to_owned()], ..StatusSummary::default() }));
    }
}
