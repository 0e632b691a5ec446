//! A directory of authorities and certificates: `PAIR_NAME.crt` beside `PAIR_NAME.key`.

use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use crate::process::{Problem, replace_file, write_new};
use crate::tls::generate::authority::{Authority, CertificateUsage, Issued, KeyType};
use crate::tls::key_pair::PairFiles;

/// The kinds of certificates. Each kind has its own authority, so that a certificate of one kind is not
/// trusted as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CertificateKind {
    /// The gateway's serving certificate.
    Serving,
    /// Client certificates.
    Client,
    /// Front-proxy client certificates, for servers that trust `X-Remote-*` headers.
    RequestHeader,
    /// Serving certificates of backends.
    Backend,
}

/// A directory of certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateStore {
    directory: PathBuf,
    key_type: KeyType,
}

impl CertificateKind {
    /// All kinds.
    pub const ALL: [CertificateKind; 4] =
        [CertificateKind::Serving, CertificateKind::Client, CertificateKind::RequestHeader, CertificateKind::Backend];

    /// The name, as in `pki issue --ca`.
    pub fn name(self) -> &'static str {
        match self {
            CertificateKind::Serving => "serving",
            CertificateKind::Client => "client",
            CertificateKind::RequestHeader => "requestheader",
            CertificateKind::Backend => "backend",
        }
    }

    /// The authority's file name without suffix.
    pub fn authority_name(self) -> String {
        format!("{}-ca", self.name())
    }

    /// The authority's common name.
    pub fn common_name(self) -> String {
        format!("narthex-{}-ca", self.name())
    }

    /// The purpose of the certificates that the authority issues.
    pub fn purpose(self) -> CertificateUsage {
        match self {
            CertificateKind::Serving | CertificateKind::Backend => CertificateUsage::Serving,
            CertificateKind::Client | CertificateKind::RequestHeader => CertificateUsage::Client,
        }
    }
}

impl FromStr for CertificateKind {
    type Err = String;

    fn from_str(text: &str) -> Result<CertificateKind, String> {
        CertificateKind::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| format!("{text:?} is none of serving, client, requestheader, backend"))
    }
}

impl fmt::Display for CertificateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl CertificateStore {
    /// The store in `directory`; nothing is read or written yet.
    pub fn new(directory: impl Into<PathBuf>) -> CertificateStore {
        CertificateStore { directory: directory.into(), key_type: KeyType::default() }
    }

    /// The same store, whose new authorities have keys of this type.
    #[must_use]
    pub fn with_key_type(self, key_type: KeyType) -> CertificateStore {
        CertificateStore { key_type, ..self }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The files of the pair `name`.
    pub fn files(&self, name: &str) -> PairFiles {
        PairFiles::new(self.directory.join(format!("{name}.crt")), self.directory.join(format!("{name}.key")))
    }

    /// The files of an authority.
    pub fn authority_files(&self, kind: CertificateKind) -> PairFiles {
        self.files(&kind.authority_name())
    }

    /// Creates the directory, accessible to its owner only, if it does not exist.
    pub fn create_directory(&self) -> Result<(), Problem> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)
            .map_err(|error| Problem::new(self.directory.display(), format!("cannot be created: {error}")))
    }

    /// Loads an authority; if it is missing, the message names the command that creates it.
    pub fn load_authority(&self, kind: CertificateKind) -> Result<Authority, Problem> {
        let files = self.authority_files(kind);
        if !files.certificate.exists() && !files.key.exists() {
            let directory = self.directory.display();
            let message =
                format!("there is no {kind} authority here; \"narthex pki init --dir {directory}\" creates one");
            return Err(Problem::new(files.location(), message));
        }
        Authority::load(&files)
    }

    /// Creates an authority; fails if either file exists.
    pub fn create_authority(&self, kind: CertificateKind, now: SystemTime) -> Result<Authority, Problem> {
        let (authority, issued) = Authority::with_key_type(&kind.common_name(), self.key_type, now)?;
        self.write_new_pair(&kind.authority_name(), &issued)?;
        Ok(authority)
    }

    /// Loads an authority, creates it if it is missing, and renews it with its key if `worn` is true for
    /// it. The returned flag tells whether a file was written.
    pub(in crate::tls) fn ensure_authority(
        &self,
        kind: CertificateKind,
        now: SystemTime,
        worn: impl Fn(&Authority) -> bool,
    ) -> Result<(Authority, bool), Problem> {
        let files = self.authority_files(kind);
        if files.certificate.exists() {
            let authority = Authority::load(&files)?;
            if !worn(&authority) {
                return Ok((authority, false));
            }
            let (authority, issued) = Authority::with_key(&kind.common_name(), load_signing_key(&files)?, now)?;
            replace_file(&files.certificate, &issued.certificate, 0o644)?;
            return Ok((authority, true));
        }
        // The key first: a process that finds the key alone (after a crash, or started at the same time) signs with it.
        if !files.key.exists() {
            let (_, issued) = Authority::with_key_type(&kind.common_name(), self.key_type, now)?;
            ignore_already_exists(write_new(&files.key, &issued.key, 0o600))?;
        }
        let (_, issued) = Authority::with_key(&kind.common_name(), load_signing_key(&files)?, now)?;
        ignore_already_exists(write_new(&files.certificate, &issued.certificate, 0o644))?;
        Ok((Authority::load(&files)?, true))
    }

    /// Writes a new pair; fails if either file exists.
    pub fn write_new_pair(&self, name: &str, issued: &Issued) -> Result<PairFiles, Problem> {
        let files = self.files(name);
        for path in [&files.certificate, &files.key] {
            if path.symlink_metadata().is_ok() {
                return Err(already_exists(path));
            }
        }
        let problem = |path: &Path, error: io::Error| match error.kind() {
            io::ErrorKind::AlreadyExists => already_exists(path),
            _ => Problem::new(path.display(), format!("cannot be written: {error}")),
        };
        write_new(&files.key, &issued.key, 0o600).map_err(|error| problem(&files.key, error))?;
        write_new(&files.certificate, &issued.certificate, 0o644)
            .map_err(|error| problem(&files.certificate, error))?;
        Ok(files)
    }

    /// Replaces a pair. A reader between the two renames finds a pair that does not match, and keeps its old one.
    pub(in crate::tls) fn replace_pair(&self, name: &str, issued: &Issued) -> Result<PairFiles, Problem> {
        let files = self.files(name);
        replace_file(&files.key, &issued.key, 0o600)?;
        replace_file(&files.certificate, &issued.certificate, 0o644)?;
        Ok(files)
    }
}

/// The problem of a file that exists and is not overwritten.
pub(crate) fn already_exists(path: &Path) -> Problem {
    Problem::new(path.display(), "exists already and is not overwritten; move it away or choose another name")
}

fn ignore_already_exists(result: io::Result<()>) -> Result<(), Problem> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Problem::new("certificate", format!("cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

fn load_signing_key(files: &PairFiles) -> Result<rcgen::KeyPair, Problem> {
    let pem = fs::read_to_string(&files.key)
        .map_err(|error| Problem::new(files.key.display(), format!("cannot be read: {error}")))?;
    rcgen::KeyPair::from_pem(&pem).map_err(|_| Problem::new(files.key.display(), "contains no signing key"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::tls::{CertificateSpec, KeyPair};

    #[test]
    fn certificate_store_private_keys_and_no_overwrite() {
        let dir = tempfile::tempdir().unwrap();
        let store = CertificateStore::new(dir.path().join("pki"));
        store.create_directory().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(store.directory()), 0o700);
        let (authority, made) = store.ensure_authority(CertificateKind::Client, SystemTime::now(), |_| false).unwrap();
        assert!(made);
        let issued = authority.issue(&CertificateSpec::client("jane", &[]), SystemTime::now()).unwrap();
        let files = store.write_new_pair("jane", &issued).unwrap();
        assert_eq!((mode(&files.key), mode(&store.authority_files(CertificateKind::Client).key)), (0o600, 0o600));
        assert!(KeyPair::load(&files).is_ok());
        let before = fs::read(&files.key).unwrap();
        let other = authority.issue(&CertificateSpec::client("jim", &[]), SystemTime::now()).unwrap();
        assert!(store.write_new_pair("jane", &other).unwrap_err().message.contains("not overwritten"));
        fs::remove_file(&files.certificate).unwrap();
        assert!(store.write_new_pair("jane", &other).is_err());
        assert_eq!(fs::read(&files.key).unwrap(), before);
        assert!(write_new(&files.key, "x", 0o600).is_err());
        let names: Vec<_> = fs::read_dir(store.directory()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names.len(), 3, "nothing temporary stays: {names:?}");
    }

    #[test]
    fn certificate_store_key_alone_becomes_authority() {
        let dir = tempfile::tempdir().unwrap();
        let store = CertificateStore::new(dir.path());
        let files = store.authority_files(CertificateKind::Serving);
        store.ensure_authority(CertificateKind::Serving, SystemTime::now(), |_| false).unwrap();
        let key = fs::read(&files.key).unwrap();
        fs::remove_file(&files.certificate).unwrap();
        let (authority, made) = store.ensure_authority(CertificateKind::Serving, SystemTime::now(), |_| false).unwrap();
        assert!(made);
        assert_eq!(fs::read(&files.key).unwrap(), key);
        assert!(authority.info().is_authority);
        fs::remove_file(&files.key).unwrap();
        let problem = store.ensure_authority(CertificateKind::Serving, SystemTime::now(), |_| false).err().unwrap();
        assert!(problem.location.contains("serving-ca.key"), "{problem}");
    }
}
