//! Checks a store's file without opening it, for `narthex check`: another process may have it open.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use super::OpenError;
use super::journal::check_format;
use super::lock::is_store_in_use;
use super::log_mark::check_log;
use super::wal::check_wal;

/// Size of the header of a SQLite database in bytes.
const HEADER_BYTES: u64 = 100;

/// First bytes of a SQLite database.
const MAGIC: &[u8] = b"SQLite format 3\0";

/// Checks that `file` is a store of this version that can be written, or can be created. Changes nothing.
///
/// # Errors
/// Those of opening it which can be seen from outside.
pub fn check_store_file(file: &Path) -> Result<(), OpenError> {
    let io = |error: std::io::Error| OpenError::io(file, error);
    let folder = file.ancestors().skip(1).find(|folder| folder.as_os_str().is_empty() || folder.exists());
    let folder = folder.filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !std::fs::metadata(folder).map_err(io)?.is_dir() {
        return Err(OpenError::io(file, format_args!("{} is not a directory", folder.display())));
    }
    let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(folder, access)
        .map_err(|error| OpenError::io(file, format_args!("directory {}: {error}", folder.display())))?;
    if !file.try_exists().map_err(io)? {
        return Ok(());
    }
    rustix::fs::access(file, rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK)
        .map_err(|error| OpenError::io(file, error))?;
    check_store_header(file)?;
    match check_wal(file) {
        // A log that is written while it is read looks like anything.
        Err(OpenError::DamagedLog { .. }) if is_store_in_use(file) => return Ok(()),
        verified => verified?,
    }
    if is_store_in_use(file) { Ok(()) } else { check_log(file) }
}

/// Checks that `file` is a store of this version.
///
/// # Errors
/// It cannot be read, or its header is that of something else.
pub(super) fn check_store_header(file: &Path) -> Result<(), OpenError> {
    let io = |error: std::io::Error| OpenError::io(file, error);
    let mut header = Vec::new();
    File::open(file).and_then(|opened| opened.take(HEADER_BYTES).read_to_end(&mut header)).map_err(io)?;
    // Big-endian numbers of the header (https://www.sqlite.org/fileformat.html).
    let number = |at: usize| header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(i32::from_be_bytes);
    match (number(68), number(60)) {
        (Some(application), Some(version)) if header.starts_with(MAGIC) => {
            check_format(file, application.into(), version.into())
        }
        _ => Err(OpenError::Damaged { file: file.to_owned(), reason: "file is not a database".to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LocalStore, LocalStoreSettings};

    #[test]
    fn store_file_check_accepts_new_and_open_stores() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a/b/store.db");
        check_store_file(&file).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is created");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        let store = LocalStore::open(LocalStoreSettings::new(&file)).unwrap();
        check_store_file(&file).unwrap();
        drop(store);
        check_store_file(&file).unwrap();
    }

    #[test]
    fn store_file_check_names_what_is_no_store() {
        let folder = tempfile::tempdir().unwrap();
        let check = |name: &str, bytes: &[u8]| {
            let file = folder.path().join(name);
            std::fs::write(&file, bytes).unwrap();
            check_store_file(&file).unwrap_err().to_string()
        };
        assert!(check("empty", b"").ends_with("is damaged: file is not a database"));
        assert!(check("text", &b"x".repeat(200)).contains("text is damaged: file is not a database"));
        let mut header = [MAGIC, &[0; 84]].concat();
        assert!(check("other", &header).contains("of another program"));
        header[68..72].copy_from_slice(&0x4e72_7478_u32.to_be_bytes());
        header[60..64].copy_from_slice(&99_i32.to_be_bytes());
        assert!(check("newer", &header).contains("newer has format version 99, this program supports 1"));
        let below = folder.path().join("text/store.db");
        assert!(check_store_file(&below).unwrap_err().to_string().contains("text is not a directory"));
    }
}
