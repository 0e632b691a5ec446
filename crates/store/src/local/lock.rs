//! The lock file of a store: at most one process has the store open.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::OpenError;
use crate::LOG_TARGET;

/// Largest size of a lock file in bytes: a process id and line feeds.
const MAX_LOCK_BYTES: u64 = 20;

/// How long a store that is in use is tried again: a command may have its lock for a moment, to look whether it is free.
const LOCK_TIMEOUT: Duration = Duration::from_millis(300);

/// Time between two attempts.
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// What follows the process id of a program that keeps the mark of the log. Releases before the mark write one line feed.
const MARKING_END: &str = "\n\n";

/// The lock file of a store.
pub(super) fn lock_path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Whether a process has the store open.
pub fn is_store_in_use(file: &Path) -> bool {
    lock_for_reading(file).is_err()
}

/// Another process has the store open.
pub(super) struct StoreInUse;

/// Keeps other processes from opening the store while it is read. No lock is taken of a file that has none: it was never
/// opened as a store.
pub(super) fn lock_for_reading(file: &Path) -> Result<Option<FileLock>, StoreInUse> {
    let opened = OpenOptions::new().read(true).custom_flags(own_file_flags()).open(lock_path(file));
    let Ok(lock) = opened else { return Ok(None) };
    match lock.try_lock_shared() {
        Ok(()) => Ok(Some(FileLock(lock))),
        Err(TryLockError::WouldBlock) => Err(StoreInUse),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Whether the last program that opened the store is a release from before the mark of the log.
pub(super) fn was_used_by_older_release(file: &Path) -> bool {
    let opened = OpenOptions::new().read(true).custom_flags(own_file_flags()).open(lock_path(file));
    opened.and_then(|mut lock| read_text(&mut lock)).is_ok_and(|text| is_of_older_release(&text))
}

fn is_of_older_release(text: &str) -> bool {
    text.strip_suffix('\n').is_some_and(|process| !process.is_empty() && !process.contains('\n'))
}

/// Takes the lock file beside `file` for the life of the process and writes the process id into it. A file that is not
/// a lock is left as it is, whoever put it there.
pub(super) fn lock_file(file: &Path) -> Result<FileLock, OpenError> {
    let path = lock_path(file);
    let refuse = |what: &str| OpenError::io(&path, format_args!("{what}; remove it if no process uses the store"));
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(own_file_flags());
    let mut lock = options.open(&path).map_err(|error| match path.is_symlink() {
        true => refuse("it is a symbolic link, which is not followed"),
        false => OpenError::io(&path, error),
    })?;
    let found = lock.metadata().map_err(|error| OpenError::io(&path, error))?;
    if !found.is_file() || found.nlink() > 1 || found.len() > MAX_LOCK_BYTES {
        return Err(refuse("it is not the lock file of a store"));
    }
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        match lock.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < until => sleep(LOCK_INTERVAL),
            Err(TryLockError::WouldBlock) => {
                // The process id is that of the last program that wrote, which commands that read are not.
                let process = match (lock.try_lock_shared(), read_text(&mut lock).unwrap_or_default().trim()) {
                    (Ok(()), _) => String::new(),
                    (Err(_), "") => "unknown".to_owned(),
                    (Err(_), process) => process.to_owned(),
                };
                return Err(OpenError::InUse { file: file.to_owned(), process });
            }
            Err(TryLockError::Error(error)) => return Err(OpenError::io(&path, error)),
        }
    }
    let text = read_text(&mut lock).map_err(|error| OpenError::io(&path, error))?;
    if !text.trim().bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(refuse("it is not the lock file of a store"));
    }
    let mut lock = FileLock(lock);
    // Until the store has a new mark, the text tells whether the old one is void, also after a start that fails.
    lock.write_process_id(&path, if is_of_older_release(&text) { "\n" } else { MARKING_END });
    Ok(lock)
}

/// Flags of a file that this process has made: no link is followed, and a pipe does not block.
fn own_file_flags() -> i32 {
    (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed()
}

fn read_text(lock: &mut File) -> io::Result<String> {
    let mut text = Vec::new();
    Read::by_ref(lock).take(MAX_LOCK_BYTES).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The lock of a store's file. Unlocks when dropped, also while a process that is being started still has the file.
pub(super) struct FileLock(File);

impl FileLock {
    /// Notes that the mark of the log in the store `file` is that of this program.
    pub(super) fn note_mark(&mut self, file: &Path) {
        self.write_process_id(&lock_path(file), MARKING_END);
    }

    /// A full disk must not prevent a start: the lock counts, the text in it is a hint.
    fn write_process_id(&mut self, path: &Path, end: &str) {
        let FileLock(lock) = self;
        let text = format!("{}{end}", std::process::id());
        let result = lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| lock.write_all(text.as_bytes()));
        if let Err(error) = result {
            tracing::warn!(target: LOG_TARGET, "process id not written to {}: {error}", path.display());
        }
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[track_caller]
    fn assert_left_alone(folder: &Path, words: &str) {
        let text = lock_file(&folder.join("store.db")).err().unwrap().to_string();
        assert!(text.contains("store.db.lock") && text.contains(words), "{text}");
        assert_eq!(std::fs::read_to_string(folder.join("precious")).unwrap(), "12345", "{words}");
        std::fs::remove_file(folder.join("store.db.lock")).unwrap();
    }

    #[test]
    fn store_lock_that_is_no_lock_file_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (lock, precious) = (folder.path().join("store.db.lock"), folder.path().join("precious"));
        std::fs::write(&precious, "12345").unwrap();
        symlink(&precious, &lock).unwrap();
        assert_left_alone(folder.path(), "symbolic link");
        std::fs::hard_link(&precious, &lock).unwrap();
        assert_left_alone(folder.path(), "not the lock file");
        std::fs::create_dir(folder.path().join("d")).unwrap();
        for text in ["key: value", "1234567890123456789012345"] {
            std::fs::write(&lock, text).unwrap();
            assert!(lock_file(&folder.path().join("store.db")).is_err());
            assert_eq!(std::fs::read_to_string(&lock).unwrap(), text);
        }
        std::fs::write(&lock, "71\n").unwrap();
        let taken = lock_file(&folder.path().join("store.db")).unwrap();
        assert_eq!(std::fs::read_to_string(&lock).unwrap(), format!("{}\n", std::process::id()));
        drop(taken);
        std::fs::write(&lock, "").unwrap();
        drop(lock_file(&folder.path().join("store.db")).unwrap());
        assert_eq!(std::fs::read_to_string(&lock).unwrap(), format!("{}\n\n", std::process::id()));
    }

    #[test]
    fn store_lock_waits_for_commands_that_look_at_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.db");
        drop(lock_file(&file).unwrap());
        let reading = lock_for_reading(&file).ok().flatten().unwrap();
        let reader = std::thread::spawn(move || {
            sleep(Duration::from_millis(50));
            drop(reading);
        });
        let taken = lock_file(&file).unwrap();
        reader.join().unwrap();
        assert!(is_store_in_use(&file));
        drop(taken);
        let reading = lock_for_reading(&file).ok().flatten().unwrap();
        let error = lock_file(&file).err().unwrap().to_string();
        assert!(error.contains("is being read by another command"), "{error}");
        drop(reading);
    }
}
