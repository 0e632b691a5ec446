//! Log file rotation by size, with backups limited by age and number. Backup names, file modes and removal are those of
//! lumberjack, which kube-apiserver uses, so that log collectors configured for it work.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use store::own_links::open_through_own_links;

/// A rotated log file. It exceeds the maximum size only for a single larger event.
pub(super) struct RotatedFile {
    path: PathBuf,
    policy: RotationPolicy,
    file: File,
    size: u64,
    /// Whether the last line may be incomplete.
    has_partial_line: bool,
}

/// Rotation limits; 0 means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RotationPolicy {
    /// Maximum size of the file in bytes.
    pub(super) bytes: u64,
    /// Maximum number of backups.
    pub(super) backups: usize,
    /// Maximum age of backups.
    pub(super) age: Duration,
}

/// Time in the name of a backup, in UTC; milliseconds follow.
const BACKUP_TIME_FORMAT: &str = "%Y-%m-%dT%H-%M-%S";

impl RotatedFile {
    /// Opens the file for appending. Creates it, readable by its owner only, and its directory if necessary.
    pub(super) fn open(path: &Path, keep: RotationPolicy) -> io::Result<RotatedFile> {
        if let Some(directory) = parent_directory(path) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let file = open_for_append(path, 0o600)?;
        let found = file.metadata()?;
        let size = found.len();
        // Only a regular file can be rotated, not for example a terminal.
        let keep = if found.is_file() { keep } else { RotationPolicy::default() };
        let mut rotated = RotatedFile { path: path.to_owned(), policy: keep, file, size, has_partial_line: false };
        // A killed process may have left an incomplete line.
        rotated.has_partial_line = size > 0 && !ends_with_newline(path)?;
        rotated.remove_old_backups(SystemTime::now());
        Ok(rotated)
    }

    /// Appends whole lines, each ending with a newline; a line is never split between two files.
    ///
    /// # Errors
    /// The number of lines written, and the error.
    pub(super) fn write(&mut self, lines: &[&[u8]], now: SystemTime) -> Result<(), (usize, io::Error)> {
        let mut at = 0;
        while at < lines.len() {
            // As many lines as fit, at least one.
            let mut bytes = lines[at].len() as u64;
            if self.policy.bytes > 0 && self.size > 0 && self.size + bytes > self.policy.bytes {
                self.rotate(now).map_err(|error| (at, error))?;
            }
            let mut end = at + 1;
            while let Some(line) = lines.get(end)
                && (self.policy.bytes == 0 || self.size + bytes + line.len() as u64 <= self.policy.bytes)
            {
                bytes += line.len() as u64;
                end += 1;
            }
            let mut block = Vec::with_capacity(bytes as usize + 1);
            if self.has_partial_line {
                block.push(b'\n');
            }
            lines[at..end].iter().for_each(|line| block.extend_from_slice(line));
            self.has_partial_line = true;
            self.file.write_all(&block).map_err(|error| (at, error))?;
            self.has_partial_line = false;
            self.size += block.len() as u64;
            at = end;
        }
        Ok(())
    }

    /// Renames the file to a backup and creates a new one with the same mode.
    fn rotate(&mut self, now: SystemTime) -> io::Result<()> {
        let mode = match fs::metadata(&self.path) {
            Ok(found) => {
                fs::rename(&self.path, self.backup_path(now))?;
                found.permissions().mode() & 0o777
            }
            // The file was removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0o600,
            Err(error) => return Err(error),
        };
        self.file = open_for_append(&self.path, mode)?;
        self.size = 0;
        self.has_partial_line = false;
        self.remove_old_backups(now);
        Ok(())
    }

    /// Path of a new backup: `audit-2026-11-21T06-00-00.123.log` for `audit.log`, or the next free millisecond.
    fn backup_path(&self, now: SystemTime) -> PathBuf {
        let (prefix, suffix) = self.affixes();
        let mut now = jiff::Timestamp::try_from(now).unwrap_or_default();
        loop {
            let stamp = format!("{}.{:03}", now.strftime(BACKUP_TIME_FORMAT), now.subsec_millisecond());
            let path = self.path.with_file_name(format!("{prefix}{stamp}{suffix}"));
            match now.checked_add(Duration::from_millis(1)) {
                Ok(next) if path.exists() => now = next,
                _ => return path,
            }
        }
    }

    /// Prefix and suffix of backup names.
    fn affixes(&self) -> (String, String) {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match name.rfind('.') {
            Some(dot) => (format!("{}-", &name[..dot]), name[dot..].to_owned()),
            None => (format!("{name}-"), String::new()),
        }
    }

    /// Removes old and excess backups. Errors are only logged, so that no events are lost.
    fn remove_old_backups(&self, now: SystemTime) {
        for path in self.old_backups(now) {
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(file = %path.display(), %error, "old audit log cannot be removed");
            }
        }
    }

    fn old_backups(&self, now: SystemTime) -> Vec<PathBuf> {
        let Some(entries) = parent_directory(&self.path).and_then(|directory| fs::read_dir(directory).ok()) else {
            return Vec::new();
        };
        let mut backups: Vec<(SystemTime, PathBuf)> = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()))
            .filter_map(|entry| Some((self.backup_time(&entry.file_name().to_string_lossy())?, entry.path())))
            .collect();
        backups.sort();
        backups.reverse();
        let oldest = if self.policy.age.is_zero() { None } else { now.checked_sub(self.policy.age) };
        let max_backups = if self.policy.backups == 0 { usize::MAX } else { self.policy.backups };
        let gone = |(number, (time, path)): (usize, (SystemTime, PathBuf))| {
            (number >= max_backups || oldest.is_some_and(|oldest| time < oldest)).then_some(path)
        };
        backups.into_iter().enumerate().filter_map(gone).collect()
    }

    /// Time in a backup's file name, compressed or not; `None` for other files.
    fn backup_time(&self, name: &str) -> Option<SystemTime> {
        let (prefix, suffix) = self.affixes();
        let stamp = name.strip_prefix(&prefix)?;
        let stamp = stamp.strip_suffix(&suffix).or_else(|| stamp.strip_suffix(&format!("{suffix}.gz")))?;
        let (whole, millis) = stamp.split_once('.')?;
        let millis: u64 = millis.parse().ok().filter(|_| millis.len() == 3)?;
        let time = DateTime::strptime(BACKUP_TIME_FORMAT, whole).ok()?.to_zoned(TimeZone::UTC).ok()?;
        Some(SystemTime::from(time.timestamp()) + Duration::from_millis(millis))
    }
}

fn parent_directory(path: &Path) -> Option<&Path> {
    path.parent().map(|directory| if directory.as_os_str().is_empty() { Path::new(".") } else { directory })
}

fn open_for_append(path: &Path, mode: u32) -> io::Result<File> {
    open_through_own_links(OpenOptions::new().append(true).create(true).mode(mode), path)
}

fn ends_with_newline(path: &Path) -> io::Result<bool> {
    use std::io::{Read, Seek, SeekFrom};
    let mut last = [0];
    let mut file = match File::open(path) {
        Ok(file) => file,
        // The file may be writable but not readable: assume a complete line.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(true),
        Err(error) => return Err(error),
    };
    if file.seek(SeekFrom::End(-1)).is_err() {
        return Ok(true);
    }
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SystemTime {
        text.parse::<jiff::Timestamp>().unwrap().into()
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn audit_log_rotates_before_max_size_without_splitting_lines() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("logs/audit.log");
        let keep = RotationPolicy { bytes: 10, ..RotationPolicy::default() };
        let mut log = RotatedFile::open(&path, keep).unwrap();
        let now = at("2026-11-21T06:07:08.009Z");
        log.write(&[b"one\n", b"two\n"], now).unwrap();
        log.write(&[b"three\n", b"four\n", b"longer than that\n", b"x\n"], now).unwrap();
        let directory = path.parent().unwrap();
        let name = |millis: u32| format!("audit-2026-11-21T06-07-08.{millis:03}.log");
        assert_eq!(names(directory), [name(9), name(10), name(11), name(12), "audit.log".to_owned()]);
        let text = |name: &str| fs::read_to_string(directory.join(name)).unwrap();
        let texts = [name(9), name(10), name(11), name(12), "audit.log".to_owned()].map(|name| text(&name));
        assert_eq!(texts, ["one\ntwo\n", "three\n", "four\n", "longer than that\n", "x\n"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&directory.join(name(9))), mode(directory)), (0o600, 0o600, 0o700));

        // A new process appends, and keeps a mode set by the operator.
        drop(log);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        fs::write(&path, "half a l").unwrap();
        let mut log = RotatedFile::open(&path, keep).unwrap();
        log.write(&[b"y\n"], now).unwrap();
        assert_eq!(text("audit.log"), "half a l\ny\n");
        log.write(&[b"z\n"], now).unwrap();
        assert_eq!((text("audit.log"), mode(&path)), ("z\n".to_owned(), 0o640));
    }

    #[test]
    fn audit_log_device_is_not_rotated() {
        let mut log =
            RotatedFile::open(Path::new("/dev/null"), RotationPolicy { bytes: 1, ..RotationPolicy::default() })
                .unwrap();
        log.write(&[b"one\n", b"two\n"], SystemTime::now()).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn audit_log_without_max_size_is_not_rotated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit");
        let mut log = RotatedFile::open(&path, RotationPolicy::default()).unwrap();
        for _ in 0..100 {
            log.write(&[b"a line\n"], SystemTime::now()).unwrap();
        }
        assert_eq!(names(folder.path()), ["audit"]);
        assert_eq!(fs::metadata(&path).unwrap().len(), 700);
    }

    #[test]
    fn audit_log_old_backups_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let old = ["audit-2026-10-01T00-00-00.000.log", "audit-2026-11-19T00-00-00.000.log.gz"];
        let kept = ["audit-2026-11-20T00-00-00.000.log", "audit-2026-11-21T00-00-00.000.log"];
        let others =
            ["audit-2026.log", "audit-2026-10-01T00-00-00.log", "other-2026-10-01T00-00-00.000.log", "audit.log.1"];
        for name in old.iter().chain(&kept).chain(&others) {
            fs::write(folder.path().join(name), "x").unwrap();
        }
        let now = at("2026-11-21T06:00:00Z");
        let log = |backups, days: u64| {
            let age = Duration::from_secs(days * 86_400);
            let file = open_for_append(&path, 0o600).unwrap();
            RotatedFile {
                path: path.clone(),
                policy: RotationPolicy { bytes: 0, backups, age },
                file,
                size: 0,
                has_partial_line: false,
            }
        };
        let superfluous = |backups, days| {
            let mut names: Vec<String> = log(backups, days)
                .old_backups(now)
                .iter()
                .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
                .collect();
            names.sort();
            names
        };
        assert_eq!(superfluous(0, 0), [""; 0]);
        assert_eq!(superfluous(2, 0), old);
        assert_eq!(superfluous(0, 2), old);
        assert_eq!(superfluous(3, 30), [old[0]]);
        log(2, 0).remove_old_backups(now);
        let mut left: Vec<&str> = kept.iter().chain(&others).copied().chain(["audit.log"]).collect();
        left.sort_unstable();
        assert_eq!(names(folder.path()), left);
    }
}
