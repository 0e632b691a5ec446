//! Disk cache of backends' last good documents. After a restart they are served at once, marked `Stale`, also those of
//! a backend that does not answer.
//!
//! There is one file per APIService and kind of document, so that a change costs its own size. Content that is read is
//! validated like a response of the backend, and used only for the same backend.

use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};

use tokio::sync::oneshot;

use super::claim::ApiServiceClaim;
use super::polling::coalescing_queue::{CoalescingReceiver, CoalescingSender, coalescing_queue};
use crate::process::replace_file;

/// Version of the file format. Files of another version are ignored.
const FORMAT_VERSION: u32 = 1;
/// Maximum size of a file's content: the OpenAPI v2 document of a large cluster.
const MAX_SIZE: u64 = 64 << 20;

/// The cache directory; cheap to clone. May be disabled.
#[derive(Clone)]
pub struct DiskCache(Option<CacheDirectory>);

#[derive(Clone)]
struct CacheDirectory {
    directory: PathBuf,
    jobs: CoalescingSender<JobKey, CacheJob>,
}

/// Section of the cache for one kind of document.
#[derive(Clone)]
pub(crate) struct CacheSection {
    cache: DiskCache,
    kind: &'static str,
}

/// First line of a file.
#[derive(PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CacheHeader {
    form: u32,
    api_service: String,
    /// [`ApiServiceClaim::backend`].
    backend: String,
}

/// Key of a job: the file or directory, and whether the job reads it. Reads and writes are queued separately.
#[derive(Clone, PartialEq, Eq, Hash)]
struct JobKey {
    path: PathBuf,
    is_read: bool,
}

impl JobKey {
    fn write(path: PathBuf) -> JobKey {
        JobKey { path, is_read: false }
    }
}

enum CacheJob {
    Write {
        heading: CacheHeader,
        content: Box<dyn FnOnce() -> Option<Vec<u8>> + Send>,
    },
    Remove,
    Read(Box<dyn FnOnce(&Path) + Send>),
    /// Removes the files of all other APIServices.
    Sweep(Vec<String>),
}

impl DiskCache {
    /// A cache that stores nothing.
    pub fn disabled() -> DiskCache {
        DiskCache(None)
    }

    /// A cache in `directory`, which is created by the first write. If it cannot be written, nothing is cached.
    pub fn in_directory(directory: &Path) -> DiskCache {
        let (orders, received) = coalescing_queue();
        // Only this thread waits for the disk. It ends when the last handle is dropped.
        let writing = std::thread::Builder::new().name("disk-cache".into()).spawn(move || run_jobs(&received));
        if let Err(error) = writing {
            tracing::warn!(%error, "discovery cache disabled: its thread cannot be started");
            return DiskCache::disabled();
        }
        DiskCache(Some(CacheDirectory { directory: directory.to_owned(), jobs: orders }))
    }

    /// Removes the files of all APIServices except `names`.
    pub fn retain_only(&self, names: Vec<String>) {
        let Some(place) = &self.0 else { return };
        // Pending writes of the others are dropped.
        let stays = |file: &Path| names.iter().any(|name| file.file_name().is_some_and(|it| *it == *file_name(name)));
        place.jobs.retain(|about| about.path == place.directory || stays(&about.path));
        place.jobs.send(JobKey::write(place.directory.clone()), CacheJob::Sweep(names));
    }

    /// The section of `kind`, which is the name of a directory.
    pub(crate) fn section(&self, kind: &'static str) -> CacheSection {
        CacheSection { cache: self.clone(), kind }
    }

    fn submit(&self, file: PathBuf, order: CacheJob) {
        if let Some(place) = &self.0 {
            place.jobs.send(JobKey::write(file), order);
        }
    }
}

impl CacheSection {
    /// Reads the cached content of `known`; blocks on the disk. `None` also if the file is corrupt, or of another
    /// backend or format.
    pub(crate) fn read(&self, known: &ApiServiceClaim) -> Option<Vec<u8>> {
        read_matching(&self.path(&known.name)?, known)
    }

    /// Reads the cached content of `known` on the cache thread and parses it with `understood`. The result is sent when
    /// the disk has answered; without content the sender is dropped. `None` if nothing is cached.
    pub(crate) fn restore<T: Send + 'static>(
        &self,
        known: &ApiServiceClaim,
        understood: impl FnOnce(&[u8], &ApiServiceClaim) -> Option<T> + Send + 'static,
    ) -> Option<oneshot::Receiver<T>> {
        let place = self.cache.0.as_ref()?;
        let about = JobKey { path: self.path(&known.name)?, is_read: true };
        let (answer, comes) = oneshot::channel();
        let known = known.clone();
        let read = move |file: &Path| {
            if let Some(content) = read_matching(file, &known).and_then(|kept| understood(&kept, &known)) {
                // The receiver may be gone.
                let _ = answer.send(content);
            }
        };
        place.jobs.send(about, CacheJob::Read(Box::new(read)));
        Some(comes)
    }

    /// Stores `content` as the last good content of `known`, unless it is `None`. It is serialized on the cache thread.
    pub(crate) fn store(&self, known: &ApiServiceClaim, content: impl FnOnce() -> Option<Vec<u8>> + Send + 'static) {
        let heading = CacheHeader::new(known);
        if let Some(file) = self.path(&known.name) {
            self.cache.submit(file, CacheJob::Write { heading, content: Box::new(content) });
        }
    }

    /// Removes the cached content of an APIService.
    pub(crate) fn remove(&self, name: &str) {
        if let Some(file) = self.path(name) {
            self.cache.submit(file, CacheJob::Remove);
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        file_path(&self.cache.0.as_ref()?.directory, self.kind, name)
    }
}

impl CacheHeader {
    fn new(known: &ApiServiceClaim) -> CacheHeader {
        CacheHeader { form: FORMAT_VERSION, api_service: known.name.clone(), backend: known.backend.clone() }
    }
}

const SUFFIX: &str = ".gz";

/// Path of a file; `None` for an invalid name. Names of APIServices are DNS subdomains.
fn file_path(directory: &Path, kind: &str, name: &str) -> Option<PathBuf> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let fits = name.len() <= 240 && name.bytes().all(plain) && !name.starts_with('.');
    fits.then(|| directory.join(kind).join(file_name(name)))
}

fn file_name(name: &str) -> String {
    format!("{name}{SUFFIX}")
}

/// Content of `file`, if it belongs to `known`.
fn read_matching(file: &Path, known: &ApiServiceClaim) -> Option<Vec<u8>> {
    match read(file) {
        Ok(Some((heading, content))) if heading == CacheHeader::new(known) => Some(content),
        Ok(Some(_)) => {
            let apiservice = &known.name;
            tracing::info!(
                apiservice,
                file = %file.display(),
                "cached document ignored: saved for a different backend"
            );
            None
        }
        Ok(None) => None,
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "cached document ignored: cannot be read");
            None
        }
    }
}

fn read(file: &Path) -> std::io::Result<Option<(CacheHeader, Vec<u8>)>> {
    let opened = match File::open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut content = BufReader::new(GzDecoder::new(BufReader::new(opened)).take(MAX_SIZE + 1));
    let mut line = Vec::new();
    content.by_ref().take(1 << 20).read_until(b'\n', &mut line)?;
    let heading = serde_json::from_slice(&line)?;
    let mut rest = Vec::new();
    content.read_to_end(&mut rest)?;
    match rest.len() as u64 > MAX_SIZE - (1 << 20) {
        true => Err(std::io::Error::other(format!("more than {MAX_SIZE} bytes uncompressed"))),
        false => Ok(Some((heading, rest))),
    }
}

fn write(file: &Path, heading: &CacheHeader, content: &[u8]) -> Result<(), String> {
    if content.len() as u64 > MAX_SIZE - (2 << 20) {
        return Err(format!("{}: the document is too large to be cached", file.display()));
    }
    let mut packer = GzEncoder::new(Vec::new(), Compression::new(1));
    let packed = serde_json::to_writer(&mut packer, heading).map_err(std::io::Error::from).and_then(|()| {
        packer.write_all(b"\n")?;
        packer.write_all(content)?;
        packer.finish()
    });
    let packed = packed.map_err(|error| error.to_string())?;
    if let Some(directory) = file.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| format!("{}: cannot be created: {error}", directory.display()))?;
    }
    replace_file(file, packed, 0o600).map_err(|problem| problem.to_string())
}

fn run_jobs(orders: &CoalescingReceiver<JobKey, CacheJob>) {
    let mut failed = false;
    while let Some((JobKey { path, .. }, order)) = orders.recv() {
        let done = match order {
            CacheJob::Write { heading, content } => {
                content().map_or(Ok(()), |content| write(&path, &heading, &content))
            }
            CacheJob::Remove => {
                let _ = fs::remove_file(path);
                Ok(())
            }
            CacheJob::Read(read) => {
                read(&path);
                continue;
            }
            CacheJob::Sweep(names) => {
                remove_others(&path, &names);
                Ok(())
            }
        };
        if let Err(problem) = &done
            && !failed
        {
            tracing::warn!(problem, "discovery cache cannot be written");
        }
        failed = done.is_err();
    }
}

fn remove_others(directory: &Path, names: &[String]) {
    let kinds = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in kinds.filter_map(|kind| fs::read_dir(kind.path()).ok()).flatten().flatten() {
        let file = entry.file_name();
        // Unknown files are kept, except temporary files of a write that was interrupted.
        let ours = file.to_str().and_then(|name| name.strip_suffix(SUFFIX));
        let torn = file.to_str().is_some_and(|name| name.starts_with('.') && name.ends_with(".tmp"));
        if torn || ours.is_some_and(|name| !names.iter().any(|there| there == name)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::claim::ServedBy;
    use super::*;

    fn known(name: &str, backend: &str) -> ApiServiceClaim {
        ApiServiceClaim {
            name: name.into(),
            group: "g".into(),
            version: "v1".into(),
            group_priority_minimum: 1,
            version_priority: 1,
            service_key: String::new(),
            backend: backend.into(),
            served_by: ServedBy::Backend,
        }
    }

    #[test]
    fn disk_cache_read_only_for_same_backend() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("last-good");
        let kept = DiskCache::in_directory(&directory);
        let shelf = kept.section("discovery");
        assert_eq!(shelf.read(&known("v1.g", "b")), None);
        shelf.store(&known("v1.g", "b"), || Some(b"{\"a\":\n1}".to_vec()));
        while shelf.read(&known("v1.g", "b")).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(shelf.read(&known("v1.g", "b")).unwrap(), b"{\"a\":\n1}");
        assert_eq!(shelf.read(&known("v1.g", "c")), None, "another backend");
        assert_eq!(kept.section("openapi").read(&known("v1.g", "b")), None, "another kind");
        let file = directory.join("discovery/v1.g.gz");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&directory), mode(file.parent().unwrap())), (0o600, 0o700, 0o700));

        fs::rename(&file, directory.join("discovery/v1.h.gz")).unwrap();
        assert_eq!(shelf.read(&known("v1.h", "b")), None, "another APIService's");
        assert_eq!(DiskCache::disabled().section("discovery").read(&known("v1.g", "b")), None);
        for name in ["../v1.g", "a/b", ".g", "V1.g", &"a".repeat(241)] {
            assert_eq!(file_path(&directory, "discovery", name), None, "{name}");
        }
    }

    #[test]
    fn disk_cache_corrupt_or_foreign_file_ignored() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("discovery")).unwrap();
        let shelf = DiskCache::in_directory(dir.path()).section("discovery");
        let put = |bytes: &[u8]| fs::write(dir.path().join("discovery/v1.g.gz"), bytes).unwrap();
        let packed = |text: &[u8]| {
            let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
            packer.write_all(text).unwrap();
            packer.finish().unwrap()
        };
        let good = packed(b"{\"form\":1,\"apiService\":\"v1.g\",\"backend\":\"b\"}\nrest");
        put(&good);
        assert_eq!(shelf.read(&known("v1.g", "b")).unwrap(), b"rest");
        let cut = &good[..good.len() - 6];
        let bomb =
            packed(&[b"{\"form\":1,\"apiService\":\"v1.g\",\"backend\":\"b\"}\n", &vec![b' '; 65 << 20][..]].concat());
        let future = packed(b"{\"form\":2,\"apiService\":\"v1.g\",\"backend\":\"b\"}\nrest");
        for bytes in [&b""[..], b"no gzip", cut, &packed(b"no json\n"), &packed(b""), &bomb, &future] {
            put(bytes);
            assert_eq!(shelf.read(&known("v1.g", "b")), None);
        }
    }

    #[test]
    fn disk_cache_removes_unregistered() {
        let dir = tempfile::tempdir().unwrap();
        let kept = DiskCache::in_directory(dir.path());
        let shelf = kept.section("discovery");
        for name in ["v1.a", "v1.b", "v1.c"] {
            shelf.store(&known(name, "b"), || Some(Vec::new()));
        }
        shelf.remove("v1.a");
        shelf.store(&known("mark", "b"), || Some(Vec::new()));
        while shelf.read(&known("mark", "b")).is_none() {
            std::thread::yield_now();
        }
        fs::write(dir.path().join("discovery/.v1.d.gz.00.tmp"), "torn").unwrap();
        fs::write(dir.path().join("discovery/README"), "a person's").unwrap();
        kept.retain_only(vec!["v1.b".into()]);
        let names = || {
            let mut names: Vec<_> =
                fs::read_dir(dir.path().join("discovery")).unwrap().map(|it| it.unwrap().file_name()).collect();
            names.sort();
            names
        };
        while names().len() > 2 {
            std::thread::yield_now();
        }
        assert_eq!(names(), ["README", "v1.b.gz"]);
    }

    #[test]
    fn disk_cache_hanging_disk_queues_only_newest() {
        let dir = tempfile::tempdir().unwrap();
        let kept = DiskCache::in_directory(dir.path());
        let shelf = kept.section("discovery");
        let (release, hangs) = std::sync::mpsc::channel::<()>();
        let (began, begun) = std::sync::mpsc::channel();
        shelf.store(&known("v1.slow", "b"), move || {
            began.send(()).unwrap();
            hangs.recv().unwrap();
            None
        });
        begun.recv().unwrap();
        let content = std::sync::Arc::new(());
        for round in 0..100 {
            for name in ["v1.a", "v1.b", "v1.gone"] {
                let held = content.clone();
                shelf.store(&known(name, "b"), move || {
                    drop(held);
                    Some(format!("{name} {round}").into_bytes())
                });
            }
        }
        assert_eq!(std::sync::Arc::strong_count(&content), 1 + 3);
        shelf.remove("v1.b");
        kept.retain_only(vec!["v1.a".into(), "v1.b".into(), "v1.mark".into()]);
        assert_eq!(std::sync::Arc::strong_count(&content), 1 + 1);
        shelf.store(&known("v1.mark", "b"), || Some(Vec::new()));
        release.send(()).unwrap();
        while shelf.read(&known("v1.mark", "b")).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(shelf.read(&known("v1.a", "b")).unwrap(), b"v1.a 99");
        assert_eq!(["v1.b", "v1.gone", "v1.slow"].map(|name| shelf.read(&known(name, "b"))), [None, None, None]);
    }

    #[test]
    fn disk_cache_restores_on_writer_thread() {
        let dir = tempfile::tempdir().unwrap();
        let shelf = DiskCache::in_directory(dir.path()).section("discovery");
        let recall =
            |backend: &str| shelf.restore(&known("v1.g", backend), |kept, of| Some((kept.to_vec(), of.name.clone())));
        shelf.store(&known("v1.g", "b"), || Some(b"rest".to_vec()));
        // A read of a file does not replace a pending write of it.
        let (first, second) = (recall("b").unwrap(), recall("b").unwrap());
        assert_eq!(second.blocking_recv().unwrap(), (b"rest".to_vec(), "v1.g".to_owned()));
        drop(first);
        assert!(recall("c").unwrap().blocking_recv().is_err(), "another backend's");
        let nothing = DiskCache::disabled().section("discovery").restore(&known("v1.g", "b"), |_, _| Some(()));
        assert!(nothing.is_none());
    }

    #[test]
    fn disk_cache_unwritable_directory_caches_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("taken"), "").unwrap();
        let shelf = DiskCache::in_directory(&dir.path().join("taken")).section("discovery");
        shelf.store(&known("v1.g", "b"), || Some(Vec::new()));
        assert_eq!(shelf.read(&known("v1.g", "b")), None);
    }
}
