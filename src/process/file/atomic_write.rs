//! Atomic file writes: a file is written completely or not at all.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::NamedTempFile;

use crate::process::Problem;

/// Creates `path` atomically; never overwrites an existing file.
///
/// # Errors
/// The file exists already, or cannot be written.
pub fn write_new(path: &Path, content: &str, mode: u32) -> io::Result<()> {
    write_temporary_file(path, content.as_bytes(), mode)?.persist_noclobber(path)?;
    Ok(())
}

/// Replaces the file at `path` atomically with `content` and the given mode.
///
/// # Errors
/// The file cannot be written; the previous content stays.
pub fn replace_file(path: &Path, content: impl AsRef<[u8]>, mode: u32) -> Result<(), Problem> {
    write_temporary_file(path, content.as_ref(), mode)
        .and_then(|file| Ok(file.persist(path)?))
        .map(drop)
        .map_err(|error| Problem::new(path.display(), format!("cannot be written: {error}")))
}

/// Writes a file beside `path` to the disk. It is removed when dropped.
fn write_temporary_file(path: &Path, content: &[u8], mode: u32) -> io::Result<NamedTempFile> {
    let prefix = format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy());
    // The mode is set on creation: a private key is never readable by others.
    let mut file = tempfile::Builder::new()
        .prefix(&prefix)
        .suffix(".tmp")
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(path.parent().unwrap_or(Path::new("")))?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    Ok(file)
}
