//! `narthex store`: backup and verification of the store of the embedded API server.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use store::{BackupError, StoreContent, StoreDamage, back_up_store, is_store_in_use, verify_store};

use super::{print, report_problems};
use crate::admin::format_bytes;
use crate::config::default_data_dir;
use crate::process::{HelpTopic, Problem, Problems};

/// Interval between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// The subcommands of `narthex store`.
#[derive(Clone, Debug, Subcommand)]
pub enum StoreTask {
    /// Write a verified copy of the store into one file, also while the gateway runs
    Backup(BackupOptions),
    /// Read all of a store or a backup, and report damage; change nothing
    Verify(VerifyOptions),
}

/// Options of `store backup`.
#[derive(Clone, Debug, Args)]
pub struct BackupOptions {
    /// File of the backup
    #[arg(value_name = "FILE")]
    pub backup: PathBuf,
    /// The store.
    #[command(flatten)]
    pub place: StorePlace,
    /// Replace FILE if it exists
    #[arg(long)]
    pub overwrite: bool,
}

/// Options of `store verify`.
#[derive(Clone, Debug, Args)]
pub struct VerifyOptions {
    /// Store or backup to read, in place of that of --data-dir
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The store.
    #[command(flatten)]
    pub place: StorePlace,
}

/// Where the store is.
#[derive(Clone, Debug, Args)]
pub struct StorePlace {
    /// Data directory of the gateway, with store.db (default $XDG_STATE_HOME/narthex, else ~/.local/state/narthex)
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// File of the store, if the gateway has --store-file
    #[arg(long, value_name = "FILE")]
    pub store_file: Option<PathBuf>,
}

impl StorePlace {
    fn file(&self) -> Result<PathBuf, Problem> {
        if let Some(file) = &self.store_file {
            return Ok(file.clone());
        }
        let data_dir = self.data_dir.clone().or_else(|| default_data_dir(&crate::config::environment));
        let data_dir = data_dir
            .ok_or_else(|| Problem::new("--data-dir", "required, because neither XDG_STATE_HOME nor HOME is set"))?;
        Ok(data_dir.join("store.db"))
    }
}

/// Runs a subcommand. Exit status 1 if the store is damaged or there is no backup.
pub(super) fn run(task: &StoreTask) -> ExitCode {
    let done = match task {
        StoreTask::Backup(options) => back_up(options),
        StoreTask::Verify(options) => verify(options),
    };
    match done {
        Ok(text) => print(text.as_bytes()),
        Err(problems) => report_problems("store", &problems),
    }
}

fn back_up(options: &BackupOptions) -> Result<String, Problems> {
    let file = options.place.file()?;
    let mut progress = ProgressLine::new("rows verified");
    let copied = back_up_store(&file, &options.backup, options.overwrite, &mut |rows| progress.show(rows));
    progress.end();
    let content = copied.map_err(|error| match error {
        BackupError::Damage(damage) => damage_problems(&damage),
        error => Problem::new("backup", error).into(),
    })?;
    Ok(format!("{}: backup of {}\n{}", options.backup.display(), file.display(), describe(&content)))
}

fn verify(options: &VerifyOptions) -> Result<String, Problems> {
    let file = options.file.clone().map_or_else(|| options.place.file(), Ok)?;
    let mut progress = ProgressLine::new("rows verified");
    let verified = verify_store(&file, &mut |rows| progress.show(rows));
    progress.end();
    let content = verified.map_err(|damage| damage_problems(&damage))?;
    Ok(format!("{}: no damage found\n{}", file.display(), describe(&content)))
}

/// The problems of a damaged store, with the page that says what to do.
pub(super) fn damage_problems(damage: &StoreDamage) -> Problems {
    let problem = |text: &dyn std::fmt::Display| Problem::new("store", text).with_help(HelpTopic::StoreDamaged);
    match damage {
        StoreDamage::Unreadable(error) => problem(error).into(),
        StoreDamage::Faults(faults) => Problems(faults.iter().map(|fault| problem(fault)).collect()),
    }
}

fn describe(content: &StoreContent) -> String {
    let StoreContent { revision, compacted, rows, objects, bytes } = content;
    let all: u64 = objects.values().sum();
    let mut text = format!(
        "revision {revision}, history since {compacted}, {all} objects, {rows} rows, {}\n",
        format_bytes(*bytes)
    );
    let width = objects.keys().map(String::len).max().unwrap_or(0);
    for (resource, count) in objects {
        text += &format!("  {resource:width$}  {count}\n");
    }
    text
}

/// A line on a terminal that tells how far the command is; nothing elsewhere, and nothing when it is done at once.
struct ProgressLine {
    what: &'static str,
    last: Instant,
    is_shown: bool,
}

impl ProgressLine {
    fn new(what: &'static str) -> ProgressLine {
        ProgressLine { what, last: Instant::now(), is_shown: false }
    }

    fn show(&mut self, count: u64) {
        if self.last.elapsed() >= PROGRESS_INTERVAL && std::io::stderr().is_terminal() {
            (self.last, self.is_shown) = (Instant::now(), true);
            let _ = write!(std::io::stderr(), "\r{count} {}", self.what);
        }
    }

    fn end(&mut self) {
        if self.is_shown {
            let _ = writeln!(std::io::stderr());
        }
    }
}

/// Reads all of a store that no gateway uses, for `narthex check`. A store that does not exist will be created.
pub(super) fn check_content(file: &Path) -> Result<(), Problems> {
    match file.exists() && !is_store_in_use(file) {
        true => verify_store(file, &mut |_| {}).map(drop).map_err(|damage| damage_problems(&damage)),
        false => Ok(()),
    }
}
