//! Disk cache of backends' last good documents. After a restart they are served at once, marked `Stale`, also those of
//! a backend that does not answer.
//!
//! There is one file per APIService and kind of document, so that a change costs its own size. Content that is read is
//! validated like a response of the backend, and used only for the same backend.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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

/// Jobs of all caches of the process. One thread waits for the disk, however many control planes have a cache. `None` if
/// it could not be started.
static JOBS: OnceLock<Option<CoalescingSender<JobKey, CacheJob>>> = OnceLock::new();

fn start_thread() -> Option<CoalescingSender<JobKey, CacheJob>> {
    let (sender, receiver) = coalescing_queue();
    let thread = std::thread::Builder::new().name("disk-cache".into()).spawn(move || run_jobs(&receiver));
    match thread {
        Ok(_) => Some(sender),
        Err(error) => {
            tracing::warn!(%error, "discovery cache disabled: its thread cannot be started");
            None
        }
    }
}

enum CacheJob {
    Write {
        header: CacheHeader,
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
        let jobs = JOBS.get_or_init(start_thread).clone();
        DiskCache(jobs.map(|jobs| CacheDirectory { directory: directory.to_owned(), jobs }))
    }

    /// Removes the files of all APIServices except `names`.
    pub fn retain_only(&self, names: Vec<String>) {
        let Some(CacheDirectory { directory, jobs }) = &self.0 else { return };
        // Pending writes of the others are dropped. Jobs of other directories are in the same queue.
        let is_retained =
            |file: &Path| names.iter().any(|name| file.file_name().is_some_and(|it| *it == *file_name(name)));
        let is_in_directory = |file: &Path| file.ancestors().nth(2) == Some(directory);
        jobs.retain(|key| !is_in_directory(&key.path) || is_retained(&key.path));
        jobs.send(JobKey::write(directory.clone()), CacheJob::Sweep(names));
    }

    /// The section of `kind`, which is the name of a directory.
    pub(crate) fn section(&self, kind: &'static str) -> CacheSection {
        CacheSection { cache: self.clone(), kind }
    }

    fn submit(&self, file: PathBuf, job: CacheJob) {
        if let Some(cache) = &self.0 {
            cache.jobs.send(JobKey::write(file), job);
        }
    }
}

impl CacheSection {
    /// Reads the cached content of `claim`; blocks on the disk. `None` also if the file is corrupt, or of another
    /// backend or format.
    pub(crate) fn read(&self, claim: &ApiServiceClaim) -> Option<Vec<u8>> {
        read_matching(&self.path(&claim.name)?, claim)
    }

    /// Reads the cached content of `claim` on the cache thread and parses it with `parse`. The result is sent when
    /// the disk has answered; without content the sender is dropped. `None` if nothing is cached.
    pub(crate) fn restore<T: Send + 'static>(
        &self,
        claim: &ApiServiceClaim,
        parse: impl FnOnce(&[u8], &ApiServiceClaim) -> Option<T> + Send + 'static,
    ) -> Option<oneshot::Receiver<T>> {
        let cache = self.cache.0.as_ref()?;
        let key = JobKey { path: self.path(&claim.name)?, is_read: true };
        let (sender, receiver) = oneshot::channel();
        let claim = claim.clone();
        let read = move |file: &Path| {
            if let Some(content) = read_matching(file, &claim).and_then(|content| parse(&content, &claim)) {
                // The receiver may be gone.
                let _ = sender.send(content);
            }
        };
        cache.jobs.send(key, CacheJob::Read(Box::new(read)));
        Some(receiver)
    }

    /// Stores `content` as the last good content of `claim`, unless it is `None`. It is serialized on the cache thread.
    pub(crate) fn store(&self, claim: &ApiServiceClaim, content: impl FnOnce() -> Option<Vec<u8>> + Send + 'static) {
        let header = CacheHeader::new(claim);
        if let Some(file) = self.path(&claim.name) {
            self.cache.submit(file, CacheJob::Write { header, content: Box::new(content) });
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
    fn new(claim: &ApiServiceClaim) -> CacheHeader {
        CacheHeader { form: FORMAT_VERSION, api_service: claim.name.clone(), backend: claim.backend.clone() }
    }
}

const SUFFIX: &str = ".gz";

/// Path of a file; `None` for an invalid name. Names of APIServices are DNS subdomains.
fn file_path(directory: &Path, kind: &str, name: &str) -> Option<PathBuf> {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_valid = name.len() <= 240 && name.bytes().all(is_allowed) && !name.starts_with('.');
    is_valid.then(|| directory.join(kind).join(file_name(name)))
}

fn file_name(name: &str) -> String {
    format!("{name}{SUFFIX}")
}

/// Content of `file`, if it belongs to `claim`.
fn read_matching(file: &Path, claim: &ApiServiceClaim) -> Option<Vec<u8>> {
    match read(file) {
        Ok(Some((header, content))) if header == CacheHeader::new(claim) => Some(content),
        Ok(Some(_)) => {
            let apiservice = &claim.name;
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
    let file = match File::open(file) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut content = BufReader::new(GzDecoder::new(BufReader::new(file)).take(MAX_SIZE + 1));
    let mut line = Vec::new();
    content.by_ref().take(1 << 20).read_until(b'\n', &mut line)?;
    let header = serde_json::from_slice(&line)?;
    let mut rest = Vec::new();
    content.read_to_end(&mut rest)?;
    match rest.len() as u64 > MAX_SIZE - (1 << 20) {
        true => Err(std::io::Error::other(format!("more than {MAX_SIZE} bytes uncompressed"))),
        false => Ok(Some((header, rest))),
    }
}

fn write(file: &Path, header: &CacheHeader, content: &[u8]) -> Result<(), String> {
    if content.len() as u64 > MAX_SIZE - (2 << 20) {
        return Err(format!("{}: the document is too large to be cached", file.display()));
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(1));
    let encoded = serde_json::to_writer(&mut encoder, header).map_err(std::io::Error::from).and_then(|()| {
        encoder.write_all(b"\n")?;
        encoder.write_all(content)?;
        encoder.finish()
    });
    let encoded = encoded.map_err(|error| error.to_string())?;
    if let Some(directory) = file.parent() {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        created.map_err(|error| format!("{}: cannot be created: {error}", directory.display()))?;
    }
    replace_file(file, encoded, 0o600).map_err(|problem| problem.to_string())
}

fn run_jobs(jobs: &CoalescingReceiver<JobKey, CacheJob>) {
    // Caches whose last write failed: one log line until they can be written again.
    let mut failed = HashSet::new();
    while let Some((JobKey { path, .. }, job)) = jobs.recv() {
        // A panic ends only its job.
        let result = catch_unwind(AssertUnwindSafe(|| run_job(&path, job)));
        let directory = path.ancestors().nth(2).unwrap_or(&path);
        match result {
            Ok(Some(Ok(()))) => {
                failed.remove(directory);
            }
            Ok(Some(Err(problem))) if failed.insert(directory.to_owned()) => {
                tracing::warn!(problem, "discovery cache cannot be written");
            }
            _ => {}
        }
    }
}

/// The result of a write; `None` if nothing was written.
fn run_job(path: &Path, job: CacheJob) -> Option<Result<(), String>> {
    match job {
        CacheJob::Write { header, content } => return content().map(|content| write(path, &header, &content)),
        CacheJob::Remove => drop(fs::remove_file(path)),
        CacheJob::Read(read) => read(path),
        CacheJob::Sweep(names) => remove_others(path, &names),
    }
    None
}

fn remove_others(directory: &Path, names: &[String]) {
    let kinds = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in kinds.filter_map(|kind| fs::read_dir(kind.path()).ok()).flatten().flatten() {
        let file = entry.file_name();
        // Unknown files are kept, except temporary files of a write that was interrupted.
        let name = file.to_str().and_then(|name| name.strip_suffix(SUFFIX));
        let is_temporary = file.to_str().is_some_and(|name| name.starts_with('.') && name.ends_with(".tmp"));
        if is_temporary || name.is_some_and(|name| !names.iter().any(|registered| registered == name)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::claim::ServedBy;
    use super::*;

    fn claim(name: &str, backend: &str) -> ApiServiceClaim {
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
        let cache = DiskCache::in_directory(&directory);
        let section = cache.section("discovery");
        assert_eq!(section.read(&claim("v1.g", "b")), None);
        section.store(&claim("v1.g", "b"), || Some(b"{\"a\":\n1}".to_vec()));
        while section.read(&claim("v1.g", "b")).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(section.read(&claim("v1.g", "b")).unwrap(), b"{\"a\":\n1}");
        assert_eq!(section.read(&claim("v1.g", "c")), None, "another backend");
        assert_eq!(cache.section("openapi").read(&claim("v1.g", "b")), None, "another kind");
        let file = directory.join("discovery/v1.g.gz");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&directory), mode(file.parent().unwrap())), (0o600, 0o700, 0o700));

        fs::rename(&file, directory.join("discovery/v1.h.gz")).unwrap();
        assert_eq!(section.read(&claim("v1.h", "b")), None, "another APIService's");
        assert_eq!(DiskCache::disabled().section("discovery").read(&claim("v1.g", "b")), None);
        for name in ["../v1.g", "a/b", ".g", "V1.g", &"a".repeat(241)] {
            assert_eq!(file_path(&directory, "discovery", name), None, "{name}");
        }
    }

    #[test]
    fn disk_cache_corrupt_or_foreign_file_ignored() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("discovery")).unwrap();
        let section = DiskCache::in_directory(dir.path()).section("discovery");
        let put = |bytes: &[u8]| fs::write(dir.path().join("discovery/v1.g.gz"), bytes).unwrap();
        let encoded = |text: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text).unwrap();
            encoder.finish().unwrap()
        };
        let good = encoded(b"{\"form\":1,\"apiService\":\"v1.g\",\"backend\":\"b\"}\nrest");
        put(&good);
        assert_eq!(section.read(&claim("v1.g", "b")).unwrap(), b"rest");
        let cut = &good[..good.len() - 6];
        let bomb =
            encoded(&[b"{\"form\":1,\"apiService\":\"v1.g\",\"backend\":\"b\"}\n", &vec![b' '; 65 << 20][..]].concat());
        let future = encoded(b"{\"form\":2,\"apiService\":\"v1.g\",\"backend\":\"b\"}\nrest");
        for bytes in [&b""[..], b"no gzip", cut, &encoded(b"no json\n"), &encoded(b""), &bomb, &future] {
            put(bytes);
            assert_eq!(section.read(&claim("v1.g", "b")), None);
        }
    }

    #[test]
    fn disk_cache_removes_unregistered() {
        let dir = tempfile::tempdir().unwrap();
        let cache = DiskCache::in_directory(dir.path());
        let section = cache.section("discovery");
        for name in ["v1.a", "v1.b", "v1.c"] {
            section.store(&claim(name, "b"), || Some(Vec::new()));
        }
        section.remove("v1.a");
        section.store(&claim("mark", "b"), || Some(Vec::new()));
        while section.read(&claim("mark", "b")).is_none() {
            std::thread::yield_now();
        }
        fs::write(dir.path().join("discovery/.v1.d.gz.00.tmp"), "torn").unwrap();
        fs::write(dir.path().join("discovery/README"), "a person's").unwrap();
        cache.retain_only(vec!["v1.b".into()]);
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
        let cache = DiskCache::in_directory(dir.path());
        let section = cache.section("discovery");
        let (release, hangs) = std::sync::mpsc::channel::<()>();
        let (started, has_started) = std::sync::mpsc::channel();
        section.store(&claim("v1.slow", "b"), move || {
            started.send(()).unwrap();
            hangs.recv().unwrap();
            None
        });
        has_started.recv().unwrap();
        let content = std::sync::Arc::new(());
        for round in 0..100 {
            for name in ["v1.a", "v1.b", "v1.gone"] {
                let held = content.clone();
                section.store(&claim(name, "b"), move || {
                    drop(held);
                    Some(format!("{name} {round}").into_bytes())
                });
            }
        }
        assert_eq!(std::sync::Arc::strong_count(&content), 1 + 3);
        section.remove("v1.b");
        let other = DiskCache::in_directory(&dir.path().join("other")).section("discovery");
        other.store(&claim("v1.gone", "b"), || Some(b"of another cache".to_vec()));
        cache.retain_only(vec!["v1.a".into(), "v1.b".into(), "v1.mark".into()]);
        assert_eq!(std::sync::Arc::strong_count(&content), 1 + 1);
        section.store(&claim("v1.mark", "b"), || Some(Vec::new()));
        release.send(()).unwrap();
        while section.read(&claim("v1.mark", "b")).is_none() {
            std::thread::yield_now();
        }
        assert_eq!(section.read(&claim("v1.a", "b")).unwrap(), b"v1.a 99");
        assert_eq!(other.read(&claim("v1.gone", "b")).unwrap(), b"of another cache");
        assert_eq!(["v1.b", "v1.gone", "v1.slow"].map(|name| section.read(&claim(name, "b"))), [None, None, None]);
    }

    #[test]
    fn disk_cache_restores_on_cache_thread() {
        let dir = tempfile::tempdir().unwrap();
        let section = DiskCache::in_directory(dir.path()).section("discovery");
        let restore = |backend: &str| {
            section.restore(&claim("v1.g", backend), |content, claim| Some((content.to_vec(), claim.name.clone())))
        };
        section.store(&claim("v1.g", "b"), || Some(b"rest".to_vec()));
        // A read of a file does not replace a pending write of it.
        let (first, second) = (restore("b").unwrap(), restore("b").unwrap());
        assert_eq!(second.blocking_recv().unwrap(), (b"rest".to_vec(), "v1.g".to_owned()));
        drop(first);
        assert!(restore("c").unwrap().blocking_recv().is_err(), "another backend's");
        let nothing = DiskCache::disabled().section("discovery").restore(&claim("v1.g", "b"), |_, _| Some(()));
        assert!(nothing.is_none());
    }

    #[test]
    fn disk_cache_panic_of_a_job_ends_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let section = DiskCache::in_directory(dir.path()).section("discovery");
        section.store(&claim("v1.g", "b"), || panic!("expected by the test"));
        section.store(&claim("v1.h", "b"), || Some(b"rest".to_vec()));
        let restored = section.restore(&claim("v1.h", "b"), |content, _| Some(content.to_vec())).unwrap();
        assert_eq!(restored.blocking_recv().unwrap(), b"rest");
    }

    #[test]
    fn disk_cache_unwritable_directory_caches_nothing() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("taken"), "").unwrap();
        let section = DiskCache::in_directory(&dir.path().join("taken")).section("discovery");
        section.store(&claim("v1.g", "b"), || Some(Vec::new()));
        assert_eq!(section.read(&claim("v1.g", "b")), None);
    }
}
