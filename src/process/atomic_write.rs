//! Atomic file writes: a file is written completely or not at all.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::Problem;

/// Creates `path` atomically; never overwrites an existing file.
///
/// # Errors
/// The file exists already, or cannot be written.
pub fn write_new(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    write_through_temporary_file(path, content.as_bytes(), mode, |temporary| {
        // Unlike a rename, a link fails if the name exists.
        fs::hard_link(temporary, path)?;
        fs::remove_file(temporary)
    })
}

/// Replaces the file at `path` atomically with `content` and the given mode.
///
/// # Errors
/// The file cannot be written; the previous content stays.
pub fn replace_file(path: &Path, content: impl AsRef<[u8]>, mode: u32) -> Result<(), Problem> {
    write_through_temporary_file(path, content.as_ref(), mode, |temporary| fs::rename(temporary, path))
        .map_err(|error| Problem::new(path.display(), format!("cannot be written: {error}")))
}

fn write_through_temporary_file(
    path: &Path,
    content: &[u8],
    mode: u32,
    finish: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.{:016x}.tmp", fastrand::u64(..)));
    // The mode is set on creation: a private key is never readable by others.
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&temporary)
        .and_then(|mut file| file.write_all(content).and_then(|()| file.sync_all()))
        .and_then(|()| finish(&temporary));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}
