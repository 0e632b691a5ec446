//! The table of all faults, and what makes a row a failure.

use std::fmt::Write as _;
use std::sync::Mutex;

use libtest_mimic::Failed;

use crate::outcome::OutcomeCounts;

/// Memory and open files of the gateway.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ResourceUsage {
    pub(crate) kilobytes: u64,
    pub(crate) descriptors: usize,
}

impl ResourceUsage {
    /// What may be in use when the gateway is idle again, in kB.
    pub(crate) fn memory_limit(self) -> u64 {
        self.kilobytes + self.kilobytes / 2 + MEMORY_TOLERANCE
    }
}

/// The figures of one fault.
pub(crate) struct FaultRow {
    pub(crate) counts: OutcomeCounts,
    /// Connections that clients could not make.
    pub(crate) failed_connections: usize,
    /// Causes of failures that the fault makes unavoidable: method, code and cause, or method and code.
    pub(crate) excused: &'static [&'static str],
    pub(crate) before: ResourceUsage,
    pub(crate) after: ResourceUsage,
    /// More that was measured.
    pub(crate) note: String,
    /// What the scenario itself found wrong. It fails the test once the figures are in the table.
    pub(crate) problems: Vec<String>,
}

/// Memory may differ by this between two idle moments, beside a half: what the allocator keeps.
const MEMORY_TOLERANCE: u64 = 48 << 10;

static ROWS: Mutex<Vec<(&str, FaultRow)>> = Mutex::new(Vec::new());

/// Keeps the row for the table, and says what is wrong with it.
pub(crate) fn add(name: &'static str, row: FaultRow) -> Result<(), Failed> {
    let mut problems = String::new();
    for problem in &row.problems {
        let _ = writeln!(problems, "{problem}");
    }
    for what in row.counts.wrong.iter().take(10) {
        let _ = writeln!(problems, "wrong response: {what}");
    }
    for (cause, count) in &row.counts.failed {
        if !row.excused.iter().any(|excused| is_excused(cause, excused)) {
            let _ = writeln!(problems, "{count} requests failed: {cause}");
        }
    }
    if row.failed_connections > 0 && !row.excused.contains(&"connect") {
        let _ = writeln!(problems, "{} connections failed", row.failed_connections);
    }
    let (before, after) = (row.before.kilobytes, row.after.kilobytes);
    if after > row.before.memory_limit() {
        let _ = writeln!(problems, "memory grew from {before} kB to {after} kB");
    }
    ROWS.lock().unwrap().push((name, row));
    if problems.is_empty() { Ok(()) } else { Err(problems.into()) }
}

/// Whether `excused` names this cause, or its method and code with any cause.
fn is_excused(cause: &str, excused: &str) -> bool {
    cause.strip_prefix(excused).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

/// Prints the table as Markdown, in the order of `names`.
pub(crate) fn print(names: &[&str]) {
    let mut rows = ROWS.lock().unwrap();
    if rows.is_empty() {
        return;
    }
    rows.sort_by_key(|(name, _)| names.iter().position(|other| other == name));
    println!("| Fault | Sent | Failed | Wrong | Longest, s | Memory, MiB | Descriptors | Causes of failures; notes |");
    println!("|---|---|---|---|---|---|---|---|");
    for (name, row) in rows.iter() {
        let mut notes: Vec<String> =
            row.counts.failed.iter().map(|(cause, count)| format!("{cause}: {count}")).collect();
        if row.failed_connections > 0 {
            notes.push(format!("connections not made: {}", row.failed_connections));
        }
        if !row.note.is_empty() {
            notes.push(row.note.clone());
        }
        println!(
            "| {name} | {} | {} | {} | {:.1} | {} → {} | {} → {} | {} |",
            row.counts.sent,
            row.counts.failed_total(),
            row.counts.wrong.len(),
            row.counts.longest.as_secs_f64(),
            row.before.kilobytes >> 10,
            row.after.kilobytes >> 10,
            row.before.descriptors,
            row.after.descriptors,
            notes.join("; ")
        );
    }
}
