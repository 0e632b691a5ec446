//! Where the keys of service account tokens come from: files of flags, or the key file in the data directory, which is
//! rotated.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use rcgen::KeyPair;
use serde::{Deserialize, Serialize};

use super::key_set::{KEY_SET_MAX_AGE, KeySet, TokenKey, TokenKeyMaterial};
use super::keys::{SigningKey, VerificationKey};
use crate::process::{
    Drain, FileWatcher, OnFailure, Problem, Problems, Publisher, ReloadReporter, replace_file, write_new,
};

/// Name of the key file in the data directory.
pub const KEY_FILE_NAME: &str = "service-account-keys.json";

/// Lifetime of the longest token: that of an extended one (`ExpirationExtensionSeconds` in `pkg/serviceaccount`).
pub const EXTENDED_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);

/// Where keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The key file in the data directory.
    Directory(PathBuf),
    /// The files of `--service-account-signing-key-file` and `--service-account-key-file`.
    Files {
        /// The private key.
        signing: Option<PathBuf>,
        /// Keys that verify, several in each file.
        verification: Vec<PathBuf>,
    },
}

/// The content of the key file.
#[derive(Default, Serialize, Deserialize)]
struct KeyFile {
    keys: Vec<KeyFileEntry>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KeyFileEntry {
    created_at: FileTime,
    signs_from: FileTime,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    verifies_until: Option<FileTime>,
    /// PEM of PKCS#8.
    private_key: String,
}

/// A time in a key file, in RFC 3339 with seconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct FileTime(Timestamp);

/// What a rotation did.
pub struct KeyRotation {
    /// The file that was written.
    pub file: PathBuf,
    /// The ID of the new key.
    pub key_id: String,
    /// When the new key begins to sign.
    pub signs_from: SystemTime,
    /// When the keys before it end.
    pub previous_verify_until: SystemTime,
}

/// Keys that were valid when they were read first, and are read again when their files change.
pub struct KeySourceWatcher {
    source: KeySource,
    watcher: FileWatcher,
}

impl KeySource {
    /// Reads the keys. A key file that does not exist is made first.
    ///
    /// # Errors
    /// All problems of the files.
    pub fn open(self) -> Result<(KeySet, KeySourceWatcher), Problems> {
        if let KeySource::Directory(directory) = &self {
            create_key_file(directory, SystemTime::now())?;
        }
        // Before the first read, so that no change is missed.
        let watcher = FileWatcher::new(self.files());
        let keys = self.read()?;
        Ok((keys, KeySourceWatcher { source: self, watcher }))
    }

    /// Reads the keys without writing; none if there is no key file yet.
    ///
    /// # Errors
    /// All problems of the files.
    pub fn check(&self) -> Result<Option<KeySet>, Problems> {
        match self {
            KeySource::Directory(directory) if !directory.join(KEY_FILE_NAME).exists() => Ok(None),
            _ => self.read().map(Some),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        match self {
            KeySource::Directory(directory) => vec![directory.join(KEY_FILE_NAME)],
            KeySource::Files { signing, verification } => signing.iter().chain(verification).cloned().collect(),
        }
    }

    fn read(&self) -> Result<KeySet, Problems> {
        match self {
            KeySource::Directory(directory) => {
                let path = directory.join(KEY_FILE_NAME);
                let file = KeyFile::read(&path)?;
                let keys = file.keys.iter().map(|entry| entry.key(&path));
                Ok(KeySet::new(keys.collect::<Result<Vec<_>, Problem>>()?))
            }
            KeySource::Files { signing, verification } => {
                let mut problems = Problems::default();
                let mut keys = Vec::new();
                let of_file =
                    |material| TokenKey { material, signs_from: SystemTime::UNIX_EPOCH, verifies_until: None };
                if let Some(path) = signing {
                    let key = read_key(path, SigningKey::from_pem);
                    keys.extend(problems.collect(key).map(TokenKeyMaterial::Signing).map(of_file));
                }
                for path in verification {
                    let found = problems.collect(read_key(path, VerificationKey::all_from_pem)).unwrap_or_default();
                    keys.extend(found.into_iter().map(TokenKeyMaterial::Verification).map(of_file));
                }
                problems.into_result(KeySet::new(keys))
            }
        }
    }
}

impl KeySourceWatcher {
    /// Watches the files until the process ends and publishes valid keys. While a file is invalid, the last valid keys
    /// stay.
    pub async fn follow(mut self, publisher: Publisher<KeySet>, on_failure: OnFailure, mut drain: Drain) {
        let unusable = "keys of service account tokens changed and are invalid; the last good keys stay in use";
        let mut readings = ReloadReporter::new(unusable, on_failure);
        while self.watcher.changed_before_end(&mut drain).await {
            if let Some(keys) = readings.report(self.source.read()) {
                tracing::info!(keys = keys.keys().len(), "keys of service account tokens read again");
                publisher.publish(Arc::new(keys));
            }
        }
    }
}

impl KeyFile {
    fn read(path: &Path) -> Result<KeyFile, Problem> {
        let text = read_file(path)?;
        // The library's message might contain a part of a key.
        let malformed = |error: serde_json::Error| {
            Problem::new(path.display(), format!("is not a key file: line {}, column {}", error.line(), error.column()))
        };
        serde_json::from_slice(&text).map_err(malformed)
    }

    fn text(&self) -> String {
        // It cannot fail on a plain struct.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }
}

impl FileTime {
    /// A time that no file can have is the last one.
    fn new(time: SystemTime) -> FileTime {
        FileTime(Timestamp::try_from(time).unwrap_or(Timestamp::MAX))
    }
}

impl From<FileTime> for String {
    fn from(time: FileTime) -> String {
        format!("{:.0}", time.0)
    }
}

impl TryFrom<String> for FileTime {
    type Error = jiff::Error;

    fn try_from(text: String) -> Result<FileTime, jiff::Error> {
        text.parse().map(FileTime)
    }
}

impl KeyFileEntry {
    /// A new key.
    fn generate(now: SystemTime, signs_from: SystemTime, location: &Path) -> Result<KeyFileEntry, Problem> {
        let failed =
            |why: &dyn std::fmt::Display| Problem::new(location.display(), format!("cannot make a key: {why}"));
        let pair = KeyPair::generate().map_err(|error| failed(&error))?;
        Ok(KeyFileEntry {
            created_at: FileTime::new(now),
            signs_from: FileTime::new(signs_from),
            verifies_until: None,
            private_key: pair.serialize_pem(),
        })
    }

    fn key(&self, path: &Path) -> Result<TokenKey, Problem> {
        let read = SigningKey::from_pem(self.private_key.as_bytes());
        let signing = read.map_err(|why| {
            Problem::new(path.display(), format!("the key of {} cannot be used: {why}", String::from(self.created_at)))
        })?;
        Ok(TokenKey {
            material: TokenKeyMaterial::Signing(signing),
            signs_from: self.signs_from.0.into(),
            verifies_until: self.verifies_until.map(|until| until.0.into()),
        })
    }
}

/// Makes a new key and writes it to the key file of a directory. It signs after [`KEY_SET_MAX_AGE`], when all who cache the
/// key set have it; the keys before it verify until the last token is over that they may have signed by then.
///
/// # Errors
/// There is no key file, or it cannot be read or written; a key waits already.
pub fn rotate_keys(directory: &Path, max_lifetime: Duration, now: SystemTime) -> Result<KeyRotation, Problem> {
    let path = directory.join(KEY_FILE_NAME);
    // Of two rotations at once, the second sees the key of the first.
    let _lock = lock_directory(directory)?;
    let mut file = KeyFile::read(&path)?;
    let now_time = FileTime::new(now);
    if let Some(waiting) = file.keys.iter().find(|key| key.signs_from > now_time) {
        let at = String::from(waiting.signs_from);
        let message = format!("a new key begins to sign at {at}; rotate again after that");
        return Err(Problem::new(path.display(), message));
    }
    file.keys.retain(|key| key.verifies_until.is_none_or(|until| until > now_time));
    let signs_from = now + KEY_SET_MAX_AGE;
    let previous_verify_until = signs_from + max_lifetime;
    for key in &mut file.keys {
        key.verifies_until.get_or_insert(FileTime::new(previous_verify_until));
    }
    let entry = KeyFileEntry::generate(now, signs_from, &path)?;
    let key_id = entry.key(&path)?.public().key_id.clone();
    file.keys.push(entry);
    replace_file(&path, file.text(), 0o600)?;
    Ok(KeyRotation { file: path, key_id, signs_from, previous_verify_until })
}

/// Locks a directory until the file is dropped.
fn lock_directory(directory: &Path) -> Result<File, Problem> {
    let locked = File::open(directory).and_then(|file| file.lock().map(|()| file));
    locked.map_err(|error| Problem::new(directory.display(), format!("cannot be locked: {error}")))
}

/// Makes the key file if there is none, with a key that signs at once.
fn create_key_file(directory: &Path, now: SystemTime) -> Result<(), Problem> {
    let path = directory.join(KEY_FILE_NAME);
    if path.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(directory).map_err(|error| Problem::new(directory.display(), error))?;
    let file = KeyFile { keys: vec![KeyFileEntry::generate(now, now, &path)?] };
    match write_new(&path, &file.text(), 0o600) {
        Ok(()) => Ok(()),
        // Another process was first: its key counts.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(Problem::new(path.display(), format!("cannot be written: {error}"))),
    }
}

fn read_key<T>(path: &Path, parse: impl FnOnce(&[u8]) -> Result<T, String>) -> Result<T, Problem> {
    parse(&read_file(path)?).map_err(|why| Problem::new(path.display(), why))
}

fn read_file(path: &Path) -> Result<Vec<u8>, Problem> {
    std::fs::read(path).map_err(|error| Problem::new(path.display(), format!("cannot be read: {error}")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::authenticate::jwt::{UnverifiedToken, claims};

    fn verifies(keys: &KeySet, token: &str, now: SystemTime) -> bool {
        keys.verify(&UnverifiedToken::parse(token, claims(token).unwrap()).unwrap(), now).is_ok()
    }

    #[test]
    fn rotation_publishes_a_key_before_it_signs_and_ends_the_old_one_after_its_last_token() {
        let directory = tempfile::tempdir().unwrap();
        let source = KeySource::Directory(directory.path().to_owned());
        assert!(source.check().unwrap().is_none());
        let (before, _) = source.clone().open().unwrap();
        let now = SystemTime::now() + Duration::from_secs(1);
        let old = before.signing_key(now).unwrap();
        let token = old.sign(&json!({})).unwrap();
        let rotation = rotate_keys(directory.path(), EXTENDED_LIFETIME, now).unwrap();
        let after = source.check().unwrap().unwrap();
        assert_eq!(after.jwks(now)["keys"].as_array().unwrap().len(), 2);
        assert_eq!(after.signing_key(now).unwrap().public.key_id, old.public.key_id);
        let later = now + KEY_SET_MAX_AGE + Duration::from_secs(1);
        let new = after.signing_key(later).unwrap();
        assert_eq!(new.public.key_id, rotation.key_id);
        assert!(verifies(&after, &token, later) && verifies(&after, &new.sign(&json!({})).unwrap(), now));
        let over = later + EXTENDED_LIFETIME;
        assert!(!verifies(&after, &token, over));
        assert_eq!(after.jwks(over)["keys"].as_array().unwrap().len(), 1);
        // Not twice before the new key signs; after the end of the old key it is gone from the file.
        assert!(rotate_keys(directory.path(), EXTENDED_LIFETIME, now).is_err());
        // Nor twice at once.
        let both = [over, over].map(|now| {
            let directory = directory.path().to_owned();
            std::thread::spawn(move || rotate_keys(&directory, EXTENDED_LIFETIME, now).is_ok())
        });
        assert_eq!(both.map(|thread| thread.join().unwrap()).iter().filter(|rotated| **rotated).count(), 1);
        assert_eq!(source.check().unwrap().unwrap().keys().len(), 2);
    }

    #[test]
    fn problems_of_key_files_name_the_file_and_no_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(KEY_FILE_NAME);
        let source = KeySource::Directory(directory.path().to_owned());
        for content in ["", "s3cret", "{\"keys\": [{\"privateKey\": \"s3cret\"}]}"] {
            std::fs::write(&path, content).unwrap();
            let problem = source.clone().open().err().unwrap().to_string();
            assert!(problem.contains(KEY_FILE_NAME) && !problem.contains("s3cret"), "{problem}");
        }
        let files = KeySource::Files { signing: Some(path.clone()), verification: vec![path, "absent".into()] };
        assert_eq!(files.check().err().unwrap().0.len(), 3);
    }
}
