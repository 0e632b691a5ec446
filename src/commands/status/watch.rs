//! `narthex status --watch`: the report again and again, redrawn in place on a terminal.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

use super::{StatusCommand, StatusFormat, replace_control_characters};
use crate::admin::{StatusSummary, timestamp};

/// Used when the size of the terminal is not known.
const DEFAULT_SIZE: (usize, usize) = (80, 24);
/// Alternate screen on, cursor off; and back.
const ENTER_SCREEN: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE_SCREEN: &str = "\x1b[?25h\x1b[?1049l";

/// Shows the report until SIGINT or SIGTERM. A process that does not respond, or restarts, is asked again.
pub(super) async fn run(command: &StatusCommand, interval: Duration) -> Result<ExitCode, String> {
    let listen = |kind| signal(kind).map_err(|error| format!("cannot handle signals: {error}"));
    let mut resized = listen(SignalKind::window_change())?;
    let mut stop =
        StopSignals { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? };
    let mut view = View { command, interval, latest: None, failure: None };
    let mut output = WatchOutput::open();
    loop {
        let started = Instant::now();
        tokio::select! {
            fetched = command.fetch_output(true) => view.update(fetched),
            () = stop.received() => break,
        }
        if output.show(&view).is_err() {
            // The reader of a pipe has gone.
            break;
        }
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(started + interval) => break,
                _ = resized.recv() => drop(output.redraw(&view)),
                () = stop.received() => {
                    output.close();
                    return Ok(view.exit_code());
                }
            }
        }
    }
    output.close();
    Ok(view.exit_code())
}

struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// What is shown: the last report, and why there is no newer one.
struct View<'c> {
    command: &'c StatusCommand,
    interval: Duration,
    latest: Option<(String, StatusSummary)>,
    failure: Option<(SystemTime, String)>,
}

impl View<'_> {
    fn update(&mut self, fetched: Result<(String, StatusSummary), String>) {
        match fetched {
            Ok(latest) => (self.latest, self.failure) = (Some(latest), None),
            Err(error) => {
                let since = self.failure.as_ref().map_or_else(SystemTime::now, |(since, _)| *since);
                self.failure = Some((since, error));
            }
        }
    }

    fn exit_code(&self) -> ExitCode {
        let ok = self.failure.is_none() && self.latest.as_ref().is_some_and(|(_, summary)| summary.is_ok());
        if self.command.fail && !ok { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    /// The lines of a terminal of this size.
    fn screen(&self, (width, height): (usize, usize), now: SystemTime) -> Vec<String> {
        let mut lines = vec![match &self.failure {
            None => format!("{}  every {}s  {}", self.command.admin_address, self.interval.as_secs(), timestamp(now)),
            Some((since, error)) => format!("DISCONNECTED since {}: {error}", timestamp(*since)),
        }];
        if let Some((text, _)) = &self.latest {
            if self.failure.is_some() {
                lines.push("The last report:".to_owned());
            }
            lines.push(String::new());
            lines.extend(text.lines().map(str::to_owned));
        }
        let hidden = lines.len().saturating_sub(height);
        if hidden > 0 && height > 1 {
            lines.truncate(height - 1);
            lines.push(format!("… {} more lines: {}", hidden + 1, self.command.one_shot_command()));
        }
        lines.iter().map(|line| replace_control_characters(line).chars().take(width).collect()).collect()
    }
}

/// Standard output: a terminal that is redrawn, or anything else, to which each report is appended.
enum WatchOutput {
    Terminal,
    Appended { told: Option<String> },
}

impl WatchOutput {
    fn open() -> WatchOutput {
        if io::stdout().is_terminal() {
            let _ = write_all(ENTER_SCREEN);
            WatchOutput::Terminal
        } else {
            WatchOutput::Appended { told: None }
        }
    }

    fn show(&mut self, view: &View<'_>) -> io::Result<()> {
        let WatchOutput::Appended { told } = self else { return self.redraw(view) };
        if let Some((_, error)) = &view.failure {
            // A failure is told once, not at each attempt.
            if told.as_ref() != Some(error) {
                eprintln!("narthex status: {error}");
                *told = Some(error.clone());
            }
            return Ok(());
        }
        *told = None;
        let Some((text, _)) = &view.latest else { return Ok(()) };
        match view.command.output {
            StatusFormat::Table | StatusFormat::Wide => {
                write_all(&format!("{}\n{text}\n", timestamp(SystemTime::now())))
            }
            StatusFormat::Json => write_all(text),
            StatusFormat::Yaml => write_all(&format!("---\n{text}")),
        }
    }

    /// Draws the screen; does nothing if there is none.
    fn redraw(&self, view: &View<'_>) -> io::Result<()> {
        let WatchOutput::Terminal = self else { return Ok(()) };
        let size =
            terminal_size::terminal_size().map_or(DEFAULT_SIZE, |(width, height)| (width.0.into(), height.0.into()));
        let lines = view.screen(size, SystemTime::now());
        // Each line is overwritten and its rest erased, which does not flicker as erasing the screen does.
        write_all(&format!("\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\r\n")))
    }

    fn close(&self) {
        if let WatchOutput::Terminal = self {
            let _ = write_all(LEAVE_SCREEN);
        }
    }
}

fn write_all(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::super::{StatusSection, TableColumns, tables};
    use super::*;
    use crate::admin::{ApiServiceReport, StatusReport};

    #[test]
    fn status_watch_fits_the_terminal_and_keeps_the_last_report() {
        let command = StatusCommand {
            part: None,
            admin_address: "127.0.0.1:6480".into(),
            output: StatusFormat::Table,
            fail: true,
            admin_token_file: None,
            watch: true,
            wait: None,
            interval: 2,
        };
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_132_800);
        let mut view = View { command: &command, interval: Duration::from_secs(2), latest: None, failure: None };
        view.update(Ok(("OK: 1 APIService\nline two\nline three\nline four\n".into(), StatusSummary::default())));
        assert_eq!(
            view.screen((80, 24), now),
            [
                "127.0.0.1:6480  every 2s  2026-11-20T00:00:00Z",
                "",
                "OK: 1 APIService",
                "line two",
                "line three",
                "line four"
            ]
        );
        assert_eq!(view.screen((6, 4), now), ["127.0.", "", "OK: 1 ", "… 3 mo"]);
        assert_eq!(view.screen((80, 6), now).last().unwrap(), "line four", "what just fits is not cut");
        assert_eq!(view.screen((80, 5), now)[3..], ["line two", "… 2 more lines: narthex status"]);
        view.update(Err("cannot connect\u{1b}[2J".into()));
        let lines = view.screen((80, 24), now);
        assert!(
            lines[0].starts_with("DISCONNECTED since ") && lines[0].ends_with("cannot connect\u{fffd}[2J"),
            "{lines:?}"
        );
        assert_eq!(lines[1..4], ["The last report:", "", "OK: 1 APIService"]);
        assert_eq!(view.screen((0, 0), now).len(), 7, "a terminal without a size is no panic");
        let wide = StatusCommand { output: StatusFormat::Wide, ..command.clone() };
        let refusals = StatusCommand { part: Some(StatusSection::Refusals), ..command.clone() };
        assert_eq!(wide.one_shot_command(), "narthex status -o wide");
        assert_eq!(refusals.one_shot_command(), "narthex status refusals");
    }

    #[test]
    fn status_watch_shows_attention_on_a_terminal_of_24_lines() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_132_800);
        let service = |number: usize| ApiServiceReport {
            name: format!("v1.group-{number}.example.com"),
            available: Some(number != 99),
            reason: "FailedDiscoveryCheck".to_owned(),
            ..ApiServiceReport::default()
        };
        let report = StatusReport {
            phase: "serving".into(),
            apiservices: (0..100).map(service).collect(),
            document_problems: vec!["v1.group-3.example.com: OpenAPI v3: no answer".into()],
            ..StatusReport::default()
        };
        let command = StatusCommand {
            part: None,
            admin_address: "127.0.0.1:6480".into(),
            output: StatusFormat::Table,
            fail: false,
            admin_token_file: None,
            watch: true,
            wait: None,
            interval: 2,
        };
        let mut view = View { command: &command, interval: Duration::from_secs(2), latest: None, failure: None };
        view.update(Ok((tables(&report, now, TableColumns::default()), report.summarize(now))));
        let lines = view.screen((80, 24), now);
        assert_eq!(lines.len(), 24);
        assert_eq!(
            lines[4..7],
            [
                "Needs attention:",
                "  failure: v1.group-99.example.com: unavailable: FailedDiscoveryCheck",
                "  warning: document: v1.group-3.example.com: OpenAPI v3: no answer",
            ]
        );
        // 111 lines: two of the watch, the summary, the list between blank lines, the process, and the table.
        assert_eq!(lines[23], "… 88 more lines: narthex status");
    }
}
